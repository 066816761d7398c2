"""Batches of a source in its order, for evaluation, validation and prediction."""

import keras
import numpy as np

from tfdp.data.sources import Source


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
        self._source, self._batch_size = source, batch_size

    def __len__(self) -> int:
        return -(-len(self._source) // self._batch_size)

    def __getitem__(self, index: int):
        first = index * self._batch_size
        rows = np.arange(first, min(first + self._batch_size, len(self._source)))
        return keras.utils.pack_x_y_sample_weight(*self._source.rows(rows))
