"""An infinite `tf.data.Dataset` of arrays that are computed in Python, some elements at a time."""

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow.autograph.experimental import do_not_convert

from tfdp.data.calls import Calls
from tfdp.data.words import Words

# Seconds for reading a lot above which a warning is logged.
_SLOW = 0.5
_SLOW_LOT = (
    "A lot of %d examples took %.1f s to read. If rows come in blocks or are slow to decode, write "
    "them once: tfdp.data.cached(source, folder)."
)
# A call of Python from TensorFlow takes as long as reading a small lot, so small lots are read
# together: at most so many, of at most so many bytes.
_TOGETHER, _TOGETHER_BYTES = 8, 1 << 23


def number_together(specs: Sequence[tf.TensorSpec], rows: int) -> int:
    """Returns how many elements one call should compute, if each has about `rows` rows."""
    row = sum(spec.dtype.size * math.prod(spec.shape[1:]) for spec in specs)
    return max(1, min(_TOGETHER, _TOGETHER_BYTES // (row * rows)))


def computed(
    function: Callable,
    specs: Sequence[tf.TensorSpec],
    pack: Callable,
    words: Words,
    calls: Calls,
    first: int,
    lot_size: int,
    in_memory: bool,
    together: int,
) -> tf.data.Dataset:
    """Returns an infinite dataset of the elements that `function(stream, numbers, words)` computes.

    Args:
        function: Computes several elements. `stream` is the number of the iterator, and `numbers` are
            those of the elements. Returns the lengths of the elements, and each array with the rows of
            all elements concatenated.
        specs: The `tf.TensorSpec` of each array.
        pack: Maps the arrays to an element of the dataset.
        words: The random words, which give each iterator its stream.
        calls: Runs the function and keeps its exceptions.
        first: Number of the first element.
        lot_size: Nominal size of a lot, for the warning about slow reading.
        in_memory: Whether the rows are in memory. Slow reading then has other causes, and no warning
            is logged.
        together: Number of elements that one call computes.
    """
    quiet = [in_memory]

    def new_stream():
        calls.error = None
        return np.int64(words.new_stream())

    def columns_of(stream, number):
        began = time.perf_counter()
        numbers = range(number, number + together)
        lengths, columns = calls.call(function, int(stream), numbers, words)
        # The first element of an iterator opens files and traces functions.
        if number > first and (seconds := time.perf_counter() - began) > _SLOW and not any(quiet):
            quiet.append(True)
            logging.warning(_SLOW_LOT, lot_size, seconds)
        return [np.cumsum([0, *lengths])[:, None], *columns]

    def compute(stream, number):
        dtypes = [tf.int64, *(spec.dtype for spec in specs)]
        ends, *columns = tf.numpy_function(columns_of, [stream, number], dtypes)
        columns = map(tf.ensure_shape, columns, [spec.shape for spec in specs])
        # A map of its own for this would read another lot ahead.
        return (
            pack(*columns)
            if together == 1
            else (tf.ensure_shape(ends, [together + 1, 1]), *columns)
        )

    @do_not_convert
    def apart(ends, *columns):
        def element(i):
            slices = {"begin": ends[i], "end": ends[i + 1], "strides": tf.constant([1], tf.int64)}
            # `column[a:b]` would make ten operations for each column.
            return pack(*(tf.raw_ops.StridedSlice(input=column, **slices) for column in columns))

        return tf.data.Dataset.range(together).map(do_not_convert(element))

    @do_not_convert
    def elements(_):
        stream = tf.numpy_function(new_stream, [], tf.int64)
        numbers = tf.data.Dataset.counter(first, together)
        return numbers.map(do_not_convert(lambda number: compute(stream, number)))

    computed = tf.data.Dataset.range(1).flat_map(elements)
    return computed if together == 1 else computed.prefetch(1).flat_map(apart)
