"""The statement and the advice say what a reader has to know."""

import math

import pytest

from tfdp.accounting import Run, advice, noise_for, proven, statement

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
        "Proven epsilon:  vacuous (epsilon = 7669)",
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
    text = statement([DPSGD, SI.with_(release="mu", seeded=True)], DELTA)
    assert "Proven epsilon:  infinite" in text
    assert "Why: The un-noised means" in text
    assert "knows the seed" in text
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
    assert "would do better" in found.sentence


def test_advice_with_a_vacuous_or_infinite_guarantee():
    found = advice(SI, DELTA)
    assert found.noise_poisson is None
    assert "vacuous" in found.sentence
    found = advice(SI.with_(release="mu"), DELTA)
    assert found.epsilon == math.inf
    assert found.noise_same_sampling is None
    assert "Nothing finite" in found.sentence


def test_advice_is_for_si_dpsgd():
    with pytest.raises(ValueError, match="si_dpsgd"):
        advice(DPSGD, DELTA)
