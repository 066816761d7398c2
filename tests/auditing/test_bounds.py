"""Lower bounds: golden values, exact tests by simulation, and what they refuse."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdp.auditing import (
    ApproximateDP,
    GaussianDP,
    Scores,
    clopper_pearson,
    many_runs,
    one_run,
)
from tfdp.auditing.bounds import one_run_p_value, one_run_refutes

DELTA = 1e-5


@pytest.mark.parametrize(
    ("canaries", "epsilon"),
    [(24, 2.0170762), (100, 3.4902159), (5000, 7.2839)],
)
def test_perfect_guesses_show_the_known_bounds(canaries, epsilon):
    bound = one_run(canaries, canaries, canaries, delta=DELTA)
    assert bound.epsilon == pytest.approx(epsilon, abs=6e-5)
    assert bound.ceiling == bound.epsilon


@pytest.mark.parametrize(("runs", "epsilon"), [(10, 0.807), (100, 3.281), (1000, 5.601)])
def test_many_perfect_runs_show_the_known_bounds(runs, epsilon):
    found = many_runs(runs, runs, 0, runs, delta=DELTA, region="clopper_pearson")
    assert found.epsilon == pytest.approx(epsilon, abs=1e-3)


def test_the_worst_mechanism_is_contradicted_as_seldom_as_promised():
    """Under (epsilon, delta) it tells the truth for sure with delta, and else by a biased coin."""
    epsilon, delta, canaries, rng = 1.0, 1e-6, 60, np.random.default_rng(1)
    limit = next(
        c
        for c in range(canaries + 2)
        if one_run_p_value(c, canaries, canaries, epsilon, delta) <= 0.05
    )
    right = rng.binomial(canaries, delta + (1 - delta) / (1 + math.exp(-epsilon)), 3000)
    rate = np.mean(right >= limit)
    assert 0.01 < rate <= 0.05 + 3 * math.sqrt(0.05 / 3000)


def test_a_gaussian_mechanism_is_contradicted_as_seldom_as_promised():
    mu, canaries, guesses, rng = 1.0, 400, 60, np.random.default_rng(2)
    limit = next(
        c
        for c in range(guesses + 2)
        if c > guesses or one_run_refutes(GaussianDP(mu), c, guesses, canaries, 0.05)
    )
    alarms = 0
    for _ in range(2000):
        included = rng.random(canaries) < 0.5
        scores = Scores(rng.normal(size=canaries) + mu * included, included)
        alarms += scores.guesses(guesses) >= limit
    assert alarms / 2000 <= 0.05
    # It is a test: twice the effect is found out.
    included = rng.random(canaries) < 0.5
    scores = Scores(rng.normal(size=canaries) + 4 * mu * included, included)
    assert scores.guesses(guesses) >= limit


@pytest.mark.parametrize("region", ["joint", "clopper_pearson"])
def test_independent_runs_are_contradicted_as_seldom_as_promised(region):
    epsilon, runs, rng = 1.0, 150, np.random.default_rng(3)
    fpr = 0.12
    tpr = float(ApproximateDP(epsilon, DELTA).largest_tpr(fpr))
    alarms = {}
    for tp, fp in zip(rng.binomial(runs, tpr, 400), rng.binomial(runs, fpr, 400), strict=True):
        if (tp, fp) not in alarms:
            found = many_runs(int(tp), runs, int(fp), runs, delta=DELTA, region=region)
            alarms[tp, fp] = [found.epsilon > epsilon, 0]
        alarms[tp, fp][1] += 1
    rate = sum(count for alarm, count in alarms.values() if alarm) / 400
    assert rate <= 0.05 + 2 * math.sqrt(0.05 / 400)


def test_the_interval_of_clopper_and_pearson():
    low, high = clopper_pearson(7, 20)
    assert stats.binom.sf(6, 20, low) == pytest.approx(0.025)
    assert stats.binom.cdf(7, 20, high) == pytest.approx(0.025)
    assert clopper_pearson(0, 5)[0] == 0.0 and clopper_pearson(5, 5)[1] == 1.0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: one_run(11, 10, 20, delta=DELTA), "correct"),
        (lambda: one_run(5, 30, 20, delta=DELTA), "guesses"),
        (lambda: one_run(5, 10, 20, delta=0.0), "delta"),
        (lambda: one_run(5, 10, 20, delta=DELTA, confidence=1.0), "confidence"),
        (lambda: many_runs(1, 10, 11, 10, delta=DELTA), "11"),
        (lambda: many_runs(1, 10, 0, 10, delta=DELTA, region="both"), "region"),
        (lambda: clopper_pearson(3, 2), "3"),
    ],
)
def test_what_no_attack_can_give_is_refused(call, match):
    with pytest.raises(ValueError, match=match):
        call()
