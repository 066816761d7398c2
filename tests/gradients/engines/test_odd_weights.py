"""Weights that are read, replaced or left out where the engines did not expect it: Keras' gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfdp
from tests.gradients.checking import check_engines, normal, side_by_side
from tests.gradients.reference import run_engine
from tests.helpers import sgd
from tests.rounding import assert_close, terms_of
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward

METHODS = ("vectorized", "loop")


def gradients_of_keras(model, x, y):
    """The gradient of each row as a batch of one, by plain Keras; zeros where Keras has none."""
    found = []
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            y_pred = model(x[row : row + 1], training=True)
            loss = model.compute_loss(x[row : row + 1], y[row : row + 1], y_pred, training=True)
        found.append(
            tape.gradient(loss, [v.value for v in model.trainable_variables], None, "zero")
        )
    return [np.stack(rows) for rows in zip(*found, strict=True)]


def private_sum(model, x, y):
    """What a step of SGD with rate one, without noise and clipping, takes from the weights."""
    trained = tfdp.make_private(model)
    trained.compile(sgd(noise=0.0, clip=1e6, rate=1.0), model.loss)
    before = [v.numpy() for v in trained.trainable_variables]
    trained.train_on_batch(x, y)
    after = [v.numpy() for v in trained.trainable_variables]
    return [(a - b) * len(x) for a, b in zip(before, after, strict=True)]


def check(model, x, y):
    """Compares all engines with Keras."""
    expected = gradients_of_keras(model, x, y)
    compare_methods(model, x, y, expected)
    given = tf.constant(x), tf.constant(y), tf.ones([len(x)])
    lot = run_engine(ghost.bounded_sum, Forward(model), GlobalL2Clip(1e6), *given)
    for ours, rows in zip(lot.sums, expected, strict=True):
        assert_close(ours, rows.sum(0), terms_of(model, len(x)))


def compare_methods(model, x, y, expected):
    for method in METHODS:
        found = tfdp.per_example_gradients(model, x, y, method=method)
        for ours, keras_own in zip(found, expected, strict=True):
            assert_close(ours, keras_own, terms_of(model))


def check_trained(model, x, y, penalties=0.0):
    """Compares with Keras and trains; `penalties` are in Keras' gradient of every row."""
    expected = gradients_of_keras(model, x, y)
    expected = [e - penalties * p for e, p in zip(expected, expected_penalties(model), strict=True)]
    compare_methods(model, x, y, expected)
    added = [penalties * len(x) * p for p in expected_penalties(model)]
    # The sum is a change of the weights, which are rounded.
    weight = len(x) * max(np.max(np.abs(v)) for v in model.get_weights())
    for ours, rows, penalty in zip(private_sum(model, x, y), expected, added, strict=True):
        total = rows.sum(0) + penalty
        assert_close(ours, total, terms_of(model, len(x)), weight + np.max(np.abs(total)))


def expected_penalties(model):
    """The gradients of penalties 0.01 * the sum of squares."""
    values = model.trainable_variables
    return [0.02 * v.numpy() if v.regularizer is not None else 0.0 * v.numpy() for v in values]


class Block(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), name="kernel")

    def call(self, x):
        return ops.tanh(ops.matmul(x, self.kernel))


def test_recomputation_inside_of_the_model():
    with keras.RematScope(mode="full"):
        block = Block()
    model = keras.Sequential([keras.Input((4,)), block, layers.Dense(1)])
    model.compile("sgd", "mse")
    check(model, normal(5, 4), normal(5, 1))


class Closed(Block):
    def call(self, x):
        @tf.custom_gradient
        def product(x):
            def backward(at_result, variables=None):
                at_x = at_result @ tf.transpose(self.kernel)
                return (at_x, [tf.transpose(x) @ at_result]) if variables else at_x

            return x @ self.kernel, backward

        return product(tf.identity(x))


class Open(Block):
    def call(self, x):
        @tf.custom_gradient
        def product(x, kernel):
            def backward(at_result):
                return at_result @ tf.transpose(kernel), tf.transpose(x) @ at_result

            return x @ kernel, backward

        return product(x, tf.convert_to_tensor(self.kernel))


def test_custom_gradients_need_weights_as_arguments():
    x, y = normal(5, 4), normal(5, 3)
    model = keras.Sequential([keras.Input((4,)), Open()])
    model.compile("sgd", "mse")
    check(model, x, y)
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), Closed(), layers.Dense(3)]))
    model.compile(sgd(), "mse")
    with pytest.raises(ValueError, match=r"custom_gradient.*closed/kernel"):
        model.fit(x, y, verbose=0)


@keras.saving.register_keras_serializable("odd")
class Classifier(keras.Model):
    """Computes its logits in the loss, as sampled softmax does."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first = layers.Dense(4, kernel_regularizer=keras.regularizers.L2(0.01))
        self.last = layers.Dense(3, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01))

    def build(self, shape):
        self.first.build(shape)
        self.last.build((None, 4))

    def call(self, x):
        return self.first(x)


def test_a_loss_that_reads_a_penalized_weight():
    model = Classifier()
    model.build((None, 6))

    def loss(y, hidden):
        logits = ops.matmul(hidden, model.last.kernel)
        return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)

    model.compile("sgd", loss)
    expected = gradients_of_keras(model, normal(5, 6), np.arange(5) % 3)
    for method in METHODS:
        found = tfdp.per_example_gradients(model, normal(5, 6), np.arange(5) % 3, method=method)
        for ours, rows, p in zip(found, expected, expected_penalties(model), strict=True):
            assert_close(ours, rows - p, terms_of(model, length=6))


@keras.saving.register_keras_serializable("odd")
class OwnLoss(keras.Sequential):
    penalized = False

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = ops.mean(ops.square(y - y_pred))
        return loss + sum(self.losses) if self.penalized else loss


@keras.saving.register_keras_serializable("odd")
class OwnPenalizedLoss(OwnLoss):
    penalized = True


@pytest.mark.parametrize("kind", [OwnLoss, OwnPenalizedLoss])
def test_penalties_count_only_if_the_loss_asks_for_them(kind):
    dense = layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.01))
    model = kind([keras.Input((4,)), dense, layers.Dense(1)])
    model.compile("sgd")
    check_trained(model, normal(5, 4), normal(5, 1), penalties=float(kind.penalized))


@keras.saving.register_keras_serializable("odd")
class WeightDrop(layers.Layer):
    """Puts a function of a weight of its own in the place of a recurrent kernel."""

    def __init__(self, inner, **options):
        super().__init__(**options)
        self.inner = inner

    def build(self, shape):
        self.inner.build(shape)
        self.raw = self.add_weight(shape=self.inner.cell.recurrent_kernel.shape, name="raw")

    def call(self, x):
        self.inner.cell.recurrent_kernel = ops.tanh(self.raw)
        return self.inner(x)

    def get_config(self):
        return super().get_config() | {"inner": keras.saving.serialize_keras_object(self.inner)}


def test_recurrent_kernels_that_are_computed():
    model = side_by_side((4, 2), WeightDrop(layers.LSTM(3)), WeightDrop(layers.GRU(3)))
    model.compile("sgd", "mse")
    expected = gradients_of_keras(model, normal(5, 4, 2), normal(5, 6))
    found = tfdp.per_example_gradients(model, normal(5, 4, 2), normal(5, 6))
    for ours, rows in zip(found, expected, strict=True):
        assert_close(ours, rows, terms_of(model))


@pytest.mark.parametrize("engine", ["ghost", pytest.param("vectorized", marks=pytest.mark.slow)])
def test_recurrent_layers_with_a_frozen_weight(engine):
    frozen = {
        layers.LSTM(3): ["recurrent_kernel"],
        layers.GRU(3): ["recurrent_kernel"],
        layers.GRU(3): ["kernel", "bias"],
    }
    model = side_by_side((4, 2), *frozen)
    for layer, names in frozen.items():
        for name in names:
            getattr(layer.cell, name).trainable = False
    check_engines(model, engines=[engine])


@keras.saving.register_keras_serializable("odd")
class Energy(keras.Model):
    """Returns an energy and its force, as physics-informed networks do."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.last = layers.Dense(5, "tanh"), layers.Dense(1)

    def call(self, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            energy = self.last(self.first(x))
        return ops.concatenate([energy, -tape.gradient(energy, x)], -1)


def test_a_tape_inside_of_the_model():
    model = Energy()
    model(normal(1, 3))
    model.compile("sgd", "mse")
    check_trained(model, normal(5, 3), normal(5, 4))


def test_labels_that_the_loss_ignores():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model = keras.Sequential([keras.Input((6, 2)), layers.Dense(4)])
    model.compile("sgd", loss)
    # Each row has one label at least that is not ignored.
    check(model, normal(5, 6, 2), 1 + np.arange(30).reshape(5, 6) % 3 - (np.arange(6) == 2))


class Parts(layers.Layer):
    """A weight as the first operand of a sum with axes of channels first, and an empty part of one."""

    def build(self, shape):
        self.grid = self.add_weight(shape=(1, 3, 2, 2), name="grid")
        self.vector = self.add_weight(shape=(3,), name="vector")

    def call(self, x):
        scaled = tf.math.erf(self.vector) + 0.0 * tf.reduce_sum(self.vector[:0])
        biased = tf.nn.bias_add(self.grid, tf.reshape(x, [3]), "NCHW") if x.shape[0] == 1 else None
        if biased is None:
            biased = self.grid + x[:, :, tf.newaxis, tf.newaxis]
        return tf.reduce_sum(biased**2, [2, 3]) * scaled


def test_biases_from_the_data_and_empty_parts():
    model = keras.Sequential([keras.Input((3,)), Parts()])
    model.compile("sgd", "mse")
    check(model, normal(5, 3), normal(5, 3))


class OfUnknownShape(layers.Layer):
    def call(self, x):
        return tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None] * x.shape.rank)

    def compute_output_shape(self, shape):
        return shape


def test_a_layer_may_lose_its_static_shape():
    head = [layers.Flatten(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((3, 2)), layers.Dense(2), OfUnknownShape(), *head])
    model.compile(loss="mse")
    check(model, normal(4, 3, 2), normal(4, 1))
