"""Golden steps from the tests of TensorFlow Privacy, Opacus and jax_privacy.

Read at tensorflow/privacy, commit 03035d5d, pytorch/opacus, commit 4d0ebc84, and
google-deepmind/jax_privacy, commit 8967688c. Each test names the file and the test of the peer.
"""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.accounting.varying import vary
from tests.rounding import FUNCTION, assert_close, terms_of
from tfdp.accounting import proven
from tfdp.optimizers.adaptive_clipping import AdaptiveClipping


def linear(inputs=2, units=1, bias=True, weights=None):
    """A linear model whose weights are 0, or `weights`."""
    layer = layers.Dense(units, use_bias=bias, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((inputs,)), layer])
    if weights is not None:
        model.set_weights([np.asarray(w, "float32") for w in weights])
    return model


def private(model, loss="mse", cls=tfdp.DPKerasSGDOptimizer, clip=1e9, noise=0.0, make=None, **o):
    model = tfdp.make_private(model, **(make or {}))
    optimizer = cls(l2_norm_clip=clip, noise_multiplier=noise, **({"learning_rate": 1.0} | o))
    model.compile(optimizer, loss, jit_compile=False)
    return model


def flat(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


def mean_gradient(model, x, y, sample_weight=None):
    """The private mean gradient: what SGD with rate 1 takes away from the weights."""
    before = flat(model)
    model.train_on_batch(x, y, sample_weight=sample_weight)
    return before - flat(model)


def clipped_mean(gradients, clip, microbatches=None):
    """Mean of the clipped means of equal groups of consecutive rows; each row alone by default."""
    groups = gradients.reshape(microbatches or len(gradients), -1, gradients.shape[1]).mean(axis=1)
    norms = np.linalg.norm(groups, axis=1, keepdims=True)
    return (groups * np.minimum(1.0, clip / norms)).mean(axis=0)


def half_square(y, y_pred):
    """Half the squared distance of a row, whose gradient is the difference."""
    return keras.ops.sum(keras.ops.square(y_pred - y), axis=-1) / 2


def constants(*values):
    """A model whose outputs are weights, whatever the input."""
    return linear(1, len(values), weights=[np.zeros((1, len(values))), values])


# ------------------------------------------------------------------ TensorFlow Privacy


# optimizers/dp_optimizer_keras_test.py, testBaselineWithCallableLossNoNoise and
# testClippingNormMultipleVariables.
POINTS = np.float32([[3, 4, 8], [5, 6, 2], [7, 8, 3], [-1, 0, 1]])
FAR_POINTS = np.float32([[3, 6, 8], [5, 6, 2], [4, 8, 3], [-1, 0, 1]])
NOTHING = np.zeros((4, 1), "float32")


def test_mean_gradient_of_two_microbatches_by_adam():
    """(-2.5, -2.5, -0.5); the update is then the plain optimizer's."""
    model = private(
        constants(1, 2, 3), half_square, tfdp.DPKerasAdamOptimizer, 100.0, num_microbatches=2,
        learning_rate=2.0,
    )  # fmt: skip
    model.train_on_batch(NOTHING, POINTS)
    expected = keras.Variable([1.0, 2.0, 3.0])
    keras.optimizers.Adam(2.0).apply([tf.constant([-2.5, -2.5, -0.5])], [expected])
    assert_close(model.get_weights()[1], expected, 3 + 5 * FUNCTION)


@pytest.mark.parametrize("microbatches", [2, None])
def test_clipping_over_several_variables(microbatches):
    model = private(constants(1, 2, 3), half_square, clip=2.5, num_microbatches=microbatches)
    found = mean_gradient(model, NOTHING, FAR_POINTS)[3:]
    expected = clipped_mean(np.float32([1, 2, 3]) - FAR_POINTS, 2.5, microbatches)
    assert_close(found, expected, 3 * 4 + 2 * FUNCTION)


@pytest.mark.slow
def test_clipping_of_a_microbatch():
    """testClippingNorm (sparse): (3, 4) and (6, 8) in one microbatch, clipped at 1: (-0.6, -0.8)."""
    model = private(constants(0, 0), half_square, clip=1.0, num_microbatches=1)
    found = mean_gradient(model, np.zeros((2, 1), "float32"), np.float32([[3, 4], [6, 8]]))
    assert_close(found[2:], [-0.6, -0.8], 3 * 2 + 2 * FUNCTION)


def test_scale_of_the_noise_of_microbatches():
    """testNoiseMultiplier: clip norm times noise multiplier over the number of microbatches."""
    model = private(linear(2500), clip=4.0, noise=3.0, num_microbatches=4)
    found = mean_gradient(model, np.zeros((16, 2500), "float32"), np.zeros((16, 1), "float32"))
    # 2500 numbers: the standard deviation of the estimate is 1.4%.
    assert np.std(found) == pytest.approx(4.0 * 3.0 / 4, rel=0.1)


# clip_and_aggregate_gradients_test.py, _get_true_grads: an embedding of four rows that six examples
# look up (the last one none), and a weight of its own for every example.
LOOKED_UP = np.int32([1, 1, 2, 3, 2, 0])
TARGETS = np.float32([[3, 4, -1], [5, 6, -2], [7, 8, -2], [-1, 0, -3], [-2, -1, -3], [0, 0, -4]])
EMBEDDING_GRADIENTS = {0: (-2, -3), 1: (-4, -5), 2: (-5, -6), 3: (4, 3), 4: (4, 3)}
WEIGHT_GRADIENTS = (2, 3, 4, 5, 6, 7)


def test_clipped_sums_of_looked_up_rows():
    """There a group's losses are summed, here they are averaged."""
    index, row = keras.Input((), dtype="int32"), keras.Input((), dtype="int32")
    present = keras.ops.cast(row < 5, "float32")[:, None]
    outputs = [layers.Embedding(4, 2)(index) * present, layers.Embedding(6, 1)(row)]
    model = keras.Model([index, row], layers.Concatenate()(outputs))
    model.set_weights(
        [np.repeat(np.arange(4.0)[:, None], 2, axis=1), np.float32([[1, 1, 2, 2, 3, 3]]).T]
    )
    gradients = np.zeros((6, 4 * 2 + 6))
    for i, gradient in EMBEDDING_GRADIENTS.items():
        gradients[i, 2 * LOOKED_UP[i] : 2 * LOOKED_UP[i] + 2] = gradient
    gradients[np.arange(6), 8 + np.arange(6)] = WEIGHT_GRADIENTS
    model = private(model, half_square, clip=1.0, num_microbatches=3)
    found = mean_gradient(model, [LOOKED_UP, np.arange(6, dtype="int32")], TARGETS)
    assert_close(found, clipped_mean(gradients, 1.0, 3), 14 + 6 + 3 * FUNCTION)


def test_clipping_of_a_weighted_example():
    """dp_keras_model_test.py: x = (3, 4), y = 15, gradient -(90, 120, 30) at zero, clip norm 40."""
    model, gradient = private(linear(), clip=40.0), np.float32([-90, -120, -30])
    start = model.get_weights()
    for weight in (1.0, 0.18):
        model.set_weights(start)
        model.reset_metrics()
        weights = np.float32([weight])
        loss = model.train_on_batch(np.float32([[3, 4]]), np.float32([[15]]), sample_weight=weights)
        expected = -weight * gradient * min(1.0, 40.0 / np.linalg.norm(weight * gradient))
        assert_close(flat(model), expected, 2 * 3 + 3 * FUNCTION)
        assert_close(float(loss), 225.0 * weight, 3 + FUNCTION)


# dp_query/quantile_adaptive_clip_sum_query_test.py, the geometric cases: quantile, first clip norm,
# norms of the two records, clip norms after every step.
ROOT = math.sqrt(2.0)
ADAPTATIONS = [
    (0.0, 16.0, (5.0, 2.5), (8.0, 4.0, 4 / ROOT, 2.0, 2.0)),
    (1.0, 0.5, (1.5, 3.0), (1.0, 2.0, 2 * ROOT, 4.0, 4.0)),
]


@pytest.mark.parametrize(("quantile", "first", "norms", "expected"), ADAPTATIONS)
def test_adaptive_clip_norms(quantile, first, norms, expected):
    clipping, clip = AdaptiveClipping(0.0, quantile, math.log(2.0)), first
    for wanted in expected:
        count = tf.constant(np.sum(np.asarray(norms) <= clip) - len(norms) / 2, tf.float32)
        clip = float(clipping.next_clip_norm(tf.constant(clip), count, len(norms), first))
        assert_close(clip, wanted, 2 * FUNCTION * len(expected))


# ------------------------------------------------------------------ jax_privacy


@pytest.mark.parametrize(
    ("clip", "clipping", "expected"),
    [(1.0, "global", [-0.44721362, -0.89442724]), (2.0, "automatic", [-0.89442724, -1.78885448])],
)
def test_clipped_gradient_of_a_step(clip, clipping, expected):
    """keras_api_test.py, test_clipped_grads: a . x at a = (3, -2), x = (1, 2), y = 4: (-10, -20)."""
    model = private(linear(bias=False, weights=[[[3.0], [-2.0]]]), clip=clip, clipping=clipping)
    x, y = np.float32([[1, 2]] * 4), np.full((4, 1), 4.0, "float32")
    # "automatic" adds a small constant to the norm, so that the result is just below the clip norm.
    constant = 0.01 / np.linalg.norm([10, 20]) if clipping == "automatic" else 0.0
    expected = np.array(expected) / (1 + constant)
    assert_close(mean_gradient(model, x, y), expected, terms_of(model, 4))


# ------------------------------------------------------------------ Opacus


def test_a_schedule_of_the_noise():
    """schedulers/noise_scheduler_test.py, in steps of two: measured, accounted and not assignable."""
    noises = [1.0, 1.0, 0.1, 0.1, 0.01]
    model = private(linear(4000, bias=False), clip=1.0, noise=noises)
    x, y = np.zeros((2, 4000), "float32"), np.zeros((2, 1), "float32")
    spread = [np.std(mean_gradient(model, x, y)) * 2 for _ in noises]
    np.testing.assert_allclose(spread, noises, rtol=0.07)
    run = model.privacy.ledger.runs[0]
    one = [vary(run, steps=1, noise_multiplier=z) for z in noises]
    assert proven(run, 1e-5).mu == pytest.approx(proven(one, 1e-5).mu)
    with pytest.raises((AttributeError, ValueError, RuntimeError)):
        model.optimizer.noise_multiplier = 0.1
