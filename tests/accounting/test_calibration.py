"""Calibration stays on the safe side, and is tight."""

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.accounting import (
    CalibrationError,
    Encoding,
    Run,
    calibration,
    claimed,
    claimed_composition,
    epsilon_curve,
    max_steps,
    noise_for,
    proven,
    proven_composition,
    strategy,
)
from tfdp.accounting.calibration import quick_noise_for
from tfdp.accounting.mechanisms.discrete_sgd import DiscreteSGD
from tfdp.accounting.mechanisms.matrix import Matrix

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
    DPSGD.with_(sampling="cyclic"),
    DPSGD.with_(sampling="unknown"),
    DPSGD.with_(microbatch_size=2),
    DPSGD.with_(lot_size=5000, steps=10),
    SI,
    SI.with_(sampling="cyclic", momentum=0.9),
    SI.with_(sampling="with_replacement", momentum=0.5),
    SI.with_(sampling="shuffle", learning_rates=tuple(range(1, 201))),
]


@pytest.mark.parametrize("run", CASES)
@pytest.mark.parametrize(("epsilon", "adjacency"), [(2.0, "zero_out"), (0.7, "replace_one")])
def test_proven_calibration_is_safe_and_tight(run, epsilon, adjacency):
    noise = noise_for(epsilon, DELTA, run, "proven", adjacency)
    assert proven(run.with_(noise_multiplier=noise), DELTA, adjacency).epsilon <= epsilon
    less = run.with_(noise_multiplier=noise / (1 + 1e-3))
    assert proven(less, DELTA, adjacency).epsilon > epsilon


@settings(max_examples=10, deadline=None)
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


@pytest.mark.parametrize("change", [{}, {"max_lot_size": 150}, {"max_lot_size": 190}])
def test_quick_noise_is_on_the_safe_side(change):
    run = DPSGD.with_(**change)
    noise = quick_noise_for(2.0, DELTA, run)
    assert proven(run.with_noise(noise), DELTA).epsilon <= 2.0
    assert noise <= 1.6 * noise_for(2.0, DELTA, run)  # Rényi bounds of mixtures are loose


@pytest.mark.parametrize(("epsilon", "noise"), [(2.0, 1694), (0.05, 49083)])
def test_golden_si_noise(epsilon, noise):
    run = SI.with_(num_examples=60000, lot_size=32, steps=18750, sampling="cyclic")
    assert noise_for(epsilon, DELTA, run) == pytest.approx(noise, rel=1e-4)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (SI.with_(sampling="cyclic", release="mu"), "means were released"),
        (SI.with_(optimizer="adam"), "not linear"),
        (DPSGD.with_(batch_statistics=True), "max_lot_size"),
        (DPSGD.with_(mechanism="none"), "not private"),
        (DPSGD.with_(steps=0), "steps=0"),
    ],
)
def test_hopeless_runs_are_refused_with_the_reason(run, words):
    with pytest.raises(CalibrationError, match=words):
        noise_for(2.0, DELTA, run)


def test_an_epsilon_that_no_noise_reaches_is_refused_with_what_is_reached():
    """Rényi divergences of finite order end at an epsilon above 0, whatever the noise."""
    sizes = {"num_examples": 1437, "lot_size": 400, "steps": 8, "sampling": "poisson"}
    encoding = Encoding(
        noise="student_t", degrees_of_freedom=9.0, num_weights=650, largest_entry=0.2
    )
    run = Run(mechanism=DiscreteSGD(noise_multiplier=1.0, encoding=encoding), **sizes)
    with pytest.raises(CalibrationError, match=r"meet epsilon 0\.1\. Found none: epsilon is 0\.10"):
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


@pytest.mark.parametrize(
    "run", [DPSGD, DPSGD.with_(sampling="cyclic"), SI.with_(sampling="cyclic"), SI]
)
@pytest.mark.parametrize("kind", ["proven", "claimed"])
def test_max_steps_at_the_boundary(run, kind):
    from tfdp.accounting.composition import guarantee

    budget = guarantee(kind, run.with_(steps=60), DELTA).epsilon * 1.0001
    steps = max_steps(budget, DELTA, run, kind)
    assert steps >= 60
    assert guarantee(kind, run.with_(steps=steps), DELTA).epsilon <= budget
    assert guarantee(kind, run.with_(steps=steps + 1), DELTA).epsilon > budget


def test_max_steps_ends():
    assert max_steps(1.0, DELTA, SI.with_(noise_multiplier=0.0)) == 0
    assert max_steps(1e-3, DELTA, DPSGD.with_(sampling="unknown")) == 0
    schedule = SI.with_(learning_rates=tuple([1.0] * 200), sampling="cyclic")
    assert max_steps(1e6, DELTA, schedule) == 200


@pytest.mark.parametrize("run", CASES)
def test_curve_bounds_and_ends_at_the_guarantee(run):
    counts = sorted({0, 1, run.steps // 4, run.steps // 2, run.steps})
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


def test_curves_of_claims_and_of_hopeless_runs():
    curve = epsilon_curve(DPSGD, [50, 200], DELTA, "claimed")
    assert curve[1] == claimed(DPSGD, DELTA).epsilon
    assert curve[0] < curve[1]
    assert epsilon_curve(SI.with_(release="mu"), [1, 2], DELTA) == [math.inf, math.inf]
    assert epsilon_curve(DPSGD, [], DELTA) == []
    with pytest.raises(ValueError, match="increasing"):
        epsilon_curve(DPSGD, [5, 3], DELTA)


@pytest.mark.parametrize("kind", ["proven", "claimed"])
def test_max_steps_counts_what_was_spent_before(kind):
    run = Run(
        mechanism="dpsgd",
        num_examples=1000,
        lot_size=100,
        steps=0,
        sampling="cyclic",
        noise_multiplier=8.0,
    )
    earlier = run.with_(steps=20)
    alone = max_steps(2.0, 1e-5, run, kind)
    after = max_steps(2.0, 1e-5, run, kind, earlier=[earlier])
    compose = {"proven": proven_composition, "claimed": claimed_composition}[kind]
    assert 0 < after < alone
    assert compose([earlier, run.with_(steps=after)], 1e-5).epsilon <= 2.0
    assert compose([earlier, run.with_(steps=after + 1)], 1e-5).epsilon > 2.0


# -- how much is evaluated -----------------------------------------------------------------------


class Counted:
    """Counts the evaluations of a guarantee."""

    def __init__(self, monkeypatch):
        self.number = 0
        for name in ("guarantee", "guarantee_of_all"):
            monkeypatch.setattr(calibration, name, self._counting(getattr(calibration, name)))

    def _counting(self, function):
        def counting(*args, **kwargs):
            self.number += 1
            return function(*args, **kwargs)

        return counting


# The runs that train.py plans for the digits.
DIGITS = Run(
    mechanism="dpsgd",
    sampling="poisson",
    num_examples=1437,
    lot_size=256,
    steps=200,
    noise_multiplier=1.0,
)
FULL = DIGITS.with_(mechanism="si_dpsgd", lot_size=1437, steps=2)
BANDED = DIGITS.with_(
    mechanism=Matrix(noise_multiplier=1.0, strategy=strategy("banded_toeplitz", 400, 8)),
    num_examples=1436,
    lot_size=64,
    steps=400,
)
STUDENT = Encoding(noise="student_t", degrees_of_freedom=9.0, num_weights=650)
CELLS = {
    **{
        f"dpsgd-{sampling}": DIGITS.with_(sampling=sampling)
        for sampling in ("poisson", "cyclic", "shuffle", "with_replacement", "fixed_size")
    },
    "dpsgd-cyclic_poisson": DIGITS.with_(sampling="cyclic_poisson", groups=4),
    "dp_dropout-with_replacement": DIGITS.with_(
        mechanism="dp_dropout", sampling="with_replacement", clip_groups=2, steps=150
    ),
    "sgld-poisson": DIGITS.with_(mechanism="sgld", clip_groups=2, steps=100),
    "si_dpsgd-cyclic": FULL.with_(sampling="cyclic"),
    "si_dpsgd-with_replacement": FULL.with_(sampling="with_replacement"),
    "matrix-poisson": BANDED,
    "matrix-with_replacement": BANDED.with_(sampling="with_replacement"),
    "matrix-cyclic_poisson": BANDED.with_(sampling="cyclic_poisson", groups=8),
    "discrete_sgd-poisson": DIGITS.with_(
        mechanism=DiscreteSGD(noise_multiplier=1.0, encoding=STUDENT)
    ),
}


@pytest.mark.parametrize("cell", CELLS)
def test_calibration_takes_few_evaluations_and_little_time(cell, monkeypatch):
    counted = Counted(monkeypatch)
    for delta in (1e-5, 1e-2):
        for epsilon in (0.5, 2.0, 8.0):
            counted.number, started = 0, time.process_time()
            noise = noise_for(epsilon, delta, CELLS[cell])
            assert counted.number <= 12
            assert time.process_time() - started < 5
            found = proven(CELLS[cell].with_noise(noise), delta).epsilon
            assert epsilon * (1 - 1e-4) <= found <= epsilon


@pytest.mark.parametrize("cell", CELLS)
def test_the_limit_of_a_calibrated_budget_takes_few_evaluations(cell, monkeypatch):
    run = CELLS[cell]
    run = run.with_noise(noise_for(2.0, DELTA, run))
    counted = Counted(monkeypatch)
    limit = max_steps(2.0, DELTA, run)
    # One example is in at most one lot of an epoch, so an epoch may end after the planned steps.
    assert run.steps <= limit < run.steps + run.steps_per_epoch * run.groups
    assert counted.number <= 8


@pytest.mark.parametrize("planned", [0, 1, 7, 30, 60, 61, 200, 4000])
def test_max_steps_does_not_depend_on_the_planned_steps(planned):
    budget = proven(DPSGD.with_(steps=60), DELTA).epsilon * 1.0001
    assert max_steps(budget, DELTA, DPSGD.with_(steps=planned)) == 60
