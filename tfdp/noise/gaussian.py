"""Noise that is drawn once per lot, never twice from the same key.

Formal guarantees:

* The key of a draw is (source key, draw number). The source key is 128 bits from the operating system
  (with several machines, of the chief), not from `keras.utils.set_random_seed`. Every session creates
  its own source, and numbers its draws by its steps, which are never rewound. Only the secret state of
  a backup contains a key (for correlated noise), and a resumed run draws from another one, unless a
  user chose a seed.
* A draw depends only on its key, so all replicas get the same noise.
* Distinct draw numbers use distinct blocks of the Philox4x32-10 counter, and so do the pieces of one
  draw.

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

from tfdp._compat.tensorflow import on_gpu

_PHILOX = 1
# One Philox counter gives four words, for radii or angles, and two words give two numbers.
_NUMBERS_PER_BLOCK = 8
# Numbers generated at a time on a CPU: few enough for the intermediate arrays to fit into its cache
# (measured for 11 million: half the time of generating all at once).
_PIECE = 1 << 18
# Noise of up to this many numbers (64 MiB) may be in memory before the sum that it is added to.
_AHEAD = 1 << 24
_ALIGNED = 16  # floats: TensorFlow does not copy slices that begin and end at multiples of 64 bytes
# Words below this one get 32 more bits.
_SMALL = 1 << 11
# Offsets of the blocks of angles and of further words; other words begin at 0.
_ANGLES, _FURTHER = 1 << 61, 1 << 62


def uniforms_from_words(words: tf.Tensor, more: tf.Tensor | None = None) -> tf.Tensor:
    """Converts random words to numbers in (0, 1] with at least 11 significant bits, however small.

    Args:
        words: uint32, of any shape.
        more: further words of that shape, used where `words` are small; None if none are.

    Returns:
        A float32 tensor of that shape.
    """
    numbers = tf.cast(words, tf.float32) + 0.5
    if more is not None:
        finer = tf.cast(words, tf.float32) + (tf.cast(more, tf.float32) + 0.5) * 2.0**-32
        numbers = tf.where(words < tf.constant(_SMALL, tf.uint32), finer, numbers)
    return numbers * 2.0**-32


class NoiseSource:
    """Keyed random numbers for a list of variables.

    Args:
        seed: None draws the key from the operating system. A string or an integer makes the noise
            reproducible: anyone who knows the seed can subtract the noise.
        salt: numbers that distinguish sources with the same seed; ignored without a seed.

    Attributes:
        seeded: whether a seed was given.
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
        """Returns a source with a given key, which draws as every other source with it.

        Args:
            key: int64 [2], a secret; that of another source repeats its draws, to recompute lost noise.
        """
        source = cls()
        source.key = np.asarray(key, np.int64)
        return source

    def gaussians(
        self, draw: int | tf.Tensor, stddev: float | tf.Tensor, shapes: list
    ) -> list[tf.Tensor]:
        """Draws independent N(0, stddev^2) float32 tensors of the given shapes, in order.

        In a graph, the noise depends only on `draw` and `stddev`, not on control dependencies, so
        TensorFlow can draw it while it computes gradients. Only large noise waits, to save memory.

        Args:
            draw: number of the draw, an int or an int64 scalar tensor. Use each number once.
            stddev: standard deviation of each coordinate, >= 0, a float or a float32 scalar tensor;
                the float zero gives zeros.
            shapes: fully defined shapes.

        Returns:
            One float32 tensor for each shape.
        """
        if not tf.is_tensor(stddev) and stddev == 0.0:
            return [tf.zeros(shape, tf.float32) for shape in shapes]
        sizes = [math.prod(shape) for shape in shapes]
        starts = [0, *itertools.accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
        with tf.control_dependencies(None if starts[-1] <= _AHEAD else []):
            flat = self._all_normal(self._counter_of(draw), starts.pop(), stddev)
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
            draw: as in `gaussians`.
            shapes: fully defined shapes.

        Returns:
            For each shape a tensor [2, *shape].
        """
        high = self._counter_of(draw)
        sizes = [math.prod(shape) for shape in shapes]
        words = self._words(high, 0, [2, sum(sizes)], tf.uint64)
        # 53 bits, which int64 and float64 represent exactly.
        bits = tf.bitcast(tf.bitwise.right_shift(words, tf.constant(11, tf.uint64)), tf.int64)
        uniforms = (tf.cast(bits, tf.float64) + 1.0) * 2.0**-53
        parts = tf.split(uniforms, sizes, axis=1)
        return [tf.reshape(u, [2, *shape]) for u, shape in zip(parts, shapes, strict=True)]

    def _counter_of(self, draw):
        """The high counter word of a draw; it differs between draws, even after integer overflow."""
        return tf.constant(self.key[1], tf.int64) + tf.cast(draw, tf.int64)

    def _words(self, high, block, shape, dtype):
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=tf.constant(shape, tf.int32),
            key=tf.bitcast(tf.constant(self.key[:1], tf.int64), tf.uint64),
            counter=tf.bitcast(tf.stack([tf.cast(block, tf.int64), high]), tf.uint64),
            alg=_PHILOX,
            dtype=dtype,
        )

    def _all_normal(self, high, count, stddev):
        """Generates at least `count` numbers like `_normal`: equal on all devices, except for rounding.

        On a CPU, large counts are generated in a loop over pieces, so that the graph contains one
        piece: noise for 40 million weights had 153 of them, which took 16 to 24 s to trace and
        optimize.
        """
        pieces = max(1, -(-count // _PIECE))
        # All pieces have the same size, a whole number of blocks, so that few numbers are left over.
        blocks = -(-count // (pieces * _NUMBERS_PER_BLOCK))
        size = blocks * _NUMBERS_PER_BLOCK
        if pieces == 1 or on_gpu():
            numbers = self._normal(high, 0, [pieces, size // 2], stddev)
        else:
            numbers = tf.map_fn(
                lambda piece: self._normal(high, piece * blocks, [size // 2], stddev),
                tf.range(pieces, dtype=tf.int64),
                fn_output_signature=tf.TensorSpec([size], tf.float32),
            )
        return tf.reshape(numbers, [-1])

    def _normal(self, high, block, shape, stddev):
        """Generates N(0, stddev^2), two for each entry of `shape`; counters begin at (block, high).

        This is the Box-Muller method, which `StatelessRandomNormalV2` applies number by number; the
        operations on whole arrays here take a quarter to a half of its time (measured).
        """
        words = self._words(high, block, shape, tf.uint32)
        angle = self._words(high, block + _ANGLES, shape, tf.uint32)

        def finer():
            return uniforms_from_words(words, self._words(high, block + _FURTHER, shape, tf.uint32))

        if on_gpu():  # drawing more words is cheaper than waiting for a result from the GPU
            uniform = finer()
        else:  # few pieces have a small word, and only those draw more
            small = words < tf.constant(_SMALL, tf.uint32)
            uniform = tf.cond(tf.reduce_any(small), finer, lambda: uniforms_from_words(words))
        radius = tf.sqrt(tf.math.log(uniform) * -2.0) * stddev
        angle = tf.cast(tf.bitcast(angle, tf.int32), tf.float32) * (math.pi * 2.0**-31)
        return tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=-1)
