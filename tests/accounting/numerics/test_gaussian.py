"""Conversion of mu to epsilon, against dp_accounting and against quadrature."""

import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tfdp.accounting.numerics import gaussian


@settings(max_examples=30, deadline=None)
@given(mu=st.floats(1e-3, 1e3), delta=st.floats(1e-12, 0.4))
def test_epsilon_equals_dp_accounting(mu, delta):
    expected = gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta)
    assert gaussian.epsilon_of_mu(mu, delta) == pytest.approx(expected, rel=1e-8, abs=1e-9)


def test_huge_mu_keeps_its_digits():
    # epsilon ~ mu^2/2 + mu * quantile; at mu = 4e7 naive differences are pure rounding.
    mu, delta = 4.06e7, 1e-5
    expected = mu * mu / 2 + mu * stats.norm.isf(delta)
    assert gaussian.epsilon_of_mu(mu, delta) == pytest.approx(expected, rel=1e-9)


def test_edges():
    assert gaussian.epsilon_of_mu(0.0, 1e-5) == 0.0
    assert gaussian.epsilon_of_mu(math.inf, 1e-5) == math.inf
    assert gaussian.epsilon_of_mu(1e-8, 1e-5) == 0.0  # total variation below delta


def test_mixture_solves_the_averaged_profile():
    squares, chances = np.array([0.0, 1.0, 9.0]), np.array([0.5, 0.4, 0.1])
    epsilon = gaussian.epsilon_of_mixture(squares, chances, 1e-3, 1e-2)
    total = 1e-3
    for square, chance in zip(squares[1:], chances[1:], strict=True):
        mu = math.sqrt(square)
        total += chance * (
            stats.norm.cdf(mu / 2 - epsilon / mu)
            - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
        )
    assert total == pytest.approx(1e-2, rel=1e-9)
    assert total <= 1e-2 * (1 + 1e-13)
    assert gaussian.epsilon_of_mixture(squares, chances, 1e-2, 1e-2) == math.inf
