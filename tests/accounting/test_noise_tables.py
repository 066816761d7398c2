"""Noise that varies over the steps, against brute force over participation patterns."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.varying import vary
from tfdp.accounting import claimed, describe, noise_tables, proven
from tfdp.accounting.numerics.subsampled import SubsampledLoss
from tfdp.accounting.proofs import analyse

DELTA = 1e-5
TABLE = (2.0, 3.0, 2.5, 4.0, 2.0, 5.0, 3.0, 2.0, 6.0, 2.5, 3.5)
RUN = describe(
    mechanism="dpsgd",
    num_examples=40,
    lot_size=10,
    steps=len(TABLE),
    sampling="cyclic",
    noise_multiplier=TABLE,
)  # epochs of four steps


def patterns(sampling, steps):
    epochs = [range(e, min(e + 4, steps)) for e in range(0, steps, 4)]
    return {
        "cyclic": [list(range(o, steps, 4)) for o in range(4)],
        "shuffle": [list(p) for p in itertools.product(*epochs)],
        "once_per_epoch": [list(p) for p in itertools.product(*epochs)],
        "unknown": [list(range(steps))],
    }[sampling]


@pytest.mark.parametrize("sampling", ["cyclic", "shuffle", "once_per_epoch", "unknown"])
@pytest.mark.parametrize("steps", range(1, 12))
def test_the_worst_pattern_counts(sampling, steps):
    run = vary(RUN, sampling=sampling, steps=steps)
    worst = max(sum(TABLE[t] ** -2.0 for t in p) for p in patterns(sampling, steps))
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(worst))
    assert proven(run, DELTA, "replace_one").mu == pytest.approx(2 * math.sqrt(worst))


@pytest.mark.parametrize("steps", [5, 11])
def test_the_worst_pattern_may_begin_late(steps):
    table = TABLE[::-1]
    found = {p[0]: sum(table[t] ** -2.0 for t in p) for p in patterns("cyclic", steps)}
    assert max(found, key=found.get) == {5: 3, 11: 2}[steps]
    run = vary(RUN, noise_multiplier=table, steps=steps)
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(max(found.values())))


def test_poisson_steps_of_equal_noise_share_one_loss():
    run = vary(RUN, sampling="poisson")
    losses = analyse(run, DELTA, "zero_out").losses
    assert all(isinstance(loss, SubsampledLoss) for loss in losses)
    found = {loss.components[0].multiplier: loss.steps for loss in losses}
    assert found == {2.0: 3, 2.5: 2, 3.0: 2, 3.5: 1, 4.0: 1, 5.0: 1, 6.0: 1}
    # The order of the steps does not matter.
    mixed = vary(run, noise_multiplier=TABLE[::-1])
    assert proven(mixed, DELTA).epsilon == proven(run, DELTA).epsilon
    assert claimed(mixed, DELTA).epsilon == claimed(run, DELTA).epsilon


def test_turns_take_their_least_noise():
    run = vary(RUN, sampling="cyclic_poisson", groups=2, steps=11)
    rounds = sorted(
        (loss.components[0].multiplier, loss.steps)
        for loss in analyse(run, DELTA, "zero_out").losses
    )
    # The table in consecutive pairs: (2, 3) (2.5, 4) (2, 5) (3, 2) (6, 2.5) (3.5).
    assert rounds == [(2.0, 3), (2.5, 2), (3.5, 1)]


@settings(max_examples=50, deadline=None)
@given(table=st.lists(st.floats(0.1, 10), min_size=1, max_size=200))
def test_long_tables_are_rounded_down(table):
    found = noise_tables.levels(tuple(table), len(table))
    assert len(found) <= 16
    assert sum(count for _, count in found) == len(table)
    values = np.repeat([z for z, _ in found], [count for _, count in found])
    assert np.all(values <= np.sort(table))
    # A class spans a sixteenth of the logarithmic range.
    ratio = (max(table) / min(table)) ** (1 / 16)
    assert np.all(values * ratio * (1 + 1e-9) >= np.sort(table))


def test_si_dpsgd_divides_each_row_by_its_noise():
    table = tuple(10 * z for z in TABLE)
    run = vary(RUN, mechanism="si_dpsgd", noise_multiplier=table, momentum=0.5)
    steps = len(TABLE)
    matrix = np.array(
        [
            [
                sum(0.5**j for j in range(t - s + 1)) / table[t] if t >= s else 0
                for s in range(steps)
            ]
            for t in range(steps)
        ]
    )
    worst = max(np.linalg.norm(matrix[:, p].sum(axis=1)) for p in patterns("cyclic", steps))
    assert proven(run, DELTA).mu == pytest.approx(worst)
