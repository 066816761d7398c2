"""The noise on prefix sums of every mechanism at a proven epsilon, from section 6 of the design."""

import functools

import numpy as np
import pytest

from tests.accounting.varying import vary
from tfdp.accounting import Strategy, describe, noise_for, proven, strategy
from tfdp.accounting.strategies import losses

N, DELTA = 60000, 1e-5
# Epsilon, lot, epochs: Poisson DP-SGD mean, max and z; z of SI-DPSGD; square root, then banded without
# amplification (mean, max); amplified banded mean, max and bands.
TABLE = [
    (0.5, 256, 1, 10.05, 14.18, 0.9271, 107.6, 18.57, 19.71, 18.20, 20.29, 7.68, 10.40, 8),
    (0.5, 256, 15, 81.1, 114.7, 1.936, 3788, 171.5, 179.5, 119.6, 150.3, 77.8, 109.7, 4),
    (2, 256, 1, 7.114, 10.04, 0.6563, 30.5, 5.264, 5.587, 5.160, 5.754, 3.802, 4.976, 16),
    (2, 256, 10, 26.89, 38.02, 0.7859, 598.4, 33.27, 34.87, 24.77, 30.54, 17.48, 24.18, 16),
    (2, 256, 15, 35.13, 49.68, 0.8385, 1074, 48.64, 50.89, 33.91, 42.61, 24.69, 34.32, 16),
    (2, 1024, 1, 4.356, 6.107, 0.8019, 15.2, 4.384, 4.700, 4.283, 4.857, 3.360, 4.512, 4),
    (2, 1024, 10, 19.12, 27.02, 1.1218, 297.9, 30.08, 31.76, 21.99, 27.69, 16.68, 23.32, 4),
    (2, 1024, 15, 26.35, 37.24, 1.2626, 534.7, 44.44, 46.80, 30.51, 39.12, 23.77, 33.33, 4),
    (2, 2048, 1, 3.542, 4.925, 0.9146, 10.7, 3.950, 4.258, 3.853, 4.406, 3.154, 4.120, 4),
    (2, 2048, 10, 17.28, 24.40, 1.4327, 210.7, 28.47, 30.18, 20.63, 26.28, 16.34, 22.70, 4),
    (2, 2048, 15, 24.36, 34.42, 1.6501, 378.1, 42.30, 44.72, 28.85, 37.40, 23.41, 32.66, 4),
    (8, 256, 1, 4.658, 6.573, 0.4297, 9.2, 1.585, 1.682, 1.553, 1.732, 1.886, 2.158, 128),
    (8, 256, 10, 17.91, 25.33, 0.5236, 180.2, 10.02, 10.50, 7.457, 9.193, 6.927, 9.165, 64),
    (8, 256, 15, 22.89, 32.37, 0.5464, 323.3, 14.64, 15.32, 10.21, 12.83, 9.290, 12.44, 64),
    (8, 1024, 15, 14.11, 19.95, 0.6763, 161.0, 13.38, 14.09, 9.186, 11.78, 8.647, 11.77, 16),
    (8, 2048, 1, 2.055, 2.858, 0.5307, 3.2, 1.189, 1.282, 1.160, 1.326, 1.413, 1.669, 16),
    (8, 2048, 15, 11.51, 16.26, 0.7796, 113.8, 12.73, 13.46, 8.684, 11.26, 8.364, 11.48, 8),
]
ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda r: f"eps={r[0]},L={r[1]},k={r[2]}")


def run(row, **changes):
    _, lot, epochs = row[:3]
    steps = N // lot * epochs
    fields = dict(
        mechanism="dpsgd", num_examples=N, lot_size=lot, steps=steps, sampling="cyclic",
        noise_multiplier=1.0,
    )  # fmt: skip
    return describe(**fields | changes)


@functools.cache
def banded(steps, bands):
    return strategy("banded_toeplitz", steps, bands)


def check_noise(run, epsilon, z):
    """The golden z has four digits, and costs the budget to about that accuracy."""
    assert proven(vary(run, noise_multiplier=z), DELTA).epsilon == pytest.approx(epsilon, rel=2e-3)


@ROWS
def test_poisson_dpsgd(row):
    plain = run(row, sampling="poisson")
    epsilon, mean, largest, z = row[0], *row[3:6]
    check_noise(plain, epsilon, z)
    found = [z * loss for loss in losses(np.ones(1), plain.steps)]
    assert found == pytest.approx((mean, largest), rel=1e-3)


@ROWS
def test_si_dpsgd(row):
    z = noise_for(row[0], DELTA, run(row, mechanism="si_dpsgd"))
    assert z == pytest.approx(row[6], rel=1e-3, abs=0.05)  # some values have one decimal


@ROWS
def test_correlated_without_amplification(row):
    base = run(row, mechanism="matrix", strategy=Strategy(name="identity"))
    for plan, golden in (
        (Strategy(name="sqrt_toeplitz"), row[7:9]),
        (banded(base.steps, base.sampling.steps_per_epoch), row[9:11]),
    ):
        z = noise_for(row[0], DELTA, vary(base, strategy=plan))
        found = [z * loss for loss in losses(plan.first(base.steps), base.steps)]
        assert found == pytest.approx(golden, rel=1e-3)


@ROWS
def test_correlated_and_amplified(row):
    epsilon, mean, largest, bands = row[0], *row[11:]
    steps = run(row).steps
    plan = banded(steps, bands)
    one, most = losses(plan.first(steps), steps)
    assert mean * most / one == pytest.approx(largest, rel=1.5e-3)
    amplified = run(
        row, mechanism="matrix", sampling="cyclic_poisson", groups=bands, strategy=plan,
        num_examples=N - N % bands,
    )  # fmt: skip
    check_noise(amplified, epsilon, mean / one)
    assert mean < row[3] and largest < row[4]  # better than DP-SGD everywhere


def test_banded_with_all_bands_of_one_long_epoch():
    c = np.array(banded(3516, 3516).coefficients)
    scale = float(np.linalg.norm(c))
    assert [scale * loss for loss in losses(c, 3516)] == pytest.approx((3.4490, 3.7536), rel=1e-4)
