"""Tables of noise multipliers, one value for each step, for noise that differs from step to step.

A table is a tuple; a number stands for a table of equal values. A table whose values are all equal is
replaced by that number, so its epsilon equals that of the constant in every digit.
"""

import math

import numpy as np

from tfdp._validate import schedule

Noise = float | tuple[float, ...]

# Each distinct value of the noise needs its own privacy loss distribution. A table with more
# distinct values is rounded down to this many; less noise never understates epsilon.
_MOST_VALUES = 16


def checked(value) -> Noise:
    """Returns a constant or a table as floats; raises ValueError unless all are finite and >= 0."""
    remedy = "Pass the noise's standard deviation divided by the clip norm, or one for each step."
    return schedule("noise_multiplier", value, remedy=remedy)


def of_steps(noise: Noise, steps: int) -> Noise:
    """Returns the noise of the first `steps` steps, as a number if all of them have the same."""
    if not isinstance(noise, tuple):
        return noise
    table = noise[:steps]
    return table[0] if table and all(z == table[0] for z in table) else table


def least(noise: Noise, steps: int) -> float:
    """Returns the least noise of the first `steps` steps; infinite without steps."""
    table = of_steps(noise, steps)
    return min(table, default=math.inf) if isinstance(table, tuple) else table


def levels(noise: Noise, steps: int) -> list[tuple[float, int]]:
    """Returns at most 16 distinct values of noise, each with its number of steps; all noise is > 0."""
    table = of_steps(noise, steps)
    if not isinstance(table, tuple):
        return [(table, steps)] if steps else []
    values, counts = np.unique(np.array(table), return_counts=True)
    if len(values) > _MOST_VALUES:
        values, counts = _coarse(values, counts)
    return [(float(z), int(n)) for z, n in zip(values, counts, strict=True)]


def _coarse(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merges values into geometric classes, each represented by its least value."""
    logs = np.log(values)
    classes = np.floor((logs - logs[0]) / (logs[-1] - logs[0]) * _MOST_VALUES)
    classes = np.minimum(classes, _MOST_VALUES - 1).astype(int)
    firsts = np.flatnonzero(np.concatenate([[True], classes[1:] != classes[:-1]]))
    return values[firsts], np.add.reduceat(counts, firsts)


def words(noise: Noise, steps: int) -> str:
    """Returns the noise in words: "1.1", or "1.1 to 2 (a table over steps)"."""
    table = of_steps(noise, steps)
    if not isinstance(table, tuple):
        return f"{table:g}"
    if not table:
        return "none yet"
    return f"{min(table):g} to {max(table):g} (a table over steps)"
