"""Calibration: the noise or the number of steps that a budget allows, and epsilon over the steps.

Every search evaluates the number that it returns, and the guarantee of this number stays within the
budget.
"""

import decimal
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdp._validate import fraction, one_of, whole
from tfdp.accounting.analysis import analyse
from tfdp.accounting.composition import guarantee_of_all
from tfdp.accounting.described import describe
from tfdp.accounting.guarantee import check_adjacency, check_delta, check_epsilon, check_kind
from tfdp.accounting.mechanisms.base import Mechanism
from tfdp.accounting.numerics import gaussian, privacy_loss
from tfdp.accounting.run import Run, check_run, check_runs

_LEAST_NOISE, _LARGEST_NOISE = 1e-9, 1e12
_MOST_STEPS = 10_000_000
# Steeper than epsilon falls with the noise, both in logarithms, where it does not jump.
_STEEPEST = 12.0
# The tails that are left out where an advantage is computed, as a share of it.
_DELTA_OF_ADVANTAGE = 1e-5


class CalibrationError(ValueError):
    """No noise (or no number of steps) meets the budget.

    Example:
      >>> from tfdp.accounting import CalibrationError
      >>> issubclass(CalibrationError, ValueError)
      True
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

    Args:
      epsilon: Budget, finite and above 0.
      delta: Probability in (0, 1).
      run: The run to be executed. Its constant noise multiplier is ignored; of a table, the result
        is a common factor (see `Run.with_noise`).
      kind: "claimed" or "proven".
      adjacency: Neighbouring relation.
      advantage: In place of `epsilon` and `delta`: the largest proven advantage of a test of
        membership (`Guarantee.advantage`), in (0, 1).
      **fields: In place of `run`, the keywords of `describe` without a noise multiplier.

    Raises:
      CalibrationError: If no noise gives a finite guarantee within the budget.
      TypeError: If not exactly one of run and keywords, or of budget and advantage, is given.

    Example:
      >>> from tfdp.accounting import noise_for
      >>> data = dict(num_examples=60000, lot_size=256, epochs=15)
      >>> print(f"{noise_for(2.0, 1e-5, mechanism='dpsgd', sampling='cyclic', **data):.3f}")
      7.722
      >>> print(f"{noise_for(advantage=0.1, mechanism='dpsgd', **data):.3f}")
      1.203
    """
    if (epsilon is None, delta is None) != (advantage is not None,) * 2:
        raise TypeError(
            "Expected epsilon and delta, or an advantage. Received "
            f"epsilon={epsilon!r}, delta={delta!r}, advantage={advantage!r}."
        )
    check_kind(kind)
    check_adjacency(adjacency)
    first = {} if isinstance(fields.get("mechanism"), Mechanism) else {"noise_multiplier": 1.0}
    run = _given(run, fields, first, searched={"noise_multiplier"})
    if run.steps == 0:
        raise CalibrationError("Expected a run of at least one step. Received steps=0.")
    if advantage is not None:
        one_of("kind", kind, ("proven",))
        epsilon, delta = fraction("advantage", advantage), _DELTA_OF_ADVANTAGE * advantage
    else:
        epsilon = check_epsilon(epsilon)
        check_delta(delta)

    def evaluate(noise: float) -> float:
        found = guarantee_of_all(kind, [run.with_noise(noise)], delta, adjacency)
        return found.epsilon if advantage is None else found.advantage

    loudest = run.with_noise(_LARGEST_NOISE)
    reason = guarantee_of_all(kind, [loudest], delta, adjacency).reason
    if reason:
        raise CalibrationError(f"No noise gives a finite {kind} guarantee for this run. {reason}")
    start = 1.0
    if kind == "proven" and advantage is None:
        probe = analyse(run.with_noise(1.0), delta, adjacency)
        start = privacy_loss.typical_noise(probe.losses, gaussian.mu_of_epsilon(epsilon, delta))
    noise = _rounded_up(_root(evaluate, epsilon, start))
    while not evaluate(noise) <= epsilon:
        noise = _rounded_up(noise * (1 + 1e-9))
    return noise


def _given(run: Run | None, fields: dict, first: dict[str, Any], searched: set[str]) -> Run:
    """Returns the run, or that of the keywords; what is searched has the value of `first`."""
    if run is not None:
        if fields:
            raise TypeError(f"Expected a Run or its keywords. Received a Run and {sorted(fields)}.")
        return check_run(run)
    if not fields:
        raise TypeError(
            "Expected a Run, or its keywords. Received neither. Pass for example "
            'mechanism="dpsgd", num_examples=60000, lot_size=256, epochs=15.'
        )
    given = sorted(searched & fields.keys())
    if given:
        raise TypeError(
            f"Expected no {' or '.join(sorted(searched))}, which is what is searched for. Received "
            f"{', '.join(f'{name}={fields[name]!r}' for name in given)}. Leave it out, or pass a Run."
        )
    return describe(**fields, **first)


def _rounded_up(noise: float) -> float:
    """The next number of ten digits: the last digits of an evaluation differ from process to process.

    A training that is resumed needs the noise that it had, and a budget that it meets there, too.
    """
    digits = decimal.Context(prec=10, rounding=decimal.ROUND_CEILING)
    return float(digits.create_decimal(noise * (1 + 1e-10)))


def _root(evaluate: Callable[[float], float], target: float, start: float) -> float:
    """The least noise, to about 1e-6, at which `evaluate`, which falls with it, is at most `target`."""

    def excess(log_noise: float) -> float:
        value = evaluate(math.exp(log_noise))
        if math.isnan(value):
            raise CalibrationError(
                f"The accountant returned no number at noise {math.exp(log_noise):g}."
            )
        return math.log(max(value, 1e-300) / target)

    low, high, leaps = (-math.inf, 0.0), (math.inf, 0.0), 0  # (log of the noise, excess there)
    point = math.log(start)
    while high[0] == math.inf or low[0] == -math.inf:
        if point < math.log(_LEAST_NOISE):
            return math.exp(high[0])  # epsilon hardly depends on the noise: any noise meets it
        if point > math.log(_LARGEST_NOISE):
            raise CalibrationError(
                f"Expected a noise multiplier below {_LARGEST_NOISE:g} to meet epsilon {target:g}. "
                f"Found none: epsilon is {target * math.exp(low[1]):.4g} at a noise of "
                f"{math.exp(low[0]):.1e}. Use fewer steps or a larger epsilon; where epsilon no longer "
                "falls with the noise, the accountant's bound of this mechanism ends there."
            )
        value = excess(point)
        low, high = (low, (point, value)) if value <= 0 else ((point, value), high)
        # Epsilon is nearly proportional to 1 / noise nearby. Farther away, leaps double.
        leap = min(min(max(1.02 * abs(value), 1e-3), 0.5) * 2.0**leaps, 2.7)
        point, leaps = point + math.copysign(leap, value), leaps + 1
    return math.exp(_narrowed(excess, low, high))


def _narrowed(excess: Callable[[float], float], low: tuple, high: tuple) -> float:
    """Closes in on the root between two points (place, excess), from above.

    The secant method needs about three points. Where epsilon jumps over the target, no point comes
    close to it, so halving the interval down to 1e-4 takes its place.
    """
    before, last, jumps = low, high, False
    while high[1] < -2e-6 and high[0] - low[0] > (1e-4 if jumps else 1e-6):
        slope = (last[1] - before[1]) / (last[0] - before[0])
        point = last[0] - (last[1] + 1e-6) / slope if slope < 0 else math.nan  # just above the root
        if jumps or not low[0] < point < high[0]:
            point = (low[0] + high[0]) / 2
        before, last = last, (point, excess(point))
        low, high = (low, last) if last[1] <= 0 else (last, high)
        jumps = low[1] - high[1] > _STEEPEST * (high[0] - low[0])
    return high[0]


def max_steps(
    epsilon: float,
    delta: float,
    run: Run | None = None,
    kind: str = "proven",
    adjacency: str = "zero_out",
    earlier: Sequence[Run] = (),
    **fields: Any,
) -> int:
    """Largest number of steps whose guarantee stays within the budget; 0 if not even one does.

    Args:
      epsilon: Budget, finite and above 0.
      delta: Probability in (0, 1).
      run: The run. The search starts at its `steps`; only tables and 10,000,000 limit the result.
      kind: "claimed" or "proven".
      adjacency: Neighbouring relation.
      earlier: Earlier runs on the same data that the budget has to cover too.
      **fields: In place of `run`, the keywords of `describe` without steps and epochs.

    Raises:
      TypeError: If both `run` and keywords are given, or neither, or a number of steps.

    Example:
      >>> from tfdp.accounting import describe, max_steps
      >>> run = describe("dpsgd", "cyclic", num_examples=60000, lot_size=256, steps=1,
      ...                noise_multiplier=10.0)
      >>> max_steps(2.0, 1e-5, run)  # 25 epochs of 234 steps
      5850
    """
    epsilon = check_epsilon(epsilon)
    check_delta(delta)
    check_kind(kind)
    run = _given(run, fields, {"steps": 0}, searched={"steps", "epochs"})
    earlier = [past for past in check_runs(earlier) if past.steps]

    def fits(steps: int) -> bool:
        runs = [*earlier, run.with_steps(steps)]
        return guarantee_of_all(kind, runs, delta, adjacency).epsilon <= epsilon

    covered = run.described_steps
    limit = _MOST_STEPS if covered is None else min(_MOST_STEPS, covered)
    # `low` fits and `high` does not, or exceeds the limit. The search widens its steps around the
    # planned number, for which the noise was usually calibrated, and then halves the interval.
    low, high, point, width, first = 0, limit + 1, min(max(run.steps, 1), limit), 1, None
    while high - low > 1:
        good = fits(point)
        low, high = (point, high) if good else (low, point)
        first = good if first is None else first
        point, width = (low + width if first else high - width), 2 * width
        if good != first or not low < point < high:
            point, width = (low + high) // 2, high
    return low


def epsilon_curve(
    run: Run,
    steps: Sequence[int],
    delta: float,
    kind: str = "proven",
    adjacency: str = "zero_out",
    earlier: Sequence[Run] = (),
) -> list[float]:
    """Epsilon after each of several numbers of steps, in increasing order; none exceeds a later one.

    Args:
      run: The run; its own `steps` is ignored, but tables must cover the largest of `steps`.
      steps: Step counts of at least 0, in increasing order.
      delta: Probability in (0, 1).
      kind: "claimed" or "proven".
      adjacency: Neighbouring relation.
      earlier: Runs that were executed before, whose cost is included.

    Example:
      >>> from tfdp.accounting import describe, epsilon_curve
      >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=20,
      ...                noise_multiplier=4.0)
      >>> [round(epsilon, 3) for epsilon in epsilon_curve(run, [0, 10, 20], delta=1e-4)]
      [0.0, 0.773, 1.144]
    """
    check_run(run)
    earlier = check_runs(earlier)
    counts = [whole("steps", count, 0) for count in steps]
    if counts != sorted(counts):
        raise ValueError(
            f"Expected step counts in increasing order. Received {counts!r}. Sort them."
        )
    values = []
    for count in counts:
        runs = [past for past in (*earlier, run.with_steps(count)) if past.steps]
        values.append(guarantee_of_all(kind, runs, delta, adjacency).epsilon)
    # Early releases are part of the later ones, so a smaller later bound holds for them too.
    return [float(v) for v in np.minimum.accumulate(values[::-1])[::-1]]
