"""Group privacy of Gaussians, whose epsilon for several changes is known."""

import itertools
import math

import numpy as np
import pytest

from tfdp.accounting.numerics import gaussian, group_privacy
from tfdp.accounting.numerics.privacy_loss import GaussianLoss

DELTA = 1e-5


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0])
def test_composed_gaussians(mu):
    """Ten mechanisms of mu / sqrt(10) together, by the best of many points of their curve."""
    losses = (GaussianLoss(mu / math.sqrt(10)),) * 10
    found = [group_privacy.epsilon_of(losses, DELTA, k).epsilon for k in (2, 3, 5)]
    assert all(a < b for a, b in itertools.pairwise(found))
    for k, epsilon in zip((2, 3, 5), found, strict=True):
        assert epsilon > gaussian.epsilon_of_mu(k * mu, DELTA)
        one = np.linspace(1e-4, 30 * mu, 10_001)
        sums = sum(np.exp(i * one) for i in range(k))
        fits = k * one[sums * np.exp(gaussian.log_delta(one, mu)) <= DELTA]
        assert epsilon == pytest.approx(fits[0], rel=3e-3)


def test_the_curve_of_several_changes():
    losses, k, mu = (GaussianLoss(0.4),), 3, 3 * 0.4
    epsilon = group_privacy.epsilon_of(losses, DELTA, k).epsilon
    curve = group_privacy.curve_of(losses, DELTA, epsilon, k)
    assert 0.99 * DELTA < curve(epsilon) <= DELTA
    for at in (0.0, 0.5, 2.0, epsilon, 50.0):
        truth = math.exp(gaussian.log_delta(at, np.array([mu]))[0])
        assert truth <= curve(at) <= 1
    assert group_privacy.epsilon_of(losses, DELTA, k, below=epsilon) is None


def test_epsilon_zero():
    """With delta above the total variation, each change has epsilon 0."""
    assert group_privacy.epsilon_of((GaussianLoss(1e-3),), 1e-2, 3).epsilon == 0
