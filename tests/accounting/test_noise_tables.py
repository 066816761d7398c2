"""Noise that varies over the steps, against brute force over participation patterns."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.varying import vary
from tfdp.accounting import Encoding, Ledger, LedgerError, claimed, describe, noise_tables, proven
from tfdp.accounting.analysis import analyse
from tfdp.accounting.gaussian_steps import Diagonal
from tfdp.accounting.numerics.subsampled import SubsampledLoss

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
        "unknown": [list(range(steps))],
    }[sampling]


@pytest.mark.parametrize("sampling", ["cyclic", "shuffle", "unknown"])
@pytest.mark.parametrize("steps", [1, 4, 11])
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


@pytest.mark.parametrize("sampling", ["cyclic", "shuffle"])
def test_every_prefix_is_covered(sampling):
    response, counts = Diagonal(np.array(TABLE) ** -2.0), np.arange(1, 12)
    found = vary(RUN, sampling=sampling).sampling.squares(response, counts)[0]
    for n in counts:
        worst = max(sum(TABLE[t] ** -2.0 for t in p) for p in patterns(sampling, n))
        assert found[n - 1] == pytest.approx(worst)


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


# ------------------------------------------------------------------ families over steps

LAPLACE = Encoding(noise="laplace", num_weights=20)
ENCODED = describe(
    mechanism="discrete_sgd",
    num_examples=500,
    lot_size=25,
    steps=40,
    sampling="poisson",
    noise_multiplier=2.0,
    encoding=LAPLACE,
)


def families(*names):
    nu = tuple(9.0 if name == "student_t" else None for name in names) * (40 // len(names))
    return Encoding(noise=names * (40 // len(names)), degrees_of_freedom=nu, num_weights=20)


def test_a_table_of_one_family_is_the_family():
    run = vary(ENCODED, encoding=families("laplace"))
    for guarantee in (proven, claimed):
        assert guarantee(run, DELTA).epsilon == guarantee(ENCODED, DELTA).epsilon


def test_mixed_families_lie_between():
    student = vary(ENCODED, encoding=families("student_t"))
    mixed = vary(ENCODED, encoding=families("student_t", "laplace"))
    for guarantee in (proven, claimed):
        low, high = sorted(guarantee(run, DELTA).epsilon for run in (ENCODED, student))
        assert low < guarantee(mixed, DELTA).epsilon < high
    words = " ".join(proven(mixed, DELTA).assumptions)
    assert "student_t" in words and "laplace" in words


def test_gaussian_steps_among_others():
    run = vary(ENCODED, encoding=families("gaussian", "laplace"))
    alone = proven(vary(ENCODED, steps=20), DELTA).epsilon
    assert alone < proven(run, DELTA).epsilon < math.inf
    assert math.isinf(proven(run, DELTA, "replace_one").epsilon)
    assert math.isinf(proven(vary(run, sampling="cyclic"), DELTA).epsilon)


def test_tables_of_families_are_checked():
    with pytest.raises(ValueError, match="41"):
        vary(ENCODED, encoding=families("laplace"), steps=41)
    with pytest.raises(ValueError, match="equally long"):
        Encoding(noise=("laplace",) * 3, degrees_of_freedom=(None,) * 2, num_weights=2)
    with pytest.raises(ValueError, match="noise"):
        Encoding(noise=("laplace", "uniform"), num_weights=2)


def test_ledgers_know_tables():
    ledger = Ledger()
    run_id = ledger.open(vary(ENCODED, encoding=families("student_t", "laplace")))
    ledger.record(run_id, 4)
    longer = Encoding(
        noise=("student_t", "laplace") * 50,
        degrees_of_freedom=(9.0, None) * 50,
        num_weights=20,
    )
    ledger.extend(run_id, vary(ENCODED, encoding=longer))
    assert ledger.runs[0].described_steps == 100
    with pytest.raises(LedgerError, match="another run"):
        ledger.extend(run_id, vary(ENCODED, encoding=families("laplace", "student_t")))
    assert Ledger.from_json(ledger.to_json()) == ledger
