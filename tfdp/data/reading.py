"""A `tf.data.Dataset` of single examples as a source: read once, into memory or a cache on disk."""

import os

import numpy as np
import tensorflow as tf

from tfdp.data.examples import in_lots
from tfdp.data.sources import Columns

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
    if cache is not None:
        os.makedirs(cache)
    columns = [_Column(leaf, cache, number) for number, leaf in enumerate(leaves)]
    for block in dataset.batch(_BLOCK):
        for column, values in zip(columns, tf.nest.flatten(block), strict=True):
            column.add(values.numpy())
    if not columns or not columns[0].count:
        raise ValueError("The dataset has no example.")
    return Columns(*_parts(tf.nest.pack_sequence_as(spec, [c.finished() for c in columns])))


def _parts(element):
    return element if isinstance(element, tuple) else (element,)


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
