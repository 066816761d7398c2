"""Rounding in float32 never makes the sensitivity larger than the clip norm."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.rules import OuterProducts, per_example_gradient


def aligned(rows):
    """A model, and examples whose gradients all point the same way, each longer than the clip norm."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8)])
    model.compile(loss="mse")
    x = 1.0 + np.abs(np.random.default_rng(0).normal(size=(rows, 16)))
    x, y = tf.constant(x, tf.float32), tf.fill([rows, 8], -100.0)
    return model, x, y


@pytest.mark.parametrize("engine", ["ghost", "vectorized"])
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize(("rows", "physical"), [(64, None), (2048, None), (2048, 256)])
def test_one_row_less_moves_a_large_sum_by_less_than_the_clip_norm(
    engine, jit_compile, rows, physical
):
    model, x, y = aligned(rows)
    forward, run = Forward(model), choose_engine(engine, model)

    @tf.function(jit_compile=jit_compile)
    def sums(weights):
        lot = bounded_sum(
            run, forward, GlobalL2Clip(1.0), x, y, weights, physical_batch_size=physical
        )
        return tf.concat([tf.reshape(part, [-1]) for part in lot.sums], 0)

    whole = sums(tf.ones([rows])).numpy().astype("float64")
    for row in (0, rows // 2, rows - 1):
        weights = np.ones(rows, "float32")
        weights[row] = 0.0
        moved = np.linalg.norm(whole - sums(tf.constant(weights)).numpy())
        assert 0.999 < moved <= 1.0


@pytest.mark.parametrize("positions", [2, 16, 128])
@pytest.mark.parametrize("width", [4, 512])
@pytest.mark.parametrize("cancelling", [0.0, 0.01, 0.1])
def test_a_norm_from_gram_matrices_is_not_too_small(positions, width, cancelling, monkeypatch):
    monkeypatch.setattr(per_example_gradient, "_MOST_INSTANTIATED", 0)
    generator = np.random.default_rng(positions + width)
    left = generator.normal(size=(20, positions, width)).astype("float32")
    right = generator.normal(size=(20, positions, width)).astype("float32")
    if cancelling:
        left = np.abs(left[:, :1]) + np.float32(cancelling) * left
        right -= right.mean(axis=1, keepdims=True)
    gradients = OuterProducts(tf.constant(left), tf.constant(right))
    exact = np.einsum("ntp,ntq->npq", left.astype("float64"), right.astype("float64"))
    squares = np.square(exact).sum(axis=(1, 2))
    found = gradients.square_norms().numpy().astype("float64")
    assert np.all(found >= squares * (1 - 1e-7))
