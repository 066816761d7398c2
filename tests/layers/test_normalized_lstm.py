"""NormalizedLSTM computes Ba et al.'s equations."""

import numpy as np
import pytest

from tests.rounding import assert_close, terms_of
from tfdp.layers import NormalizedLSTM


def inputs(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def randomized(layer, width):
    """Builds a layer and gives random values to all of its weights."""
    layer.build((None, None, width))
    generator = np.random.default_rng(1)
    for variable in layer.trainable_variables:
        variable.assign(generator.normal(size=variable.shape))
    return layer


def norm(x, scale=1.0, offset=0.0):
    """Layer normalization over all features of each row."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + offset


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def equations(layer, x):
    """Equations 20 to 22 of Ba et al. 2016, in float64."""
    weights = [np.float64(v) for v in layer.trainable_variables]
    kernel, recurrent_kernel, *affine = weights
    first, second, third = (affine[:2], affine[2:4], affine[4:]) if affine else ([], [], [])
    hidden = carry = np.zeros((len(x), layer.cell.units))
    for step in range(x.shape[1]):
        gates = norm(x[:, step] @ kernel, *first) + norm(hidden @ recurrent_kernel, *second)
        i, f, candidate, o = np.split(gates, 4, axis=1)
        carry = sigmoid(f) * carry + sigmoid(i) * np.tanh(candidate)
        hidden = sigmoid(o) * np.tanh(norm(carry, *third))
    return hidden


@pytest.mark.parametrize("affine", [True, False])
def test_is_the_equations(affine):
    layer, x = randomized(NormalizedLSTM(4, affine=affine), 3), inputs(5, 7, 3)
    assert_close(layer(x), equations(layer, x), terms_of(layer, length=x[0].size))


def test_masked_steps_do_not_count():
    layer, x = randomized(NormalizedLSTM(4), 3), inputs(5, 7, 3)
    mask = np.arange(7) < np.full((5, 1), 4)
    assert_close(layer(x, mask=mask), layer(x[:, :4]), terms_of(layer, length=x[0].size))
