"""Losses of a whole batch equal those of batches of one, or are left to the vectorizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import normal
from tests.gradients.reference import assert_equal_sums, loop_bounded_sum
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward

L = keras.losses
LOSSES = {
    "sparse": (L.SparseCategoricalCrossentropy(from_logits=True), "labels"),
    "sparse, column": (L.SparseCategoricalCrossentropy(from_logits=True), "column"),
    "sparse, sum": (L.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"), "labels"),
    "one hot": (L.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), "numbers"),
    "binary": (L.BinaryCrossentropy(from_logits=True), "numbers"),
    "squared": (L.MeanSquaredError(), "numbers"),
    "squared, broadcast": (L.MeanSquaredError(), "column"),
    "absolute": (L.MeanAbsoluteError(reduction="mean"), "numbers"),
}
ROW_BY_ROW = {
    "ignores": (L.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1), "labels"),
    "huber": (L.Huber(), "numbers"),
    "dice": (L.Dice(), "numbers"),
    "axis": (L.BinaryCrossentropy(from_logits=True, axis=0), "numbers"),
    "own": (lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred)), "numbers"),
    "flat": (L.MeanSquaredError(), "flat"),  # [3] against [3, 3] would mix rows in a whole batch
}


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2.0 * super().compute_loss(x, y, y_pred, sample_weight, training)


def model_of(loss, outputs=3, kind=keras.Model, **options):
    x = keras.Input((4,))
    hidden = layers.Dense(5, activation="tanh", **options)(x)
    model = kind(x, layers.Dense(outputs)(hidden))
    model.compile(loss=loss)
    return model


def targets(kind, rows, shape=(3,)):
    generator = np.random.default_rng(1)
    if kind == "numbers":
        return tf.constant(generator.uniform(size=(rows, *shape)), tf.float32)
    labels = tf.constant(generator.integers(0, 3, (rows, *shape[:-1])))
    if kind == "flat":
        return tf.cast(labels, tf.float32)
    return labels if kind == "labels" else labels[..., tf.newaxis]


def compare(model, y):
    rows = y.shape[0]
    weight = tf.constant([1.0, 0.0, 0.5, 3.0, 1.0, 1.0][:rows])
    lot = (
        Forward(model),
        GlobalL2Clip(0.1),
        tf.constant(normal(rows, 4)),
        y,
        weight,
        tf.constant(0),
    )
    assert_equal_sums(ghost.bounded_sum(*lot), loop_bounded_sum(*lot))


@pytest.mark.parametrize("name", LOSSES | ROW_BY_ROW)
def test_losses_of_rows_are_those_of_batches_of_one(name):
    loss, kind = (LOSSES | ROW_BY_ROW)[name]
    compare(model_of(loss), targets(kind, 3 if kind == "flat" else 6))


def test_one_output_is_compared_with_flat_targets():
    compare(model_of("mse", 1), targets("numbers", 6, ()))


def test_a_loss_of_ones_own_and_weight_penalties():
    compare(model_of("mse", kind=OwnLoss), targets("numbers", 6))
    compare(model_of("mse", kernel_regularizer="l2"), targets("numbers", 6))


@pytest.mark.parametrize("loss", ["mse", "sparse_categorical_crossentropy"])
def test_sequences_are_averaged_over_their_positions(loss):
    x = keras.Input((4,))
    model = keras.Model(x, layers.Dense(3, activation="softmax")(layers.Reshape((2, 2))(x)))
    model.compile(loss=loss)
    compare(model, targets("labels" if loss.startswith("sparse") else "numbers", 6, (2, 3)))
