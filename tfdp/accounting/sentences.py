"""Tables of sentences: each row has a name, the condition under which it applies, and its words.

A condition is called with the objects that the table is about. Words may have fields for `str.format`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Table = Mapping[str, tuple[Callable[..., bool], str]]


class Declared(str):
    """An assumption that only the user can confirm; tfdp enforces the others where it trains.

    Attributes:
        name: The assumption in a few words.
    """

    name: str

    def __new__(cls, sentence: str, name: str = "") -> "Declared":
        declared = super().__new__(cls, sentence)
        declared.name = name
        return declared


def said(table: Table, *about: Any, **fields: Any) -> Iterator[tuple[str, str]]:
    """Yields the names and sentences of the rows whose condition holds, in order."""
    for name, (holds, words) in table.items():
        if holds(*about):
            yield name, words.format(**fields)


def all_of(table: Table, *about: Any, **fields: Any) -> tuple[str, ...]:
    """Returns the sentences of all rows that apply."""
    return tuple(sentence for _, sentence in said(table, *about, **fields))


def first_of(table: Table, *about: Any, **fields: Any) -> str:
    """Returns the sentence of the first row that applies; empty if none does."""
    return next((sentence for _, sentence in said(table, *about, **fields)), "")


def always(*_: Any) -> bool:
    """A condition that always holds."""
    return True


def mechanism_is(kind: type) -> Callable[..., bool]:
    """Returns the condition that a run has a mechanism of this class."""
    return lambda run, *_: isinstance(run.mechanism, kind)


def sampling_is(kind: type) -> Callable[..., bool]:
    """Returns the condition that the lots of a run were drawn by a scheme of this class."""
    return lambda run, *_: isinstance(run.sampling, kind)
