"""Calibration stays on the safe side, and is tight."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.varying import vary
from tfdp.accounting import (
    CalibrationError,
    Encoding,
    claimed,
    describe,
    epsilon_curve,
    max_steps,
    noise_for,
    proven,
)

DELTA = 1e-5
DPSGD = describe(
    mechanism="dpsgd",
    num_examples=5000,
    lot_size=100,
    steps=200,
    sampling="poisson",
    noise_multiplier=1.5,
)
SI = vary(DPSGD, mechanism="si_dpsgd", noise_multiplier=200.0)
CASES = [
    DPSGD,
    vary(DPSGD, sampling="unknown"),
    vary(DPSGD, microbatch_size=2),
    vary(SI, sampling="cyclic", momentum=0.9),
    vary(SI, sampling="shuffle", learning_rates=tuple(range(1, 201))),
]


@pytest.mark.parametrize("run", CASES)
@pytest.mark.parametrize(("epsilon", "adjacency"), [(2.0, "zero_out"), (0.7, "replace_one")])
def test_proven_calibration_is_safe_and_tight(run, epsilon, adjacency):
    noise = noise_for(epsilon, DELTA, run, "proven", adjacency)
    assert proven(vary(run, noise_multiplier=noise), DELTA, adjacency).epsilon <= epsilon
    less = vary(run, noise_multiplier=noise / (1 + 1e-3))
    assert proven(less, DELTA, adjacency).epsilon > epsilon


@settings(max_examples=5, deadline=None)
@given(epsilon=st.floats(0.05, 20), delta=st.floats(1e-9, 1e-3))
def test_calibration_at_any_budget(epsilon, delta):
    run = vary(SI, sampling="cyclic")
    noise = noise_for(epsilon, delta, run)
    found = proven(vary(run, noise_multiplier=noise), delta).epsilon
    assert epsilon * (1 - 1e-4) <= found <= epsilon
    noise = noise_for(epsilon, delta, DPSGD, "claimed")
    found = claimed(vary(DPSGD, noise_multiplier=noise), delta).epsilon
    assert epsilon * (1 - 1e-3) <= found <= epsilon


@pytest.mark.parametrize(
    ("adjacency", "noise"), [("add_or_remove_one", 8.3792), ("replace_one", 16.6795)]
)
def test_golden_noise(adjacency, noise):
    run = vary(DPSGD, num_examples=10000, lot_size=100, steps=20000, nominal=True)
    assert noise_for(0.5, 1e-4, run, "proven", adjacency) == pytest.approx(noise, rel=5e-3)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (vary(SI, sampling="cyclic", release="mu"), "released"),
        (vary(SI, optimizer="adam"), "linear"),
        (vary(DPSGD, batch_statistics=True), "fixed size"),
        (vary(DPSGD, mechanism="none"), "private"),
        (vary(DPSGD, insecure_seed=True), "seed"),
        (vary(DPSGD, steps=0), "steps"),
    ],
)
def test_runs_that_no_noise_makes_private_are_refused(run, words):
    with pytest.raises(CalibrationError, match=words):
        noise_for(2.0, DELTA, run)


def test_an_epsilon_that_no_noise_reaches_is_refused():
    """Rényi divergences of finite order end at an epsilon above 0, whatever the noise."""
    run = describe(
        mechanism="discrete_sgd", num_examples=1437, lot_size=400, steps=8, sampling="poisson",
        noise_multiplier=1.0, encoding=Encoding(noise="laplace", num_weights=650),
    )  # fmt: skip
    with pytest.raises(CalibrationError, match=r"0\.001"):
        noise_for(1e-3, 1e-5, run, "claimed")


@pytest.mark.parametrize("sampling", ["cyclic", "poisson"])
def test_weights_that_never_move_need_hardly_any_noise(sampling):
    run = vary(SI, sampling=sampling, learning_rates=0.0)
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


@pytest.mark.parametrize("run", [DPSGD, vary(SI, sampling="cyclic")])
@pytest.mark.parametrize("kind", ["proven", "claimed"])
def test_max_steps_at_the_boundary_with_and_without_earlier_runs(run, kind):
    compose = {"proven": proven, "claimed": claimed}[kind]
    budget = compose([vary(run, steps=60)], DELTA).epsilon * 1.0001
    earlier, found = vary(run, steps=20), []
    for before in ([], [earlier]):
        steps = max_steps(budget, DELTA, run, kind, earlier=before)
        assert compose([*before, vary(run, steps=steps)], DELTA).epsilon <= budget
        assert compose([*before, vary(run, steps=steps + 1)], DELTA).epsilon > budget
        found.append(steps)
    assert 0 < found[1] < found[0] >= 60


def test_claims_are_about_single_examples():
    run = describe("dpsgd", num_examples=1000, lot_size=50, steps=60, noise_multiplier=2.0)
    for search in (noise_for, max_steps):
        with pytest.raises(ValueError, match="one example"):
            search(2.0, 1e-4, run.for_users(10), kind="claimed")


def test_max_steps_ends():
    assert max_steps(1.0, DELTA, vary(SI, noise_multiplier=0.0)) == 0
    assert max_steps(1e-3, DELTA, vary(DPSGD, sampling="unknown")) == 0
    schedule = vary(SI, learning_rates=tuple([1.0] * 200), sampling="cyclic")
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
            proven(vary(run, steps=steps), DELTA).epsilon, *curve[counts.index(steps) :]
        )


def test_the_curve_counts_what_was_spent_before():
    earlier = [DPSGD, vary(DPSGD, steps=0)]
    for kind, compose in (("proven", proven), ("claimed", claimed)):
        curve = epsilon_curve(DPSGD, [0, 10], DELTA, kind, earlier=earlier)
        expected = [
            compose([DPSGD], DELTA).epsilon,
            compose([DPSGD, vary(DPSGD, steps=10)], DELTA).epsilon,
        ]
        assert curve == pytest.approx(expected)


@pytest.mark.parametrize("planned", [0, 61, 4000])
def test_max_steps_does_not_depend_on_the_planned_steps(planned):
    budget = proven(vary(DPSGD, steps=60), DELTA).epsilon * 1.0001
    assert max_steps(budget, DELTA, vary(DPSGD, steps=planned)) == 60
