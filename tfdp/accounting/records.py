"""Conversion of the parts of a run to JSON-safe records, and back.

Every part (mechanism, sampling, contribution, encoding, strategy) is a frozen dataclass. A record has
its fields under their own names, and the part's `name` if that is not a field itself.
"""

import dataclasses
import html
import itertools
from collections.abc import Iterable
from typing import Any


def settle(part: Any, **values: Any) -> None:
    """Sets validated values of fields in the `__post_init__` of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(part, name, value)


def field_names(kind: type) -> tuple[str, ...]:
    """Returns the names of the fields of a part."""
    return tuple(field.name for field in dataclasses.fields(kind))


def to_record(part: Any) -> dict[str, Any]:
    """Returns a part as a record; a tuple becomes its run lengths, as tables are mostly constant."""
    record = {"name": part.name} if hasattr(part, "name") else {}
    for name in field_names(type(part)):
        value = getattr(part, name)
        if dataclasses.is_dataclass(value):
            value = to_record(value)
        elif isinstance(value, tuple):
            groups = [(value, len(list(same))) for value, same in itertools.groupby(value)]
            value = {"values": [v for v, _ in groups], "counts": [n for _, n in groups]}
        record[name] = value
    return record


def from_record(kind: type, record: dict[str, Any]) -> Any:
    """Returns the part that `to_record` described, also after writing the record to JSON.

    Raises:
        ValueError: If a field is unknown or missing.
    """
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    fields = {name: value for name, value in record.items() if name in types or name != "name"}
    if fields.keys() != types.keys():
        raise ValueError(
            f"Expected the fields of a {kind.__name__}, {sorted(types)}. Received {sorted(fields)}."
        )
    for name, value in fields.items():
        inner = types[name]
        if isinstance(value, dict) and isinstance(inner, type) and dataclasses.is_dataclass(inner):
            fields[name] = from_record(inner, value)
        elif isinstance(value, dict):
            fields[name] = _table(value)
    return kind(**fields)


def _table(coded: dict[str, list]) -> tuple:
    if sorted(coded) != ["counts", "values"] or len(coded["counts"]) != len(coded["values"]):
        raise ValueError(f"Expected a schedule with values and counts. Received {coded!r}.")
    repeated = map(itertools.repeat, coded["values"], coded["counts"])
    return tuple(itertools.chain.from_iterable(repeated))


def brief(*parts: Any) -> str:
    """Returns the non-default fields of parts, as text, in the order of the parts."""
    shown = []
    for part in parts:
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if dataclasses.is_dataclass(value) and value in parts:
                continue
            if value != field.default:
                long = isinstance(value, tuple) and len(value) > 3
                shown.append(f"{field.name}={f'<{len(value)} values>' if long else repr(value)}")
    return ", ".join(shown)


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Returns an HTML table of (heading, text) rows for a notebook, in the colours of its theme."""
    cells = "".join(
        f'<tr><th style="text-align: left; vertical-align: top">{html.escape(name)}</th>'
        f'<td style="text-align: left">{html.escape(words)}</td></tr>'
        for name, words in rows
    )
    return f"<table>{cells}</table>"
