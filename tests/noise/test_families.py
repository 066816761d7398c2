"""Drawn noise has the accounted density and scale; other scales are detected."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

from tests.noise.assertions import assert_unrelated
from tests.rounding import OF_DISTRIBUTIONS
from tfdp.accounting.numerics import noise_families as table
from tfdp.noise import NoiseFamily, NoiseSource

FAMILIES = {
    "gaussian": NoiseFamily("gaussian"),
    "student_t_9": NoiseFamily("student_t", 9.0),
    "student_t_2.5": NoiseFamily("student_t", 2.5),
    "laplace": NoiseFamily("laplace"),
    "sech": NoiseFamily("sech"),
    "variance_gamma": NoiseFamily("variance_gamma"),
    "cauchy": NoiseFamily("cauchy"),
}
SHAPES = [(60, 100), (5000,)]


def by_density(family):
    """The distribution function, by integrating the accountant's density."""
    u = np.linspace(-16, 16, 40001)
    x = np.sinh(u)
    z = np.exp(table.log_density(family.name, x, family.degrees_of_freedom))
    total = scipy.integrate.cumulative_simpson(z * np.cosh(u), x=u, initial=0.0)
    return lambda at: np.interp(at, x, total)


def p_value(values, family, scale):
    return scipy.stats.kstest(values / scale, by_density(family)).pvalue


@pytest.mark.parametrize(
    ("name", "jit_compile"), [*((name, False) for name in FAMILIES), ("student_t_9", True)]
)
def test_draws_have_the_accounted_density_and_no_other_scale(name, jit_compile):
    family, source = FAMILIES[name], NoiseSource(seed=7)
    drawn = tf.function(
        lambda: family.sample(source, 0, 0.3, SHAPES), autograph=False, jit_compile=jit_compile
    )()
    for values, shape in zip(drawn, SHAPES, strict=True):
        assert values.shape == shape and values.dtype == tf.float32
        values = values.numpy().ravel().astype(float)
        assert p_value(values, family, 0.3) > 1e-4
        assert p_value(values, family, 0.2) < 1e-12
        assert p_value(values, family, 0.45) < 1e-12


@pytest.mark.parametrize("name", ["student_t_9", "variance_gamma"])
def test_coordinates_and_steps_are_independent(name):
    family, source = FAMILIES[name], NoiseSource(seed=3)
    first, second = (family.sample(source, step, 1.0, [(4000,), (4000,)]) for step in range(2))
    streams = [s.numpy() for s in (*first, *second)]
    assert len(np.unique(np.concatenate(streams))) > 0.98 * 16000
    ranks = [scipy.stats.rankdata(stream) for stream in streams]
    assert_unrelated(*ranks, *(np.roll(rank, 1) for rank in ranks))
    assert_unrelated(*(scipy.stats.rankdata(abs(stream)) for stream in streams))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_distribution_function_belongs_to_the_density(name):
    family = FAMILIES[name]
    x = np.concatenate([-np.logspace(2, -3, 40), [0.0], np.logspace(-3, 2, 40)])
    found = family.cumulative(tf.constant(x, tf.float64)).numpy()
    np.testing.assert_allclose(found, by_density(family)(x), atol=OF_DISTRIBUTIONS)
    coarse = family.cumulative(tf.constant(x, tf.float32)).numpy()
    np.testing.assert_allclose(coarse, found, atol=OF_DISTRIBUTIONS)


def test_tails_are_not_cut_where_single_precision_would_cut_them():
    # 24 random bits end at 40 scales of this noise. One draw in ten thousand is larger.
    values = FAMILIES["cauchy"].sample(NoiseSource(seed=1), 0, 1.0, [(2_000_000,)])[0].numpy()
    assert np.all(np.isfinite(values))
    assert np.abs(values).max() > 3e5
    far = np.abs(values) > 1e4
    assert scipy.stats.binomtest(int(far.sum()), len(values), 2e-4 / np.pi).pvalue > 1e-6


def test_no_noise_is_no_noise():
    assert np.all(FAMILIES["sech"].sample(NoiseSource(), 0, 0.0, [(5,)])[0].numpy() == 0.0)
