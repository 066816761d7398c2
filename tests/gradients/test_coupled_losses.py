"""Losses that are not one value for each row are refused; all others train as in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.gradients.checking import normal
from tests.helpers import private, sgd
from tfdp.gradients.coupled_losses import refuse_coupled_losses

L = keras.losses
ROWS = 8
LABELS = np.arange(ROWS) % 3
HOT = np.eye(3, dtype="float32")[LABELS]
X = normal(ROWS, 4)


def model_of(*head):
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax"), *head])


def trained(model, loss, y):
    model = private(sgd(noise=0.0, clip=1e9, rate=0.1), model, {"loss": loss, "metrics": []})
    return model.train_on_batch(X, y)


def in_pairs(y, y_pred):
    return tf.linalg.norm(y_pred[::2] - y_pred[1::2], axis=-1)


def centred(y, y_pred):
    return ops.mean(ops.square(y - y_pred + ops.mean(y_pred, axis=0)), axis=-1)


REFUSED = {
    "circle": (L.Circle(), LABELS),
    "dice": (L.Dice(), HOT),
    "over the rows": (L.BinaryCrossentropy(axis=0), HOT),
    "mean": (lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred)), HOT),
    "centred": (centred, HOT),
    "pairs": (in_pairs, HOT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_losses_that_couple_rows_are_refused(name):
    with pytest.raises(ValueError, match="each row"):
        trained(model_of(), *REFUSED[name])


STOCK = {
    "labels": (L.SparseCategoricalCrossentropy(), LABELS),
    "tversky": (L.Tversky(axis=-1), HOT),
    "huber": (L.Huber(), HOT),
}


def compare(make, loss, y):
    ours, plain = make(), make()
    plain.set_weights(ours.get_weights())
    plain.compile(keras.optimizers.SGD(0.1), loss)
    expected = plain.train_on_batch(X, y)
    np.testing.assert_allclose(trained(ours, loss, y), expected, rtol=1e-4)
    for u, v in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(u, v, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", STOCK)
def test_losses_of_keras_train_as_in_keras(name):
    compare(model_of, *STOCK[name])


def test_one_number_a_row():
    y = np.linspace(0.0, 1.0, ROWS, dtype="float32")
    compare(lambda: model_of(layers.Dense(1), layers.Reshape(())), "mse", y)


def test_ctc_is_refused_with_the_engine_that_trains_it():
    model = model_of(layers.Reshape((3, 1)), layers.Dense(5))
    with pytest.raises(NotImplementedError, match="engine='loop'"):
        trained(model, L.CTC(), np.ones((ROWS, 2), "int32"))


class InPairs(keras.Model):
    """Two towers, as a contrastive model has them."""

    def __init__(self):
        super().__init__()
        self.a, self.b = layers.Dense(4), layers.Dense(4)

    def call(self, x):
        return tf.matmul(self.a(x), self.b(x), transpose_b=True)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        same = tf.range(tf.shape(y_pred)[0])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(same, y_pred))


def test_outputs_over_pairs_of_rows_are_refused():
    model = InPairs()
    model(np.zeros((2, 4), "float32"))
    with pytest.raises(ValueError, match="pairs of rows"):
        trained(model, None, HOT)


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.function(y, y_pred)


@pytest.mark.parametrize(
    ("function", "warns"),
    [
        (lambda y, p: ops.mean(ops.square(y - p)), False),
        (lambda y, p: ops.mean(centred(y, p)), True),
    ],
)
def test_a_compute_loss_that_compares_examples_is_warned_of(function, warns, caplog):
    x = keras.Input((3,))
    model = OwnLoss(x, layers.Dense(2)(x))
    model.function = function
    model.compile("sgd")
    with caplog.at_level("WARNING"):
        refuse_coupled_losses(model, *(tf.TensorSpec([8, n]) for n in (3, 2, 2)))
    assert any("compares examples" in record.getMessage() for record in caplog.records) == warns
