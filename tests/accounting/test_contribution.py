"""Factors of the sensitivity: users, statistics of lots, microbatches and groups of weights."""

import itertools

import numpy as np
import pytest

from tests.accounting.varying import vary
from tfdp.accounting import Strategy, describe, proven, sampling_names
from tfdp.accounting.composition import directly_proven

DELTA, LOT, LOTS, STEPS = 1e-5, 2, 3, 6
# The released sums are W (sums of the lots) + noise.
RESPONSES = {
    "dpsgd": np.eye(STEPS),
    "si_dpsgd": np.tri(STEPS),
    "matrix": np.tri(STEPS) - 0.5 * np.tri(STEPS, k=-1),
}


def run_of(mechanism, sampling, users):
    fields = {}
    if mechanism == "matrix":
        coefficients = (1.0, *[0.5] * (STEPS - 1))
        fields = {"strategy": Strategy(name="banded_toeplitz", coefficients=coefficients)}
    return describe(
        mechanism,
        sampling,
        num_examples=LOT * LOTS,
        lot_size=LOT,
        steps=STEPS,
        noise_multiplier=2.0,
        batch_statistics=True,
        max_examples_per_user=users,
        **fields,
    )


def dealt(sampling, users):
    """How many of a user's examples each of the lots may hold, shape (ways, steps)."""
    if sampling == "unknown":
        return np.full((1, STEPS), min(users, LOT))
    epoch = [c for c in itertools.product(range(LOT + 1), repeat=LOTS) if sum(c) == users]
    if sampling == "cyclic":
        return np.array([2 * one for one in epoch])
    return np.array([one + other for one in epoch for other in epoch])


@pytest.mark.parametrize("mechanism", RESPONSES)
@pytest.mark.parametrize("sampling", ["cyclic", "shuffle", "unknown"])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_batch_statistics_of_a_user(mechanism, sampling, adjacency):
    """A lot moves by 2 for each other term, and by 1 or 2 for each of the user's own."""
    alone = proven(run_of(mechanism, sampling, 1), DELTA, adjacency).mu
    for users in range(1, LOT * LOTS + 1):
        mine = dealt(sampling, users)
        own = 1 if adjacency == "zero_out" else 2
        moved = np.where(mine > 0, 2 * (LOT - mine) + own * mine, 0)
        truth = np.linalg.norm(moved @ RESPONSES[mechanism].T, axis=1).max() / 2.0
        found = proven(run_of(mechanism, sampling, users), DELTA, adjacency).mu
        assert truth * (1 - 1e-9) <= found <= users * alone * (1 + 1e-9)
        if users == 1 and sampling != "shuffle":
            assert found == pytest.approx(truth)


def test_views_of_an_example_change_no_number():
    run = run_of("dpsgd", "cyclic", 1)
    assert proven(vary(run, views=16), DELTA).mu == proven(run, DELTA).mu


# Other factors, which each of the two below has to go together with.
FORMS = {
    "alone": {},
    "users": {"max_examples_per_user": 2},
    "statistics": {"batch_statistics": True},
    "schedule": {"noise_multiplier": (8.0, 8.0, 8.0, 16.0, 16.0, 16.0)},
}


def epsilon(run, adjacency):
    """Epsilon without group privacy, which follows from these theorems."""
    return directly_proven([run], DELTA, adjacency).epsilon


@pytest.mark.parametrize("mechanism", RESPONSES)
@pytest.mark.parametrize("sampling", sampling_names())
@pytest.mark.parametrize("form", FORMS)
def test_groups_of_weights_are_less_noise_and_microbatches_are_fewer_examples(
    mechanism, sampling, form
):
    """Whatever the sampling: clipped in 4 groups, a gradient is within 2 C; a mean is replaced."""
    if mechanism == "matrix" and form == "schedule":
        return  # one number for all steps
    more = {"strategy": Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5))}
    more = (more if mechanism == "matrix" else {}) | {"noise_multiplier": 8.0} | FORMS[form]
    more |= {"groups": 2} if sampling == "cyclic_poisson" else {}
    run = describe(mechanism, sampling, num_examples=12, lot_size=4, steps=STEPS, **more)
    half = run.with_noise(0.5 if form == "schedule" else 4.0)
    replaced = epsilon(vary(run, num_examples=6, lot_size=2), "replace_one")
    for adjacency in ("zero_out", "replace_one"):
        grouped = epsilon(vary(run, clip_groups=4), adjacency)
        assert grouped == pytest.approx(epsilon(half, adjacency))
        in_pairs = epsilon(vary(run, microbatch_size=2), adjacency)
        assert in_pairs == pytest.approx(replaced)
