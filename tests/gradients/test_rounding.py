"""Rounding in float32 never makes the sensitivity larger than the clip norm."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.checking import summing
from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import choose_engine


@pytest.mark.parametrize(
    ("engine", "jit_compile", "rows", "physical"),
    [
        ("ghost", False, 2048, None),
        ("ghost", False, 2048, 256),
        ("ghost", True, 2048, None),
        ("vectorized", False, 64, None),
        ("vectorized", False, 2048, None),
    ],
)
def test_one_row_less_moves_a_large_sum_by_less_than_the_clip_norm(
    engine, jit_compile, rows, physical
):
    """All gradients point the same way, and each is longer than the clip norm."""
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
    model.compile(loss="mse")
    x = 1.0 + np.abs(np.random.default_rng(0).normal(size=(rows, 16)))
    x, y = tf.constant(x, tf.float32), tf.fill([rows, 8], -100.0)
    forward, run, bound = Forward(model), choose_engine(engine, model), GlobalL2Clip(1.0)
    sums = summing(run, forward, bound, jit_compile, physical_batch_size=physical)
    whole = sums(x, y, tf.ones([rows]))[0].numpy().astype("float64")
    for row in (0, rows // 2, rows - 1):
        weights = np.ones(rows, "float32")
        weights[row] = 0.0
        moved = np.linalg.norm(whole - sums(x, y, tf.constant(weights))[0])
        assert 0.999 < moved <= 1.0
