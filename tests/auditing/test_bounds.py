"""Lower bounds: golden values, exact tests by simulation, and what they refuse."""

import math

import numpy as np
import pytest

from tfdp.auditing import many_runs, one_run

DELTA = 1e-5
DIGITS = 6e-5, 1e-3  # of the values below


@pytest.mark.parametrize(
    ("canaries", "epsilon"),
    [(24, 2.0170762), (100, 3.4902159), (5000, 7.2839)],
)
def test_perfect_guesses_show_the_known_bounds(canaries, epsilon):
    bound = one_run(canaries, canaries, canaries, delta=DELTA)
    assert bound.epsilon == pytest.approx(epsilon, abs=DIGITS[0])
    assert bound.ceiling == bound.epsilon


@pytest.mark.parametrize(("runs", "epsilon"), [(10, 0.807), (100, 3.281), (1000, 5.601)])
def test_many_perfect_runs_show_the_known_bounds(runs, epsilon):
    found = many_runs(runs, runs, 0, runs, delta=DELTA)
    assert found.epsilon == pytest.approx(epsilon, abs=DIGITS[1])


def test_the_worst_mechanism_is_contradicted_as_seldom_as_promised():
    """Under (epsilon, delta) it tells the truth for sure with delta, and else by a biased coin."""
    epsilon, delta, canaries, rng = 1.0, 1e-6, 60, np.random.default_rng(1)
    bounds = [one_run(c, canaries, canaries, delta=delta).epsilon for c in range(canaries + 1)]
    right = rng.binomial(canaries, delta + (1 - delta) / (1 + math.exp(-epsilon)), 3000)
    rate = np.mean(np.array(bounds)[right] > epsilon)
    assert 0.01 < rate <= 0.05 + 3 * math.sqrt(0.05 / 3000)


@pytest.mark.parametrize("fpr", [0.12, 0.8])
def test_independent_runs_are_contradicted_as_seldom_as_promised(fpr):
    epsilon, runs, rng = 1.0, 150, np.random.default_rng(3)
    tpr = min(math.exp(epsilon) * fpr, 1 - math.exp(-epsilon) * (1 - fpr))
    drawn = zip(rng.binomial(runs, tpr, 1000), rng.binomial(runs, fpr, 1000), strict=True)
    found = [many_runs(int(tp), runs, int(fp), runs, delta=DELTA).epsilon for tp, fp in drawn]
    assert np.mean(np.array(found) > epsilon) <= 0.05
    # Lower rates of false positives are seen.
    assert many_runs(int(tpr * runs), runs, int(fpr / 5 * runs), runs, delta=DELTA).epsilon > 0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: one_run(11, 10, 20, delta=DELTA), "correct"),
        (lambda: one_run(5, 30, 20, delta=DELTA), "guesses"),
        (lambda: one_run(5, 10, 20, delta=0.0), "delta"),
        (lambda: one_run(5, 10, 20, delta=DELTA, confidence=1.0), "confidence"),
        (lambda: many_runs(1, 10, 11, 10, delta=DELTA), "11"),
    ],
)
def test_what_no_attack_can_give_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
