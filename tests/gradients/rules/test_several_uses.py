"""Layers that are called several times, tied tables and LoRA: equal to a loop over the rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients import rules
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.rules.base import Rule
from tfdp.gradients.rules.dense import products
from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.gradients.testing import assert_equal_sums, check_model, loop_bounded_sum, run_engine


def twice(layer, *shapes, integers=False):
    inputs = [keras.Input(shape, dtype="int32" if integers else None) for shape in shapes]
    return keras.Model(inputs, [layer(x) for x in inputs])


def chain():
    x, layer = keras.Input((4,)), layers.Dense(4, activation="tanh")
    return keras.Model(x, layers.Dense(2)(layer(layer(layer(x)))))


def nested():
    inner = keras.Sequential(
        [keras.Input((6,)), layers.Dense(6, activation="tanh"), layers.LayerNormalization()]
    )
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(2)(inner(inner(x))))


def attention():
    a, b, layer = keras.Input((4, 6)), keras.Input((5, 6)), layers.MultiHeadAttention(2, 3)
    return keras.Model([a, b], [layer(a, b), layer(b, a)])


def over_time(layer, *shape):
    return keras.Sequential([keras.Input(shape), layers.TimeDistributed(layer)])


def frames():
    inner = [keras.Input((5, 5, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(3)]
    return over_time(keras.Sequential(inner), 3, 5, 5, 1)


def one_variable_in_two_layers():
    x, first, second = keras.Input((4,)), layers.Dense(4), layers.Dense(4, use_bias=False)
    model = keras.Model(x, second(layers.Activation("tanh")(first(x))))
    second._tracker.unlock()
    second._untrack_variable(second.kernel)
    second._kernel = first.kernel
    return model


def penalized():
    a, b = keras.Input((4,)), keras.Input((4,))
    layer = layers.Dense(3, activity_regularizer="l2")
    return keras.Model([a, b], layers.Add()([layer(a), layer(b)]))


FLOATS = {
    "dense": lambda: twice(layers.Dense(3), (5, 4), (7, 4)),
    "dense of other ranks": lambda: twice(layers.Dense(3), (4,), (7, 4)),
    "images of other sizes": lambda: twice(layers.Conv2D(3, 3), (6, 6, 2), (9, 7, 2)),
    "separable": lambda: twice(layers.SeparableConv1D(3, 3), (6, 2), (6, 2)),
    "gru": lambda: twice(layers.GRU(2), (3, 2), (2, 2)),
    "chain": chain,
    "nested": nested,
    "attention": attention,
    "over time": lambda: over_time(layers.Dense(3, activation="tanh"), 5, 4),
    "frames": frames,
    "one variable": one_variable_in_two_layers,
    "activity regularizer": penalized,
}


@pytest.mark.parametrize("name", FLOATS)
def test_layers_that_are_called_several_times(name):
    check_model(FLOATS[name](), rows=3, vectorizes=False)


@pytest.mark.parametrize("name", ["dense", "nested", "frames"])
@pytest.mark.parametrize("options", [{"jit_compile": True}, {"microbatch_size": 2, "rows": 6}])
def test_several_calls_under_xla_and_in_microbatches(name, options):
    check_model(FLOATS[name](), **options)


def tied(size=9, width=4, lora=False, **options):
    tokens = keras.Input((5,), dtype="int32")
    table = layers.ReversibleEmbedding(size, width, **options)
    hidden = layers.Dense(width, activation="tanh")(table(tokens))
    model = keras.Model(tokens, table(hidden, reverse=True))
    if lora:
        table.enable_lora(2, lora_alpha=3)
    return model


TOKENS = {
    "embedding": lambda: twice(layers.Embedding(9, 4), (5,), (3,), integers=True),
    "tied": tied,
    "tied, large": lambda: tied(700, 32),
    "soft cap": lambda: tied(logit_soft_cap=2.0),
    "not tied": lambda: tied(tie_weights=False),
    "tied, LoRA": lambda: tied(lora=True, logit_soft_cap=2.0),
    "tied, LoRA, large": lambda: tied(700, 32, lora=True),
    "not tied, LoRA": lambda: tied(tie_weights=False, lora=True),
}


@pytest.mark.parametrize("name", TOKENS)
def test_tables_that_are_used_several_times(name):
    check_model(TOKENS[name](), integers=9, rows=3, vectorizes=False)


@pytest.mark.parametrize("name", ["tied", "tied, large", "tied, LoRA"])
@pytest.mark.parametrize("options", [{"jit_compile": True}, {"microbatch_size": 2, "rows": 6}])
def test_tied_tables_under_xla_and_in_microbatches(name, options):
    # The norms of large tables are sums of many squares.
    check_model(TOKENS[name](), integers=9, tolerance=3e-5, **options)


def test_a_tied_table_keeps_its_mask():
    tokens = keras.Input((5,), dtype="int32")
    table = layers.ReversibleEmbedding(4, 3, mask_zero=True)
    hidden = layers.LSTM(3, return_sequences=True)(table(tokens))
    model = keras.Model(tokens, table(hidden, reverse=True))
    model.compile(loss="mse")
    assert rows_are_separate(model, owners(model))
    generator = np.random.default_rng(0)
    x = tf.constant(generator.integers(0, 3, (4, 5)), tf.int32)
    y = tf.constant(generator.normal(size=(4, 5, 4)), tf.float32)
    arguments = (Forward(model), GlobalL2Clip(1e-3), x, y, tf.ones([4]))
    ours = run_engine(ghost.bounded_sum, *arguments)
    assert_equal_sums(ours, loop_bounded_sum(*arguments, tf.constant(0)), 1e-4)


class TiedHead(layers.Layer):
    """Logits by the table of an Embedding."""

    def __init__(self, embedding):
        super().__init__()
        self.embedding = embedding

    def call(self, states):
        return tf.matmul(states, self.embedding.embeddings, transpose_b=True)


class TiedHeadRule(Rule):
    def variables(self):
        return self.layer.embedding.trainable_variables

    def call(self, record, states):
        return record(type(self.layer).call(self.layer, states), states=states)

    def gradients(self, calls):
        (call,) = calls
        return [(self.layer.embedding.embeddings, products(call.gradient, call["states"]))]


def tied_by_operations(size=9):
    tokens, table = keras.Input((5,), dtype="int32"), layers.Embedding(size, 4)
    states = layers.Dense(4, activation="tanh")(table(tokens))

    def logits(states):
        return keras.ops.matmul(states, keras.ops.transpose(table.embeddings))

    return keras.Model(tokens, layers.Lambda(logits)(states))


def tied_in_a_layer():
    tokens, table = keras.Input((5,), dtype="int32"), layers.Embedding(9, 4)
    return keras.Model(tokens, TiedHead(table)(layers.Dense(4)(table(tokens))))


@pytest.mark.parametrize("make", [tied_by_operations, tied_in_a_layer])
@pytest.mark.parametrize(
    "options", [{}, {"jit_compile": True}, {"microbatch_size": 2, "rows": 6}], ids=str
)
def test_products_with_a_table_outside_of_its_layer(make, options):
    check_model(make(), integers=9, **{"rows": 3, **options})


def test_other_uses_of_a_table_outside_of_its_layer_are_refused():
    tokens, table = keras.Input((5,), dtype="int32"), layers.Embedding(9, 4)
    states = layers.Dense(4)(table(tokens))
    lengths = layers.Lambda(lambda h: h + tf.norm(table.embeddings))(states)
    assert "outside the layer that owns it" in ghost.supports(keras.Model(tokens, lengths))


def test_a_layer_of_ones_own_may_share_a_table(monkeypatch):
    monkeypatch.setitem(rules._REGISTRY, (TiedHead, False), TiedHeadRule)
    tokens, table = keras.Input((5,), dtype="int32"), layers.Embedding(9, 4)
    model = keras.Model(tokens, TiedHead(table)(layers.Dense(4)(table(tokens))))
    check_model(model, integers=9, rows=3, vectorizes=False)


def test_a_rule_that_covers_a_layer_inside_counts_it_once(monkeypatch):
    class Around(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.Dense(3, name="counted")

        def build(self, shape):
            self.inner.build(shape)

        def call(self, inputs):
            return self.inner(inputs)

    class AroundRule(TiedHeadRule):
        def variables(self):
            return self.layer.inner.trainable_variables

        def gradients(self, calls):
            raise AssertionError("not reached")

    monkeypatch.setitem(rules._REGISTRY, (Around, False), AroundRule)
    inputs, around = keras.Input((4,)), Around()
    model = keras.Model(inputs, layers.Add()([around(inputs), around.inner(inputs)]))
    assert "counted twice" in ghost.supports(model)


LORA = {
    "dense": (lambda: layers.Dense(5, activation="tanh"), [(4,)]),
    "dense over positions": (lambda: layers.Dense(5, use_bias=False), [(7, 4)]),
    "dense, twice": (lambda: layers.Dense(5), [(7, 4), (3, 4)]),
    "query": (
        lambda: layers.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de"),
        [(7, 4)],
    ),
    "attention output": (
        lambda: layers.EinsumDense("abde,dec->abc", (None, 5), bias_axes="c"),
        [(7, 2, 3)],
    ),
    "transposed kernel": (lambda: layers.EinsumDense("ab,cb->ac", 5), [(4,)]),
    "ellipsis": (lambda: layers.EinsumDense("...x,xy->...y", 5, activation="relu"), [(3, 4)]),
}


def adapted(name, dtype=None, frozen=True):
    make, shapes = LORA[name]
    layer = make()
    layer.dtype_policy = dtype or "float32"
    model = twice(layer, *shapes)
    layer.enable_lora(2, lora_alpha=3)
    if not frozen:
        layer._kernel.trainable = True
    return model


@pytest.mark.parametrize("name", LORA)
def test_adapters(name):
    check_model(adapted(name), rows=3, vectorizes=False)


@pytest.mark.parametrize("name", ["dense over positions", "query", "transposed kernel"])
def test_adapters_beside_a_kernel_that_is_trained(name):
    model = adapted(name, frozen=False)
    assert len(model.trainable_variables) >= 3
    check_model(model, vectorizes=False)


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"microbatch_size": 2, "rows": 6}])
def test_adapters_under_xla_and_in_microbatches(options):
    check_model(adapted("query"), **options)


def test_adapters_of_an_embedding():
    layer = layers.Embedding(9, 4)
    model = twice(layer, (5,), (3,), integers=True)
    layer.enable_lora(2, lora_alpha=3)
    check_model(model, integers=9, rows=3, vectorizes=False)
    layer._embeddings.trainable = True
    check_model(model, integers=9, rows=3, vectorizes=False)


def test_a_stack_of_kernels_with_adapters_is_left_to_the_exact_engine():
    model = twice(layers.EinsumDense("abc,bc->abc", (4, 3)), (4, 3))
    model.layers[1].enable_lora(1)
    assert "stack of kernels" in ghost.supports(model)


@pytest.mark.parametrize(
    "make",
    [
        lambda: adapted("query", "mixed_bfloat16"),
        lambda: twice(layers.Dense(3, dtype="mixed_bfloat16"), (5, 4), (7, 4)),
    ],
)
def test_bfloat16(make):
    check_model(make(), tolerance=0.05, vectorizes=False)


def test_eager_steps():
    model = nested()
    model.compile(loss="mse")
    generator = np.random.default_rng(0)
    x, y = (tf.constant(generator.normal(size=(3, n)), tf.float32) for n in (6, 2))
    arguments = (Forward(model), GlobalL2Clip(0.1), x, y, tf.ones([3]), tf.constant(0))
    assert_equal_sums(ghost.bounded_sum(*arguments), loop_bounded_sum(*arguments))


class Inside(layers.Layer):
    """Runs a Dense inside of a vectorized map."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, name="inside")

    def build(self, shape):
        self.dense.build((None, shape[-1]))

    def call(self, inputs):
        return tf.vectorized_map(lambda row: self.dense(row[None])[0], inputs)


def test_layers_inside_a_vectorized_map_are_refused():
    # What they record there is only a pattern, and the gradient at it would be zero.
    model = keras.Sequential([keras.Input((4,)), Inside(), layers.Dense(2)])
    assert "'inside'" in ghost.supports(model)


# -- one example against all others ------------------------------------------------------------------


def difference():
    a, b, layer = keras.Input((4,)), keras.Input((4,)), layers.Dense(3)
    return keras.Model([a, b], layers.Subtract()([layer(a), layer(b)]))


def pooled(layer, lora=False):
    x = keras.Input((4, 4))
    model = keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(layer(x))))
    if lora:
        layer.enable_lora(2)
        layer.lora_kernel_b.assign(np.random.default_rng(0).normal(size=layer.lora_kernel_b.shape))
    return model


def weighted_words(size):
    tokens, factors = keras.Input((4,), dtype="int32"), keras.Input((4, 1))
    table = layers.ReversibleEmbedding(size, 16)
    hidden = layers.Multiply()([table(tokens), factors])
    logits = table(layers.Lambda(lambda h: tf.tanh(h * 1e-3))(hidden), reverse=True)
    return keras.Model([tokens, factors], layers.GlobalAveragePooling1D()(logits))


def words_by_operations(size):
    tokens, factors = keras.Input((4,), dtype="int32"), keras.Input((4, 1))
    table = layers.Embedding(size, 16)
    hidden = layers.Multiply()([table(tokens), factors])
    logits = TiedHead(table)(layers.Lambda(lambda h: tf.tanh(h * 1e-3))(hidden))
    return keras.Model([tokens, factors], layers.GlobalAveragePooling1D()(logits))


SIGNS = np.array([1e12, -1e12, 1e12, -1e12], np.float32)
NEIGHBOURS = {
    "siamese": (difference, lambda rows: [rows((4,)), rows((4,))]),
    "over time": (
        lambda: pooled(layers.TimeDistributed(layers.Dense(4))),
        lambda rows: [rows((4, 4))],
    ),
    "LoRA": (lambda: pooled(layers.Dense(4), lora=True), lambda rows: [rows((4, 4))]),
    "tied": (
        lambda: weighted_words(9),
        lambda rows: [np.full((64, 4), 7, np.int32), rows((4, 1))],
    ),
    "tied by operations": (
        lambda: words_by_operations(9000),
        lambda rows: [np.full((64, 4), 7, np.int32), rows((4, 1))],
    ),
    "tied, large": (
        lambda: weighted_words(9000),
        lambda rows: [np.full((64, 4), 7, np.int32), rows((4, 1))],
    ),
}


def rows_of(kind):
    generator = np.random.default_rng(0)

    def rows(shape):
        values = generator.normal(size=(64, *shape)).astype(np.float32)
        if kind == "cancelling":
            values[0] = SIGNS if len(shape) == 1 else SIGNS[:, np.newaxis]
        else:
            values[0] = {"huge": 1e15, "not finite": np.nan}[kind]
        return values

    return rows


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_one_example_moves_the_sum_by_the_clip_norm_at_most(name, jit_compile):
    make, inputs = NEIGHBOURS[name]
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(loss="mse")
    assert ghost.supports(model) is None
    forward, y = Forward(model), np.ones((64, model.output_shape[-1]), np.float32)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def sums(x, weight):
        found = ghost.bounded_sum(forward, GlobalL2Clip(1.0), x, y, weight, tf.constant(0))
        return tf.concat([tf.reshape(total, [-1]) for total in found.sums], axis=0)

    for kind in ("cancelling", "huge", "not finite"):
        x = [tf.constant(values) for values in inputs(rows_of(kind))]
        x = x[0] if len(x) == 1 else x
        weight = np.ones(64, np.float32)
        with_it = sums(x, tf.constant(weight))
        weight[0] = 0.0
        without = sums(x, tf.constant(weight))
        assert np.all(np.isfinite(without)), kind
        assert tf.norm(with_it - without) <= 1.0001, kind
