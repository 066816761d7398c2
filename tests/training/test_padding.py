"""Padding of lots and chunks: copies of a row, because some models cannot compute with zeros."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import private, sgd, weights
from keras import layers

from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.gradients.chunks import with_rows
from tfdp.layers import PrivateBatchNormalization


@keras.saving.register_keras_serializable("tests")
class Factored(layers.Layer):
    """Needs positive definite matrices."""

    def call(self, x):
        tf.debugging.assert_positive(tf.linalg.det(x))
        return tf.linalg.cholesky(x)


def demanding(lot_statistics):
    """A model of words of a vocabulary of two, and of positive definite matrices."""
    seed_keras(0)
    words, matrices = keras.Input((1,), dtype="string"), keras.Input((2, 2))
    numbers = layers.StringLookup(vocabulary=["a", "b"], num_oov_indices=0)(words)
    read = layers.Flatten()(layers.Embedding(2, 3)(numbers))
    x = layers.Concatenate()([read, layers.Flatten()(Factored()(matrices))])
    if lot_statistics:
        x = PrivateBatchNormalization(statistics="batch")(x)
    return keras.Model([words, matrices], layers.Dense(1)(x))


def rows(number):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(number, 2, 2))
    matrices = a @ a.transpose(0, 2, 1) + np.eye(2)
    words = rng.choice(["a", "b"], (number, 1))
    return (words, matrices.astype("float32")), rng.normal(size=(number, 1)).astype("float32")


@pytest.mark.parametrize(
    ("engine", "chunk", "lot_statistics"),
    [("ghost", 2, False), ("loop", 2, False), ("auto", None, True)],
    ids=["ghost", "loop", "lotwise"],
)
def test_padding_is_a_copy_of_a_row_and_changes_nothing(engine, chunk, lot_statistics):
    """The first row of each lot is absent, with a loss that is NaN; the second lot has three rows."""
    (x, y), weight = rows(10), np.float32([0, 1, 2, 1, 1, 0, 1, 1, 0, 0])

    def trained(x, y, weight, chunk=None):
        model, options = demanding(lot_statistics), {"engine": engine, "physical_batch_size": chunk}
        compiled = {"loss": "mse", "run_eagerly": engine == "loop"}
        model = private(sgd(noise=0.0, clip=0.3), model, compiled, **options)
        lots = tf.data.Dataset.from_tensor_slices((x, y, weight)).batch(5)
        history = model.fit(lots, verbose=0).history
        return weights(model), list(history.values()), model

    expected, other_logs, _ = trained(x, y, weight)  # without padding
    y[[0, 5]] = np.nan
    moved, logs, model = trained(*tf.nest.map_structure(lambda a: a[:8], (x, y, weight)), chunk)
    assert_close(moved, expected, terms_of(model, 5, steps=2))
    assert_close(logs, other_logs, terms_of(model, 5, steps=2))


def test_a_lot_without_rows_is_padded_with_zeros():
    """A replica's part of a lot may have no rows."""
    x, y, weight = with_rows({"x": tf.zeros([0, 2], tf.string)}, (), tf.zeros([0]), 3)
    np.testing.assert_array_equal(x["x"], np.full((3, 2), b""))
    assert y == () and weight.shape == (3,) and not np.any(weight)
