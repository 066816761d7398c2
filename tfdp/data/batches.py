"""Batches of a source in order, for evaluation, validation and prediction."""

import contextlib
import functools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdp.data.arrays import all_arrays, each_array, texts_as_tensors
from tfdp.data.calls import Calls
from tfdp.data.examples import conformed, spec_of
from tfdp.data.lots import Lots
from tfdp.data.sources import Part, Source, as_source, is_source

_SHORT = 1  # how far NumPy searches for memory that is shared


class SourceBatches(keras.utils.PyDataset):
    """Batches of a source in order, as a `keras.utils.PyDataset`, to evaluate or predict with.

    `evaluate` and `predict` of a private model make these batches themselves from a source, so the
    class is needed for other models only. It is not for training: pass the source itself to `fit`, or
    lots.

    Args:
        source: A `Source`, or data for `as_source`.
        batch_size: Number of examples in a batch. The last batch may have fewer. 32 by default.

    Attributes:
        source: The source of the batches.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> source = tfdp.data.as_source(np.zeros((10, 2)))
        >>> model.predict(tfdp.data.SourceBatches(source, 4), verbose=0).shape
        (10, 1)
    """

    def __init__(self, source: Source, batch_size: int = 32):
        super().__init__()
        self.source, self._batch_size, self._calls = as_source(source), batch_size, Calls()

    def __len__(self) -> int:
        return -(-len(self.source) // self._batch_size)

    def __getitem__(self, index: int):
        first = index * self._batch_size
        rows = np.arange(first, min(first + self._batch_size, len(self.source)))
        return keras.utils.pack_x_y_sample_weight(*self._calls.call(self._rows, rows))

    def _rows(self, indices):
        rows = conformed(self.source.rows(indices), self._spec, int(indices[0]))
        return each_array(texts_as_tensors, rows)

    @functools.cached_property
    def _spec(self):
        return spec_of(self.source.rows(np.zeros(1, np.int64)))

    def cause_of(self, error: tf.errors.OpError) -> Exception:
        """Returns the Python exception behind an error that TensorFlow raised while it read batches.

        TensorFlow converts exceptions in Python code to its own errors. `fit` and `evaluate` of a
        private model raise the original exception themselves.

        Args:
            error: The error that TensorFlow raised.
        """
        return self._calls.cause_of(error)


def to_evaluate(data: Any, batch_size: int | None, y: Any = None) -> Any:
    """Prepares data for Keras' `evaluate`: sources as batches in order, texts as tensors.

    Args:
        data: The first argument of `evaluate` or `predict`, or `validation_data` of `fit`.
        batch_size: Number of rows in a batch. None means 32.
        y: The targets. None with a source, which includes them.

    Raises:
        ValueError: If the data are lots, which never end, or `y` is passed with a source.
    """
    if isinstance(data, Lots) or hasattr(data, "tfdp_lots"):
        raise ValueError(
            "Lots are random and endless, for training only. Evaluate on the data that they are drawn "
            "from: arrays, a source such as lots.source, or source.map(f) if you used lots.map(f)."
        )
    if not is_source(data):
        return texts_as_tensors(data)
    if y is not None:
        raise ValueError(
            "y cannot be combined with a source, which includes its targets. Remove y."
        )
    return SourceBatches(data, batch_size or 32)


def split_last(source: Source, share: float, batch_size: int | None) -> tuple[Source, Any]:
    """Splits off the last rows of a source as validation data, as Keras does for arrays.

    Args:
        source: The source.
        share: Fraction of the rows to split off, in (0, 1).
        batch_size: Number of rows in a validation batch, if the data are not in memory. None means
            32.

    Returns:
        The remaining source, and the validation data for Keras' `evaluate`.

    Raises:
        ValueError: If one side would be empty.
    """
    first = math.floor(len(source) * (1.0 - share))
    if not 0 < first < len(source):
        raise ValueError(
            f"validation_split={share} of {len(source)} examples leaves one side empty. Use another "
            "share."
        )
    train, held_out = source[:first], source[first:]
    arrays = held_out.in_memory()
    if arrays is None:
        return train, SourceBatches(held_out, batch_size or 32)
    return train, keras.utils.pack_x_y_sample_weight(*map(texts_as_tensors, arrays))


def have_common_rows(one: Source, other: Source) -> bool:
    """Whether two sources are known to share rows: parts of one source, or arrays in shared memory."""
    (a, ours), (b, theirs) = (
        s.whole() if isinstance(s, Part) else (s, range(len(s))) for s in (one, other)
    )
    if a is b:
        ranges = isinstance(ours, range) and isinstance(theirs, range)
        if ranges and max(ours[0], ours[-1]) < min(theirs[0], theirs[-1]):
            return False  # the usual split, for any number of rows
        return bool(np.isin(np.asarray(theirs), np.asarray(ours)).any())
    held, others = one.in_memory(), other.in_memory()
    if held is None or others is None:
        return False
    for left, right in zip(all_arrays(held[0]), all_arrays(others[0]), strict=False):
        with contextlib.suppress(np.exceptions.TooHardError):
            if np.shares_memory(left, right, _SHORT):  # type: ignore[arg-type]
                return True
    return False
