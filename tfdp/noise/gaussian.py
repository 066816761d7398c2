"""Noise that is drawn once per lot, and never twice from the same key.

Formal guarantees:

* The key of a draw is (run key, draw number). The run key is 128 bits from the operating system, not
  from `keras.utils.set_random_seed`. The draw number only increases, and is neither saved nor restored;
  a resumed run never repeats a draw, because it has a run key of its own.
* Distinct draw numbers address distinct blocks of the Philox4x32-10 counter, and so do the pieces of
  one draw.

Not guaranteed: Philox is a statistical, not a cryptographic generator, and Gaussian noise in floating
point has known attacks (Mironov 2012; Casacuberta et al. 2022). A radius has 32 bits, so no number is
beyond 6.8 standard deviations (one Gaussian number in 10^11 would be).
"""

import hashlib
import itertools
import math
import os
import struct

import numpy as np
import tensorflow as tf

_PHILOX = 1
_WORDS_PER_BLOCK = 4  # 32-bit words that Philox makes from one counter
# Numbers made at a time: few enough for the intermediate arrays to stay in the processor's cache
# (measured for 11 million: half the time of making all at once).
_PIECE = 1 << 18


class NoiseSource:
    """Keyed random numbers for a list of variables.

    Args:
        seed: None takes the run key from the operating system. A string or an integer makes the
            noise reproducible: anyone who knows the seed can subtract the noise.

    Attributes:
        seeded: whether a seed was given.
        draws: int64 variable, the number of draws so far.

    Example:
        >>> from tfdp.noise import NoiseSource
        >>> source = NoiseSource()  # with a key of the operating system
        >>> first, second = source.gaussians(2.0, [(100000,), (3, 4)])
        >>> print(f"{first.numpy().std():.1f}")
        2.0
        >>> second.shape
        TensorShape([3, 4])
        >>> int(source.draws.numpy()), source.seeded
        (1, False)
    """

    def __init__(self, seed: int | str | None = None):
        self.seeded = seed is not None
        if seed is None:
            material = os.urandom(16)
        else:
            material = hashlib.sha256(f"tfdp noise {seed!r}".encode()).digest()[:16]
        self._key, self._base = struct.unpack("<qq", material)
        self._process = os.getpid()
        # A plain tf.Variable, which Keras does not track: saving or restoring the optimizer must not
        # move the draw number back.
        self.draws = tf.Variable(0, dtype=tf.int64, trainable=False, name="noise_draws")

    @classmethod
    def at(cls, key: np.ndarray, draws: int) -> "NoiseSource":
        """A source that repeats the draws of another one after its first `draws` draws.

        Only for noise that was drawn and lost; fresh noise needs a key of its own.

        Args:
            key, draws: the result of `state` of the other source.
        """
        source = cls()
        source._key, source._base = (int(word) for word in key)
        source.draws.assign(draws)
        return source

    def state(self) -> tuple[np.ndarray, int]:
        """(key, number of draws so far) for `at`: a secret, which reveals all noise."""
        return np.array([self._key, self._base], np.int64), int(self.draws.numpy())

    def advance_to(self, draws: int) -> None:
        """Skips the first `draws` draws, unless more draws than that were made already."""
        self.draws.assign(max(draws, int(self.draws.numpy())))

    def renew_after_fork(self) -> None:
        """Takes a new key if the process was forked since the last key was taken.

        Otherwise parent and child would draw the same noise. A seeded source keeps its key. Functions
        that were traced before keep the old key, so they have to be traced again.
        """
        if self._process != os.getpid() and not self.seeded:
            self._key, self._base = struct.unpack("<qq", os.urandom(16))
            self._process = os.getpid()

    def gaussians(self, stddev: float | tf.Tensor, shapes: list) -> list[tf.Tensor]:
        """Draws independent N(0, stddev^2) float32 tensors of the given shapes, in order.

        Args:
            stddev: standard deviation of each coordinate, >= 0, a float or a float32 scalar tensor;
                the float zero gives zeros.
            shapes: fully defined shapes.

        Returns:
            One float32 tensor for each shape.
        """
        draw = self.draws.assign_add(1)
        if not tf.is_tensor(stddev) and stddev == 0.0:
            return [tf.zeros(shape, tf.float32) for shape in shapes]
        high = self._counter_of(draw)
        block, noise = 0, []  # the low counter word continues from piece to piece
        for sizes in _in_pieces([math.prod(shape) for shape in shapes]):
            pieces, left = [], sum(sizes)
            while left > 0:
                count = min(left, _PIECE)
                pieces.append(self._normal(high, block, count, stddev))
                block += _blocks(count)
                left -= count
            flat = pieces[0] if len(pieces) == 1 else tf.concat(pieces or [tf.zeros([0])], axis=0)
            # Slices are cheaper than tf.split, which took 0.1 ms of an MLP's step of 1.8 (profiled).
            ends = list(itertools.accumulate(sizes))
            noise += [flat[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        return [tf.reshape(n, shape) for n, shape in zip(noise, shapes, strict=True)]

    def uniforms(self, shapes: list) -> list[tf.Tensor]:
        """Draws pairs of independent float64 numbers, uniform in (0, 1], in order.

        They have 53 random bits, so that noise computed from them keeps its tails: among numbers with
        24 bits, the smallest one would occur once in some hundred draws for a model.

        Args:
            shapes: fully defined shapes.

        Returns:
            For each shape a tensor [2, *shape].
        """
        high = self._counter_of(self.draws.assign_add(1))
        sizes = [math.prod(shape) for shape in shapes]
        words = self._words(high, 0, [2, sum(sizes)], tf.uint64)
        # 53 bits, which int64 and float64 hold exactly.
        bits = tf.bitcast(tf.bitwise.right_shift(words, tf.constant(11, tf.uint64)), tf.int64)
        uniforms = (tf.cast(bits, tf.float64) + 1.0) * 2.0**-53
        parts = tf.split(uniforms, sizes, axis=1)
        return [tf.reshape(u, [2, *shape]) for u, shape in zip(parts, shapes, strict=True)]

    def _counter_of(self, draw):
        """The high counter word of a draw; it differs between draws, even after integer overflow."""
        return tf.constant(self._base, tf.int64) + draw

    def _words(self, high, block, shape, dtype):
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=tf.constant(shape, tf.int32),
            key=tf.bitcast(tf.constant([self._key], tf.int64), tf.uint64),
            counter=tf.bitcast(tf.stack([tf.constant(block, tf.int64), high]), tf.uint64),
            alg=_PHILOX,
            dtype=dtype,
        )

    def _normal(self, high, block, count, stddev):
        """Makes `count` numbers N(0, stddev^2), with the counter beginning at (block, high).

        The method is Box and Muller's, which `StatelessRandomNormalV2` applies number by number; the
        operations on whole arrays here take a quarter to a half of its time (measured).
        """
        pairs = -(-count // 2)
        radius, angle = tf.unstack(self._words(high, block, [2, pairs], tf.uint32))
        # The number is in (0, 1]. Small numbers are exact to 24 bits, and so are the tails.
        uniform = tf.cast(radius, tf.float32) * 2.0**-32 + 2.0**-33
        radius = tf.sqrt(tf.math.log(uniform) * -2.0) * stddev
        angle = tf.cast(tf.bitcast(angle, tf.int32), tf.float32) * (math.pi * 2.0**-31)
        normal = tf.concat([radius * tf.cos(angle), radius * tf.sin(angle)], axis=0)
        return normal if count == 2 * pairs else normal[:count]


def _blocks(count):
    """Number of Philox blocks that `_normal` uses up for `count` numbers."""
    return -(-2 * -(-count // 2) // _WORDS_PER_BLOCK)


def _in_pieces(sizes):
    """Cuts a list of sizes into lists of neighbours, so that small tensors are drawn together."""
    pieces, total = [], 0
    for size in sizes:
        if not pieces or total + size > _PIECE:
            pieces.append([])
            total = 0
        pieces[-1].append(size)
        total += size
    return pieces
