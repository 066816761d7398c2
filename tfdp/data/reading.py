"""Data that are read once: a `tf.data.Dataset`, into memory or files, and other sources, into files."""

import os

import numpy as np
import tensorflow as tf

from tfdp.data.arrays import all_arrays, each_array
from tfdp.data.examples import dtype_in_lots, in_lots
from tfdp.data.sources import Columns, Source, as_source

_BLOCK = 1024


def read_dataset(dataset: tf.data.Dataset, cache: str | os.PathLike | None = None) -> Columns:
    """Reads all examples of a dataset.

    Args:
        dataset: single examples x, (x, y) or (x, y, sample_weight), not batches, and without
            repetitions. What it draws (shuffling, augmentation) is drawn once.
        cache: a folder for the examples, which are mapped into memory from there; it is made, and must
            not hold an earlier cache. None keeps them in memory. Texts are always kept in memory.

    Raises:
        ValueError: the dataset has no end or no example, or its elements are batches.
        FileExistsError: the folder exists.

    Example:
        >>> import tensorflow as tf, tfdp
        >>> dataset = tf.data.Dataset.range(100).map(lambda i: (tf.cast(i, tf.float32), i % 10))
        >>> lots = tfdp.data.make_lots("poisson", dataset, lot_size=10)
        >>> lots.num_examples
        100
    """
    spec = dataset.element_spec
    leaves = tf.nest.flatten(spec)
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The dataset has no end. Pass one without repeat().")
    if any(not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None for leaf in leaves):
        raise ValueError(f"Expected a dataset of dense tensors of known rank. Received {spec}.")
    if any(leaf.shape[:1] == [None] for leaf in leaves):
        raise ValueError(
            f"Expected single examples of one shape. Received elements of {spec}, which look like "
            "batches. dataset.unbatch() makes single examples."
        )
    blocks = dataset.batch(_BLOCK).as_numpy_iterator()
    return _written(spec if isinstance(spec, tuple) else (spec,), blocks, cache)


def cached(source: Source, folder: str | os.PathLike) -> Columns:
    """Writes the rows of a source once, and returns them as arrays that are mapped from the files.

    This is for rows that come in blocks, such as compressed HDF5, and for decoding that is slow.

    Args:
        source: a source, or what `as_source` takes.
        folder: is made, and must not exist.

    Raises:
        FileExistsError: the folder exists.

    Example:
        >>> import numpy as np, tempfile, tfdp
        >>> source = tfdp.data.as_source(np.arange(10.0)).map(lambda x: 2 * x)
        >>> rows = tfdp.data.cached(source, tempfile.mkdtemp() + "/rows")
        >>> rows.rows(np.array([3]))[0], rows.in_memory() is None
        (array([6.], dtype=float32), True)
    """
    source = as_source(source)
    starts = range(0, len(source), _BLOCK)
    ends = [*starts[1:], len(source)]
    blocks = (source.rows(np.arange(*ends)) for ends in zip(starts, ends, strict=True))
    first = source.rows(np.zeros(1, np.int64))
    spec = each_array(lambda c: tf.TensorSpec(c.shape[1:], dtype_in_lots(c)), first)
    return _written(spec, blocks, folder)


def _written(spec, blocks, cache) -> Columns:
    if cache is not None:
        os.makedirs(cache)
    columns = [_Column(leaf, cache, number) for number, leaf in enumerate(all_arrays(spec))]
    for block in blocks:
        for column, values in zip(columns, all_arrays(block), strict=True):
            column.add(values)
    if not columns or not columns[0].count:
        raise ValueError("The dataset has no example.")
    left = iter(columns)
    return Columns(*each_array(lambda _: next(left).finished(), spec))


class _Column:
    """One array of all examples, in memory or in a file."""

    def __init__(self, spec: tf.TensorSpec, cache, number: int):
        self.count, self._shape = 0, tuple(spec.shape)
        self._blocks: list[np.ndarray] = []
        self._file = None
        if cache is not None and spec.dtype != tf.string:
            self._file = open(os.path.join(cache, f"{number}.bin"), "xb")  # noqa: SIM115

    def add(self, values: np.ndarray) -> None:
        """Appends a block of rows."""
        self.count += len(values)
        values = in_lots(values)
        if self._file is None:
            self._blocks.append(values)
        else:
            self._dtype = values.dtype
            values.tofile(self._file)

    def finished(self) -> np.ndarray:
        """Returns the array of all rows."""
        if self._file is None:
            return np.concatenate(self._blocks)
        self._file.close()
        return np.memmap(self._file.name, self._dtype, "r", shape=(self.count, *self._shape))
