"""The best of several trainings: all of them, or a random number."""

import itertools
import math

import numpy as np
import pytest

from tests.accounting.varying import vary
from tfdp.accounting import Ledger, Statement, describe, draw_trials, proven
from tfdp.accounting.numerics.privacy_loss import rdp_to_epsilon, renyi_of
from tfdp.accounting.proofs import analyse
from tfdp.accounting.search import of_random_search

DELTA = 1e-5
RUN = describe(
    mechanism="dpsgd",
    sampling="poisson",
    num_examples=10_000,
    lot_size=100,
    steps=300,
    noise_multiplier=1.5,
)


def ledgers(number):
    made = [Ledger() for _ in range(number)]
    for ledger in made:
        ledger.record(ledger.open(RUN), RUN.steps)
    return made


def test_all_trials_cost_what_they_cost_together():
    said = Statement.of_search(ledgers(5), DELTA)
    assert said.proven.epsilon == proven([RUN] * 5, DELTA).epsilon
    assert said.executed[0].startswith("5 times: ")
    assert "search of 5 trainings" in said.text(full=True)


def test_a_random_number_of_trials_costs_a_few():
    found = [of_random_search([[RUN]], DELTA, "zero_out", m).epsilon for m in (2, 10, 100, 1000)]
    assert all(a < b for a, b in itertools.pairwise(found))
    assert proven(RUN, DELTA).epsilon < found[0] and found[-1] < 6 * proven(RUN, DELTA).epsilon
    said = Statement.of_search(ledgers(3), DELTA, random_trials=10)
    assert said.proven.epsilon == found[1]
    assert any("draw_trials(10)" in sentence for sentence in said.assumptions)


def test_left_out_outcomes_are_charged_under_both_neighbours():
    """Lots with replacement leave out rare numbers of draws; at a large epsilon these count."""
    run = describe(
        "dpsgd", "with_replacement", num_examples=200, lot_size=10, steps=40, noise_multiplier=1.02
    )
    found = of_random_search([[run]], DELTA, "zero_out", 5)
    missing = 5 * renyi_of(analyse(run, 1e-9 * DELTA, "zero_out").losses)[1]
    left = DELTA - (1 + math.exp(found.epsilon)) * missing
    assert 0 < left < DELTA * (1 - 1e-3)
    assert rdp_to_epsilon(found.losses[0].divergences, left)[0] <= found.epsilon


def test_it_bounds_a_search_by_brute_force():
    """Answers of a Gaussian mechanism: the largest of a geometric number is released."""
    mu, mean = 0.5, 4.0
    one = describe(
        mechanism="dpsgd", sampling="cyclic", num_examples=10, lot_size=10, steps=1,
        noise_multiplier=1 / mu,
    )  # fmt: skip
    epsilon = of_random_search([[one]], 1e-3, "zero_out", mean).epsilon
    x = np.linspace(-9, 9, 400_001)
    step, stop = x[1] - x[0], 1 / mean

    def density(shift):
        pdf = np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi)
        below = np.cumsum(pdf) * step
        # Sum over n of stop (1 - stop)^(n-1) times the density of the largest of n.
        return stop * pdf / (1 - (1 - stop) * below) ** 2

    for p, q in ((density(mu), density(0.0)), (density(0.0), density(mu))):
        assert np.maximum(p - math.exp(epsilon) * q, 0).sum() * step <= 1e-3


def test_the_number_of_trials_is_geometric():
    drawn = np.array([draw_trials(3) for _ in range(4000)])
    assert drawn.min() == 1 and abs(drawn.mean() - 3) < 6 * math.sqrt(6 / 4000)
    assert abs((drawn == 1).mean() - 1 / 3) < 6 * math.sqrt(2 / 9 / 4000)
    with pytest.raises(ValueError, match="above 1"):
        draw_trials(1)


def test_nothing_finite_for_a_search_with_one_bad_trial():
    bad = vary(RUN, insecure_seed=True)
    found = of_random_search([[RUN], [bad]], DELTA, "zero_out", 5)
    assert math.isinf(found.epsilon) and "seed" in found.reason


def test_a_search_has_trials():
    with pytest.raises(ValueError, match="no trials"):
        Statement.of_search([], DELTA)


def test_the_best_of_a_random_number_does_not_tell_how_many_there_were():
    few, many = (Statement.of_search(ledgers(n), DELTA, random_trials=4) for n in (2, 9))
    assert few == many and few.text() == many.text() and few.to_dict() == many.to_dict()
