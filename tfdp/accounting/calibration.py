"""Calibration: the noise or the number of steps that a budget allows, and epsilon over the steps.

Every search evaluates the guarantee of the number that it returns, so this number meets the budget.
"""

import decimal
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdp._validate import fraction, one_of, whole
from tfdp.accounting.composition import guarantee_of_all
from tfdp.accounting.described import describe
from tfdp.accounting.guarantee import check_adjacency, check_delta, check_epsilon, check_kind
from tfdp.accounting.mechanisms import Mechanism
from tfdp.accounting.run import Run, check_run, check_runs

_LEAST_NOISE, _LARGEST_NOISE = 1e-9, 1e12
_MOST_STEPS = 10_000_000
# Relative tolerance of searches, for epsilon or the noise.
_CLOSE = 5e-5
# Bound on the slope of log epsilon over the log of the noise or the steps, except where it jumps.
_STEEPEST = 12.0
# Tail mass that the computation of an advantage leaves out, as a share of it.
_DELTA_OF_ADVANTAGE = 1e-5


class CalibrationError(ValueError):
    """Error of `noise_for` and `best_bands`: no noise meets the privacy budget.

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
    """Returns the smallest noise multiplier with which a training stays within a privacy budget.

    Use it before training, and pass the result to the optimizer. `make_private_with_epsilon` does
    both for a model. The planned training is described by a `Run`, or by the keywords of `describe`.

    Args:
        epsilon: The largest epsilon, finite and above 0.
        delta: Probability in (0, 1), well below 1/N.
        run: The planned training. A constant noise multiplier in it is ignored. If its noise is a
            table over steps, the result is the factor for the whole table (see `Run.with_noise`).
        kind: The guarantee that has to meet the budget: "proven" or "claimed".
        adjacency: "zero_out", "replace_one" or "add_or_remove_one".
        advantage: Replaces `epsilon` and `delta`: the largest proven advantage of a membership test
            (see `Guarantee.advantage`), in (0, 1).
        **fields: Replace `run`: the keywords of `describe`, without a noise multiplier.

    Returns:
        The noise multiplier. It meets the budget, and exceeds the smallest one by at most about 0.01%.

    Raises:
        CalibrationError: If no noise gives a finite guarantee within the budget.
        TypeError: If both a run and keywords are given, or neither; or both a budget and an
            advantage, or neither.
        ValueError: If `kind` is "claimed" and users have several examples.

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
    _check_claim(kind, run)
    if run.steps == 0:
        raise CalibrationError("Expected a run of at least one step. Received steps=0.")
    if advantage is not None:
        one_of("kind", kind, ("proven",))
        epsilon, delta = fraction("advantage", advantage), _DELTA_OF_ADVANTAGE * advantage
    else:
        assert epsilon is not None and delta is not None
        epsilon = check_epsilon(epsilon)
        check_delta(delta)

    def evaluate(noise: float) -> float:
        found = guarantee_of_all(kind, [run.with_noise(noise)], delta, adjacency)
        if found.reason and noise == _LARGEST_NOISE:
            raise CalibrationError(
                f"No noise gives a finite {kind} guarantee for this run. {found.reason}"
            )
        if found.reason:
            evaluate(_LARGEST_NOISE)
        return found.epsilon if advantage is None else found.advantage

    noise = _least_noise(evaluate, epsilon)
    if advantage is not None and noise < 2 * _LEAST_NOISE:
        raise CalibrationError(
            f"Advantage {advantage:g} limits nothing: few records take part, so that no test exceeds "
            "it even without noise. Pass a smaller advantage, or epsilon and delta."
        )
    return noise


def _check_claim(kind: str, run: Run) -> None:
    users = run.contribution.max_examples_per_user
    if kind == "claimed" and users > 1:
        raise ValueError(
            f"The papers claim nothing for users of {users} examples: their formulas are for one "
            'example. Pass kind="proven", or max_examples_per_user=1.'
        )


def _given(run: Run | None, fields: dict, first: dict[str, Any], searched: set[str]) -> Run:
    """Returns `run`, or the run that the keywords describe, with the searched field from `first`."""
    if run is not None:
        if fields:
            raise TypeError(f"Expected a Run or its keywords. Received a Run and {sorted(fields)}.")
        return check_run(run)
    if not fields:
        raise TypeError(
            "Expected a Run, or its keywords. Received neither. Pass, for example, "
            'mechanism="dpsgd", num_examples=60000, lot_size=256, epochs=15.'
        )
    given = sorted(searched & fields.keys())
    if given:
        raise TypeError(
            f"Expected no {' or '.join(sorted(searched))}: the search determines it. Received "
            f"{', '.join(f'{name}={fields[name]!r}' for name in given)}. Leave it out, or pass a Run."
        )
    return describe(**fields, **first)


def _rounded_up(noise: float) -> float:
    """Rounds up to ten digits, since the last digits of an evaluation differ between processes.

    A resumed training needs the same noise, and has to meet its budget with it.
    """
    digits = decimal.Context(prec=10, rounding=decimal.ROUND_CEILING)
    return float(digits.create_decimal(noise * (1 + 1e-10)))


def _least_noise(evaluate: Callable[[float], float], target: float) -> float:
    """Returns the least noise, to about 5e-5, at which the falling function `evaluate` meets `target`.

    Secants in logarithms need about six evaluations. If the value jumps over the target, no point is
    close to it, and bisection is used instead.
    """
    low, high = (0.0, math.inf), (math.inf, -math.inf)  # (noise, log of value over target)
    last, point, slope, leap = None, 4.0, 1.0, 2.0
    while True:
        noise = min(_rounded_up(max(point, _LEAST_NOISE)), _LARGEST_NOISE)
        value = evaluate(noise)
        if math.isnan(value):
            raise CalibrationError(f"The accountant returned no number at noise {noise:g}.")
        before, last = last, (noise, math.log(max(value, 1e-300) / target))
        low, high = (low, last) if last[1] <= 0 else (last, high)
        if low[0] == _LARGEST_NOISE:
            raise CalibrationError(
                f"No noise multiplier below {_LARGEST_NOISE:g} meets epsilon {target:g}: epsilon is "
                f"{value:.4g} at that noise. Use fewer steps or a larger epsilon. If epsilon no "
                "longer falls with the noise, this is the limit of the accountant's bound."
            )
        if high[1] >= -_CLOSE or high[0] <= max(low[0] * (1 + _CLOSE), 1.001 * _LEAST_NOISE):
            return high[0]
        if before:
            slope = (last[1] - before[1]) / math.log(before[0] / noise)
        step = math.copysign(leap, last[1])
        if 0 < slope < _STEEPEST:  # to a little more noise than the least
            step = min(max((last[1] + 0.4 * _CLOSE) / slope, -leap), leap)
        point, leap = noise * math.exp(step), 2.7
        if low[0] > 0 and high[0] < math.inf and not low[0] < point < high[0]:
            point = math.sqrt(low[0] * high[0])


def max_steps(
    epsilon: float,
    delta: float,
    run: Run | None = None,
    kind: str = "proven",
    adjacency: str = "zero_out",
    earlier: Sequence[Run] = (),
    **fields: Any,
) -> int:
    """Returns the largest number of steps that a training may take within a privacy budget.

    Args:
        epsilon: The largest epsilon, finite and above 0.
        delta: Probability in (0, 1), well below 1/N.
        run: The training, whose number of steps is only the start of the search.
        kind: The guarantee that has to meet the budget: "proven" or "claimed".
        adjacency: "zero_out", "replace_one" or "add_or_remove_one".
        earlier: Earlier runs on the same data that the budget also has to cover.
        **fields: Replace `run`: the keywords of `describe`, without steps and epochs.

    Returns:
        The number of steps; 0 if not even one step is within the budget. It is at most the length of
        the run's tables over steps, and at most 10,000,000.

    Raises:
        TypeError: If both `run` and keywords are given, or neither, or a number of steps is given.
        ValueError: If `kind` is "claimed" and users have several examples.

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
    _check_claim(kind, run)
    earlier = [past for past in check_runs(earlier) if past.steps]

    def excess(steps: int) -> float:
        runs = [*earlier, run.with_steps(steps)]
        found = guarantee_of_all(kind, runs, delta, adjacency).epsilon
        return math.log(max(found, 1e-300) / epsilon)

    covered = run.described_steps
    limit = _MOST_STEPS if covered is None else min(_MOST_STEPS, covered)
    # `low` fits and `high` does not, or exceeds the limit. Epsilon is about a power of the steps, so
    # secants find the last that fits; every third point is a bisection, in case epsilon has jumps.
    low, high, last, power = 0, limit + 1, None, 1.0
    point, tried = run.steps or run.sampling.steps_per_epoch, 0
    while high - low > 1:
        point = min(max(point, low + 1), high - 1)
        before, last = last, (point, excess(point))
        low, high = (point, high) if last[1] <= 0 else (low, point)
        if before:
            power = (last[1] - before[1]) / math.log(point / before[0])
        tried += 1
        if tried % 3 and 0 < power < _STEEPEST:
            point = math.floor(point * math.exp(min(max(-last[1] / power, -8.0), 8.0)))
        else:
            point = math.isqrt(max(low, 1) * high)
    return low


def epsilon_curve(
    run: Run,
    steps: Sequence[int],
    delta: float,
    kind: str = "proven",
    adjacency: str = "zero_out",
    earlier: Sequence[Run] = (),
) -> list[float]:
    """Computes epsilon after each of the given numbers of steps of a training, such as for a plot.

    Args:
        run: The training. Its own number of steps is ignored, but its tables over steps must cover
            the largest of `steps`.
        steps: Step counts of at least 0, in increasing order.
        delta: Probability in (0, 1), well below 1/N.
        kind: "proven" or "claimed".
        adjacency: "zero_out", "replace_one" or "add_or_remove_one".
        earlier: Earlier runs on the same data, whose cost is included.

    Returns:
        One epsilon for each step count; the values never decrease.

    Raises:
        ValueError: If an argument is invalid, or `steps` is not in increasing order.

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
