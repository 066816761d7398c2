"""Keeps matrix products of float32 numbers in float32 precision.

GPUs may multiply float32 matrices in TensorFloat-32, which keeps 10 bits of a fraction. Where a
gradient cancels over its positions, its squared norm from Gram matrices is a difference of large
numbers. In TensorFloat-32 the error of that difference is up to about 4 * 2^-11 of the square of the
triangle inequality's bound, which may be many times the norm itself. A gradient whose norm is
understated exceeds the clip norm, and a safety margin of that size would clip long sequences far too
hard. So TensorFloat-32 is turned off instead.
"""

import tensorflow as tf
from absl import logging


def keep_float32_products() -> None:
    """Turns TensorFloat-32 off where a GPU could use it, and logs a warning."""
    if not tf.config.experimental.tensor_float_32_execution_enabled():
        return
    if not tf.config.list_logical_devices("GPU"):
        return  # only GPUs have TensorFloat-32
    tf.config.experimental.enable_tensor_float_32_execution(False)
    logging.warning(
        "tfdp has turned TensorFloat-32 off (tf.config.experimental."
        "enable_tensor_float_32_execution(False)): rounded to 10 bits, gradient norms could be "
        "understated and the clip norm not kept."
    )
