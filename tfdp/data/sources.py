"""Sources of examples by their index, from arrays in memory to files on disk.

A source has a length and returns the rows at sorted, distinct indices. Everything else (drawing lots,
applying functions, padding) is the same for all sources.
"""

import abc
import hashlib
import mmap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.data.arrays import all_arrays, as_arrays, as_weights, common_length, each_array
from tfdp.data.examples import (
    at_places,
    dtype_in_lots,
    in_lots,
    in_threads,
    named_row,
    stacked,
)
from tfdp.data.mapping import RowFunction

# Number of rows in the fingerprint of a source that is not in memory.
_FINGERPRINT_ROWS = 1000
# An endless `grain.MapDataset` has the length `sys.maxsize`.
_ENDLESS = 2**62
REPEATED = (
    "The data repeat their rows, so each row would count as several examples. Remove repeat(). Lots "
    "never run out."
)


class Source(abc.ABC):
    """Base class of data that return examples by their index, in memory or on disk.

    `as_source` makes a source from arrays or your own object. Pass it to `fit`, `evaluate`, `predict`
    or `make_lots` in place of arrays. A row is (x, y, sample_weight), with None for absent targets or
    weights. `source[a:b]` is a part of a source, such as a training split.

    Example:
        >>> import numpy as np, tfdp
        >>> source = tfdp.data.as_source((np.arange(10.0), np.arange(10)))
        >>> train, held_out = source[:8], source[8:]
        >>> len(train), len(held_out), held_out.rows(np.array([0]))[1]
        (8, 2, array([8]))
    """

    @abc.abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} rows>"

    @abc.abstractmethod
    def read(self, indices: np.ndarray) -> tuple | list[tuple]:
        """Returns the rows at sorted, distinct indices.

        Args:
            indices: int64 of shape [n], from 0 to the length - 1.

        Returns:
            (x, y, sample_weight), structures of arrays with n rows; or a list of n examples, whose
            shapes may differ until a function of `map` makes them equal.
        """

    def rows(self, indices: np.ndarray) -> tuple:
        """Returns the rows (x, y, sample_weight) at one or more indices, in the given order."""
        found, places = np.unique(indices, return_inverse=True)
        rows = self.read(found)
        if isinstance(rows, list):
            rows = stacked(rows, found)
        return rows if np.array_equal(found, indices) else at_places(rows, places)

    def in_memory(self) -> tuple | None:
        """Returns all rows (x, y, sample_weight) if they are arrays in memory, otherwise None."""
        return None

    def __getitem__(self, part: int | slice | np.ndarray) -> Any:
        """Returns one row, or a part of the source as another source, without reading its rows.

        Args:
            part: The index of one row; a slice, as in `source[:50_000]`; distinct indices, integers
                of shape [n]; or a mask, bool of shape [rows].
        """
        if isinstance(part, int | np.integer):
            if not -len(self) <= part < len(self):
                raise IndexError(f"There is no row {part}. The source has {len(self)} rows.")
            row = self.rows(np.array([part % len(self)]))
            return keras.utils.pack_x_y_sample_weight(*each_array(lambda leaf: leaf[0], row))
        if isinstance(part, slice):
            return Part(self, range(*part.indices(len(self))))
        places = np.asarray(part)
        if places.dtype == bool and places.shape == (len(self),):
            places = np.flatnonzero(places)
        if places.ndim != 1 or places.dtype.kind not in "iu":
            raise TypeError(
                f"Expected an index, a slice, distinct indices or a mask. Received: {part!r}"
            )
        known = np.unique(places)
        if len(known) < len(places) or (len(known) and not 0 <= known[0] <= known[-1] < len(self)):
            raise ValueError(f"Expected distinct indices from 0 to {len(self) - 1}.")
        return Part(self, places)

    def map(self, function: Callable, *, python: bool = False) -> "Source":
        """Returns a source whose rows are decoded or tokenized by a function when they are read.

        For random augmentation use `Lots.map`, which passes a new seed in each step.

        Args:
            function: `f(example)`, with an example and a result as in `Lots.map`.
            python: As in `Lots.map`.
        """
        return Mapped(self, RowFunction(function, python=python))

    def fingerprint(self) -> str:
        """Returns a digest of the length, the types and the rows, which is as secret as the rows.

        If the source is not in memory, up to 1,000 rows at fixed places are read instead of all.
        """
        rows, count = self.in_memory(), len(self)
        if rows is None:
            some = np.unique(np.linspace(0, count - 1, _FINGERPRINT_ROWS).astype(np.int64))
            rows = self.rows(some)
        digest = hashlib.sha256(f"{count} ".encode())
        for column in all_arrays(rows):
            digest.update(f"{dtype_in_lots(column).name} {column.shape[1:]} ".encode())
            for start in range(0, len(column), 4096):
                block = column[start : start + 4096]
                if dtype_in_lots(column) == tf.string:  # for texts, NumPy stores addresses
                    digest.update(tf.io.serialize_tensor(block).numpy())
                else:
                    digest.update(np.ascontiguousarray(block).data)
        return digest.hexdigest()


class Columns(Source):
    """A source of arrays with equally many rows. The arrays are not copied.

    Args:
        x, y, sample_weight: Structures of arrays, or of anything that has a `shape` and can be
            sliced.
    """

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None):
        x, y = as_arrays(x, "x"), as_arrays(y, "y")
        if sample_weight is not None:
            sample_weight = each_array(as_weights, as_arrays(sample_weight, "sample_weight"))
        self._length = common_length(x, y, sample_weight)
        self._columns = (x, y, sample_weight)

    def __len__(self) -> int:
        return self._length

    def read(self, indices: np.ndarray) -> tuple:
        return each_array(lambda column: _rows_of(column, indices), self._columns)

    def rows(self, indices: np.ndarray) -> tuple:
        arrays = all(isinstance(column, np.ndarray) for column in all_arrays(self._columns))
        return self.read(indices) if arrays else super().rows(indices)

    def in_memory(self) -> tuple | None:
        return self._columns if all(map(_is_held, all_arrays(self._columns))) else None


class Records(Source):
    """A source that reads examples from an object by their index.

    Args:
        records: An object with `__len__`, and `__getitem__` or `__getitems__`.
        keys: Names of the entries of an example that is a dictionary: x, (x, y) or (x, y,
            sample_weight), where x and y may be structures of names.
    """

    def __init__(self, records: Any, keys: Any = None):
        if _repeats(records):
            raise ValueError(REPEATED)
        self._records, self._keys = records, keys

    def __len__(self) -> int:
        length = len(self._records)
        if not 0 < length < _ENDLESS:
            raise ValueError(
                "Expected a finite source with at least one row. Remove repeat(): lots never run out."
            )
        return length

    def read(self, indices: np.ndarray) -> list[tuple]:
        pairs = zip(indices, self._records_at(np.asarray(indices).tolist()), strict=True)
        return [named_row(index, self._example, record) for index, record in pairs]

    def _records_at(self, indices: list[int]) -> Iterable:
        if not hasattr(self._records, "__getitems__"):
            return in_threads(lambda i: named_row(i, self._records.__getitem__, i), indices)
        try:
            return self._records.__getitems__(indices)
        except Exception:  # calls for single rows find the one that failed
            return [named_row(i, self._records.__getitems__, [i])[0] for i in indices]

    def _example(self, record) -> tuple:
        if self._keys is not None:
            record = _entries(record, self._keys)
        if not isinstance(record, tuple | list):
            record = (record,)
        if not 1 <= len(record) <= 3:
            raise ValueError(
                "Expected examples x, (x, y) or (x, y, sample_weight). Received a sequence of length "
                f"{len(record)}."
            )
        if record[0] is None:
            raise ValueError(
                "Expected an example. Received None, as for a row that was filtered out."
            )
        return (*record, None, None)[:3]


class Part(Source):
    """Some rows of another source.

    Args:
        source: The other source.
        places: The numbers of the rows in the other source.
    """

    def __init__(self, source: Source, places: range | np.ndarray):
        if not len(places):
            raise ValueError(f"Expected at least one row. Received none of {len(source)} rows.")
        self._source, self._places = source, places

    def __len__(self) -> int:
        return len(self._places)

    def rows(self, indices: np.ndarray) -> tuple:
        return self._source.rows(self._at(indices))

    def read(self, indices: np.ndarray) -> tuple | list[tuple]:
        at = self._at(indices)
        order = np.argsort(at)
        rows = self._source.read(at[order])
        return rows if np.array_equal(at[order], at) else at_places(rows, np.argsort(order))

    def _at(self, indices):
        if isinstance(self._places, range):
            return self._places.start + self._places.step * indices
        return self._places[indices]

    def in_memory(self) -> tuple | None:
        places, held = self._places, self._source.in_memory()
        if held is None:
            return None
        if not isinstance(places, range):
            return each_array(lambda column: column[places], held)
        stop = places.stop if places.stop >= 0 else None
        part = slice(places.start, stop, places.step)
        return each_array(lambda column: column[part], held)

    def whole(self) -> tuple[Source, range | np.ndarray]:
        """Returns the source that parts were taken from first, and the places of these rows in it."""
        if not isinstance(self._source, Part):
            return self._source, self._places
        source, inner = self._source.whole()
        if not (isinstance(inner, range) and isinstance(self._places, range)):
            return source, np.asarray(inner)[np.asarray(self._places)]
        step = inner.step * self._places.step
        return source, range(inner[self._places[0]], inner[self._places[-1]] + np.sign(step), step)


class Mapped(Source):
    """A source whose rows are computed from the rows of another source.

    Args:
        source: The other source.
        function: A function without a seed.
    """

    def __init__(self, source: Source, function: RowFunction):
        if function.seeded:
            raise ValueError(
                "A function with a seed cannot be mapped over a source, whose rows never change. Use "
                "lots.map(f), which passes new seeds in each step, or a function of the example only."
            )
        self._source, self._function = source, function

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: np.ndarray) -> tuple | list[tuple]:
        seeds = np.zeros((len(indices), 2), np.int32)
        return self._function(self._source.read(indices), seeds, indices)


def _repeats(records) -> bool:
    """Whether a dataset of Grain or Hugging Face repeats rows. Neither has to be installed."""
    parents, chosen = getattr(records, "_parents", ()), getattr(records, "_indices", None)
    # The rows of a table that Hugging Face selected.
    if chosen is not None and hasattr(chosen, "num_rows"):
        return len(np.unique(chosen.column(0).to_numpy())) < chosen.num_rows
    return type(records).__name__ == "RepeatMapDataset" or any(map(_repeats, parents))


def is_source(x: Any) -> bool:
    """Whether data are a source, or an object that returns single examples by their index."""
    if isinstance(x, Source):
        return True
    arrays = isinstance(x, Mapping | list | tuple | str | bytes) or hasattr(x, "__array__")
    batches = isinstance(x, tf.data.Dataset | keras.utils.PyDataset)
    if arrays or batches or (hasattr(x, "shape") and hasattr(x, "dtype")):
        return False
    return hasattr(x, "__len__") and (hasattr(x, "__getitem__") or hasattr(x, "__getitems__"))


def as_source(x: Any, y: Any = None, sample_weight: Any = None, *, keys: Any = None) -> Source:
    """Converts arrays, or an object that returns examples by their index, to a `Source`.

    Use it for data that do not fit into memory. Rows are read when they are drawn. The arrays may be
    those of NumPy, memory-mapped ones, or anything that has a `shape` and can be sliced (HDF5, Zarr).
    Objects have `__len__` and `__getitem__` or `__getitems__`: `tfds.data_source`, ArrayRecord, Grain's
    sources and `MapDataset`, Hugging Face datasets, PyTorch's map-style datasets, your own classes.

    Args:
        x: A source; an object that returns one example by its index; or arrays. A tuple without `y`
            is (x,), (x, y) or (x, y, sample_weight). So pass two inputs without targets as [a, b]
            or ((a, b),).
        y, sample_weight: Arrays, or None. Only for `x` of arrays.
        keys: Names of the entries to use, if examples are dictionaries or `x` is a file of named
            arrays (npz, HDF5): x, (x, y) or (x, y, sample_weight), where x and y may be structures of
            names.

    Returns:
        A `Source`, for `fit`, `evaluate`, `predict` or `make_lots`.

    Raises:
        ValueError: If the arguments cannot be combined.

    Example:
        >>> import tfdp
        >>> class Squares:
        ...     def __len__(self):
        ...         return 100
        ...     def __getitem__(self, index):
        ...         return {"number": float(index), "square": float(index**2)}
        >>> source = tfdp.data.as_source(Squares(), keys=("number", "square"))
        >>> lots = tfdp.data.make_lots("poisson", source, lot_size=10)
        >>> lots.num_examples, lots.steps_per_epoch
        (100, 10)
    """
    if keys is not None and hasattr(x, "keys") and not isinstance(x, Mapping):
        x = {name: x[name] for name in x.keys()}  # noqa: SIM118, a group of Zarr has no other iterator
    if is_source(x):
        given = [n for n, v in (("y", y), ("sample_weight", sample_weight)) if v is not None]
        if given or (keys is not None and isinstance(x, Source)):
            raise ValueError(
                f"{[*given, 'keys'][0]!r} cannot be combined with this source, a "
                f"{type(x).__name__}, which returns whole rows (x, y, sample_weight). For records that "
                "are dictionaries, use as_source(records, keys=('x', 'y')); convert columns of a "
                "table to arrays with np.asarray(column)."
            )
        return x if isinstance(x, Source) else Records(x, keys)
    if keys is not None:
        x = _entries(x, keys)
    elif isinstance(x, Mapping) and (several := [n for n, v in x.items() if is_source(v)]):
        raise ValueError(
            f"Received a dictionary of sources: {several}. Pass one of them, as x[{several[0]!r}], "
            "or convert columns of a table to arrays with np.asarray(column)."
        )
    if y is None and sample_weight is None and isinstance(x, tuple) and len(x) in (1, 2, 3):
        return Columns(*x)
    return Columns(x, y, sample_weight)


def _entries(named: Mapping, keys: Any) -> tuple:
    """Returns the entries with the names in `keys`: x, (x, y) or (x, y, sample_weight)."""

    def entry(name):
        if name not in named:
            raise ValueError(f"There is no entry {name!r}. Received entries {[*named]}.")
        return named[name]

    return tf.nest.map_structure(entry, keys if isinstance(keys, tuple) else (keys,))


def _is_held(column) -> bool:
    """Whether a column is in memory, neither read in pieces nor mapped from a file."""
    if not isinstance(column, np.ndarray):
        return False
    while isinstance(column, np.ndarray) and not isinstance(column, np.memmap):
        column = column.base
    return not isinstance(column, np.memmap | mmap.mmap)


def _rows_of(column, indices):
    rows = np.take(column, indices, axis=0) if isinstance(column, np.ndarray) else column[indices]
    return in_lots(np.asarray(rows))
