"""Rates of attackers are those of the best tests, and never below them."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import describe, noise_for, proven
from tfdp.accounting.numerics import attacks, gaussian


def gaussian_curve(mu):
    return lambda epsilon: float(np.exp(gaussian.log_delta(epsilon, mu)))


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_shifted_gaussians(mu):
    curve = gaussian_curve(mu)
    for fpr in (1e-4, 0.01, 0.3, 0.9):
        best = stats.norm.cdf(stats.norm.ppf(fpr) + mu)
        assert best * (1 - 1e-9) <= attacks.largest_tpr(curve, fpr) <= best * (1 + 1e-6)
    assert attacks.advantage(curve) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1)


@pytest.mark.parametrize("mu", [0.2, 0.5, 1.0, 2.0])
def test_large_losses_are_no_rarer_than_stated(mu):
    epsilon = gaussian.epsilon_of_mu(mu, 1e-5)
    exact = stats.norm.sf(epsilon / mu - mu / 2)
    assert 2 * 1e-5 < exact <= attacks.chance_of_more(gaussian_curve(mu), epsilon) < 3 * exact


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (1.0, 1e-5), (3.0, 0.01)])
def test_one_point(epsilon, delta):
    curve = attacks.of_one_point(epsilon, delta)
    advantage = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
    assert attacks.advantage(curve) == pytest.approx(advantage)
    tpr = attacks.largest_tpr(curve, 0.01)
    assert tpr == pytest.approx(min(math.exp(epsilon) * 0.01 + delta, 1.0), rel=1e-4)


def best_tpr(q, noise, steps, fpr):
    """The best test of draws from (1-q) N(0, noise^2) + q N(1, noise^2) or N(0, noise^2), by trial."""
    rng, draws = np.random.default_rng(0), 400_000
    null, taken = (rng.normal(0, noise, (steps, draws)) for _ in range(2))
    taken += rng.random((steps, draws)) < q

    def loss(x):
        return np.log1p(q * np.expm1((x - 0.5) / noise**2)).sum(0)

    threshold = np.quantile(loss(null), 1 - fpr)
    return np.mean(loss(taken) > threshold)


def test_subsampled_steps():
    run = describe(mechanism="dpsgd", sampling="poisson", num_examples=10, lot_size=2, steps=4,
              noise_multiplier=0.8)  # fmt: skip
    found = proven(run, 1e-5)
    for fpr in (0.01, 0.1):
        best = best_tpr(0.2, 0.8, 4, fpr)
        assert best * 0.98 <= found.tpr(fpr) <= best * 1.03
    assert found.advantage < attacks.advantage(attacks.of_one_point(found.epsilon, 1e-5))
    assert found.to_dict()["advantage"] == found.advantage


@pytest.mark.parametrize("sampling", ["poisson", "cyclic", "with_replacement"])
def test_noise_for_an_advantage(sampling):
    fields = {"num_examples": 1000, "lot_size": 100, "steps": 20, "sampling": sampling}
    noise = noise_for(advantage=0.2, mechanism="dpsgd", **fields)
    run = describe(mechanism="dpsgd", noise_multiplier=noise, **fields)
    assert 0.1995 < proven(run, 1e-6).advantage <= 0.2 + 1e-6
    for wrong in ({}, {"epsilon": 1.0}, {"epsilon": 1.0, "delta": 1e-5, "advantage": 0.1}):
        with pytest.raises(TypeError, match="advantage"):
            noise_for(mechanism="dpsgd", **fields, **wrong)
