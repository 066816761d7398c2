"""The ghost engine equals the exact engine on whole models, or refuses a model by name."""

import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import exact, ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.rules import UnsupportedModelError, rule_for
from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.gradients.testing import assert_equal_sums, check_model, run_engine


def lenet(affine=True, dropout=0.0):
    def normalized(layer):
        norm = layers.LayerNormalization(center=affine, scale=affine)
        return [layer, norm, layers.Activation("relu")]

    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            *normalized(layers.Conv2D(6, 5, padding="same")),
            layers.MaxPooling2D(2),
            *normalized(layers.Conv2D(16, 5)),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            *normalized(layers.Dense(12)),
            layers.Dropout(dropout),
            layers.Dense(10),
        ]
    )


def data(rows, shape, classes=10, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, *shape)).astype("float32")
    return x, generator.integers(0, classes, rows)


def compiled(model, loss=None):
    model.compile(loss=loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Forward(model)


def both(forward, x, y, weight=None, clip=1.0, microbatch_size=1, **options):
    weight = tf.ones([len(x)]) if weight is None else tf.constant(weight, tf.float32)
    arguments = (forward, GlobalL2Clip(clip), x, y, weight, microbatch_size)
    ours = run_engine(ghost.bounded_sum, *arguments, **options)
    return ours, run_engine(exact.bounded_sum, *arguments, **options)


def branches():
    images, numbers = keras.Input((8, 8, 2)), keras.Input((5,))
    a = layers.Conv2D(3, 3, activation="relu")(images)
    b = layers.Conv2D(3, 3, activation="tanh")(images)
    merged = layers.Flatten()(layers.Concatenate()([layers.Add()([a, b]), a]))
    side = layers.Dense(4, activation="relu")(numbers)
    out = layers.Dense(3)(layers.Concatenate()([merged, side]))
    return keras.Model([images, numbers], [out, layers.Dense(2)(side)])


def nested():
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(5, activation="relu")])
    x = keras.Input((6,))
    return keras.Model(x, layers.Dense(2)(inner(x)))


@pytest.mark.parametrize("microbatch_size", [1, 3])
@pytest.mark.parametrize(
    "make",
    [lenet, lambda: lenet(affine=False), branches, nested],
    ids=["lenet", "lenet_norm", "branches", "nested"],
)
def test_equals_the_exact_engine(make, microbatch_size):
    check_model(make(), rows=6, microbatch_size=microbatch_size, tolerance=3e-5)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_dropout_has_the_masks_of_the_exact_engine(jit_compile):
    # Both engines draw the same masks. Equality shows that norm and sum use the same masks, too.
    forward = compiled(lenet(dropout=0.5))
    ours, exact = both(forward, *data(6, (12, 12, 1)), jit_compile=jit_compile)
    assert_equal_sums(ours, exact, 3e-5)


def test_frozen_layers_are_left_alone():
    model = lenet()
    model.layers[0].trainable = False
    model.layers[1].beta.trainable = False
    forward = compiled(model)
    ours, exact = both(forward, *data(5, (12, 12, 1)))
    assert len(ours.sums) == len(forward.variables)
    assert_equal_sums(ours, exact, 3e-5)


@pytest.mark.parametrize("microbatch_size", [1, 2])
def test_bad_and_absent_rows_count_exactly_zero(microbatch_size):
    keras.utils.set_random_seed(0)  # the weights decide whether the huge row overflows
    forward = compiled(lenet(affine=False))
    x, y = data(10, (12, 12, 1))
    x[1], x[4, 0, 0], x[7] = np.nan, np.inf, 3e38
    weight = np.ones(10)
    weight[[2, 4, 9]] = 0.0
    ours, exact = both(forward, x, y, weight, microbatch_size=microbatch_size)
    assert int(ours.non_finite) == int(exact.non_finite) == 2
    x[[1, 4, 7]] = 0.0
    weight[[1, 7]] = 0.0
    without, _ = both(forward, x, y, weight, microbatch_size=microbatch_size)
    for a, b, c in zip(ours.sums, without.sums, exact.sums, strict=True):
        assert np.all(np.isfinite(a))
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=1e-3, atol=1e-5)


def test_weights_and_large_gradients():
    forward = compiled(lenet(affine=False))
    x, y = data(6, (12, 12, 1))
    weight = [0.0, 0.5, 1.0, 1e4, 1e-6, 2.0]
    ours, exact = both(forward, x, y, weight)
    assert_equal_sums(ours, exact, 3e-5)
    assert float(exact.norms[3]) > 1e3


def test_an_empty_lot():
    ours, _ = both(compiled(lenet()), *data(4, (12, 12, 1)), np.zeros(4))
    assert all(np.all(np.asarray(s) == 0.0) for s in ours.sums)
    assert not np.any(ours.present)


def test_eager_equals_graph():
    forward = compiled(lenet())
    x, y = data(4, (12, 12, 1))
    arguments = (forward, GlobalL2Clip(1.0), x, y, tf.ones([4]))
    ours = ghost.bounded_sum(*arguments, tf.constant(0))
    assert_equal_sums(ours, run_engine(ghost.bounded_sum, *arguments), 3e-5)


def test_rows_of_unknown_number():
    forward = compiled(lenet())
    x, y = data(5, (12, 12, 1))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 12, 12, 1]),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([None]),
        ]
    )
    def run(x, y, weight):
        result = ghost.bounded_sum(forward, GlobalL2Clip(1.0), x, y, weight, tf.constant(0))
        return result.sums

    _, exact = both(forward, x, y)
    for a, b in zip(run(x, y, tf.ones([5])), exact.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_bfloat16_is_clipped_and_summed_in_float32():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = lenet()
    finally:
        keras.config.set_dtype_policy(before)
    ours, exact = both(compiled(model), *data(6, (12, 12, 1)))
    assert_equal_sums(ours, exact, 0.05)


def test_masks_reach_the_loss():
    tokens = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(9, 4, mask_zero=True)(tokens)
    model = keras.Model(tokens, layers.Dense(3, activation="relu")(hidden))
    forward = compiled(model, "mse")
    assert rows_are_separate(model, owners(model))
    generator = np.random.default_rng(0)
    x = generator.integers(0, 3, (5, 6)).astype("int32")
    ours, exact = both(forward, x, generator.normal(size=(5, 6, 3)).astype("float32"))
    assert_equal_sums(ours, exact)


def test_weight_regularizers_stay_out():
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(3, kernel_regularizer="l2", bias_regularizer="l1")]
    )
    ours, exact = both(compiled(model), *data(5, (4,), 3))
    assert_equal_sums(ours, exact)


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


class Twice(Subclassed):
    def call(self, inputs):
        return self.second(self.first(self.first(inputs)))


class Tied(Subclassed):
    def call(self, inputs):
        hidden = self.second(self.first(inputs))
        return tf.matmul(hidden, self.first.kernel, transpose_b=True)


class TiedOtherwise(Subclassed):
    def call(self, inputs):
        hidden = self.second(self.first(inputs))
        return hidden * tf.reduce_sum(self.first.kernel)


class PenaltyByHand(Subclassed):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + tf.reduce_sum(tf.square(self.first.kernel))


class InALoop(Subclassed):
    def call(self, inputs):
        return self.second(tf.map_fn(lambda row: self.first(row[None])[0], inputs))


class Positions(Subclassed):
    """Calls a layer on a tensor without a batch axis, and leaves another layer unused."""

    def call(self, inputs):
        return inputs + tf.reduce_sum(self.first(tf.eye(4) * inputs[0, 0]), axis=0)


def subclassed(kind):
    model = kind()
    model(tf.zeros([2, 4]))
    return compiled(model, "mse")


@pytest.mark.parametrize("kind", [Subclassed, MixesRows, Positions, Twice, Tied])
def test_subclassed_models_run_row_by_row(kind):
    forward = subclassed(kind)
    x, _ = data(5, (4,))
    ours, exact = both(forward, x, x[::-1].copy(), microbatch_size=5)
    assert_equal_sums(ours, exact)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (TiedOtherwise, "outside the layer that owns it"),
        (PenaltyByHand, "outside the layer that owns it"),
        (InALoop, "inside a loop"),
    ],
)
def test_subclassed_models_beyond_the_rules_raise(kind, reason):
    forward = subclassed(kind)
    x, _ = data(4, (4,))
    with pytest.raises(UnsupportedModelError, match=reason):
        run_engine(ghost.bounded_sum, forward, GlobalL2Clip(1.0), x, x, tf.ones([4]))
    assert "call" not in vars(forward.model.first)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Lambda(lambda x: x - tf.reduce_mean(x, axis=0, keepdims=True) + 1.0),
        layers.Dropout(0.5, noise_shape=(1, 4)),
        layers.Activation(lambda x: x / (1.0 + tf.reduce_sum(tf.square(x)))),
        layers.ActivityRegularization(l2=0.1),
        layers.Dense(4, activity_regularizer="l2"),
    ],
    ids=lambda layer: layer.name,
)
def test_doubtful_layers_run_row_by_row(layer):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layer, layers.Dense(3)])
    assert not rows_are_separate(model, owners(model))
    assert ghost.supports(model) is None
    ours, exact = both(compiled(model), *data(5, (4,), 3))
    assert_equal_sums(ours, exact)


def test_unlisted_operations_run_row_by_row():
    inputs = keras.Input((4,))
    hidden = keras.ops.flip(layers.Dense(4)(inputs), axis=0)
    model = keras.Model(inputs, layers.Dense(3)(hidden))
    assert not rows_are_separate(model, owners(model))
    ours, exact = both(compiled(model), *data(5, (4,), 3))
    assert_equal_sums(ours, exact)


def test_unknown_layers_with_weights_in_a_loop_are_refused():
    class Twice(layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight(shape=shape[-1:])

        def call(self, inputs):
            def step(i, x):
                return i + 1, x * self.factor

            return tf.while_loop(lambda i, x: i < 2, step, [0, inputs])[1]

    model = keras.Sequential([keras.Input((4,)), Twice(name="odd"), layers.Dense(2)])
    assert "'odd' (Twice) has no rule" in ghost.supports(model)


def test_wrapped_and_converted_layers_are_refused():
    over_time = layers.TimeDistributed(layers.Dense(2, name="inner"))
    model = keras.Sequential([keras.Input((None, 4)), over_time])
    assert "'inner'" in ghost.supports(model)  # Keras vectorizes over steps of unknown number
    model = keras.Sequential([keras.Input((4, 3)), layers.Conv1D(2, 2, name="adapted")])
    model.layers[0].enable_lora(1)
    assert "LoRA" in ghost.supports(model)
    model = keras.Sequential([keras.Input((4,)), layers.BatchNormalization(name="batch")])
    assert "'batch'" in ghost.supports(model)


def test_tensors_of_another_width_fail():
    layer = layers.Dense(2)
    layer.build((None, 4))
    unknown = tf.TensorSpec([None, None, 4])

    @tf.function(input_signature=[unknown, unknown])
    def merged(inputs, gradient):
        use = ghost._merged(rule_for(layer), [({"inputs": inputs}, gradient)])
        return use.calls[0]["inputs"], use.calls[0].gradient

    assert merged(tf.ones([3, 2, 4]), tf.ones([3, 2, 4]))[0].shape == (6, 4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        merged(tf.ones([3, 2, 4]), tf.ones([3, 1, 4]))


def test_nothing_is_left_behind():
    model = lenet(dropout=0.5)
    forward = compiled(model)
    before = [set(vars(layer)) for layer in model._flatten_layers()]
    weights = [np.array(v) for v in model.variables]
    ghost.supports(model)
    both(forward, *data(4, (12, 12, 1)))
    for layer, names in zip(model._flatten_layers(), before, strict=True):
        assert set(vars(layer)) - names <= {"_called", "_losses_override"}
    for value, variable in zip(weights, model.variables, strict=True):
        np.testing.assert_array_equal(value, variable)
    pickle.loads(pickle.dumps(model))


def words_per_text(x):
    return x + tf.cast(tf.size(tf.unique(x[0]).y), x.dtype)


class Branch(layers.Layer):
    """Applies another layer to rows with a positive sum."""

    def __init__(self, inner):
        super().__init__(name="around")
        self.inner = inner

    def call(self, x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: self.inner(x), lambda: x)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Branch(words_per_text), "around"),
        (lambda: Branch(layers.Lambda(words_per_text, name="inside")), "inside"),
        (lambda: layers.Lambda(tf.function(words_per_text), name="traced"), "traced"),
    ],
)
def test_operations_inside_of_branches_and_functions_are_named_with_their_layer(make, name):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), make(), layers.Dense(3)])
    reason = ghost.supports(model)
    assert reason.startswith(f"Layer '{name}'") and "TensorFlow op Unique (No pfor" in reason


def test_supports_traces_the_pass_that_will_run():
    def with_a_layer(function):
        stack = [keras.Input((4,)), layers.Dense(4), layers.Lambda(function, name="own")]
        return keras.Sequential([*stack, layers.Dense(3)])

    assert ghost.supports(with_a_layer(lambda x: tf.sort(x, axis=-1))) is None
    unique = with_a_layer(lambda x: x + tf.cast(tf.size(tf.unique(x[0]).y), x.dtype))
    assert "'own'" in ghost.supports(unique) and "engine='loop'" in ghost.supports(unique)
    assert ghost.supports(unique, traces=False) is None
