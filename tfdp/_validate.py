"""Checks of arguments: one call for each argument, safe against NaN, with uniform messages.

Every check returns the valid value (a number as a plain Python number). Otherwise it raises the
ValueError "Expected NAME to be ... Received VALUE.", followed by a remedy. All checks follow these
rules:

* NaN is always refused, and infinity is not a finite number.
* A bool is not a number, and a number is not a bool. A string is never a number, even "3".
* NumPy scalars and arrays without dimensions count as numbers.
* None is valid only if the caller passes `optional=True`.
* The result has the type that the caller declared for the value.

This module imports NumPy and the standard library only, so that the accountant starts without
TensorFlow.
"""

import difflib
import math
import numbers
import reprlib
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

import numpy as np

Schedule = float | tuple[float, ...] | None
T = TypeVar("T")  # of a valid value, as the caller declares it

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 200


def refuse(
    name: str, expected: str, value: Any, remedy: str, *, optional: bool = False
) -> NoReturn:
    """Raises the ValueError of an invalid argument; every check in this module ends here.

    Args:
        name: Name of the argument or field.
        expected: Valid values in words, to follow "Expected NAME to be".
        value: The refused value. The message shortens a long one.
        remedy: A sentence that says what to do.
        optional: Whether None would have been valid, which the message then says.
    """
    if optional:
        expected += ", or None"
    raise ValueError(f"Expected {name} to be {expected}. Received {_REPR.repr(value)}. {remedy}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns " Did you mean 'x'?" for the known name closest to `name`, or "" if none is close.

    Upper and lower case are not distinguished.
    """
    spelled = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), spelled, n=1)
    return f" Did you mean {spelled[close[0]]!r}?" if close else ""


def whole(
    name: str,
    value: T,
    minimum: int,
    maximum: int | None = None,
    *,
    optional: bool = False,
    remedy: str = "Pass an integer in this range.",
) -> T:
    """Returns an integer from `minimum` to `maximum` as an int. A float is refused, even 3.0."""
    number = _scalar(value)
    good = isinstance(number, numbers.Integral) and int(number) >= minimum
    if not good or not (maximum is None or number <= maximum):
        limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        _check_absent(name, f"a whole number {limits}", value, remedy, optional)
        return value
    found: Any = int(number)
    return found


def finite(
    name: str,
    value: T,
    minimum: float | None = None,
    *,
    optional: bool = False,
    remedy: str = "Pass such a number.",
) -> T:
    """Returns a finite number, of at least `minimum` if that is given, as a float."""
    number = _real(value)
    if not math.isfinite(number) or not (minimum is None or number >= minimum):
        limit = "" if minimum is None else f" of at least {minimum:g}"
        _check_absent(name, f"a finite number{limit}", value, remedy, optional)
        return value
    return number


def positive(
    name: str, value: T, *, optional: bool = False, remedy: str = "Pass such a number."
) -> T:
    """Returns a finite number above 0 as a float."""
    number = _real(value)
    if not 0 < number < math.inf:
        _check_absent(name, "a finite number above 0", value, remedy, optional)
        return value
    return number


def fraction(
    name: str,
    value: T,
    *,
    zero: bool = False,
    one: bool = False,
    optional: bool = False,
    remedy: str = "Pass such a number.",
) -> T:
    """Returns a number between 0 and 1 as a float.

    Args:
        name: Name of the argument or field.
        value: The number.
        zero: Whether 0 is allowed.
        one: Whether 1 is allowed.
        optional: Whether None is allowed.
        remedy: A sentence that says what to do.
    """
    number = _real(value)
    if not (0 < number < 1 or (zero and number == 0) or (one and number == 1)):
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        _check_absent(name, f"a number in {interval}", value, remedy, optional)
        return value
    return number


def one_of(
    name: str,
    value: T,
    choices: Iterable[str],
    *,
    optional: bool = False,
    remedy: str = "Use one of these.",
) -> T:
    """Returns a string that is one of `choices`."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        listed = ", ".join(repr(choice) for choice in choices)
        meant = did_you_mean(value, choices) if isinstance(value, str) else ""
        _check_absent(name, f"one of {listed}", value, remedy + meant, optional)
        return value
    return value


def text(name: str, value: Any, *, remedy: str = "Pass a nonempty string.") -> str:
    """Returns a string that is not empty or white space."""
    if not isinstance(value, str) or not value.strip():
        refuse(name, "a nonempty string", value, remedy)
    return value


def flag(name: str, value: Any) -> bool:
    """Returns a bool. The numbers 0 and 1 are refused, because they are often mistakes."""
    if not isinstance(value, bool | np.bool_):
        refuse(name, "True or False", value, "Pass one of the two.")
    return bool(value)


def instance(name: str, value: Any, kind: type, *, remedy: str, optional: bool = False) -> Any:
    """Returns an object of class `kind`."""
    if not isinstance(value, kind):
        _check_absent(name, f"an instance of {kind.__name__}", value, remedy, optional)
        return value
    return value


def instances(name: str, values: Any, kind: type, *, remedy: str) -> list:
    """Returns a sequence of objects of class `kind` as a list."""
    if isinstance(values, kind) or not isinstance(values, Iterable):
        refuse(name, f"a sequence of {kind.__name__}s", values, remedy)
    return [instance(f"each of {name}", value, kind, remedy=remedy) for value in values]


def vector(name: str, value: Any, *, remedy: str = "Pass a flat sequence of them.") -> np.ndarray:
    """Returns a flat, nonempty sequence of finite numbers as an array of floats."""
    array = _table(value)
    if array is None or array.ndim != 1 or not array.size or not np.all(np.isfinite(array)):
        refuse(name, "one or more finite numbers", value, remedy)
    return array


def schedule(
    name: str,
    value: T,
    *,
    integer: bool = False,
    minimum: float = 0.0,
    optional: bool = False,
    remedy: str = "Pass one such number, or a flat sequence with one for each step.",
) -> T:
    """Returns a constant as a number, or a schedule with one value per step as a tuple of numbers.

    Args:
        name: Name of the argument or field.
        value: A number, or a flat sequence of numbers.
        integer: Whether only whole numbers are allowed. Whole floats, such as 3.0, count as such.
        minimum: The least value that is allowed.
        optional: Whether None is allowed.
        remedy: A sentence that says what to do.

    Raises:
        ValueError: If a value is not a number, not finite, too small or, with `integer`, not whole.
            The message names the step of the first such value in a sequence.
    """
    one = f"a {'whole' if integer else 'finite'} number of at least {minimum:g}"
    array = _table(value)
    if array is None:
        _check_absent(name, f"{one}, or a flat sequence of them", value, remedy, optional)
        return value
    good = np.isfinite(array) & (array >= minimum)
    if integer:
        good &= array == np.floor(array)
    if not np.all(good):
        step = int(np.argmin(good))
        where = f"{name} of step {step}" if array.ndim else name
        refuse(where, one, float(array.flat[step]), "Correct that value.", optional=optional)
    number = int if integer else float
    found: Any = number(array) if array.ndim == 0 else tuple(number(v) for v in array)
    return found


def _check_absent(name: str, expected: str, value: Any, remedy: str, optional: bool) -> None:
    """Refuses every value except None, and None unless it is `optional`."""
    if value is not None or not optional:
        refuse(name, expected, value, remedy, optional=optional)


def _scalar(value: Any) -> Any:
    """Returns the value of a scalar or of an array without dimensions.

    Bools and arrays with dimensions become None, because they are not numbers.
    """
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        array = np.asarray(value)
        value = array[()] if array.ndim == 0 else None
    return None if isinstance(value, bool | np.bool_) else value


def _real(value: Any) -> Any:
    """Returns a real number as a float, with -0.0 as 0.0, and NaN for everything else."""
    number = _scalar(value)
    return float(number) + 0.0 if isinstance(number, numbers.Real) else math.nan


def _table(value: Any) -> np.ndarray | None:
    """Returns a number or flat sequence of numbers as an array of floats; None for all else."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.ndim > 1:
        # An empty sequence is not refused here, because NumPy gives it a float dtype.
        return None
    return array.astype(float) + 0.0
