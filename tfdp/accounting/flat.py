"""Flat keywords: distributes them over the parts of a run.

Every keyword goes to the part whose class has a field of that name. A keyword that no part takes
raises, unless its value is None or a default, or the mechanism lists the keyword in `ignored`.
"""

import dataclasses
import reprlib
from collections.abc import Callable, Iterable
from typing import Any

from tfdp.accounting import records
from tfdp.accounting.contribution import Contribution
from tfdp.accounting.mechanisms.base import Mechanism
from tfdp.accounting.mechanisms.registry import USUAL_MECHANISM, mechanism_class, mechanism_names
from tfdp.accounting.sampling import Sampling, sampling_class, sampling_names

_BY_NAME: dict[str, Callable[[str], type]] = {
    "mechanism": mechanism_class,
    "sampling": sampling_class,
}
# Keywords of `Run` that are no field of a part.
_OWN = (
    "mechanism",
    "sampling",
    "contribution",
    "steps",
    "epochs",
    "start",
    "insecure_seed",
)
_BASES = {"mechanism": Mechanism, "sampling": Sampling, "contribution": Contribution}


def parts_of(given: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Makes the three parts of a run.

    Args:
      given: The values of "mechanism", "sampling" and "contribution". The first two are objects or
        names; the contribution is an object, or None for the default.
      fields: Fields of the parts, by name.

    Returns:
      The three parts as objects, under the keys of `given`.

    Raises:
      ValueError: If a field applies to none of the given parts, is missing, or has a bad value.
      TypeError: If no class of any part has such a field.
    """
    left = dict(fields)
    _refuse_unknown(given, left)
    _refuse_missing(given)
    parts = {slot: _part(slot, value, {}, left) for slot, value in given.items()}
    _refuse(left, parts)
    return parts


def changed(now: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns the parts with some fields changed.

    A part that is replaced by giving a name keeps the fields that its old and its new class share.
    """
    left = dict(changes)
    _refuse_unknown(now | {slot: left[slot] for slot in now if slot in left}, left)
    parts = {}
    for slot, part in now.items():
        value = left.pop(slot, part)
        kept = {}
        if isinstance(value, str):
            kept = {name: getattr(part, name) for name in records.field_names(type(part))}
        parts[slot] = _part(slot, value, kept, left)
    _refuse(left, parts)
    return parts


def _part(slot: str, value: Any, kept: dict[str, Any], left: dict[str, Any]) -> Any:
    """Makes one part and removes its fields from `left`."""
    if value is None and slot == "contribution":
        value = Contribution()
    if isinstance(value, _BASES[slot]):
        own = _taken(type(value), left)
        return dataclasses.replace(value, **own) if own else value
    if not isinstance(value, str) or slot not in _BY_NAME:
        raise ValueError(
            f"Expected {slot} to be a name or a {_BASES[slot].__name__}. Received {value!r}. Pass "
            "for example one of tfdp.accounting's classes."
        )
    kind = _BY_NAME[slot](value)
    names = records.field_names(kind)
    own = {name: kept[name] for name in names if name in kept} | _taken(kind, left)
    missing = [f.name for f in dataclasses.fields(kind) if _required(f) and f.name not in own]
    if missing:
        raise ValueError(
            f"Expected {' and '.join(missing)} with {slot} {value!r}. Received none. Pass for example "
            f"Run(..., {missing[0]}=...)."
        )
    return kind(**own)


def _required(field: dataclasses.Field) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _taken(kind: type, left: dict[str, Any]) -> dict[str, Any]:
    return {name: left.pop(name) for name in records.field_names(kind) if name in left}


def _refuse(left: dict[str, Any], parts: dict[str, Any]) -> None:
    """Raises for a leftover field, unless it is ignored by the mechanism or states a default."""
    if not left:
        return
    mechanism, sampling = parts["mechanism"], parts["sampling"]
    for name, value in left.items():
        defaults = list(_defaults(name))
        if name in mechanism.ignored or _says_nothing(value, defaults):
            continue
        raise ValueError(
            f"Expected {name} only where the mechanism or the sampling has such a field. Received "
            f"{reprlib.repr(value)} with {mechanism.name!r} and {sampling.name!r} sampling, which "
            "have none. Leave it out."
        )


def _refuse_missing(given: dict[str, Any]) -> None:
    for slot in ("mechanism", "sampling"):
        if given[slot] is None:
            example = {"mechanism": USUAL_MECHANISM, "sampling": "poisson"}[slot]
            raise TypeError(
                f"Expected {slot} to be given to Run. Received none. Pass for example "
                f"{slot}={example!r}."
            )


def _refuse_unknown(given: dict[str, Any], names: Iterable[str]) -> None:
    """Raises TypeError for a name that no class of any part has.

    This comes before the parts are made: if a required field is misspelled, its right name is
    missing as well, and that alone would not help.
    """
    # Most names belong to the parts at hand. Only for others are all mechanisms imported.
    names = [name for name in names if name not in given]
    names = [n for n in names if not any(n in _field_names_of(s, v) for s, v in given.items())]
    if names:
        known = {*_OWN, *_every_field()}
        for name in names:
            if name not in known:
                raise TypeError(f"Run has no argument {name!r}. Expected one of {sorted(known)}.")


def _field_names_of(slot: str, value: Any) -> Iterable[str]:
    """Names of the fields of a part that is given as an object or by its name."""
    if isinstance(value, str) and slot in _BY_NAME:
        kinds = {"mechanism": mechanism_names, "sampling": sampling_names}[slot]()
        return records.field_names(_BY_NAME[slot](value)) if value in kinds else ()
    if value is None and slot == "contribution":
        return records.field_names(Contribution)
    return records.field_names(type(value)) if isinstance(value, _BASES[slot]) else ()


def _every_field() -> Iterable[str]:
    for kind in _kinds():
        yield from records.field_names(kind)


def _kinds() -> list[type]:
    """All classes of all parts."""
    mechanisms = [mechanism_class(name) for name in mechanism_names()]
    samplings = [sampling_class(name) for name in sampling_names()]
    return [*mechanisms, *samplings, Contribution]


def _says_nothing(value: Any, defaults: Iterable[Any]) -> bool:
    plain = isinstance(value, int | float | str)
    return value is None or (plain and value in defaults)


def _defaults(name: str) -> Iterable[Any]:
    """Yields the default of a field in each class that has it; None if the class requires it."""
    for kind in _kinds():
        for field in dataclasses.fields(kind):
            if field.name == name:
                yield None if field.default is dataclasses.MISSING else field.default
