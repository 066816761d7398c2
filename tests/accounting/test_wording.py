"""The statement has both figures, their meaning and their assumptions."""

import json

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import Statement, describe, noise_for, statement

DELTA = 1e-5
SI = describe(
    mechanism="si_dpsgd",
    num_examples=60000,
    lot_size=32,
    steps=18750,
    sampling="cyclic",
    noise_multiplier=7.1,
)
DPSGD = vary(SI, mechanism="dpsgd", sampling="poisson", lot_size=256, steps=500)


def test_the_statement_has_both_figures():
    text = statement(SI, DELTA)
    for words in ("0.05004", "vacuous (epsilon = 7670)", "32 out of 60000", "zero_out"):
        assert words in text, words
    assert "seed" not in text


def test_the_statement_of_segments_seeds_and_infinities():
    text = statement([DPSGD, vary(SI, release="mu", insecure_seed=True)], DELTA, planned=False)
    assert "infinite" in text and "seed" in text
    assert text.count("Executed:") == 2
    assert "Nothing" in statement([], DELTA)


def test_every_form_has_the_assumptions_and_the_limits():
    found = Statement.of(vary(DPSGD, sampling="cyclic", noise_multiplier=0.5), DELTA)
    forms = found.text(), found.markdown(), json.dumps(found.to_dict(), ensure_ascii=False)
    assert found.assumptions and found.not_covered and found.warnings  # epsilon is above 10
    for sentence in (*found.assumptions, *found.not_covered, *found.warnings):
        assert all(sentence in form for form in forms)
    assert found.markdown().startswith("## Privacy\n")


@pytest.mark.parametrize(
    "words", ["raining loss", "checkpoints", "yperparameters", "alidation data"]
)
def test_the_statement_says_what_it_does_not_cover(words):
    assert words in " ".join(Statement.of(DPSGD, DELTA).not_covered)


def test_the_meaning_of_epsilon_for_one_record():
    run = vary(DPSGD, sampling="cyclic")
    run = vary(run, noise_multiplier=noise_for(3.3, DELTA, run))
    assert "96.5%" in Statement.of(run, DELTA).meaning[0]
    assert "at most delta" in Statement.of(vary(DPSGD, steps=0), DELTA).meaning[0]
    strong = Statement.of(vary(DPSGD, sampling="cyclic", noise_multiplier=0.5), DELTA)
    assert 8 < strong.proven.epsilon < 50
    assert "100" not in strong.meaning[0]


@pytest.mark.parametrize("run", [SI, vary(SI, release="mu")])
def test_vacuous_and_infinite_guarantees_are_warned_of(run):
    assert "private" in Statement.of(run, DELTA).warnings[0]


@pytest.mark.parametrize(
    ("start", "words"), [("assumed", "Nobody checked"), ("public", "declared")]
)
def test_the_start_of_the_weights_is_the_first_assumption(start, words):
    assert words in Statement.of(vary(DPSGD, start=start), DELTA).assumptions[0]


def test_each_sentence_is_said_once_and_a_plan_is_called_one():
    found = Statement.of([DPSGD] * 40, DELTA)
    assert len(found.executed) == 1 and found.executed[0].startswith("40 times: ")
    plan = Statement.of(DPSGD, DELTA).text()
    assert "Planned: " in plan and "Executed: " not in plan and "really sampled" not in plan


def test_users_have_their_words():
    found = Statement.of(vary(DPSGD, max_examples_per_user=10), DELTA)
    assert "all records of one user (10 at most)" in found.neighbours
    assert "all records of one user" in found.belief and "user" in str(found.proven)
    assert any("not for a user" in sentence for sentence in found.claimed.assumptions)


def test_epsilon_and_delta_have_their_definition():
    run = vary(DPSGD, noise_multiplier=noise_for(1.0, DELTA, DPSGD))
    assert "at most 2.72 times the chance" in " ".join(Statement.of(run, DELTA).meaning)


def test_the_update_rule_and_groups_of_weights_are_named():
    rates = (0.1,) * 250 + (0.05,) * 250
    run = vary(SI, steps=500, momentum=0.9, nesterov=True, learning_rates=rates, clip_groups=3)
    (words,) = Statement.of(run, DELTA).executed
    for part in ("sgd with Nesterov momentum 0.9", "learning rates 0.05 to 0.1", "3 groups"):
        assert part in words


def test_delta_is_compared_with_the_number_of_examples():
    assert Statement.of(DPSGD, 1e-5).warnings == ()
    (warning,) = Statement.of(DPSGD, 1 / 60000).warnings
    assert "1/N" in warning
    assert Statement.of([], 0.5).warnings == ()


def test_microbatches_are_named_with_their_cost():
    alone, of_ten = (Statement.of(vary(DPSGD, microbatch_size=m), DELTA) for m in (1, 10))
    assert "clip" not in alone.executed[0]
    assert "twice the clip norm" in of_ten.executed[0]
