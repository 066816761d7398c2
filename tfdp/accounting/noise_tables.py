"""Noise that differs from step to step: a table of noise multipliers, one for each step.

A table is a tuple; a number stands for a table of equal values. Equal values cost what the constant
costs, digit by digit, because a table of one value is taken for the constant.
"""

import math

import numpy as np

from tfdp._validate import schedule

Noise = float | tuple[float, ...]

# Each value of the noise costs one privacy loss distribution, so that a table of more values than
# this is rounded down to so many (which is on the safe side).
_MOST_VALUES = 16
_REMEDY = "Pass the standard deviation of the noise over the clip norm, or one for each step."


def checked(value) -> Noise:
    """Returns a constant or a table as floats.

    Raises:
      ValueError: Where a value is negative or not finite.
    """
    return schedule("noise_multiplier", value, remedy=_REMEDY)


def of_steps(noise: Noise, steps: int) -> Noise:
    """The noise of the first `steps` steps: a number where all of them have the same."""
    if not isinstance(noise, tuple):
        return noise
    table = noise[:steps]
    return table[0] if table and all(z == table[0] for z in table) else table


def bare_step(noise: Noise, steps: int) -> int | None:
    """The first of `steps` steps without noise, or None."""
    table = of_steps(noise, steps)
    if not isinstance(table, tuple):
        return None if table > 0 or not steps else 0
    return table.index(0.0) if 0.0 in table else None


def scaled(noise: Noise, factor: float) -> Noise:
    """Every value times `factor`."""
    return tuple(z * factor for z in noise) if isinstance(noise, tuple) else noise * factor


def least(noise: Noise, steps: int) -> float:
    """The least noise of the first `steps` steps."""
    table = of_steps(noise, steps)
    return min(table, default=math.inf) if isinstance(table, tuple) else table


def levels(noise: Noise, steps: int) -> list[tuple[float, int]]:
    """(value, number of steps) of every value of the noise; few values, rounded down.

    Args:
      noise: Constant or table, above 0 in every step.
      steps: Number of steps.
    """
    table = of_steps(noise, steps)
    if not isinstance(table, tuple):
        return [(table, steps)] if steps else []
    values, counts = np.unique(np.array(table), return_counts=True)
    if len(values) > _MOST_VALUES:
        values, counts = _coarse(values, counts)
    return [(float(z), int(n)) for z, n in zip(values, counts, strict=True)]


def _coarse(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values in geometric classes, each at the least value that it holds."""
    logs = np.log(values)
    classes = np.floor((logs - logs[0]) / (logs[-1] - logs[0]) * _MOST_VALUES)
    classes = np.minimum(classes, _MOST_VALUES - 1).astype(int)
    firsts = np.flatnonzero(np.concatenate([[True], classes[1:] != classes[:-1]]))
    return values[firsts], np.add.reduceat(counts, firsts)


def words(noise: Noise, steps: int) -> str:
    """The noise in a few words: "1.1", or "1.1 to 2 (a table over steps)"."""
    table = of_steps(noise, steps)
    if not isinstance(table, tuple):
        return f"{table:g}"
    if not table:
        return "none yet"
    return f"{min(table):g} to {max(table):g} (a table over steps)"
