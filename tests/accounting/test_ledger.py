"""The ledger never forgets what was spent, and a budget refuses what exceeds it."""

import math
import pathlib

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import Ledger, LedgerError, PrivacyBudget, describe, proven

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
RUN = describe(
    mechanism="dpsgd",
    num_examples=1000,
    lot_size=100,
    steps=50,
    sampling="cyclic",
    noise_multiplier=2.0,
)


def test_an_opened_run_is_counted_after_its_first_step():
    ledger = Ledger()
    first, second = ledger.open(RUN), ledger.open(RUN)
    assert first != second
    assert ledger.runs == []
    ledger.record(first, 1)
    assert ledger.runs == [vary(RUN, steps=1)]


def test_record_is_monotone():
    ledger = Ledger()
    run_id = ledger.open(RUN)
    ledger.record(run_id, 3)
    ledger.record(run_id, 3)
    ledger.record(run_id, 60)
    for steps in (59, 0, -1, math.nan):
        with pytest.raises(LedgerError, match="decrease"):
            ledger.record(run_id, steps)
    assert ledger.steps(run_id) == 60
    assert ledger.runs == [vary(RUN, steps=60)]
    with pytest.raises(LedgerError, match="open"):
        ledger.record("surprise", 1)


def test_merge_keeps_the_larger_count():
    ledger = Ledger()
    run_id = ledger.open(RUN)
    ledger.record(run_id, 10)
    saved = Ledger.from_json(ledger.to_json())
    ledger.record(run_id, 25)
    ledger.merge(saved)  # loading an old checkpoint does not undo what was spent
    assert ledger.steps(run_id) == 25
    saved.merge(ledger)
    assert saved.steps(run_id) == 25
    other = Ledger()
    other_id = other.open(vary(RUN, noise_multiplier=1.0))
    other.record(other_id, 5)
    ledger.merge(other)
    assert sorted(run.steps for run in ledger.runs) == [5, 25]
    ledger.merge(ledger)
    assert sorted(run.steps for run in ledger.runs) == [5, 25]


def test_merge_keeps_the_larger_number_of_steps_taken():
    """A file that was saved in the middle of a training has its planned steps."""
    ledger = Ledger()
    run_id = ledger.open(RUN)
    ledger.record(run_id, 10, taken=3)
    early = Ledger.from_json(ledger.to_json())
    ledger.record(run_id, 10)
    ledger.merge(early)
    early.merge(ledger)
    assert ledger.taken(run_id) == early.taken(run_id) == 10


def test_a_plan_that_nobody_knows_is_kept_until_it_is_known():
    ledger = Ledger()
    run_id = ledger.open(RUN)
    ledger.record(run_id, 10, open_plan=True)
    copy = Ledger.from_json(ledger.to_json())
    assert proven(copy.runs[0], 1e-5).epsilon == math.inf
    known = Ledger.from_json(ledger.to_json())
    known.record(run_id, 10)
    fresh = Ledger()
    fresh.merge(copy)
    assert fresh.runs[0].open_plan
    for one, other in ((copy, known), (known, fresh)):
        one.merge(other)
        assert not one.runs[0].open_plan
    ledger.record(run_id, 11, open_plan=True)
    known.merge(ledger)
    assert known.runs[0].open_plan


def test_merge_refuses_two_descriptions_of_one_run():
    """A copy that went on with another table of learning rates."""
    ledger = Ledger()
    run_id = ledger.open(_scheduled((1.0, 0.5)))
    ledger.record(run_id, 2)
    copy = Ledger.from_json(ledger.to_json())
    ledger.extend(run_id, _scheduled((1.0, 0.5, 0.25)))
    copy.extend(run_id, _scheduled((1.0, 0.5, 0.75)))
    for each in (ledger, copy):
        each.record(run_id, 3)
    copy.open(RUN)
    before = ledger.entries
    with pytest.raises(LedgerError, match="differ"):
        ledger.merge(copy)
    assert ledger.entries == before


def test_json_round_trip():
    ledger = Ledger()
    rates = tuple(0.1 / (1 + t) for t in range(50))
    run_id = ledger.open(vary(RUN, mechanism="si_dpsgd", learning_rates=rates))
    ledger.record(run_id, 7)
    ledger.open(RUN)
    again = Ledger.from_json(ledger.to_json())
    assert again == ledger
    assert again.entries == ledger.entries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 3, "runs": {}}',
        '{"version": 1, "runs": {"a": {}}}',
    ],
)
def test_unreadable_ledgers_are_never_empty_ledgers(text):
    with pytest.raises(LedgerError, match="ledger"):
        Ledger.from_json(text)


def test_the_budget_travels_with_the_ledger():
    ledger = Ledger()
    assert ledger.budget is None
    assert Ledger.from_json(ledger.to_json()).budget is None
    ledger.budget = PrivacyBudget(3.0, 1e-5, "claimed", "replace_one")
    again = Ledger.from_json(ledger.to_json())
    assert again.budget == ledger.budget
    assert again == ledger
    again.budget = None
    assert again != ledger
    with pytest.raises(ValueError, match="PrivacyBudget"):
        ledger.budget = 3.0


@pytest.mark.parametrize(
    ("mine", "other", "kept"),
    [
        (None, PrivacyBudget(2.0, 1e-5), PrivacyBudget(2.0, 1e-5)),
        (PrivacyBudget(2.0, 1e-5), None, PrivacyBudget(2.0, 1e-5)),
        (PrivacyBudget(2.0, 1e-5), PrivacyBudget(1.0, 1e-5), PrivacyBudget(1.0, 1e-5)),
        (PrivacyBudget(1.0, 1e-5), PrivacyBudget(2.0, 1e-5), PrivacyBudget(1.0, 1e-5)),
        (PrivacyBudget(2.0, 1e-5), PrivacyBudget(1.0, 1e-6), PrivacyBudget(2.0, 1e-5)),
        (PrivacyBudget(2.0, 1e-5), PrivacyBudget(1.0, 1e-5, "claimed"), PrivacyBudget(2.0, 1e-5)),
    ],
)
def test_merge_keeps_the_stricter_budget(mine, other, kept):
    first, second = Ledger(), Ledger()
    first.budget, second.budget = mine, other
    first.merge(second)
    assert first.budget == kept


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"delta": 1.0},
        {"kind": "hoped"},
        {"adjacency": "user"},
    ],
)
def test_bad_budgets_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        PrivacyBudget(**({"epsilon": 2.0, "delta": 1e-5} | change))


def test_extend_covers_more_steps_and_keeps_what_was_spent():
    ledger = Ledger()
    run = _scheduled((1.0, 0.5))
    run_id = ledger.open(run)
    ledger.record(run_id, 2)
    ledger.extend(run_id, _scheduled((1.0, 0.5, 0.25)))
    assert ledger.steps(run_id) == 2
    ledger.record(run_id, 3)
    assert ledger.runs[0].mechanism.learning_rates == (1.0, 0.5, 0.25)


@pytest.mark.parametrize(
    "changed",
    [
        lambda: _scheduled((1.0, 0.6, 0.25)),  # the table differs in a step that was taken
        lambda: vary(_scheduled((1.0, 0.5, 0.25)), noise_multiplier=9.0),
        lambda: vary(_scheduled((1.0, 0.5, 0.25)), sampling="poisson"),
    ],
)
def test_extend_refuses_another_run(changed):
    ledger = Ledger()
    run_id = ledger.open(_scheduled((1.0, 0.5)))
    ledger.record(run_id, 2)
    with pytest.raises(LedgerError, match="another run"):
        ledger.extend(run_id, changed())


def test_an_extended_copy_merges_with_its_past():
    early = Ledger()
    run_id = early.open(_scheduled((1.0, 0.5)))
    early.record(run_id, 1)
    late = Ledger.from_json(early.to_json())
    late.extend(run_id, _scheduled((1.0, 0.5, 0.25)))
    late.record(run_id, 3)
    for first, second in ((early, late), (late, early)):
        merged = Ledger.from_json(first.to_json())
        merged.merge(second)
        assert merged.steps(run_id) == 3


def _scheduled(rates):
    return describe(
        mechanism="si_dpsgd",
        num_examples=100,
        lot_size=10,
        steps=len(rates),
        sampling="cyclic",
        noise_multiplier=5.0,
        learning_rates=rates,
    )
