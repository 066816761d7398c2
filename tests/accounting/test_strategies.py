"""Strategies of correlated noise: the error table, the recursion, the optimum."""

import numpy as np
import pytest

from tfdp.accounting import Strategy, strategy
from tfdp.accounting.strategies import (
    inverse,
    losses,
    optimized,
    sqrt_coefficients,
)

# T, k, b: DP-SGD mean and max, prefix sums, square root mean, max and sensitivity, banded optimized
# for the mean (mean, max), banded optimized for the maximum (max).
TABLE = [
    (100, 1, 100, 7.1063, 10, 10, 2.3707, 2.5314, 1.5910, 2.3193, 2.6124, 2.5314),
    (100, 10, 10, 22.4722, 31.6228, 62.0484, 13.0140, 13.8961, 8.7341, 9.3177, 12.1194, 12.0378),
    (1000, 1, 1000, 22.3719, 31.6228, 31.6228, 3.1022, 3.2650, 1.8069, 3.0490, 3.3516, 3.2650),
    (1000, 10, 100, 70.7460, 100, 196.2142, 15.7162, 16.5407, 9.1540, 11.5727, 14.4439, 14.2932),
    (3516, 15, 234, 162.41, 229.65, 539.92, 24.4179, 25.5516, 13.3464, 17.0177, 21.3836, 21.1553),
]


def matrix(coefficients, steps):
    c = np.zeros(steps)
    c[: min(len(coefficients), steps)] = coefficients[:steps]
    return np.array([[c[t - s] if t >= s else 0.0 for s in range(steps)] for t in range(steps)])


def noise(coefficients, steps, k, b):
    pattern = np.zeros(steps)
    pattern[::b][:k] = 1.0
    scale = float(np.linalg.norm(np.convolve(coefficients, pattern)[:steps]))
    return [scale, *(scale * loss for loss in losses(coefficients, steps))]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"T={row[0]},k={row[1]}")
def test_golden_errors(row):
    steps, k, b = row[:3]
    identity = noise(np.ones(1), steps, k, b)[1:]
    prefix = noise(np.ones(steps), steps, k, b)
    root = noise(sqrt_coefficients(steps), steps, k, b)
    mean = noise(optimized(steps, b), steps, k, b)[1:]
    largest = noise(optimized(steps, b, "max"), steps, k, b)[2]
    found = [*identity, prefix[2], root[1], root[2], root[0], *mean, largest]
    assert found == pytest.approx(row[3:], rel=1e-4)
    assert prefix[1] == pytest.approx(prefix[2])


def test_golden_square_root_of_a_long_epoch():
    scale, mean, largest = noise(sqrt_coefficients(3516), 3516, 1, 3516)
    assert (scale, mean, largest) == pytest.approx((1.9145, 3.5027, 3.6653), rel=1e-4)


def test_noise_on_prefix_sums_is_the_product_of_matrices():
    c = optimized(20, 5)
    b = np.tril(np.ones((20, 20))) @ np.linalg.inv(matrix(c, 20))
    expected = np.linalg.norm(b) / np.sqrt(20), np.linalg.norm(b[-1])
    assert losses(c, 20) == pytest.approx(expected)
    assert inverse(c, 20) == pytest.approx(np.linalg.inv(matrix(c, 20))[:, 0])


@pytest.mark.parametrize("objective", ["mean", "max"])
def test_optimized_is_a_minimum(objective):
    c, which = optimized(50, 6, objective), 0 if objective == "mean" else 1

    def loss(c):
        return np.linalg.norm(c) * losses(c, 50)[which]

    rng = np.random.default_rng(1)
    for size in (1e-1, 1e-2, 1e-3):
        move = np.concatenate([[0.0], rng.normal(size=5) * size])
        assert loss(c) <= loss(c + move) * (1 + 1e-9)
    assert loss(c) < loss(sqrt_coefficients(6))
    assert optimized(50, 1).tolist() == [1.0]


def test_bands_are_cut():
    assert Strategy(name="identity").first(9).tolist() == [1.0]
    assert Strategy(name="prefix_sum").first(3).tolist() == [1.0, 1.0, 1.0]
    assert Strategy(name="sqrt_toeplitz", bands=2).first(9).tolist() == [1.0, 0.5]
    assert len(strategy("banded_toeplitz", 20, 4).first(3)) == 3
    assert strategy("banded_toeplitz", 20, 4).bands == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "surprise"},
        {"name": "identity", "coefficients": (1.0,)},
        {"name": "banded_toeplitz"},
        {"name": "banded_toeplitz", "coefficients": (0.0, 1.0)},
        {"name": "banded_toeplitz", "coefficients": (1.0, 0.5), "bands": 3},
        {"name": "sqrt_toeplitz", "bands": 0},
    ],
)
def test_bad_strategies_are_refused(fields):
    with pytest.raises(ValueError, match="Expected"):
        Strategy(**fields)


def test_bad_requests_are_refused():
    for arguments in (("banded_toeplitz", 10), ("banded_toeplitz", 10, 11)):
        with pytest.raises(ValueError, match="bands"):
            strategy(*arguments)
    with pytest.raises(ValueError, match="objective"):
        strategy("banded_toeplitz", 10, 2, "median")
