"""Group privacy of runs: users, replaced records and microbatches that have no theorem of their own."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.accounting.varying import vary
from tfdp.accounting import (
    Encoding,
    Statement,
    Strategy,
    describe,
    max_steps,
    noise_for,
    proven,
)
from tfdp.accounting.composition import directly_proven

DELTA = 1e-5
RUN = describe(
    "dpsgd", "poisson", num_examples=60000, lot_size=256, epochs=15, noise_multiplier=1.1
)
ALLOCATED = vary(RUN, sampling="random_allocation", steps=15 * 234)
TURNS = vary(RUN, sampling="cyclic_poisson", groups=4)
BANDS = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.4, 0.3))
CORRELATED = vary(TURNS, mechanism="matrix", strategy=BANDS, noise_multiplier=3.0)
STUDENT = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=60000)


@pytest.mark.parametrize(
    ("run", "adjacency", "epsilon", "changes"),
    [
        (vary(ALLOCATED, max_examples_per_user=2), "zero_out", 2.3966, 2),
        (vary(ALLOCATED, mechanism="discrete_sgd", encoding=STUDENT), "replace_one", 2.0530, 2),
        (vary(ALLOCATED, max_examples_per_user=2), "replace_one", 4.3768, 2),
    ],
)
def test_golden_values(run, adjacency, epsilon, changes):
    found = proven(run, DELTA, adjacency)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert found.changes == changes and "Vadhan" in found.details["conversion"]
    assert found.epsilon < directly_proven([run], DELTA, adjacency).epsilon / 4
    assert "changes" in Statement.of(run, DELTA, adjacency).meaning


@pytest.mark.parametrize("users", [1, 2, 3])
def test_users_in_turns_may_be_in_one_group(users):
    """The turns of a group are Poisson lots."""
    turns = vary(TURNS, max_examples_per_user=users, steps=400, noise_multiplier=2.0)
    group = vary(turns, sampling="poisson", num_examples=15000, steps=100)
    for adjacency in ("zero_out", "replace_one"):
        exact, found = (proven(run, DELTA, adjacency) for run in (group, turns))
        assert found.epsilon == exact.epsilon and found.changes == 1


def test_group_privacy_stays_where_records_displace_others():
    lots = vary(RUN, sampling="fixed_size", lot_size=6000, noise_multiplier=8.0, steps=200)
    users = vary(lots, max_examples_per_user=4)
    found = proven(users, DELTA)
    assert found.epsilon == pytest.approx(3.4804, rel=1e-3) and found.changes == 4
    assert found.epsilon < directly_proven([users], DELTA, "zero_out").epsilon


def test_theorems_about_all_changes_stay_where_they_are_tighter():
    for run, adjacency in (
        (RUN, "replace_one"),
        (vary(RUN, max_examples_per_user=3), "zero_out"),
        (vary(RUN, max_examples_per_user=3, microbatch_size=2), "replace_one"),
        (vary(RUN, sampling="cyclic", max_examples_per_user=3), "replace_one"),
        (vary(RUN, microbatch_size=2), "zero_out"),
    ):
        found = proven(run, DELTA, adjacency)
        assert found == directly_proven([run], DELTA, adjacency) and found.changes == 1


def test_runs_are_composed_before_they_are_changed_several_times():
    half = vary(ALLOCATED, steps=7 * 234)
    rest = vary(ALLOCATED, steps=8 * 234)
    both = proven([half, rest], DELTA, "replace_one")
    assert both.epsilon == pytest.approx(proven(ALLOCATED, DELTA, "replace_one").epsilon, rel=1e-3)
    # The largest number of changes of a run counts for all of them.
    mixed = proven([vary(half, max_examples_per_user=2), rest], DELTA, "replace_one")
    users = proven(vary(ALLOCATED, max_examples_per_user=2), DELTA, "replace_one")
    assert mixed.changes == 2 and mixed.epsilon == pytest.approx(users.epsilon, rel=1e-3)
    bare = proven([half, vary(rest, noise_multiplier=0.0)], DELTA, "replace_one")
    assert bare.epsilon == math.inf


def test_calibration():
    allocated = vary(ALLOCATED, lot_size=6000, steps=30)  # three epochs of ten lots
    noise = noise_for(2.0, DELTA, allocated, adjacency="replace_one")
    run = allocated.with_noise(noise)
    assert 1.999 < proven(run, DELTA, "replace_one").epsilon <= 2.0
    assert 30 <= max_steps(2.0, DELTA, run, adjacency="replace_one") < 40
    run = vary(CORRELATED, max_examples_per_user=2)
    noise = noise_for(advantage=0.1, run=run)
    assert 0.099 < proven(run.with_noise(noise), 1e-6).advantage <= 0.1


@pytest.mark.parametrize("users", [2, 3])
@pytest.mark.parametrize("probability", [0.05, 0.5])
def test_replaced_users_of_one_poisson_lot(users, probability):
    """The sum moves by as many examples as are drawn, from one side to the other."""
    noise, delta = 4.0, 1e-4
    run = describe(
        "dpsgd",
        "poisson",
        num_examples=1000,
        lot_size=int(1000 * probability),
        steps=1,
        noise_multiplier=noise,
        max_examples_per_user=users,
    )
    found = proven(run, delta, "replace_one")
    x = np.linspace(-60, 60, 40_001)
    chances = stats.binom.pmf(range(users + 1), users, probability)
    p, q = (
        sum(c * stats.norm.pdf(x, sign * j, noise) for j, c in enumerate(chances))
        for sign in (1, -1)
    )

    def truth(epsilon):
        return np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0])

    assert truth(found.epsilon) <= delta < truth(0.999 * found.epsilon)
    assert truth(0.0) <= found.advantage <= 1.001 * truth(0.0)
