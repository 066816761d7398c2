"""Denoising multiplies by the Kolmogorov-Smirnov distance between the sum and the noise."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close, rounding
from tfdp.noise import NoiseFamily
from tfdp.noise.denoising import denoise, kolmogorov_smirnov

REFERENCES = {
    "gaussian": (NoiseFamily("gaussian"), scipy.stats.norm()),
    "student_t": (NoiseFamily("student_t", 9.0), scipy.stats.t(9)),
    "laplace": (NoiseFamily("laplace"), scipy.stats.laplace()),
    "cauchy": (NoiseFamily("cauchy"), scipy.stats.cauchy()),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_the_distance_is_scipys(name):
    family, reference = REFERENCES[name]

    def distance(values):
        return kolmogorov_smirnov(values, family, 0.5)

    draw = np.random.default_rng(0)
    for values in (draw.normal(size=500), draw.normal(1.0, 2.0, size=37), np.zeros(5), [3.0]):
        values = np.asarray(values, np.float32)
        expected = scipy.stats.kstest(values / 0.5, reference.cdf).statistic
        assert float(distance(tf.constant(values))) == pytest.approx(
            expected, abs=rounding(2 * FUNCTION)
        )


def test_all_variables_are_one_vector_and_get_one_factor():
    family = NoiseFamily("student_t", 9.0)
    parts = [np.full((2, 3), 0.7, np.float32), np.linspace(-1, 2, 4, dtype=np.float32)]
    flat = np.concatenate([p.ravel() for p in parts])
    factor = float(kolmogorov_smirnov(tf.constant(flat), family, 1.5))
    for part, scaled in zip(
        parts, denoise([tf.constant(p) for p in parts], family, 1.5), strict=True
    ):
        assert_close(scaled, factor * part, len(flat) + 2 * FUNCTION)
