"""Corrects `keras.ops.add`, which takes some tensors for a bias that are none.

On TensorFlow, Keras 3.15 takes an added tensor for a bias if exactly one of its axes is longer than one
and as long as the last axis or the second one of what it is added to, wherever that axis is. In a
batch of one, this can be an ordinary tensor: in [1, 5, 5] + [1, 5, 1], Keras adds the second tensor
along the wrong axis. tfdp runs batches of one, whose length is known. So while it
traces them, it replaces the function by one that adds such tensors as NumPy does.
"""

import contextlib
import functools
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdp._compat.versions import borrowing

with borrowing("the addition of keras.src"):
    try:
        from keras.src.backend.tensorflow import numpy
    except ImportError:  # since Keras 3.16
        from keras.src.backend.tensorflow.ops import numpy


@contextlib.contextmanager
def corrected() -> Iterator[None]:
    """Context in which `keras.ops.add` adds such tensors as NumPy does."""
    add = numpy.add

    @functools.wraps(add)
    def as_numpy(x1, x2):
        if not _is_no_bias(getattr(x1, "shape", None), getattr(x2, "shape", None)):
            return add(x1, x2)
        if any(isinstance(x, tf.SparseTensor | tf.IndexedSlices) for x in (x1, x2)):
            return add(x1, x2)
        dtype = keras.backend.result_type(x1.dtype, x2.dtype)
        return tf.add(*(keras.ops.convert_to_tensor(x, dtype) for x in (x1, x2)))

    numpy.add = as_numpy
    try:
        yield
    finally:
        numpy.add = add


def _is_no_bias(shape, added) -> bool:
    """Whether a tensor of shape `added` is none, though one of its axes alone is longer than one."""
    if shape is None or added is None:
        return False
    long = [place for place, length in enumerate(added) if length is None or length > 1]
    if len(long) != 1 or added[long[0]] is None:
        return False  # Keras does not take it for one
    length = added[long[0]]
    place = long[0] + len(shape) - len(added)  # in the shape of the sum
    if place < 0 or len(added) > len(shape):
        return True
    if len(added) > 1 and list(shape) == list(added):
        return True  # a sum of equals, for which Keras would remove axes first
    if shape[place] not in (1, length):
        return False  # no sum at all for NumPy
    return place != (len(shape) - 1 if shape[-1] == length else 1)
