"""The statement and the advice say what a reader needs to know."""

import json
import math

import pytest

from tfdp.accounting import Run, Statement, advice, noise_for, proven, statement

DELTA = 1e-5
SI = Run(
    mechanism="si_dpsgd",
    num_examples=60000,
    lot_size=32,
    steps=18750,
    sampling="cyclic",
    noise_multiplier=7.1,
)
DPSGD = SI.with_(mechanism="dpsgd", sampling="poisson", lot_size=256, steps=500)


def test_statement_puts_both_side_by_side():
    text = statement(SI, DELTA)
    for words in (
        "Claimed epsilon: 0.05004",
        "Proven epsilon:  vacuous (epsilon = 7670)",
        "no meaningful protection",
        "fixed order",
        "32 out of 60000",
        "zero_out",
        "assumes",
        "Early stopping",
        "hyperparameters",
        "Training loss",
        "floating-point",
    ):
        assert words in text, words
    assert "seed" not in text


def test_statement_of_segments_seeds_and_infinities():
    text = statement([DPSGD, SI.with_(release="mu", insecure_seed=True)], DELTA)
    assert "Proven epsilon:  infinite" in text
    assert "Why: The un-noised means" in text
    assert "Warning: The noise (or the secret choice of examples) came from a seed" in text
    assert text.count("Executed:") == 2
    assert "Nothing was executed" in statement([], DELTA)


@pytest.mark.parametrize(("k", "b"), [(1, 10), (10, 1), (5, 6)])
def test_advice_is_theorem_e_in_fixed_order(k, b):
    run = SI.with_(num_examples=10 * b, lot_size=10, steps=k * b)
    run = run.with_(noise_multiplier=noise_for(2.0, DELTA, run))
    found = advice(run, DELTA)
    expected = math.sqrt((k + 1) * (2 * k + 1) / (6 * k))
    assert found.final_noise_ratio == pytest.approx(expected, rel=1e-6)
    assert found.prefix_noise_ratio == pytest.approx(expected, rel=1e-6)
    assert found.epsilon <= 2.0
    again = DPSGD.with_(
        num_examples=10 * b,
        lot_size=10,
        steps=k * b,
        sampling="cyclic",
        noise_multiplier=found.noise_same_sampling,
    )
    assert proven(again, DELTA).epsilon <= 2.0
    assert "DP-SGD" in found.sentence


def test_advice_prefers_amplification():
    run = SI.with_(num_examples=5000, lot_size=100, steps=250)
    found = advice(run.with_(noise_multiplier=noise_for(2.0, DELTA, run)), DELTA)
    assert found.noise_poisson < found.noise_same_sampling
    assert found.final_noise_ratio_poisson > found.final_noise_ratio > 1
    assert "with less noise" in found.sentence and "needs more because" in found.sentence


def test_advice_with_a_vacuous_or_infinite_guarantee():
    found = advice(SI, DELTA)
    assert found.noise_poisson is None
    assert "vacuous" in found.sentence
    found = advice(SI.with_(release="mu"), DELTA)
    assert found.epsilon == math.inf
    assert found.noise_same_sampling is None
    assert "Nothing finite" in found.sentence


def test_advice_is_for_si_dpsgd():
    for run in (DPSGD, SI.with_(steps=0)):
        with pytest.raises(ValueError, match="advice to give"):
            advice(run, DELTA)


# ------------------------------------------------------------------ what a reader is told


def test_what_epsilon_means_for_one_record():
    run = DPSGD.with_(noise_multiplier=noise_for(3.3, DELTA, DPSGD))
    sentence = Statement.of(run, DELTA).meaning[0]
    for words in ("Epsilon 3.3", "at most 96.4% sure", "one record", "delta = 1e-05"):
        assert words in sentence, words
    assert "at most 50.0% sure" in Statement.of(DPSGD.with_(steps=0), DELTA).meaning[0]
    strong = Statement.of(DPSGD.with_(sampling="cyclic", noise_multiplier=0.5), DELTA)
    assert 8 < strong.proven.epsilon < 50
    assert "as good as certain" in strong.meaning[0]
    assert "100" not in strong.meaning[0]


@pytest.mark.parametrize(
    ("run", "words"),
    [(SI, "no meaningful protection"), (SI.with_(release="mu"), "may become certain")],
)
def test_vacuous_and_infinite_promise_nothing(run, words):
    found = Statement.of(run, DELTA)
    assert words in found.meaning[0]
    assert "Do not call them private" in found.warnings[0]
    assert "Warning: Nothing meaningful is proven" in found.text()


def test_why_the_two_figures_differ():
    looser = Statement.of(DPSGD, DELTA)
    assert looser.claimed.epsilon > looser.proven.epsilon
    assert "older and looser" in looser.meaning[-1]
    assert "Rely on the proven figure" in Statement.of(SI, DELTA).meaning[-1]


@pytest.mark.parametrize(
    ("adjacency", "words"),
    [
        ("zero_out", "counts as nothing in the other"),
        ("replace_one", "is another record in the other"),
        ("add_or_remove_one", "is missing in the other"),
    ],
)
def test_neighbours_and_nominal_lots_are_explained(adjacency, words):
    found = Statement.of(DPSGD.with_(nominal=True), DELTA, adjacency)
    assert words in " ".join(found.meaning)
    assert adjacency in found.neighbours
    assert "fixed number that every sum is divided by" in " ".join(found.meaning)
    assert "nominally 256 out of 60000 examples (a nominal number)" in found.executed[0]


@pytest.mark.parametrize(
    ("start", "words"), [("assumed", "Nobody checked"), ("public", "declared")]
)
def test_the_start_of_the_weights(start, words):
    assert words in Statement.of(DPSGD.with_(start=start), DELTA).assumptions[0]


@pytest.mark.parametrize(
    "words",
    [
        "Training loss, training accuracy",
        "diagnostics",
        "Early stopping",
        "hyperparameters",
        "floating-point",
        "saved file that is trained on in two places",
        "Ledger.merge",
        "Validation data",
        "Whoever can edit the file",
    ],
)
def test_what_is_not_covered(words):
    found = Statement.of(DPSGD, DELTA)
    assert words in " ".join(found.not_covered)
    assert words in found.text()
    assert words in found.markdown()
    assert words in json.dumps(found.to_dict())


def test_delta_is_compared_with_the_number_of_examples():
    assert Statement.of(DPSGD, 1e-5).warnings == ()
    (warning,) = Statement.of(DPSGD, 1 / 60000).warnings
    assert "1/N" in warning
    assert warning in Statement.of(DPSGD, 1 / 60000).markdown()
    assert Statement.of([], 0.5).warnings == ()


def test_microbatches_are_named_with_what_they_cost():
    alone, of_ten = (Statement.of(DPSGD.with_(microbatch_size=m), DELTA) for m in (1, 10))
    assert "clip" not in alone.executed[0]
    assert "of 10 examples at a time" in of_ten.executed[0]
    assert "by twice the clip norm" in of_ten.executed[0]


def test_markdown_is_a_section_of_a_model_card():
    text = Statement.of([DPSGD, SI], DELTA).markdown()
    assert text.startswith("## Privacy\n\n> **Warning:**")
    assert "| proven | vacuous" in text
    assert text.count("\n- ") > 10
    assert "### The proven guarantee assumes" in text


def test_sentences_are_short_and_whole():
    found = Statement.of([DPSGD, SI], DELTA)
    for sentence in (*found.meaning, *found.assumptions, *found.not_covered, *found.warnings):
        assert sentence.endswith((".", "!"))
        assert max(len(part.split()) for part in sentence.split(". ")) <= 50, sentence
