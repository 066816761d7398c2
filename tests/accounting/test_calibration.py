"""Calibration stays on the safe side, and is tight."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import (
    CalibrationError,
    Encoding,
    Run,
    claimed,
    claimed_composition,
    epsilon_curve,
    max_steps,
    noise_for,
    proven,
    proven_composition,
)

DELTA = 1e-5
DPSGD = Run(
    mechanism="dpsgd",
    num_examples=5000,
    lot_size=100,
    steps=200,
    sampling="poisson",
    noise_multiplier=1.5,
)
SI = DPSGD.with_(mechanism="si_dpsgd", noise_multiplier=200.0)
CASES = [
    DPSGD,
    DPSGD.with_(sampling="unknown"),
    DPSGD.with_(microbatch_size=2),
    SI.with_(sampling="cyclic", momentum=0.9),
    SI.with_(sampling="shuffle", learning_rates=tuple(range(1, 201))),
]


@pytest.mark.parametrize("run", CASES)
@pytest.mark.parametrize(("epsilon", "adjacency"), [(2.0, "zero_out"), (0.7, "replace_one")])
def test_proven_calibration_is_safe_and_tight(run, epsilon, adjacency):
    noise = noise_for(epsilon, DELTA, run, "proven", adjacency)
    assert proven(run.with_(noise_multiplier=noise), DELTA, adjacency).epsilon <= epsilon
    less = run.with_(noise_multiplier=noise / (1 + 1e-3))
    assert proven(less, DELTA, adjacency).epsilon > epsilon


@settings(max_examples=5, deadline=None)
@given(epsilon=st.floats(0.05, 20), delta=st.floats(1e-9, 1e-3))
def test_calibration_at_any_budget(epsilon, delta):
    run = SI.with_(sampling="cyclic")
    noise = noise_for(epsilon, delta, run)
    found = proven(run.with_(noise_multiplier=noise), delta).epsilon
    assert epsilon * (1 - 1e-4) <= found <= epsilon
    noise = noise_for(epsilon, delta, DPSGD, "claimed")
    found = claimed(DPSGD.with_(noise_multiplier=noise), delta).epsilon
    assert epsilon * (1 - 1e-3) <= found <= epsilon


@pytest.mark.parametrize(
    ("adjacency", "noise"), [("add_or_remove_one", 8.3792), ("replace_one", 16.6795)]
)
def test_golden_noise(adjacency, noise):
    run = DPSGD.with_(num_examples=10000, lot_size=100, steps=20000, nominal=True)
    assert noise_for(0.5, 1e-4, run, "proven", adjacency) == pytest.approx(noise, rel=5e-3)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (SI.with_(sampling="cyclic", release="mu"), "released"),
        (SI.with_(optimizer="adam"), "linear"),
        (DPSGD.with_(batch_statistics=True), "fixed size"),
        (DPSGD.with_(mechanism="none"), "private"),
        (DPSGD.with_(insecure_seed=True), "seed"),
        (DPSGD.with_(steps=0), "steps"),
    ],
)
def test_runs_that_no_noise_makes_private_are_refused(run, words):
    with pytest.raises(CalibrationError, match=words):
        noise_for(2.0, DELTA, run)


def test_an_epsilon_that_no_noise_reaches_is_refused():
    """Rényi divergences of finite order end at an epsilon above 0, whatever the noise."""
    run = Run(
        mechanism="discrete_sgd", num_examples=1437, lot_size=400, steps=8, sampling="poisson",
        noise_multiplier=1.0, encoding=Encoding(noise="laplace", num_weights=650),
    )  # fmt: skip
    with pytest.raises(CalibrationError, match=r"0\.1"):
        noise_for(0.1, 1e-5, run)


@pytest.mark.parametrize("sampling", ["cyclic", "poisson"])
def test_weights_that_never_move_need_hardly_any_noise(sampling):
    run = SI.with_(sampling=sampling, learning_rates=0.0, noise_learning_rates=1.0)
    assert 0 < noise_for(2.0, DELTA, run) < 1e-6


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_bad_budgets_are_refused(epsilon):
    for function in (noise_for, max_steps):
        with pytest.raises(ValueError, match="epsilon"):
            function(epsilon, DELTA, DPSGD)
    with pytest.raises(ValueError, match="delta"):
        noise_for(1.0, 1.0, DPSGD)
    with pytest.raises(ValueError, match="kind"):
        noise_for(1.0, DELTA, DPSGD, "hoped")


@pytest.mark.parametrize("run", [DPSGD, SI.with_(sampling="cyclic")])
@pytest.mark.parametrize("kind", ["proven", "claimed"])
def test_max_steps_at_the_boundary_with_and_without_earlier_runs(run, kind):
    compose = {"proven": proven_composition, "claimed": claimed_composition}[kind]
    budget = compose([run.with_(steps=60)], DELTA).epsilon * 1.0001
    earlier, found = run.with_(steps=20), []
    for before in ([], [earlier]):
        steps = max_steps(budget, DELTA, run, kind, earlier=before)
        assert compose([*before, run.with_(steps=steps)], DELTA).epsilon <= budget
        assert compose([*before, run.with_(steps=steps + 1)], DELTA).epsilon > budget
        found.append(steps)
    assert 0 < found[1] < found[0] >= 60


def test_max_steps_ends():
    assert max_steps(1.0, DELTA, SI.with_(noise_multiplier=0.0)) == 0
    assert max_steps(1e-3, DELTA, DPSGD.with_(sampling="unknown")) == 0
    schedule = SI.with_(learning_rates=tuple([1.0] * 200), sampling="cyclic")
    assert max_steps(1e6, DELTA, schedule) == 200


@pytest.mark.parametrize("run", CASES)
def test_curve_bounds_and_ends_at_the_guarantee(run):
    counts = [0, 1, run.steps // 2, run.steps]
    curve = epsilon_curve(run, counts, DELTA)
    assert curve[0] == 0
    assert curve == sorted(curve)
    assert curve[-1] <= proven(run, DELTA).epsilon + 1e-9
    for steps, value in zip(counts, curve, strict=True):
        assert value == min(
            proven(run.with_(steps=steps), DELTA).epsilon, *curve[counts.index(steps) :]
        )


def test_the_curve_counts_what_was_spent_before():
    earlier = [DPSGD, DPSGD.with_(steps=0)]
    for kind, compose in (("proven", proven_composition), ("claimed", claimed_composition)):
        curve = epsilon_curve(DPSGD, [0, 10], DELTA, kind, earlier=earlier)
        expected = [
            compose([DPSGD], DELTA).epsilon,
            compose([DPSGD, DPSGD.with_(steps=10)], DELTA).epsilon,
        ]
        assert curve == pytest.approx(expected)


@pytest.mark.parametrize("planned", [0, 61, 4000])
def test_max_steps_does_not_depend_on_the_planned_steps(planned):
    budget = proven(DPSGD.with_(steps=60), DELTA).epsilon * 1.0001
    assert max_steps(budget, DELTA, DPSGD.with_(steps=planned)) == 60
