"""Noise densities: against SciPy, and the properties that Theorem C needs."""

import numpy as np
import pytest
from scipy import integrate, stats

from tfdp.accounting.numerics.noise_families import (
    FAMILIES,
    fisher_information,
    log_density,
    log_ratio,
)

CASES = [(f, None) for f in FAMILIES if f != "student_t"] + [("student_t", 3.0), ("student_t", 9.0)]
X = np.linspace(-30, 30, 4001)


@pytest.mark.parametrize(
    ("family", "nu", "peer"),
    [
        ("gaussian", None, stats.norm()),
        ("student_t", 9.0, stats.t(9)),
        ("cauchy", None, stats.cauchy()),
        ("laplace", None, stats.laplace()),
        ("sech", None, stats.hypsecant()),
    ],
)
def test_densities_are_scipys(family, nu, peer):
    assert log_density(family, X, nu) == pytest.approx(peer.logpdf(X), rel=1e-9, abs=1e-9)


def test_variance_gamma_is_a_density():
    total = 2 * integrate.quad(lambda x: np.exp(log_density("variance_gamma", x)), 0, np.inf)[0]
    assert total == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_symmetric_and_unimodal(family, nu):
    values = log_density(family, X, nu)
    assert values == pytest.approx(values[::-1])
    assert np.all(np.diff(values[len(X) // 2 :]) < 0)


@pytest.mark.parametrize(("family", "nu"), CASES)
@pytest.mark.parametrize("shift", [1e-8, 0.7])
def test_log_ratio_is_a_difference(family, nu, shift):
    expected = log_density(family, X - shift, nu) - log_density(family, X, nu)
    assert log_ratio(family, X, shift, nu) == pytest.approx(expected, abs=2e-13, rel=1e-9)


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_log_ratio_keeps_the_digits_of_tiny_shifts(family, nu):
    score = log_ratio(family, X, 1e-12, nu) / 1e-12
    coarse = log_ratio(family, X, 1e-6, nu) / 1e-6
    assert score == pytest.approx(coarse, abs=2e-6)


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_fisher_information(family, nu):
    def integrand(x):
        return np.exp(log_density(family, x, nu)) * (log_ratio(family, x, 1e-5, nu) / 1e-5) ** 2

    total = integrate.quad(integrand, 1e-4, np.inf, limit=200)[0]
    assert 2 * total == pytest.approx(fisher_information(family, nu), rel=1e-3)


@pytest.mark.parametrize(
    ("family", "nu", "product"),
    [
        ("gaussian", None, 0.7978846),
        ("student_t", 3.0, 0.900316),
        ("student_t", 9.0, 0.797008),
        ("laplace", None, 1.0),
        ("sech", None, 0.824659),
        ("variance_gamma", None, 0.819079),
    ],
)
def test_golden_noise_at_equal_privacy(family, nu, product):
    """sqrt(I) E|X|; no density has a value below 0.7916022 (Theorem D)."""

    def integrand(x):
        return 2 * x * np.exp(log_density(family, x, nu))

    mean = integrate.quad(integrand, 0, np.inf)[0]
    found = mean * np.sqrt(fisher_information(family, nu))
    assert found == pytest.approx(product, rel=2e-6)
    assert found > 0.7916022
