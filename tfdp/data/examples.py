"""Stacks examples to arrays, converts them to their dtype in lots, and names rows in errors."""

import functools
import operator
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdp._compat.keras import floatx
from tfdp.data.arrays import all_arrays, each_array, is_several
from tfdp.data.calls import check_running


def stacked(examples: Sequence[tuple], indices: np.ndarray) -> tuple:
    """Stacks examples to arrays. Numbers of several types become NumPy's common type.

    Args:
        examples: At least one structure of values.
        indices: Row numbers of the examples in the source, for messages.

    Raises:
        ValueError: If rows have different entries or shapes. The message names a row.
    """
    if (columns := columns_of(examples)) is not None:
        return columns
    examples = [named_row(i, values_of, e) for i, e in zip(indices, examples, strict=True)]
    form = _form(examples[0])
    for index, example in zip(indices, examples, strict=True):
        if (other := _form(example)) != form:
            raise ValueError(
                f"Row {index} of the source has the form {other}, and row {indices[0]} has {form}. "
                "Give all rows the same entries and shapes, in the source or by map(f)."
            )
    stacks = [
        None if values[0] is None else in_lots(_stack(values))
        for values in zip(*map(tf.nest.flatten, examples), strict=True)
    ]
    return tf.nest.pack_sequence_as(examples[0], stacks)


def columns_of(examples: Sequence[tuple]) -> tuple | None:
    """Stacks examples to arrays, quickly. Returns None if rows differ in form or type."""
    try:
        return _columns(examples)
    except (TypeError, ValueError):
        return None


def _columns(values: Sequence) -> Any:
    if isinstance(values[0], list):
        values = [*map(values_of, values)]
    first = values[0]
    if isinstance(first, dict):
        _same(isinstance(value, dict) and value.keys() == first.keys() for value in values)
        return {name: _columns([value[name] for value in values]) for name in first}
    if isinstance(first, tuple):
        _same(isinstance(value, tuple) and len(value) == len(first) for value in values)
        return tuple(map(_columns, zip(*values, strict=True)))
    if first is None:
        _same(value is None for value in values)
        return None
    return in_lots(_column(values))


def _column(values: Sequence) -> np.ndarray:
    kinds = {*map(type, values)}
    if len(kinds) == 1 and kinds <= _NUMBERS:
        array = np.array(values)
        _same([array.dtype != object])  # as of integers of more than 64 bits
        return array
    _same(not issubclass(kind, tuple) for kind in kinds)
    values = [*map(as_value, values)]
    _same([len({(_type(value), shape_of(value)) for value in values}) == 1])
    return _stack(values)


def _type(value):
    """Returns the type of a value, where types that become equal in lots count as one."""
    if is_text(value):
        return str
    return float if value.dtype.kind == "f" else value.dtype


def _same(found):
    if not all(found):
        raise ValueError("The rows have different forms.")


def _stack(values: Sequence) -> np.ndarray:
    return np.array(values, object) if isinstance(values[0], bytes | str) else np.stack(values)


# Types whose values NumPy converts to an array of numbers by itself.
_NUMBERS = {bool, int, float, *(np.dtype(code).type for code in "?bhilBHILefd")}


def _form(example):
    """Returns the kind and shape of each entry of an example."""
    if isinstance(example, dict):
        return {name: _form(example[name]) for name in sorted(example)}
    if isinstance(example, tuple):
        return tuple(map(_form, example))
    if example is None:
        return None
    return _Form(is_text(example), shape_of(example))


class _Form(NamedTuple):
    text: bool
    shape: tuple

    def __repr__(self):
        return f"{'texts' if self.text else 'numbers'} of shape {self.shape}"


def is_text(value: Any) -> bool:
    """Whether a value, an array or a `tf.TensorSpec` is of texts."""
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.kind in "OSU"
    return isinstance(value, bytes | str) or dtype is tf.string


def spec_of(rows: tuple) -> tuple:
    """Returns the `tf.TensorSpec`s of rows, for any number of rows."""
    return each_array(lambda c: tf.TensorSpec((None, *c.shape[1:]), dtype_in_lots(c)), rows)


def conformed(rows: tuple, spec: tuple, index: int) -> tuple:
    """Checks rows against the first row of a source, and converts integers where it has floats.

    Args:
        rows: Structures of arrays [rows, ...].
        spec: Structures of `tf.TensorSpec`, those of the first row.
        index: Row number of one of the rows in the source, for messages.

    Raises:
        ValueError: If the rows have other entries, shapes or types than the first row.
    """
    remedy = "Give all rows the same entries, shapes and types, in the source or by map(f)."
    try:
        tf.nest.assert_same_structure(rows, spec)
        pairs = [*zip(tf.nest.flatten(rows), tf.nest.flatten(spec), strict=True)]
        if any((column is None) != (wanted is None) for column, wanted in pairs):
            raise ValueError("Some are None.")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Row {index} of the source has other entries than row 0. {remedy}"
        ) from error
    columns = []
    for column, wanted in pairs:
        if column is not None and (column := _as_in(column, wanted)) is None:
            raise ValueError(
                f"Row {index} of the source has another shape or type than row 0, which has "
                f"{wanted.dtype.name} of shape {tuple(wanted.shape[1:])}. {remedy}"
            )
        columns.append(column)
    if all(new is old for new, (old, _) in zip(columns, pairs, strict=True)):
        return rows  # as from arrays; packing takes longer
    return tf.nest.pack_sequence_as(rows, columns)


def _as_in(column: np.ndarray, wanted: tf.TensorSpec) -> np.ndarray | None:
    """Returns a column in the dtype of a spec, or None if it does not fit the spec."""
    found, dtype = dtype_in_lots(column), wanted.dtype
    numbers = (found.is_integer or found.is_bool or found.is_floating) and dtype.is_floating
    if column.shape[1:] != tuple(wanted.shape[1:]) or not (found == dtype or numbers):
        return None
    return column if found == dtype else column.astype(dtype.as_numpy_dtype)


def as_value(value: Any) -> Any:
    """Converts a value of one example to an array; bytes stay, since NumPy strips final zeros."""
    if isinstance(value, bytes | str) or (
        isinstance(value, np.ndarray) and value.dtype.kind in "biuf"
    ):
        return value
    array = np.asarray(value)
    texts = array.dtype.kind == "O" and all(isinstance(v, bytes | str) for v in array.flat)
    if array.dtype.kind in "OMmV" and not texts and array.dtype.name != "bfloat16":
        raise TypeError(f"Expected numbers or texts. Received {value!r} ({type(value).__name__}).")
    return array


def at_places(rows: Any, places: np.ndarray) -> Any:
    """Returns the rows at given places of a structure of arrays or a list of examples."""
    if isinstance(rows, list):
        return [rows[place] for place in places]
    return each_array(lambda column: np.take(column, places, axis=0), rows)


def shape_of(value: Any) -> tuple:
    """Returns the shape of a value, without copying bytes as NumPy does."""
    if isinstance(value, np.ndarray):
        return value.shape
    return () if isinstance(value, bytes | str) else tuple(np.shape(value))


def values_of(example: Any) -> Any:
    """Converts values and lists of numbers in an example to arrays, and other lists to tuples."""
    if isinstance(example, dict):
        return {name: values_of(value) for name, value in example.items()}
    if isinstance(example, tuple) or (isinstance(example, list) and is_several(example)):
        return tuple(map(values_of, example))
    return None if example is None else as_value(example)


def rows_of_columns(columns: tuple) -> list[tuple]:
    """Splits a structure of arrays into single rows."""
    number = len(all_arrays(columns)[0])
    return [each_array(operator.itemgetter(i), columns) for i in range(number)]


def in_threads(function: Callable, values: Sequence) -> list:
    """Applies a function to values in a few threads, and returns the results in order."""
    size = min(_PART, -(-len(values) // _THREADS))
    if _THREADS == 1 or size < 2:
        found = []
        for value in values:
            check_running()
            found.append(function(value))
        return found
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    # An exiting process waits for submitted parts, so they are not all submitted at once.
    given = (parts[start : start + _THREADS] for start in range(0, len(parts), _THREADS))
    done = (_pool().map(lambda part: [*map(function, part)], some) for some in given)
    return [made for some in done for part in some for made in part]


# Python runs in one thread at a time, and the training step needs cores as well: on two cores, 256
# small files took 48 ms in one thread and 74 ms in four.
_THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))
# Number of values in a part, which one thread processes.
_PART = 16


@functools.cache
def _pool():
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="tfdp_rows")


def named_row(index, function, *arguments):
    """Calls a function for a row; errors name the row."""
    try:
        return function(*arguments)
    except StopIteration as error:  # TensorFlow would take it for the end of the data
        raise RuntimeError(f"Row {index} of the source raised StopIteration.") from error
    except Exception as error:
        error.add_note(f"(row {index} of the source)")
        raise


def in_lots(rows: np.ndarray) -> np.ndarray:
    """Converts rows to their dtype in lots."""
    dtype = dtype_in_lots(rows)
    if dtype == tf.string:
        texts = [v.encode() if isinstance(v, str) else v for v in rows.ravel().tolist()]
        return np.array(texts, object).reshape(rows.shape)
    return rows.astype(dtype.as_numpy_dtype, copy=False)


def value_in_lots(value: Any) -> Any:
    """Converts a value as `as_value` returns it to its dtype in lots."""
    return value if isinstance(value, bytes | str) else in_lots(value)


def dtype_in_lots(column: Any) -> tf.DType:
    """Returns the dtype of a column in lots: floats of any precision become `floatx()`, as in Keras."""
    if column.dtype.kind in "OSU":
        return tf.string
    dtype = tf.as_dtype(column.dtype)
    return tf.as_dtype(floatx()) if dtype.is_floating else dtype
