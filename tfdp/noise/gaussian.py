"""Noise that is drawn once per lot, never twice from the same key.

Formal guarantees:

* The key of a draw is (source key, draw number). The source key is 128 bits from the operating system
  (with several machines, of the chief), not from `keras.utils.set_random_seed`. Every session creates
  its own source, and numbers its draws by its steps, which are never rewound. Only the secret state of
  a backup contains a key (for correlated noise), and a resumed run draws from another one, unless a
  user chose a seed.
* A draw depends only on its key, so all replicas get the same noise.
* Distinct draw numbers use distinct blocks of the Philox4x32-10 counter, and so do the words of one
  draw, further words of small radii included.

Not guaranteed: Philox is a statistical, not a cryptographic generator, and Gaussian noise in floating
point has known attacks (Mironov 2012; Casacuberta et al. 2022). A small radius has 64 bits, so no
number is beyond 9.5 standard deviations. (With 32 bits, none would be beyond 6.8, although one in
10^11 should be: that would add 4e-5 to delta for a gradient that is spread over 10^8 weights.)
"""

import hashlib
import itertools
import math
import os

import numpy as np
import tensorflow as tf

from tfdp.noise import philox

# Noise of up to this many numbers (64 MiB) may be in memory before the sum that it is added to.
_AHEAD = 1 << 24
_ALIGNED = 16  # floats: TensorFlow does not copy slices that begin and end at multiples of 64 bytes


class NoiseSource:
    """A source of random numbers with a secret key, from which the private optimizers draw noise.

    A draw depends only on the key and on the number of the draw. So all replicas get the same noise,
    and a draw can be repeated. Keras' global seed has no influence.

    Args:
        seed: None takes the key from the operating system. A string or an integer makes the noise
            reproducible, and anyone who knows the seed can subtract the noise.
        salt: Numbers that distinguish sources with the same seed; ignored without a seed.

    Attributes:
        seeded: Whether a seed was given.
        key: int64 [2], a secret that reveals all noise.

    Example:
        >>> from tfdp.noise import NoiseSource
        >>> source = NoiseSource()  # with a key of the operating system
        >>> first, second = source.gaussians(0, 2.0, [(100000,), (3, 4)])
        >>> print(f"{first.numpy().std():.1f}")
        2.0
        >>> second.shape, source.seeded
        (TensorShape([3, 4]), False)
    """

    def __init__(self, seed: int | str | None = None, salt: tuple[int, ...] = ()):
        self.seeded = seed is not None
        if seed is None:
            material = os.urandom(16)
        else:
            material = hashlib.sha256(f"tfdp noise {seed!r} {salt}".encode()).digest()[:16]
        self.key = np.frombuffer(material, np.int64)

    @classmethod
    def with_key(cls, key: np.ndarray) -> "NoiseSource":
        """Returns a source with a given key, such as for recomputing lost noise.

        Args:
            key: int64 [2], a secret. The key of another source repeats its draws.
        """
        source = cls()
        source.key = np.asarray(key, np.int64)
        return source

    def gaussians(
        self, draw: int | tf.Tensor, stddev: float | tf.Tensor, shapes: list
    ) -> list[tf.Tensor]:
        """Draws independent N(0, stddev^2) float32 tensors of the given shapes, in order.

        In a graph, the noise depends only on `draw` and `stddev`, not on control dependencies. So
        TensorFlow can draw it while it computes gradients. Only large noise waits, to save memory.

        Args:
            draw: Number of the draw, an int or an int64 scalar tensor. Use each number only once.
            stddev: Standard deviation of each coordinate, >= 0: a float or a float32 scalar tensor.
                The float zero gives zeros.
            shapes: Fully defined shapes.

        Returns:
            One float32 tensor for each shape.
        """
        if not tf.is_tensor(stddev) and stddev == 0.0:
            return [tf.zeros(shape, tf.float32) for shape in shapes]
        sizes = [math.prod(shape) for shape in shapes]
        starts = [0, *itertools.accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
        with tf.control_dependencies(None if starts[-1] <= _AHEAD else []):
            flat = philox.normals(*self._counters(draw), starts.pop(), stddev)
            # Slices are cheaper than tf.split, which took 0.1 ms of an MLP's step of 1.8 (profiled).
            parts = [tf.slice(flat, [start], [n]) for start, n in zip(starts, sizes, strict=True)]
            return [
                part if len(shape) == 1 else tf.reshape(part, shape)
                for part, shape in zip(parts, shapes, strict=True)
            ]

    def uniforms(self, draw: int | tf.Tensor, shapes: list) -> list[tf.Tensor]:
        """Draws pairs of independent float64 numbers, uniform in (0, 1], in order.

        They have 53 random bits, so that noise computed from them has accurate tails: with 24 bits,
        the smallest number would occur once in some hundred draws for a model.

        Args:
            draw: Number of the draw, an int or an int64 scalar tensor. Use each number only once.
            shapes: Fully defined shapes.

        Returns:
            One float64 tensor [2, *shape] for each shape.
        """
        sizes = [math.prod(shape) for shape in shapes]
        words = philox.words(*self._counters(draw), [2, sum(sizes)], tf.uint64)
        # 53 bits, which int64 and float64 represent exactly.
        bits = tf.bitcast(tf.bitwise.right_shift(words, tf.constant(11, tf.uint64)), tf.int64)
        uniforms = (tf.cast(bits, tf.float64) + 1.0) * 2.0**-53
        parts = tf.split(uniforms, sizes, axis=1)
        return [tf.reshape(u, [2, *shape]) for u, shape in zip(parts, shapes, strict=True)]

    def _counters(self, draw) -> tuple[tf.Tensor, tf.Tensor]:
        """Key and upper counter of a draw; the latter differs between draws, even after overflow."""
        key, high = (tf.constant(part, tf.int64) for part in self.key)
        return key, high + tf.cast(draw, tf.int64)
