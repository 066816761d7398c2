"""Denoising: scales a noisy sum by the distance between its distribution and the noise's.

Nasr, Shokri, Houmansadr 2020, section 3.2: g <- KS(g, Z) g, with KS the Kolmogorov-Smirnov distance
between the empirical distribution of the entries of the noisy sum and the distribution of the noise.
Formal guarantee: denoising uses only the noisy sum and public parameters, so it is post-processing.
"""

import tensorflow as tf

from tfdp.noise.families import NoiseFamily


def kolmogorov_smirnov(values: tf.Tensor, family: NoiseFamily, scale: float) -> tf.Tensor:
    """Returns the largest distance between the distribution functions of the values and of the noise.

    Args:
        values: float32 [n], n >= 1.
        family: Family of the noise.
        scale: Scale of the noise, > 0, in units of `values`.

    Returns:
        A float32 scalar in [1 / (2 n), 1].
    """
    expected = family.cumulative(tf.sort(values) / scale)
    count = tf.size(values)
    below = tf.range(count, dtype=tf.int32)
    size = tf.cast(count, tf.float32)
    above = tf.cast(below + 1, tf.float32) / size - expected
    return tf.reduce_max(tf.maximum(above, expected - tf.cast(below, tf.float32) / size))


def denoise(sums: list, family: NoiseFamily, scale: float) -> list[tf.Tensor]:
    """Scales noisy sums, as one vector, by the distance of their distribution from the noise's.

    Args:
        sums: float32 tensors: bounded sums with noise.
        family: Family of the noise.
        scale: Scale of the noise, > 0.

    Returns:
        The scaled tensors, in the same order.
    """
    flat = tf.concat([tf.reshape(s, [-1]) for s in sums], axis=0)
    distance = kolmogorov_smirnov(flat, family, scale)
    return [distance * s for s in sums]
