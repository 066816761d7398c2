"""CSV tables, and the layers that encode their columns as declared in a file.

A range, a vocabulary or a list of classes computed from private rows is a release that the
accounting does not include. So nothing is learned from the rows: a file declares each column.

    age: number 0 100
    job: category teacher, nurse, "cook, baker"
    id: ignore

This module imports TensorFlow and Keras only when a table is encoded.
"""

import csv
import dataclasses
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from absl import logging

# The texts that stand for a missing value.
MISSING = frozenset({"", "?", "NA", "N/A", "NaN", "nan", "NULL", "null"})
_LINE = re.compile(r"(.+?)\s*:\s*(number|category|ignore)\b\s*(.*)")


@dataclasses.dataclass(frozen=True)
class Number:
    """A column of numbers: clipped to [low, high] and scaled to [-1, 1], with a missing indicator."""

    low: float
    high: float
    dtype: ClassVar[str] = "float32"

    def parsed(self, texts: Sequence[str], name: str) -> np.ndarray:
        """Returns the numbers, float32 [rows], with NaN for missing ones."""
        numbers = np.full(len(texts), np.nan, np.float32)
        for row, text in enumerate(texts):
            if text not in MISSING:
                try:
                    numbers[row] = float(text)
                except ValueError:
                    raise ValueError(f"Column {name!r} has no number in row {row}.") from None
        return numbers

    def encoded(self, numbers):
        """Encodes numbers [rows] as float32 [rows, 2]. Missing ones get the middle of the range."""
        ops = importlib.import_module("keras.ops")
        missing = ops.isnan(numbers)
        known = ops.where(missing, (self.low + self.high) / 2, numbers)
        share = (ops.clip(known, self.low, self.high) - self.low) / (self.high - self.low)
        return ops.stack([2 * share - 1, ops.cast(missing, "float32")], axis=-1)


@dataclasses.dataclass(frozen=True)
class Category:
    """A column of words: one-hot, with two more entries for missing and undeclared words."""

    values: tuple[str, ...]
    dtype: ClassVar[str] = "string"

    def parsed(self, texts: Sequence[str], name: str) -> np.ndarray:
        """Returns the texts, [rows], with "" for missing ones."""
        kept = (text if text in self.values or text not in MISSING else "" for text in texts)
        return np.array([*kept], object)

    def encoded(self, words):
        """Encodes words [rows] as float32 [rows, 2 + values]."""
        keras = importlib.import_module("keras")
        lookup = keras.layers.StringLookup(vocabulary=[*self.values], mask_token="")
        return keras.ops.one_hot(lookup(words), 2 + len(self.values))

    def indices(self, texts: Sequence[str], name: str) -> np.ndarray:
        """Returns the class indices, int32 [rows]. Raises ValueError for an undeclared class."""
        for row, text in enumerate(texts):
            if text not in self.values:
                raise ValueError(
                    f"The label {name!r} of row {row} is missing or is not one of the declared "
                    f"classes: {', '.join(self.values)}."
                )
        return np.array([self.values.index(text) for text in texts], np.int32)


Columns = dict[str, Number | Category | None]  # None for an ignored column


def read_columns(path: str) -> Columns:
    """Reads a file that declares columns."""
    columns: Columns = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(map(str.strip, lines), 1):
            if not line or line.startswith("#"):
                continue
            try:
                name, column = _column(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error} Received {line!r}.") from error
            if name in columns:
                raise ValueError(f"{path}, line {number}: {name!r} is declared twice.")
            columns[name] = column
    return columns


def _column(line: str) -> tuple[str, Number | Category | None]:
    if (match := _LINE.fullmatch(line)) is None:
        raise ValueError(
            "Expected 'name: number LOW HIGH', 'name: category A, B' or 'name: ignore'."
        )
    name, kind, rest = match.groups()
    if kind == "number":
        try:
            low, high = map(float, rest.split())
        except ValueError:
            low = high = 0.0
        if not (-np.inf < low < high < np.inf):
            raise ValueError("Expected the lowest and the highest number for LOW and HIGH.")
        return name, Number(low, high)
    values = tuple(v.strip() for v in next(csv.reader([rest], skipinitialspace=True), []))
    if kind == "category":
        if not all(values) or len({*values}) != len(values) or len(values) < 1:
            raise ValueError("Expected different values, separated by commas.")
        return name, Category(values)
    if rest:
        raise ValueError("Expected nothing after 'ignore'.")
    return name, None


def read_csv(path: str) -> dict[str, list[str]]:
    """Reads a CSV file with a header, as a list of texts for each column."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, skipinitialspace=True)
        names = [name.strip() for name in next(rows, [])]
        if len({*names}) < len(names) or not names:
            raise ValueError(f"Expected different column names in the first line of {path}.")
        read = []
        for row in filter(None, rows):
            if len(row) != len(names):
                raise ValueError(
                    f"{path}, line {rows.line_num}, has {len(row)} values. Expected {len(names)}."
                )
            read.append([value.strip() for value in row])
    if not read:
        raise ValueError(f"{path} has no rows.")
    return dict(zip(names, map(list, zip(*read, strict=True)), strict=True))


def check_declared(
    table: Mapping[str, Sequence[str]],
    columns: Columns,
    label: str,
    path: str,
) -> None:
    """Raises ValueError, with missing declarations, unless the table has the declared columns."""
    if label not in table:
        raise ValueError(f"{path} has no column {label!r}. It has {', '.join(table)}.")
    if absent := [name for name in columns if name not in table]:
        raise ValueError(f"{path} has no column {absent[0]!r}, which --columns declares.")
    if lines := [_template(n, texts, label) for n, texts in table.items() if n not in columns]:
        raise ValueError(
            "Some columns are not declared. Declare every column in a file, and pass it as --columns. "
            "Ranges and categories must be public knowledge: values looked up in private rows are not, "
            "and the statement does not cover them. 'name: ignore' leaves a column out, such as an id. "
            "Missing lines, with the types that the rows seem to have:\n" + "\n".join(lines)
        )
    classes = columns[label]
    if not isinstance(classes, Category) or len(classes.values) < 2:
        raise ValueError(f"Expected classes for the label: '{label}: category A, B'.")
    if not any(column for name, column in columns.items() if name != label):
        raise ValueError("Expected at least one column, besides the label, that is not ignored.")


def _template(name: str, texts: Sequence[str], label: str) -> str:
    try:
        numbers = bool([float(text) for text in texts if text not in MISSING])
    except ValueError:
        numbers = False
    return f"{name}: number LOW HIGH" if numbers and name != label else f"{name}: category A, B"


def encoder_of(columns: Columns, label: str) -> Any:
    """Returns a `keras.Model` that maps columns, by name, to inputs, float32 [rows, width].

    It has only Keras layers. A missing number is NaN, and a missing word is "". In names, "|" replaces
    "/", which Keras does not allow.
    """
    keras = importlib.import_module("keras")
    inputs, parts = {}, []
    for name, column in columns.items():
        if column is not None and name != label:
            name = name.replace("/", "|")
            inputs[name] = keras.Input((), dtype=column.dtype, name=name)
            parts.append(column.encoded(inputs[name]))
    return keras.Model(inputs, keras.ops.concatenate(parts, axis=-1), name="columns")


def encode(
    table: Mapping[str, Sequence[str]],
    columns: Columns,
    label: str,
    encoder: Any,
) -> tuple[np.ndarray, np.ndarray]:
    """Encodes a table: returns the inputs, float32 [rows, width], and the labels, int32 [rows]."""
    tensorflow = importlib.import_module("tensorflow")
    inputs, undeclared = {}, {}
    for name, column in columns.items():
        if column is None or name == label:
            continue
        values = column.parsed(table[name], name)
        inputs[name.replace("/", "|")] = tensorflow.constant(values)
        if isinstance(column, Category):
            undeclared[name] = int(np.sum(~np.isin(values, ["", *column.values])))
    if any(undeclared.values()):
        logging.warning(
            "Rows with an undeclared word: %s. All such words share one entry. These numbers "
            "are as private as the rows: do not publish them, and declare only public words.",
            ", ".join(f"{number} in {name!r}" for name, number in undeclared.items() if number),
        )
    classes = columns[label]
    assert isinstance(classes, Category)  # as it was declared
    return np.asarray(encoder(inputs)), classes.indices(table[label], label)
