"""Calibration: the noise or the number of steps that a budget allows, and epsilon over the steps.

Every search evaluates the number that it returns, and the guarantee of this number stays within the
budget.
"""

import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tfdp._validate import fraction, one_of, refuse, whole
from tfdp.accounting.analysis import analyse
from tfdp.accounting.composition import guarantee, guarantee_of_all
from tfdp.accounting.described import without_noise, without_steps
from tfdp.accounting.guarantee import check_adjacency, check_delta, check_epsilon, check_kind
from tfdp.accounting.numerics import gaussian, privacy_loss
from tfdp.accounting.numerics.subsampled import SubsampledLoss, typical_noise
from tfdp.accounting.run import Run, check_run, check_runs

# Largest relative distance of a calibrated epsilon below the budget.
_TOLERANCE = 5e-5
_LEAST_NOISE, _LARGEST_NOISE = 1e-9, 1e12
_MOST_STEPS = 10_000_000
# The tails that are left out where an advantage is computed, as a share of it.
_DELTA_OF_ADVANTAGE = 1e-5


class CalibrationError(ValueError):
    """No noise (or no number of steps) meets the budget.

    Example:
      >>> from tfdp.accounting import Run, noise_for
      >>> run = Run(mechanism="dpsgd", sampling="cyclic", num_examples=1000, lot_size=100, steps=20,
      ...           noise_multiplier=1.0, insecure_seed=True)
      >>> noise_for(2.0, 1e-4, run)
      Traceback (most recent call last):
      ...
      tfdp.accounting.calibration.CalibrationError: No noise gives a finite proven guarantee for this
      run. ...
    """


def noise_for(
    epsilon: float | None = None,
    delta: float | None = None,
    run: Run | None = None,
    kind: str = "proven",
    adjacency: str = "zero_out",
    *,
    advantage: float | None = None,
    **fields: Any,
) -> float:
    """Smallest noise multiplier, to about 1e-4, whose epsilon is within the budget.

        noise_for(2.0, 1e-5, mechanism="dpsgd", num_examples=60000, lot_size=256, epochs=15)
        noise_for(advantage=0.1, mechanism="dpsgd", num_examples=60000, lot_size=256, epochs=15)

    Args:
      epsilon: Budget, finite and above 0.
      delta: Probability in (0, 1).
      run: The run to be executed. A constant noise multiplier of the run is ignored. A table of
        noise multipliers keeps its shape: the result is a common factor of all its values.
      kind: "claimed" or "proven": the guarantee that has to stay within the budget.
      adjacency: Neighbouring relation.
      advantage: In place of `epsilon` and `delta`: the largest proven advantage of a test of
        membership (`Guarantee.advantage`), in (0, 1).
      **fields: In place of `run`, the keywords of `Run` without a noise multiplier. The sampling may
        be left out; it is then the mechanism's `usual_sampling`, as `fit` draws lots of arrays.

    Returns:
      A noise multiplier (or the common factor of a table) whose epsilon, or advantage, was evaluated
      and is within the budget. Pass it to `run.with_noise`.

    Raises:
      CalibrationError: If no noise gives a finite guarantee within the budget; the message names the
        reason.
      TypeError: If both `run` and keywords are given, or neither, or a noise multiplier; or both a
        budget and an advantage, or neither.

    Example:
      >>> from tfdp.accounting import Run, noise_for, proven
      >>> run = Run(mechanism="dpsgd", sampling="cyclic", num_examples=60000, lot_size=256,
      ...           steps=3516, noise_multiplier=1.0)
      >>> noise = noise_for(2.0, 1e-5, run)
      >>> print(f"{noise:.3f}")
      7.975
      >>> 1.999 < proven(run.with_noise(noise), 1e-5).epsilon <= 2.0
      True
    """
    if (epsilon is None, delta is None) != (advantage is not None,) * 2:
        raise TypeError(
            "Expected epsilon and delta, or an advantage. Received "
            f"epsilon={epsilon!r}, delta={delta!r}, advantage={advantage!r}."
        )
    check_kind(kind)
    check_adjacency(adjacency)
    run = without_noise(run, fields)
    if run.steps == 0:
        raise CalibrationError("Expected a run of at least one step. Received steps=0.")
    if advantage is not None:
        one_of("kind", kind, ("proven",))
        epsilon, delta = fraction("advantage", advantage), _DELTA_OF_ADVANTAGE * advantage
    else:
        epsilon = check_epsilon(epsilon)
        check_delta(delta)

    def evaluate(noise: float) -> float:
        found = guarantee(kind, run.with_noise(noise), delta, adjacency)
        return found.epsilon if advantage is None else found.advantage

    if advantage is not None:
        _refuse_hopeless(analyse(run.with_noise(_LARGEST_NOISE), delta, adjacency), kind)
        noise = _safe_root(evaluate, epsilon, 1.0, _TOLERANCE)
    elif kind == "proven":
        noise = _proven_noise(epsilon, delta, run, adjacency, evaluate)
    else:
        _refuse_hopeless(guarantee(kind, run.with_noise(_LARGEST_NOISE), delta, adjacency), kind)
        noise = _safe_root(evaluate, epsilon, 1.0, _TOLERANCE)
    noise = _rounded_up(noise)
    while not evaluate(noise) <= epsilon:
        noise = _rounded_up(noise * (1 + 1e-9))
    return noise


def _rounded_up(noise: float) -> float:
    """The next number of ten digits: the last digits of an evaluation differ from process to process.

    A training that goes on in another process needs the noise that it had, and a budget that it meets
    there, too.
    """
    digits = decimal.Context(prec=10, rounding=decimal.ROUND_CEILING)
    return float(digits.create_decimal(noise * (1 + 1e-10)))


def _proven_noise(
    epsilon: float, delta: float, run: Run, adjacency: str, evaluate: Callable[[float], float]
) -> float:
    probe = analyse(run.with_noise(1.0), delta, adjacency)
    _refuse_hopeless(probe, "proven")
    mu = privacy_loss.common_mu(probe.losses)
    if probe.scales and mu is not None:
        # mu is proportional to 1/z, so one inversion of the Gaussian profile is enough.
        return max(mu / gaussian.mu_of_epsilon(epsilon, delta), _LEAST_NOISE)
    if probe.scales:
        # The law of the participations does not depend on the noise; the noise only scales mu.
        def by_scale(noise: float) -> float:
            return privacy_loss.epsilon_of(
                privacy_loss.scaled(probe.losses, 1 / noise), delta
            ).epsilon

        return _safe_root(by_scale, epsilon, 1.0, _TOLERANCE)
    sampled = [loss for loss in probe.losses if isinstance(loss, SubsampledLoss)]
    start = 1.0
    if sampled and len(sampled) == len(probe.losses):
        start = typical_noise(sampled, gaussian.mu_of_epsilon(epsilon, delta))
    return _safe_root(evaluate, epsilon, start, _TOLERANCE)


def _refuse_hopeless(probe, kind: str) -> None:
    if probe.reason:
        raise CalibrationError(
            f"No noise gives a finite {kind} guarantee for this run. {probe.reason}"
        )


def quick_noise_for(epsilon: float, delta: float, run: Run, adjacency: str = "zero_out") -> float:
    """Noise multiplier that meets a proven epsilon, found in a fraction of the time of `noise_for`.

    For amplified runs only Rényi divergences are computed, so the noise may be some percent larger
    than needed, never smaller. Use this to compare runs.

    Args:
      epsilon: Budget, finite and above 0.
      delta: Probability in (0, 1).
      run: The run to be executed.
      adjacency: Neighbouring relation.

    Raises:
      CalibrationError: If no noise gives a finite guarantee within the budget.
    """
    quick = _rdp_only(run, delta, adjacency)
    if quick is None:
        return noise_for(epsilon, delta, run, "proven", adjacency)
    return _safe_root(quick, epsilon, 1.0, 1e-3)


def _rdp_only(run: Run, delta: float, adjacency: str) -> Callable[[float], float] | None:
    """A cheap upper bound on epsilon as a function of the noise, or None if there is none."""

    def evaluate(noise: float) -> float:
        losses = analyse(run.with_noise(noise), delta, adjacency).losses
        quick = privacy_loss.quick_epsilon(losses, delta)
        return privacy_loss.epsilon_of(losses, delta).epsilon if quick is None else quick

    probe = analyse(run.with_noise(1.0), delta, adjacency).losses
    return None if privacy_loss.quick_epsilon(probe, delta) is None else evaluate


def _safe_root(
    evaluate: Callable[[float], float], target: float, start: float, tolerance: float
) -> float:
    """Noise with epsilon in [target (1 - tolerance), target]; epsilon has to fall with the noise.

    Epsilon is nearly a power of the noise, so the secant method on logarithms converges in a few
    evaluations. The search keeps a bracket of the root and halves it if the secant leaves it.
    """
    # Each is (log noise, log(epsilon / target)): `low` has too little noise, `high` has enough.
    low, high = None, None

    def visit(noise: float) -> tuple[float, float]:
        value = evaluate(noise)
        if math.isnan(value):
            raise CalibrationError(f"The accountant returned no number at noise {noise:g}.")
        return math.log(noise), math.log(max(value, 1e-300) / target) if value < math.inf else 700.0

    point, one_sided = visit(start), 0
    for _ in range(200):
        if point[1] <= 0:
            high = point if high is None else min(high, point)
            if high[1] >= math.log1p(-tolerance):
                return math.exp(high[0])
        else:
            low = point if low is None else max(low, point)
        if low is None or high is None:
            # Epsilon is nearly proportional to 1/noise. The bound of 2.7 keeps one leap below a
            # factor of 16.
            # Where it hardly falls, leaps double.
            one_sided += 1
            leap = min(max(point[1] * 2.0 ** max(0, one_sided - 4), -2.7), 2.7)
            guess = point[0] + (leap * 1.02 if leap else -1e-4)
            if abs(leap) < 1e-3:
                guess = point[0] + math.copysign(2e-3, leap)
        else:
            if high[0] - low[0] < 1e-9:
                return math.exp(high[0])
            slope = (high[1] - low[1]) / (high[0] - low[0])
            # Aiming a third of the tolerance below the target makes an epsilon within the budget
            # likely, so that this guess ends the search.
            guess = high[0] + (-tolerance / 3 - high[1]) / slope
            margin = 0.01 * (high[0] - low[0])
            usable = abs(low[1]) < 600 and high[1] > -600
            if not (usable and low[0] + margin < guess < high[0] - margin * 0.01):
                guess = (low[0] + high[0]) / 2
        if high is not None and guess < math.log(_LEAST_NOISE):
            return math.exp(high[0])  # epsilon hardly depends on the noise: any noise meets it
        if not guess < math.log(_LARGEST_NOISE):
            raise CalibrationError(
                f"Expected a noise multiplier below {_LARGEST_NOISE:g} to meet epsilon "
                f"{target:g}. Found none: epsilon is {math.exp(point[1]) * target:.4g} at a noise "
                f"of {math.exp(point[0]):.1e}. Use fewer steps or a larger epsilon; where epsilon no "
                "longer falls with the noise, the accountant's bound of this mechanism ends there."
            )
        point = visit(math.exp(guess))
    return math.exp(high[0])


def max_steps(
    epsilon: float,
    delta: float,
    run: Run | None = None,
    kind: str = "proven",
    adjacency: str = "zero_out",
    earlier: Sequence[Run] = (),
    **fields: Any,
) -> int:
    """Largest number of steps whose guarantee stays within the budget.

    Args:
      epsilon: Budget, finite and above 0.
      delta: Probability in (0, 1).
      run: The run. Its own `steps` is where the search starts and does not limit the result; a table
        over steps does.
      kind: "claimed" or "proven": the guarantee that has to stay within the budget.
      adjacency: Neighbouring relation.
      earlier: Earlier runs on the same data that the budget has to cover too.
      **fields: In place of `run`, the keywords of `Run` without steps and epochs. The sampling may be
        left out, as in `noise_for`.

    Returns:
      The number of steps: 0 if not even one step fits, and at most 10,000,000 or the length of the
      shortest table.

    Raises:
      TypeError: If both `run` and keywords are given, or neither, or a number of steps.

    Example:
      >>> from tfdp.accounting import Run, max_steps
      >>> run = Run(mechanism="dpsgd", sampling="cyclic", num_examples=60000, lot_size=256, steps=1,
      ...           noise_multiplier=10.0)
      >>> max_steps(2.0, 1e-5, run)  # 25 epochs of 234 steps
      5850
    """
    epsilon = check_epsilon(epsilon)
    check_delta(delta)
    check_kind(kind)
    run = without_steps(run, fields)

    earlier = [past for past in check_runs(earlier) if past.steps]

    def fits(steps: int) -> bool:
        now = run.with_(steps=steps)
        if earlier:
            return guarantee_of_all(kind, [*earlier, now], delta, adjacency).epsilon <= epsilon
        return guarantee(kind, now, delta, adjacency).epsilon <= epsilon

    covered = run.described_steps
    limit = _MOST_STEPS if covered is None else min(_MOST_STEPS, covered)
    # `low` fits and `high` does not, or exceeds the limit. The search widens its steps around the
    # planned number, for which the noise was usually calibrated.
    start, width = min(max(run.steps, 1), limit), 1
    if start >= 1 and fits(start):
        low, high = start, start + 1
        while high <= limit and fits(high):
            low, width = high, 2 * width
            high = low + width
        high = min(high, limit + 1)
    else:
        low, high = start - 1, max(start, 1)
        while low >= 1 and not fits(low):
            high, width = low, 2 * width
            low = high - width
        low = max(low, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def epsilon_curve(
    run: Run,
    steps: Sequence[int],
    delta: float,
    kind: str = "proven",
    adjacency: str = "zero_out",
    earlier: Sequence[Run] = (),
) -> list[float]:
    """Epsilon after several numbers of steps, for showing progress.

    Args:
      run: The run; its own `steps` is ignored, but tables must cover the largest of `steps`.
      steps: Step counts of at least 0, in increasing order.
      delta: Probability in (0, 1).
      kind: "claimed" or "proven".
      adjacency: Neighbouring relation.
      earlier: Runs that were executed before, whose cost is included.

    Returns:
      One epsilon for each of `steps`; none exceeds a later one.

    Example:
      >>> from tfdp.accounting import Run, epsilon_curve
      >>> run = Run(mechanism="dpsgd", sampling="cyclic", num_examples=1000, lot_size=100, steps=20,
      ...           noise_multiplier=4.0)
      >>> [round(epsilon, 3) for epsilon in epsilon_curve(run, [0, 10, 20], delta=1e-4)]
      [0.0, 0.773, 1.144]
    """
    check_run(run)
    earlier = check_runs(earlier)
    if not isinstance(steps, Iterable):
        refuse("steps", "a sequence of numbers of steps", steps, "Pass a list, such as [100, 200].")
    steps = list(steps)
    counts = [whole("steps", count, 0) for count in steps]
    if counts != sorted(counts):
        raise ValueError(
            f"Expected step counts in increasing order. Received {list(steps)!r}. Sort them."
        )
    values = []
    for count in counts:
        runs = [past for past in (*earlier, run.with_(steps=count)) if past.steps]
        values.append(guarantee_of_all(kind, runs, delta, adjacency).epsilon)
    # Early releases are part of the later ones, so a smaller later bound holds for them too.
    return [float(v) for v in np.minimum.accumulate(values[::-1])[::-1]]
