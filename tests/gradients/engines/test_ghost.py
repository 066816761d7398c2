"""The ghost engine equals the exact engine on whole models, or refuses a model by name."""

import math

import keras
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import check_engines, check_traced, lot_for, normal, terms_for
from tests.gradients.reference import assert_equal_sums, loop_bounded_sum, run_engine
from tests.rounding import FUNCTION, assert_close, terms_of
from tfdp.gradients.bounds import GlobalL2Clip, make_bound
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward


def network(*extra):
    stack = [layers.Conv2D(2, 3, activation="relu"), *extra]
    return keras.Sequential([keras.Input((4, 4, 1)), *stack, layers.Flatten(), layers.Dense(3)])


def both(lot, **options):
    return [run_engine(e.bounded_sum, *lot, **options) for e in (ghost, exact)]


def test_a_step_under_xla_in_microbatches():
    check_traced(network(), rows=4, microbatch_size=2, jit_compile=True)


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dropout_has_the_masks_of_the_exact_engine(jit_compile):
    # Both engines draw the same masks. Equality shows that norm and sum use the same masks, too.
    model = network(layers.Dropout(0.5))
    ours, exactly = both(lot_for(model), jit_compile=jit_compile)
    assert_equal_sums(ours, exactly, terms_for(model, 3))


def test_rows_and_lengths_that_are_unknown():
    x = keras.Input((None, 4))
    hidden = layers.Conv1D(3, 3, padding="same")(layers.Dense(4, activation="tanh")(x))
    hidden = layers.EinsumDense("abc,cd->abd", (None, 2))(hidden)
    model = keras.Model(x, layers.GlobalAveragePooling1D()(hidden))
    forward, bound, *rows = lot_for(model)
    specs = [tf.TensorSpec(shape) for shape in ((None, None, 4), (None, 2), (None,))]

    @tf.function(input_signature=specs, autograph=False)
    def run(x, y, weight):
        return ghost.bounded_sum(forward, bound, x, y, weight, tf.constant(0)).sums

    expected = loop_bounded_sum(forward, bound, *rows, tf.constant(0))
    for a, b in zip(run(*rows), expected.sums, strict=True):
        assert_close(a, b, terms_for(forward.model, 3))


@pytest.mark.parametrize(
    ("engine", "clipping"),
    [(ghost, "automatic"), (exact, "global")],
)
def test_bfloat16_gradients_are_clipped_in_float32(engine, clipping):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        x = keras.Input((4, 3))
        hidden = layers.LayerNormalization()(layers.Conv1D(3, 2, activation="tanh")(x))
        model = keras.Model(x, layers.Dense(2)(layers.Flatten()(hidden)))
    finally:
        keras.config.set_dtype_policy("float32")
    clip = 1e-3
    bound = make_bound(clipping, clip, [v.path for v in model.trainable_variables])
    lot = engine.bounded_sum(*lot_for(model, weight=[0, 1, 0], bound=bound), tf.constant(0))
    assert all(total.dtype == tf.float32 for total in lot.sums)
    # bfloat16 has eight bits. A sum or norm in bfloat16 would deviate by up to 0.4%.
    norm, expected = float(lot.norms[1]), clip
    if clipping == "automatic":
        expected *= norm / (norm + bound.stability)
    assert_close(float(tf.linalg.global_norm(lot.sums)), expected, 3 + 60 + 2 * FUNCTION)


def test_masks_reach_the_loss():
    tokens = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(9, 4, mask_zero=True)(tokens)
    check_engines(keras.Model(tokens, layers.Dense(3, activation="relu")(hidden)), integers=3)


def test_weight_regularizers_stay_out():
    layer = layers.Dense(3, kernel_regularizer="l2", bias_regularizer="l1")
    check_engines(keras.Sequential([keras.Input((4,)), layer]), engines=["ghost"])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = layers.Dense(4, activation="relu")
        self.second = layers.Dense(4)

    def call(self, inputs):
        return self.second(self.first(inputs))


class MixesRows(Subclassed):
    def call(self, inputs):
        hidden = self.first(inputs)
        return self.second(hidden - tf.reduce_mean(hidden, axis=0, keepdims=True) + inputs)


class Tied(Subclassed):
    def call(self, inputs):
        hidden = self.second(self.first(self.first(inputs)))
        return tf.matmul(hidden, self.first.kernel, transpose_b=True)


class PenaltyByHand(Subclassed):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + tf.reduce_sum(tf.square(self.first.kernel))


class Positions(Subclassed):
    """Calls a layer on a tensor without a batch axis, and leaves another layer unused."""

    def call(self, inputs):
        return inputs + tf.reduce_sum(self.first(tf.eye(4) * inputs[0, 0]), axis=0)


def subclassed(kind):
    model = kind()
    model(tf.zeros([2, 4]))
    model.compile(loss="mse")
    x = tf.constant(normal(4, 4))
    return Forward(model), GlobalL2Clip(0.5), x, x[::-1], tf.ones([4])


@pytest.mark.parametrize("kind", [MixesRows, Positions, Tied, PenaltyByHand])
def test_subclassed_models_run_row_by_row(kind):
    forward, *rows = (*subclassed(kind), tf.constant(0))
    ours, expected = ghost.bounded_sum(forward, *rows), loop_bounded_sum(forward, *rows)
    assert_equal_sums(ours, expected, terms_of(forward.model, 4, length=4))


@pytest.mark.parametrize(
    "layer",
    [
        layers.Activation(lambda x: x / (1.0 + tf.reduce_sum(tf.square(x)))),
        layers.Dense(4, activity_regularizer="l2"),
    ],
    ids=["activation", "penalty"],
)
def test_layers_that_may_mix_rows_run_row_by_row(layer):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layer, layers.Dense(3)])
    check_engines(model, engines=["ghost"])


@pytest.mark.parametrize("engine", [ghost, exact], ids=["ghost", "vectorized"])
def test_a_row_is_not_taken_for_a_bias(engine):
    # Without clipping, the sum over rows is the gradient of the whole batch, which Keras computes.
    a, b = keras.Input((5, 5)), keras.Input((5, 1))
    added = layers.Add()([layers.Dense(5)(a) + layers.Dense(1)(b), layers.Dense(1)(b)])
    model = keras.Model([a, b], layers.Lambda(lambda x: x)(added))
    forward, _, x, y, weight = lot_for(model, rows=4)
    with tf.GradientTape() as tape:
        loss = 4 * model.compute_loss(x, y, model(x))
    expected = tape.gradient(loss, [v.value for v in model.trainable_variables])
    lot = engine.bounded_sum(forward, GlobalL2Clip(1e6), x, y, weight, tf.constant(0))
    for ours, theirs in zip(lot.sums, expected, strict=True):
        assert_close(ours, theirs, terms_of(model, 4))


class Broadcasts(layers.Layer):
    """Adds, subtracts and multiplies weights and parts of a row, of any two shapes that go together."""

    shapes = ((), (3,), (2, 1))

    def build(self, shape):
        self.all = [self.add_weight(shape=s, initializer="normal") for s in self.shapes]

    def call(self, inputs):
        row, total = inputs[0], 0.0
        for number, shape in enumerate(self.shapes):
            data = tf.reshape(row[: math.prod(shape)], shape)
            for weight in self.all:
                for found in (weight * data, data - weight, weight * (number + tf.ones(shape))):
                    total += tf.reduce_sum(tf.sin(found + tf.reduce_sum(row)))
        return total * inputs


def test_weights_of_any_shape_are_broadcast_within_their_row():
    model = keras.Sequential([keras.Input((6,)), Broadcasts()])
    check_engines(model, rows=3, engines=["ghost"])  # as long as an axis


class Empty(layers.Layer):
    def build(self, shape):
        self.weight = self.add_weight(shape=(0, 3))
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, inputs):
        return inputs * self.scale + keras.ops.sum(self.weight)


def test_weights_without_entries():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), Empty()])
    check_engines(model, engines=["ghost"])


class Twice(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=shape[-1:])

    def call(self, inputs):
        step = lambda i, x: (i + 1, x * self.factor)  # noqa: E731
        return tf.while_loop(lambda i, x: i < 2, step, [0, inputs])[1]


def test_weights_in_loops():
    over_time = layers.TimeDistributed(layers.Dense(2))
    model = keras.Sequential([keras.Input((None, 4)), Twice(), over_time])
    check_engines(model, engines=["ghost"])


def test_operations_that_cannot_be_vectorized_are_named_with_their_layer():
    def words_per_text(x):
        return x + tf.cast(tf.size(tf.unique(x[0]).y), x.dtype)

    traced = layers.Lambda(tf.function(words_per_text), name="traced")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), traced, layers.Dense(3)])
    with pytest.raises(NotImplementedError, match=r"'traced'.*engine='loop'"):
        ghost.bounded_sum(*lot_for(model), tf.constant(0))
