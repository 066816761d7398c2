"""Losses of a whole batch equal those of batches of one, or are left to the vectorizer."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients import row_losses
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.testing import assert_equal_sums, loop_bounded_sum, run_engine

L = keras.losses
WHOLE = {
    "sparse": (L.SparseCategoricalCrossentropy(from_logits=True), "labels"),
    "sparse_column": (L.SparseCategoricalCrossentropy(from_logits=True), "column"),
    "sparse_sum": (L.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"), "labels"),
    "one_hot": (L.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), "numbers"),
    "binary": (L.BinaryCrossentropy(from_logits=True), "numbers"),
    "squared": ("mse", "numbers"),
    "squared_broadcast": ("mse", "column"),
    "absolute": (L.MeanAbsoluteError(reduction="mean"), "numbers"),
}
ROW_BY_ROW = {
    "ignores": (L.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1), "labels"),
    "other": (L.Huber(), "numbers"),
    "mixes": (L.Dice(), "numbers"),
    "flat": (
        "mse",
        "labels",
    ),  # [4] against [4, 3] would mix rows in a whole batch
    "axis": (L.BinaryCrossentropy(from_logits=True, axis=0), "numbers"),
    "own": (lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred)), "numbers"),
}


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2.0 * super().compute_loss(x, y, y_pred, sample_weight, training)


def model(loss, outputs=3, kind=keras.Model, **options):
    x = keras.Input((4,))
    hidden = layers.Dense(5, activation="tanh", **options)(x)
    made = kind(x, layers.Dense(outputs)(hidden))
    made.compile(loss=loss)
    return made


def targets(kind, rows, shape=(3,)):
    generator = np.random.default_rng(1)
    if kind == "numbers":
        return tf.constant(generator.uniform(size=(rows, *shape)), tf.float32)
    labels = tf.constant(generator.integers(0, 3, (rows, *shape[:-1])))
    return labels if kind == "labels" else labels[..., tf.newaxis]


def compare(made, y, monkeypatch, whole):
    vectorized, asked = row_losses._vectorized, []
    monkeypatch.setattr(
        row_losses, "_vectorized", lambda *arguments: asked.append(1) or vectorized(*arguments)
    )
    rows = y.shape[0]
    x = tf.constant(np.random.default_rng(0).normal(size=(rows, 4)), tf.float32)
    weight = tf.constant([1.0, 0.0, 0.5, 3.0, 1.0, 1.0][:rows])
    arguments = (Forward(made), GlobalL2Clip(0.1), x, y, weight)
    ours = run_engine(ghost.bounded_sum, *arguments)
    assert bool(asked) != whole
    assert_equal_sums(ours, loop_bounded_sum(*arguments, tf.constant(0)))


@pytest.mark.parametrize("name", WHOLE)
def test_known_losses_are_taken_of_whole_batches(name, monkeypatch):
    loss, kind = WHOLE[name]
    compare(model(loss), targets(kind, 6), monkeypatch, whole=True)


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_other_losses_are_taken_row_by_row(name, monkeypatch):
    loss, kind = ROW_BY_ROW[name]
    rows = 3 if name == "flat" else 6
    y = targets(kind, rows)
    compare(model(loss), tf.cast(y, tf.float32) if name == "flat" else y, monkeypatch, whole=False)


def test_one_output_is_compared_with_flat_targets_row_by_row(monkeypatch):
    compare(model("mse", 1), targets("numbers", 6, ()), monkeypatch, whole=False)


def test_a_loss_of_ones_own_is_taken_row_by_row(monkeypatch):
    compare(model("mse", kind=OwnLoss), targets("numbers", 6), monkeypatch, whole=False)


def test_weight_penalties_stay_out(monkeypatch):
    made = model("mse", kernel_regularizer="l2")
    compare(made, targets("numbers", 6), monkeypatch, whole=True)


@pytest.mark.parametrize("loss", ["mse", "sparse_categorical_crossentropy"])
def test_sequences_are_averaged_over_their_positions(loss, monkeypatch):
    x = keras.Input((4,))
    made = keras.Model(x, layers.Dense(3, activation="softmax")(layers.Reshape((2, 2))(x)))
    made.compile(loss=loss)
    kind = "labels" if loss.startswith("sparse") else "numbers"
    compare(made, targets(kind, 6, (2, 3)), monkeypatch, whole=True)
