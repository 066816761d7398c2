"""Batches of a source in its order, for evaluation, validation and prediction."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.data.arrays import texts_as_tensors
from tfdp.data.calls import Calls
from tfdp.data.sources import Source, as_source


class SourceBatches(keras.utils.PyDataset):
    """The rows of a source in order, as Keras reads batches.

    Args:
        source: the source.
        batch_size: number of rows in a batch; the last one may have fewer.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> source = tfdp.data.as_source(np.zeros((10, 2)))
        >>> model.predict(tfdp.data.SourceBatches(source, 4), verbose=0).shape
        (10, 1)
    """

    def __init__(self, source: Source, batch_size: int = 32):
        super().__init__()
        self._source, self._batch_size, self._calls = source, batch_size, Calls()

    def __len__(self) -> int:
        return -(-len(self._source) // self._batch_size)

    def __getitem__(self, index: int):
        first = index * self._batch_size
        rows = np.arange(first, min(first + self._batch_size, len(self._source)))
        return keras.utils.pack_x_y_sample_weight(*self._calls.call(self._source.rows, rows))

    def cause_of(self, error: tf.errors.OpError) -> Exception:
        """Returns the exception of the source that TensorFlow turned into `error`."""
        return self._calls.cause_of(error)


def in_order(data: Any, batch_size: int | None) -> SourceBatches:
    """Batches of anything that `as_source` takes, of 32 rows by default."""
    return SourceBatches(as_source(data), batch_size or 32)


def split_last(source: Source, share: float, batch_size: int | None) -> tuple[Source, Any]:
    """Returns the first rows of a source, and the last ones as validation data, as Keras splits arrays.

    Args:
        source: the source.
        share: share of the rows that are validation data, in (0, 1).
        batch_size: number of rows in a batch of validation data that are not in memory.

    Raises:
        ValueError: a side has no row.
    """
    first = math.floor(len(source) * (1.0 - share))
    if not 0 < first < len(source):
        raise ValueError(
            f"validation_split={share} of {len(source)} examples leaves no example on one side. Use "
            "another share."
        )
    train, held_out = source[:first], source[first:]
    arrays = held_out.in_memory()
    if arrays is None:
        return train, in_order(held_out, batch_size)
    return train, keras.utils.pack_x_y_sample_weight(*map(texts_as_tensors, arrays))
