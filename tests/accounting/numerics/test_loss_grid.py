"""Privacy loss distributions: equal to dp_accounting's, above the truth, and composed alike."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as plds
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tfdp.accounting.numerics import loss_grid, subsampled
from tfdp.accounting.numerics.gaussian import epsilon_of_mu
from tfdp.accounting.numerics.pairs import Component

RELATIONS = {
    "add": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
# Sampling probability, noise multiplier, steps and interval.
ROUNDS = [
    (0.178, 2.5, 200, 1e-3),
    (0.0043, 1.1, 3500, 3e-4),
    (0.5, 0.6, 5, 1e-3),
    (1e-4, 8.0, 1, 1e-5),
]


def theirs(pair, q, noise, interval):
    return plds.from_gaussian_mechanism(
        noise,
        value_discretization_interval=interval,
        sampling_prob=q,
        neighboring_relation=RELATIONS[pair],
    )


def ours(pair, q, noise, interval):
    return subsampled.one_round((Component(1.0, q, noise, pair),), interval)


def composed(rounds, delta=None):
    return loss_grid.composed(rounds, 1 << 23, delta)


@pytest.mark.parametrize("pair", RELATIONS)
@pytest.mark.parametrize(("q", "noise", "steps", "interval"), ROUNDS)
def test_compositions_agree_with_dp_accounting(pair, q, noise, steps, interval):
    rounds = [(ours(pair, q, noise, interval), steps)]
    peer = theirs(pair, q, noise, interval).self_compose(steps)
    mine = composed(rounds)
    for delta in (1e-2, 1e-5, 1e-8):
        expected = peer.get_epsilon_for_delta(delta)
        found = [mine.epsilon(delta), composed(rounds, delta).epsilon(delta)]
        # A bound on rounding is added here, and not there.
        assert expected * (1 - 2e-6) - 1e-9 <= min(found)
        assert min(found) <= expected * (1 + (3e-6 if delta > 1e-6 else 2e-4)) + 1e-9
    for epsilon in (0.0, 0.3, 2.0):
        expected = float(peer.get_delta_for_epsilon(epsilon))
        found = mine.delta(epsilon)
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-14])
def test_compositions_agree_with_direct_convolution(delta):
    """Sums of positive products have no cancellation, so they are accurate in the tails."""
    law = ours("add", 0.1, 2.0, 5e-3)
    halves = []
    for grid in law.halves:
        chances = grid.chances
        for _ in range(4):
            chances = np.convolve(chances, chances)
        infinite = -math.expm1(16 * math.log1p(-grid.infinite))
        halves.append(loss_grid.Grid(5e-3, 16 * grid.lowest, chances, infinite))
    expected = loss_grid.LossDistribution(tuple(halves)).epsilon(delta)
    found = composed([(law, 16)], delta).epsilon(delta)
    assert expected * (1 - 1e-9) <= found <= expected * (1 + 1e-6)


def density(x, q, centre):
    return (1 - q) * stats.norm.pdf(x) + q * stats.norm.pdf(x, centre)


@settings(max_examples=15, deadline=None)
@given(pair=st.sampled_from(sorted(RELATIONS)), log_q=st.floats(-7, 0), noise=st.floats(0.4, 10))
def test_chords_lie_above_the_curve_and_meet_it_on_the_grid(pair, log_q, noise):
    q, interval, shift = math.exp(log_q), 0.05, 1 / noise
    mine = ours(pair, q, noise, interval)
    x = np.linspace(-15, 15 + shift, 200_001)
    other = density(x, q, -shift) if pair == "replace" else stats.norm.pdf(x)
    sums = (density(x, q, shift), other)
    for half, (p, p_other) in zip(mine.halves, (sums, sums[::-1]), strict=False):
        for epsilon in (-0.25, 0.0, 0.4, 1.0, 0.42, 1.03):
            gap = np.maximum(p - math.exp(epsilon) * p_other, 0)
            truth = float(gap.sum() * (x[1] - x[0]))
            found = half.delta(epsilon)
            assert found >= truth - 1e-9
            if abs(epsilon / interval - round(epsilon / interval)) < 1e-9:
                assert found == pytest.approx(truth, rel=1e-5, abs=1e-8)


@settings(max_examples=10, deadline=None)
@given(q=st.floats(0.001, 0.5), noise=st.floats(0.7, 6), steps=st.integers(1, 400))
def test_a_coarser_grid_is_never_below_a_finer_one(q, noise, steps):
    found = [
        composed([(ours("add", q, noise, interval), steps)]).epsilon(1e-5)
        for interval in (5e-4, 2e-3, 1e-2)
    ]
    for fine, coarse in itertools.pairwise(found):
        assert coarse >= fine * (1 - 1e-9) - 1e-12


def test_gaussians_compose_to_the_exact_gaussian():
    rounds = [(ours("add", 1.0, 4.0, 1e-3), 9), (ours("add", 1.0, 2.5, 1e-3), 1)]
    exact = epsilon_of_mu(math.hypot(3 / 4, 1 / 2.5), 1e-6)
    found = composed(rounds).epsilon(1e-6)
    assert exact <= found <= exact * (1 + 1e-4)


def test_a_mixture_is_the_average_of_its_parts():
    parts = (Component(0.3, 0.1, 1.0, "add"), Component(0.7, 0.2, 2.0, "slot"))
    mixed = subsampled.one_round(parts, 1e-3)
    alone = [ours(part.pair, part.probability, part.multiplier, 1e-3) for part in parts]
    for epsilon in (0.0, 0.1, 0.7):
        for i, half in enumerate(mixed.halves):
            expected = 0.3 * alone[0].halves[i].delta(epsilon)
            expected += 0.7 * alone[1].halves[i].delta(epsilon)
            assert half.delta(epsilon) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("q", "noise", "steps", "interval"),
    [(0.1, 1.5, 50, 1e-3), (0.2, 0.03, 1, 1e-2), (0.2, 0.02, 1, 1e-2), (0.2, 0.02, 3, 1e-1)],
)
def test_epsilon_and_delta_are_inverse(q, noise, steps, interval):
    """With noise 0.03, epsilon is near 700, above which e^epsilon is no float."""
    grid = composed([(ours("add", q, noise, interval), steps)])
    for delta in (1e-1, 1e-3, 1e-7):
        for half in grid.halves:
            assert half.delta(half.epsilon(delta)) == pytest.approx(delta, rel=1e-9)


def test_the_ends_of_the_curve():
    grid = composed([(ours("add", 0.1, 1.5, 1e-3), 50)])
    assert grid.epsilon(0.9) == 0.0
    assert grid.epsilon(1e-30) == math.inf


def test_negative_losses_in_a_cell_take_nothing_off():
    """The loss rises from -3 to 1 over a uniform density."""
    cell = loss_grid.of_cells(np.array([0.0, 1.0]), lambda x: (0 * x, 4 * x - 3), 0.0)
    assert cell.values.tolist() == [0.0, 1.0]
    found, exact = cell.chances[1] * -math.expm1(-1), (1 - -math.expm1(-1)) / 4
    assert 0.9 * exact < found < 1.1 * exact


def test_mass_outside_of_the_range_counts_as_an_infinite_loss():
    half = composed([(ours("add", 0.2, 1.0, 1e-3), 300)]).halves[0]
    assert half.infinite >= 1e-15
    assert half.chances.sum() + half.infinite == pytest.approx(1, abs=1e-9)
    assert np.all(half.chances >= 0)


@pytest.mark.parametrize("pair", ["add", "replace", "slot", "triangle"])
@pytest.mark.parametrize(("steps", "mu"), [(10_000, 1.0), (1_000_000, 3.0)])
def test_rounding_never_makes_a_small_delta_smaller(pair, steps, mu):
    """With probability 1 the pairs are Gaussians, and so is their composition."""
    shift = mu / math.sqrt(steps) / (2 if pair == "replace" else 1)
    loss = subsampled.SubsampledLoss((Component(1.0, 1.0, 1 / shift, pair),), steps)
    distribution = subsampled.composed([loss])
    for delta in (1e-5, 1e-8, 1e-13):
        exact, found = epsilon_of_mu(mu, delta), distribution.epsilon(delta)
        assert exact * (1 - 1e-9) <= found
        # Rounding may be more than the smallest delta, for which there are Rényi divergences.
        assert found <= exact * 1.01 or delta < steps * 1e-13


@pytest.mark.parametrize("q", [1.0, 1 - 1e-12, 0.999])
@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_the_curve_is_convex_for_probabilities_near_1(q, noise):
    grid = ours("add", q, noise, 1e-3)
    for half in grid.halves:
        assert half.chances.sum() + half.infinite == pytest.approx(1, abs=1e-9)
