"""Lets Keras' additions and squeezes of a batch of one be those of a larger batch.

On TensorFlow, Keras 3.15 takes an added tensor for a bias if exactly one of its axes is longer than one
and as long as the last axis or the second one of what it is added to. In a batch of one, this can be an
ordinary tensor: in [1, 5, 5] + [1, 5, 1], Keras adds the second tensor along the wrong axis. In a
larger batch, a tensor of the rows has their axis besides, so it is never taken for a bias. In the same
way, `squeeze` without an axis would remove the axis of the rows.

tfdp runs batches of one, whose length is known. So while it traces them, it replaces these functions
for tensors that depend on the row. What Keras makes of weights is the same for any batch, and stays.
"""

import contextlib
import functools
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdp._compat.dependence import Dependence
from tfdp._compat.versions import borrowing

with borrowing("the addition of keras.src"):
    try:
        from keras.src.backend.tensorflow import numpy
    except ImportError:  # since Keras 3.16
        from keras.src.backend.tensorflow.ops import numpy

    _ADD, _SQUEEZE = numpy.add, numpy.squeeze


@contextlib.contextmanager
def corrected() -> Iterator[None]:
    """Context in which `keras.ops.add` and `squeeze` see that a batch may have other rows."""
    before, of_rows = (numpy.add, numpy.squeeze), Dependence()

    def is_of_row(x):
        return isinstance(x, tf.Tensor) and tf.is_symbolic_tensor(x) and of_rows(x)

    @functools.wraps(_ADD)
    def add(x1, x2):
        # Keras takes nothing else for a bias.
        is_like_bias = sum(n != 1 for n in getattr(x2, "shape", ())) == 1
        if not is_like_bias or not is_of_row(x2) or isinstance(x1, tf.SparseTensor):
            return _ADD(x1, x2)
        dtype = keras.backend.result_type(getattr(x1, "dtype", type(x1)), x2.dtype)
        return tf.add(*(keras.ops.convert_to_tensor(x, dtype) for x in (x1, x2)))

    @functools.wraps(_SQUEEZE)
    def squeeze(x, axis=None):
        if axis is not None or not is_of_row(x):
            return _SQUEEZE(x, axis)
        axes = [axis for axis, length in enumerate(x.shape) if axis and length == 1]
        return tf.squeeze(x, axes) if axes else x

    numpy.add, numpy.squeeze = add, squeeze
    try:
        yield
    finally:
        numpy.add, numpy.squeeze = before
