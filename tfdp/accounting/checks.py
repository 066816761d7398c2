"""Validation of the fields of a run's parts; each error says what was expected and received."""

import math
from collections.abc import Sequence

import numpy as np

Schedule = float | tuple[float, ...] | None


def whole(name: str, value, minimum: int) -> int:
    """Returns `value` as an int; raises ValueError if it is no whole number or below `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not value >= minimum:
        raise ValueError(
            f"Expected {name} to be a whole number of at least {minimum}. Received {value!r}. "
            "Pass such a number."
        )
    return int(value)


def one_of(name: str, value, choices: Sequence[str]) -> str:
    """Returns `value`; raises ValueError if it is none of `choices`."""
    if value not in choices:
        raise ValueError(f"Expected {name} to be one of {', '.join(choices)}. Received {value!r}.")
    return value


def schedule(name: str, value, *, integer: bool = False, minimum: float = 0.0) -> Schedule:
    """Validates a schedule: a constant for all steps, or one value per step.

    Args:
      name: Name of the field, for the message.
      value: None, a number, or a flat sequence of numbers.
      integer: Whether only whole numbers are allowed.
      minimum: The least value that is allowed.

    Returns:
      None, a number, or a tuple of numbers.

    Raises:
      ValueError: If a value is not finite, below `minimum`, or not whole although `integer` is set.
    """
    if value is None:
        return None
    expected = "whole numbers" if integer else "finite numbers"
    rule = f"{expected} of at least {minimum:g}"
    if isinstance(value, bool):
        raise ValueError(f"Expected {name} to hold {rule}. Received {value!r}. Pass a number.")
    array = np.asarray(value, dtype=float)
    if array.ndim > 1:
        raise ValueError(
            f"Expected {name} to be one number or one per step. Received an array of shape "
            f"{array.shape}. Pass a flat sequence."
        )
    good = np.isfinite(array) & (array >= minimum)
    if integer:
        good &= array == np.floor(array)
    if not np.all(good):
        bad = array[~good].flat[0] if array.ndim else float(array)
        raise ValueError(f"Expected {name} to hold {rule}. Received {bad}. Correct that value.")
    number = int if integer else float
    return number(array) if array.ndim == 0 else tuple(number(v) for v in array)


def covers(name: str, value: Schedule, steps: int) -> None:
    """Raises ValueError if `value` is a table with fewer values than the run has steps."""
    if isinstance(value, tuple) and len(value) < steps:
        raise ValueError(
            f"Expected {name} to have one value for each of the {steps} steps. Received "
            f"{len(value)} values. Pass a constant or the whole schedule."
        )


def positive(name: str, value) -> float:
    """Returns `value` as a float; raises ValueError unless it is finite and above 0."""
    if isinstance(value, bool) or not value > 0 or not math.isfinite(value):
        raise ValueError(f"Expected {name} to be a finite number, above 0. Received {value!r}.")
    return float(value)
