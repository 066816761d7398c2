"""Products of float32 numbers to nearly float32 precision, also where a GPU rounds them.

By default, GPUs multiply float32 matrices in TensorFloat-32, which keeps 10 bits of a fraction. This is
fine in a model's own passes, where it only changes the gradient. But the norm of a gradient and the sum
must be computed from the same numbers. Where a gradient cancels over its positions, the error from
rounded factors is far larger than the margin of the norm.

So the products in norms, sums and noise are split: each factor becomes its first 11 binary digits,
which TensorFloat-32 has, plus a remainder. Three products of such parts have 20 binary digits.
"""

import tensorflow as tf

from tfdp._compat.tensorflow import on_gpu

# The digits of a float32 number that TensorFloat-32 lacks are the last 13.
_KEPT = 0xFFFFE000


def unit() -> float:
    """Returns the relative rounding error of one product: that of `product`, or of float32 on a CPU."""
    return 2.0**-20 if on_gpu() else 2.0**-24


def product(multiply, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns `multiply(a, b)` to about 20 binary digits, on any device.

    Args:
        multiply: A function of two tensors, linear in each, such as `tf.matmul`.
        a, b: float32. Where they are not finite, the result is not finite either.
    """
    if not on_gpu():
        return multiply(a, b)
    (a, rest_of_a), (b, rest_of_b) = _parts(a), _parts(b)
    return multiply(a, b) + (multiply(a, rest_of_b) + multiply(rest_of_a, b))


def weighted_sum(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Returns the sum of `weights[i] * rows[i]`, float32 [n], of rows [m, n]."""
    if on_gpu():  # no matrix product: nothing is rounded but sums
        return tf.reduce_sum(weights[:, tf.newaxis] * rows, axis=0)
    return tf.squeeze(tf.matmul(tf.expand_dims(weights, 0), rows), 0)


def _parts(values):
    first = tf.bitcast(tf.bitcast(values, tf.uint32) & tf.constant(_KEPT, tf.uint32), tf.float32)
    return first, values - first
