"""Composition of privacy losses."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp.accounting.numerics import gaussian
from tfdp.accounting.numerics.privacy_loss import (
    ORDERS,
    GaussianLoss,
    RandomGaussianLoss,
    curve_of,
    epsilon_of,
    rdp_to_epsilon,
)
from tfdp.accounting.numerics.subsampled import Component, SubsampledLoss

DELTA = 1e-5
ROUNDS = SubsampledLoss((Component(1.0, 0.01, 1.0),), 500)


def test_gaussians_add_in_squares():
    spent = epsilon_of([GaussianLoss(3.0), GaussianLoss(4.0)], DELTA)
    assert spent.mu == 5.0
    assert spent.epsilon == gaussian.epsilon_of_mu(5.0, DELTA)
    assert epsilon_of([], DELTA).epsilon == 0


def test_random_gaussians_add_as_random_numbers():
    coin = RandomGaussianLoss(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    spent = epsilon_of([coin, coin, GaussianLoss(2.0)], DELTA)
    expected = gaussian.epsilon_of_mixture(
        np.array([4.0, 5.0, 6.0]), np.array([0.25, 0.5, 0.25]), 0.0, DELTA
    )
    # The result is rounded up onto a grid.
    assert expected <= spent.epsilon <= expected * (1 + 1e-3)
    assert spent.mu is None


def test_gaussian_and_subsampled_compose():
    alone = epsilon_of([ROUNDS], DELTA).epsilon
    spent = epsilon_of([ROUNDS, GaussianLoss(0.3)], DELTA)
    assert alone < spent.epsilon
    assert spent.epsilon < alone + gaussian.epsilon_of_mu(0.3, DELTA / 2) + 1.0
    halves = [SubsampledLoss(ROUNDS.components, n) for n in (200, 300)]
    assert epsilon_of(halves, DELTA).epsilon == pytest.approx(alone, rel=1e-3)


def test_a_random_mu_is_a_public_mixture_beside_steps():
    """One loss distribution: at most what a certain mu costs, and close to the average by hand."""
    coin = RandomGaussianLoss(np.array([0.0, 1.0]), np.array([0.5, 0.5]))
    spent = epsilon_of([ROUNDS, coin], DELTA).epsilon
    certain = epsilon_of([ROUNDS, GaussianLoss(1.0)], DELTA).epsilon
    assert epsilon_of([ROUNDS], DELTA).epsilon < spent < certain

    def delta(at, *losses):
        return curve_of([ROUNDS, *losses], DELTA)(at)

    mean = (delta(spent, GaussianLoss(1e-6)) + delta(spent, GaussianLoss(1.0))) / 2
    assert mean == pytest.approx(DELTA, rel=1e-3)


def test_left_out_mass_is_charged_to_delta():
    wasteful = SubsampledLoss(ROUNDS.components, 500, overflow=1e-9)
    assert epsilon_of([wasteful], DELTA).epsilon > epsilon_of([ROUNDS], DELTA).epsilon
    hopeless = SubsampledLoss(ROUNDS.components, 500, overflow=1e-7)
    assert epsilon_of([hopeless], DELTA).epsilon == math.inf


def test_a_delta_below_the_rounding_of_all_losses():
    loss = SubsampledLoss((Component(1.0, 1e-3, 1.0),), 10_000)
    assert epsilon_of([loss], 1e-10).epsilon == pytest.approx(0.854, abs=5e-4)


def shown(q, noise, steps, delta):
    """Epsilon that the event shows that some step's outcome exceeds a threshold, at its best."""
    at = np.linspace(0.05, 20.0, 400)
    without = -np.expm1(steps * stats.norm.logcdf(at / noise))
    q_up, q_down = q * stats.norm.sf((at - 1) / noise), (1 - q) * stats.norm.sf(at / noise)
    present = -np.expm1(steps * np.log1p(-np.minimum(q_up + q_down, 1 - 1e-16))) - delta
    some = (without > 0) & (present > 0)
    return float(np.max(np.log(present[some] / without[some]), initial=0.0))


@pytest.mark.parametrize(
    ("q", "noise", "steps", "delta"),
    [
        (5e-8, 0.1, 10_000, 1e-5),
        (1e-12, 0.1, 100_000, 1e-9),
        (1e-10, 0.18, 100_000, 1e-9),
        (5e-8, 0.3, 1_000, 1e-9),
        (1e-6, 0.18, 1_000, 1e-5),
        (1e-4, 0.5, 1_000, 1e-9),
    ],
)
def test_tiny_sampling_probabilities(q, noise, steps, delta):
    """Above what an event shows and close to it; more with less noise, larger q and more steps."""

    def spent(q, noise, steps):
        return epsilon_of([SubsampledLoss((Component(1.0, q, noise),), steps)], delta).epsilon

    least, found = shown(q, noise, steps, delta), spent(q, noise, steps)
    assert least <= found <= 1.15 * least
    # One direction each, in turns.
    more = ((3 * q, noise, steps), (q, 0.9 * noise, steps), (q, noise, 2 * steps))[steps % 7 % 3]
    assert spent(*more) >= found


def test_useless_orders_are_dropped():
    rdp = np.asarray(ORDERS) * 0.5
    epsilon, order = rdp_to_epsilon(rdp, DELTA)
    broken = rdp.copy()
    broken[::2] = -1.0
    broken[1] = math.nan
    assert rdp_to_epsilon(broken, DELTA)[0] >= epsilon
    assert 1 < order < 64
    assert rdp_to_epsilon(-rdp, DELTA)[0] == math.inf
