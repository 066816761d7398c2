"""Reads data once, block by block, into memory or into memory-mapped files."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import repeats
from tfdp.data.arrays import all_arrays, each_array, with_arrays
from tfdp.data.examples import conformed, in_lots, spec_of, stacked
from tfdp.data.sources import REPEATED, Columns, Source, as_source

# Number of rows that are read together.
_BLOCK = 1024


def read_dataset(dataset: tf.data.Dataset, cache: str | os.PathLike | None = None) -> Columns:
    """Reads all examples of a `tf.data.Dataset` once and returns them as a source.

    Lots need examples by their index, which a `tf.data.Dataset` cannot give. `make_lots` calls this
    function for such a dataset.

    Args:
        dataset: Yields single examples x, (x, y) or (x, y, sample_weight), not batches, and each
            example once. Its random operations (shuffling, augmentation) run only once.
        cache: Folder for memory-mapped files of the examples; see `cached`. None keeps them in
            memory.

    Returns:
        A `Source` of the examples.

    Raises:
        ValueError: If the dataset is infinite or empty, its elements are batches, or the folder has
            other rows.

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
        raise ValueError("The dataset is infinite. Remove repeat().")
    if repeats(dataset):
        raise ValueError(REPEATED)
    if any(not isinstance(leaf, tf.TensorSpec) or leaf.shape.rank is None for leaf in leaves):
        raise ValueError(f"Expected a dataset of dense tensors of known rank. Received {spec}.")
    if leaves and all(leaf.shape[:1] == [None] for leaf in leaves):
        raise ValueError(
            f"Expected single examples of one shape. Received elements of {spec}, which look like "
            "batches. Use dataset.unbatch(). If they are single examples, set their length: "
            "dataset.map(lambda x: tf.ensure_shape(x, [length, ...]))."
        )
    known = all(leaf.shape.is_fully_defined() for leaf in leaves)
    blocks = dataset.batch(_BLOCK).as_numpy_iterator() if known else _stacked_blocks(dataset)
    columns = read_blocks(blocks, cache, int(dataset.cardinality()))
    return Columns(*(columns if isinstance(spec, tuple) else (columns,)))


def _stacked_blocks(dataset) -> Iterator:
    """Yields blocks of examples of unknown shape. Errors name a row."""
    examples = dataset.as_numpy_iterator()
    for start in itertools.count(0, _BLOCK):
        block = [*itertools.islice(examples, _BLOCK)]
        if not block:
            return
        yield stacked(block, np.arange(start, start + len(block)))


def cached(source: Source, folder: str | os.PathLike) -> Columns:
    """Writes the rows of a source to files once, and returns a source that reads these files.

    Use it if drawing single rows is slow: for rows that are stored in blocks, such as compressed HDF5,
    or slow to decode. The files are memory-mapped, so the data may be larger than the memory. A folder
    that was written earlier is reused.

    Args:
        source: A `Source` of numbers, or data for `as_source`.
        folder: Path of the folder for the files, one `.npy` file per array. Remove it when the rows
            change: only their number and the first rows are compared.

    Returns:
        A `Source` of the same rows.

    Raises:
        ValueError: If the rows contain texts, or the folder has other rows.

    Example:
        >>> import numpy as np, tempfile, tfdp
        >>> source = tfdp.data.as_source(np.arange(10.0)).map(lambda x: 2 * x)
        >>> rows = tfdp.data.cached(source, tempfile.mkdtemp())
        >>> rows.rows(np.array([3]))[0], rows.in_memory() is None
        (array([6.], dtype=float32), True)
    """
    source = as_source(source)
    starts = range(0, len(source), _BLOCK)
    blocks = (source.rows(np.arange(len(source))[start : start + _BLOCK]) for start in starts)
    return Columns(*read_blocks(blocks, folder, len(source)))


def read_blocks(blocks: Iterable, folder: str | os.PathLike | None, rows: int) -> Any:
    """Concatenates blocks of rows, in memory or in memory-mapped files.

    Args:
        blocks: Structures of arrays [rows, ...]. All have the entries, shapes and types of the
            first.
        folder: Folder for the files, as for `cached`. None keeps the arrays in memory.
        rows: Number of all rows. Negative if it is unknown.

    Returns:
        A structure of arrays, with all rows.
    """
    blocks = _conformed(blocks)
    first = next(blocks, None)
    if first is None:
        raise ValueError("There are no rows.")
    blocks = map(all_arrays, itertools.chain([first], blocks))
    if folder is None:
        return with_arrays(first, map(np.concatenate, zip(*blocks, strict=True)))
    if any(column.dtype.hasobject for column in all_arrays(first)):
        raise ValueError("Texts cannot be memory-mapped. Convert them to numbers first, by map(f).")
    if not os.path.isdir(folder) or not os.listdir(folder):
        partial = f"{os.fspath(folder)}.partial"
        os.makedirs(partial, exist_ok=True)
        _write(all_arrays(first), blocks, partial)
        os.rename(partial, folder)
    arrays = [np.load(path, mmap_mode="r") for path in _paths(folder, len(all_arrays(first)))]
    for array, column in zip(arrays, all_arrays(first), strict=True):
        begins = array[: len(column)]
        same = begins.dtype == column.dtype and begins.tobytes() == column.tobytes()
        if not same or 0 <= rows != len(array):
            raise ValueError(
                f"The folder {os.fspath(folder)!r} has other rows. Remove it, or use another folder."
            )
    return with_arrays(first, arrays)


def _conformed(blocks) -> Iterator:
    """Yields the blocks with their dtypes in lots, and checks that all have one form."""
    spec, start = None, 0
    for block in blocks:
        block = each_array(in_lots, block)
        spec = spec_of(block) if spec is None else spec
        yield conformed(block, spec, start)
        start += len(all_arrays(block)[0])


def _paths(folder, number) -> list[str]:
    return [os.path.join(folder, f"{i}.npy") for i in range(number)]


def _write(like, blocks, folder) -> None:
    """Writes blocks of arrays. The headers are written twice, since the number of rows comes last."""
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open(path, "wb")) for path in _paths(folder, len(like))]
        rows = 0
        _write_headers(files, like, rows)
        for block in blocks:
            rows += len(block[0])
            for file, column in zip(files, block, strict=True):
                file.write(np.ascontiguousarray(column).data)
        _write_headers(files, like, rows)


def _write_headers(files, like, rows) -> None:
    """Writes the headers of `.npy` files. NumPy leaves room for a larger number of rows."""
    for file, column in zip(files, like, strict=True):
        header = np.lib.format.header_data_from_array_1_0(column)
        file.seek(0)
        header["shape"] = (rows, *column.shape[1:])
        np.lib.format.write_array_header_1_0(file, header)
