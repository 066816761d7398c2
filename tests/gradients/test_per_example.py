"""Public per-example gradients equal those of a loop over batches of one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import normal
from tests.helpers import LOSS, private
from tests.rounding import assert_close, terms_of
from tfdp.gradients import per_example_gradient_norms, per_example_gradients

ROWS = 5
WEIGHT = np.array([0.0, 1.0, 2.0, 0.5, 3.0], "float32")


class Ranked(layers.Layer):
    """Uses an operation that TensorFlow cannot vectorize."""

    def call(self, x):
        return x + tf.stop_gradient(tf.cast(tf.raw_ops.Unique(x=x[0]).idx, x.dtype))


def dense():
    return [keras.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(3, kernel_regularizer="l2")]


def volumes():
    return [keras.Input((3, 3, 3, 1)), layers.Conv3D(2, 2), layers.Flatten(), layers.Dense(3)]


def ranked():
    return [keras.Input((4,)), layers.Dense(3), Ranked(name="ranked")]


class Idle(layers.Layer):
    """Has a weight that it does not use."""

    def build(self, shape):
        self.idle = self.add_weight(shape=(2, 3))

    def call(self, x):
        return x


def idle():
    return [*dense(), Idle()]


def compiled(stack):
    model = keras.Sequential(stack)
    model.compile(loss=LOSS)
    return model, normal(ROWS, *model.input_shape[1:]), np.arange(ROWS) % 3


def by_hand(model, x, y, weight=None):
    found = []
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            loss = LOSS(y[row : row + 1], model(x[row : row + 1], training=True))
        values = [v.value for v in model.trainable_variables]
        gradients = tape.gradient(loss, values, unconnected_gradients="zero")
        scale = 1.0 if weight is None else weight[row]
        found.append([scale * tf.convert_to_tensor(g).numpy() for g in gradients])
    return [np.stack(each) for each in zip(*found, strict=True)]


@pytest.mark.parametrize(
    ("make", "method", "weight"),
    [
        (volumes, "vectorized", WEIGHT),
        (idle, "vectorized", None),
        (dense, "loop", WEIGHT),
        (ranked, "loop", None),
    ],
)
def test_they_are_those_of_batches_of_one(make, method, weight):
    model, x, y = compiled(make())
    found = per_example_gradients(model, x, y, weight, method=method)
    for ours, expected in zip(found, by_hand(model, x, y, weight), strict=True):
        assert ours.dtype == tf.float32
        assert_close(ours, expected, terms_of(model))


def test_norms_of_a_private_model_inside_a_function():
    _, x, y = compiled(dense())
    model = private(model=keras.Sequential(dense()))
    gradients = by_hand(model, x, y)
    expected = [np.sqrt(sum((g[row] ** 2).sum() for g in gradients)) for row in range(ROWS)]
    norms = tf.function(lambda x, y: per_example_gradient_norms(model, x, y))
    assert_close(norms(x, y), expected, terms_of(model))
    assert model.privacy.ledger.runs == []


@pytest.mark.parametrize(
    ("model", "method", "message"),
    [
        (keras.Sequential(dense()), "vectorized", "compiled"),
        (compiled(dense())[0], "fast", "method"),
        (compiled([keras.Input((4,)), layers.BatchNormalization()])[0], "loop", "assigned"),
    ],
)
def test_models_and_methods_that_are_refused(model, method, message):
    with pytest.raises(ValueError, match=message):
        per_example_gradients(model, np.zeros((2, 4), "float32"), np.zeros(2, int), method=method)


def test_a_layer_that_cannot_be_vectorized_is_named():
    with pytest.raises(NotImplementedError, match="'ranked'"):
        per_example_gradients(*compiled(ranked()))
