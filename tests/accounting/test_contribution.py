"""What all examples of a user move together, against every way of dealing them into lots."""

import itertools

import numpy as np
import pytest

from tfdp.accounting import Strategy, describe, proven

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
