"""Conversion of the parts of a run to JSON-safe records, and back.

Every part (mechanism, sampling, contribution) is a frozen dataclass. A record holds the fields of the
part under their own names, and the part's `name` if it has one.
"""

import dataclasses
import itertools
from typing import Any, TypeVar

Part = TypeVar("Part")


def run_lengths(values: tuple) -> dict[str, list]:
    """Run-length encoding of a table over steps, because tables are long and mostly constant."""
    groups = [(value, len(list(same))) for value, same in itertools.groupby(values)]
    return {"values": [value for value, _ in groups], "counts": [count for _, count in groups]}


def from_run_lengths(coded: dict[str, list]) -> tuple:
    """Inverse of `run_lengths`.

    Raises:
      ValueError: If `coded` has other keys, or values and counts of different lengths.
    """
    if sorted(coded) != ["counts", "values"] or len(coded["counts"]) != len(coded["values"]):
        raise ValueError(f"Expected a schedule with values and counts. Received {coded!r}.")
    return tuple(
        value
        for value, count in zip(coded["values"], coded["counts"], strict=True)
        for _ in range(count)
    )


def field_names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a part."""
    return tuple(field.name for field in dataclasses.fields(kind))


def to_record(part: Any) -> dict[str, Any]:
    """Returns the fields of a part as a record; a tuple becomes its run-length encoding."""
    record = {"name": part.name} if hasattr(part, "name") else {}
    for name in field_names(type(part)):
        value = getattr(part, name)
        if hasattr(value, "to_dict"):
            value = value.to_dict()
        elif isinstance(value, tuple):
            value = run_lengths(value)
        record[name] = value
    return record


def from_record(kind: type[Part], record: dict[str, Any], compounds: dict[str, type]) -> Part:
    """Inverse of `to_record`, also for a record that was written to JSON and read again.

    Args:
      kind: Class of the part.
      record: Record as `to_record` returns it; its `name` is ignored.
      compounds: Names of the fields that hold objects, mapped to the classes whose `from_dict` reads
        them.

    Raises:
      ValueError: If a field is unknown or missing.
    """
    fields = {name: value for name, value in record.items() if name != "name"}
    unknown = sorted(set(fields) - set(field_names(kind)))
    if unknown:
        raise ValueError(f"Expected the fields of a {kind.__name__}. Received unknown {unknown}.")
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = (
                compounds[name].from_dict(value) if name in compounds else from_run_lengths(value)
            )
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"Expected the fields of a {kind.__name__}: {error}.") from error
