"""Rates of attackers are those of the best tests, and never below them."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import CalibrationError, describe, noise_for, proven
from tfdp.accounting.numerics import attacks, gaussian


def gaussian_curve(mu):
    return lambda epsilon: float(np.exp(gaussian.log_delta(epsilon, mu)))


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_shifted_gaussians(mu):
    known = gaussian_curve(mu)
    for fpr in (1e-4, 0.01, 0.3, 0.9):
        best = stats.norm.cdf(stats.norm.ppf(fpr) + mu)
        assert best * (1 - 1e-9) <= attacks.largest_tpr(known, fpr) <= best * (1 + 1e-6)
    assert known(0.0) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1)


@pytest.mark.parametrize("mu", [0.2, 0.5, 1.0, 2.0])
def test_large_losses_are_no_rarer_than_stated(mu):
    epsilon = gaussian.epsilon_of_mu(mu, 1e-5)
    exact = stats.norm.sf(epsilon / mu - mu / 2)
    assert 2 * 1e-5 < exact <= attacks.chance_of_more(gaussian_curve(mu), epsilon) < 3 * exact


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (1.0, 1e-5), (3.0, 0.01)])
def test_one_point(epsilon, delta):
    known = attacks.of_one_point(epsilon, delta)
    advantage = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
    assert known(0.0) == pytest.approx(advantage)
    tpr = attacks.largest_tpr(known, 0.01)
    assert tpr == pytest.approx(min(math.exp(epsilon) * 0.01 + delta, 1.0), rel=1e-4)


@pytest.mark.parametrize("mu", [1e-3, 0.2, 1.0, 3.0, 8.0])
def test_the_whole_trade_off_of_shifted_gaussians(mu):
    epsilon = gaussian.epsilon_of_mu(mu, 1e-5)
    fprs, fnrs = attacks.trade_off(gaussian_curve(mu), epsilon)
    at = np.concatenate([np.geomspace(1e-6, 0.5, 40), 1 - np.geomspace(1e-6, 0.4, 20)])
    found, best = np.interp(at, fprs, fnrs), stats.norm.cdf(-mu - stats.norm.ppf(at))
    assert np.all(found <= best + 1e-12) and np.all(best - found <= 2e-3 * (1 - best) + 1e-8)
    check_shape(fprs, fnrs)


def check_shape(fprs, fnrs):
    """A trade-off runs from (0, at most 1) to (1, 0), falls, is convex, and symmetric."""
    assert fprs[0] == 0 and fprs[-1] == 1 and fnrs[-1] == 0 and np.all((fnrs >= 0) & (fnrs <= 1))
    assert np.all(np.diff(fprs) >= 0) and np.all(np.diff(fnrs) <= 0)
    at = np.linspace(0.0, 1.0, 300)
    values = np.interp(at, fprs, fnrs)
    assert np.all(np.diff(values, 2) >= -1e-9)
    some = values > 1e-3
    np.testing.assert_allclose(np.interp(values[some], fprs, fnrs), at[some], atol=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 20.0, 800.0])
def test_the_trade_off_of_one_point(epsilon):
    fprs, fnrs = attacks.trade_off(attacks.of_one_point(epsilon, 0.01), epsilon)
    check_shape(fprs, fnrs)
    for fpr in (1e-3, 0.1, 0.7):
        lines = 0.99 - fpr * np.exp(min(epsilon, 700)), np.exp(-epsilon) * (0.99 - fpr)
        exact = max(*lines, 0.0)
        assert exact - 0.02 <= np.interp(fpr, fprs, fnrs) <= exact + 1e-9


def test_nothing_is_promised_where_nothing_is_proven():
    run = describe("dpsgd", "poisson", num_examples=100, lot_size=10, steps=1, noise_multiplier=0.0)
    fprs, fnrs = proven(run, 1e-6).curve()
    assert fprs.tolist() == [0, 1] and fnrs.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("fields", "adjacency"),
    [
        ({}, "zero_out"),
        ({}, "replace_one"),
        ({"max_examples_per_user": 3}, "replace_one"),
        ({"sampling": "random_allocation", "max_examples_per_user": 2}, "zero_out"),  # by groups
        ({"sampling": "with_replacement"}, "zero_out"),
        ({"sampling": "cyclic"}, "zero_out"),
    ],
)
def test_the_trade_off_of_runs(fields, adjacency):
    base = {"num_examples": 1000, "lot_size": 50, "steps": 40, "noise_multiplier": 1.2}
    run = describe("dpsgd", **({"sampling": "poisson"} | base | fields))
    found = proven(run, 1e-6, adjacency)
    fprs, fnrs = found.curve()
    check_shape(fprs, fnrs)
    assert np.max(1 - fprs - fnrs) == pytest.approx(found.advantage, rel=1e-6)
    for fpr in (1e-4, 1e-2, 0.3):
        assert (
            found.tpr(fpr) * (1 - 1e-9) <= 1 - np.interp(fpr, fprs, fnrs) <= 1.01 * found.tpr(fpr)
        )
    twice = np.interp(0.01, *proven([run, run], 1e-6, adjacency).curve())
    assert twice < np.interp(0.01, fprs, fnrs)


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
    assert found.advantage < attacks.of_one_point(found.epsilon, 1e-5)(0.0)
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


def test_an_advantage_that_limits_nothing_is_refused():
    """Few records take part, so that even without noise no test has this advantage."""
    with pytest.raises(CalibrationError, match="smaller advantage"):
        noise_for(
            advantage=0.5, mechanism="dpsgd", sampling="fixed_size", num_examples=100, lot_size=3,
            steps=20,
        )  # fmt: skip
