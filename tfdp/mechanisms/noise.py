"""Noise that is drawn once per lot, and never twice from the same key.

Formal guarantees:

* The key of a draw is (run key, draw number, variable). The run key is 128 bits from the operating
  system, not from `keras.utils.set_random_seed`; the draw number only goes up, and is neither saved
  nor restored, so a resumed run never repeats a draw: it has a run key of its own.
* Distinct (draw number, variable) pairs address distinct blocks of the Philox4x32-10 counter.

What is not guaranteed: Philox is a statistical, not a cryptographic generator, and Gaussian noise in
floating point has known attacks (Mironov 2012; Casacuberta et al. 2022).
"""

import hashlib
import os
import struct

import tensorflow as tf

_PHILOX = 1
_VARIABLES_PER_DRAW = 1 << 20


class NoiseSource:
    """Keyed Gaussian noise for a list of variables.

    Args:
        seed: None takes the run key from the operating system. A string or an integer makes the
            noise reproducible: whoever knows it can subtract it.
    """

    def __init__(self, seed: int | str | None = None):
        self.seeded = seed is not None
        if seed is None:
            material = os.urandom(16)
        else:
            material = hashlib.sha256(f"tfdp noise {seed!r}".encode()).digest()[:16]
        self._key, self._base = struct.unpack("<qq", material)
        # A plain tf.Variable, out of sight of Keras: whatever saves or restores the optimizer
        # must not move the draw number back.
        self.draws = tf.Variable(0, dtype=tf.int64, trainable=False, name="noise_draws")

    def advance_to(self, draws: int) -> None:
        """Skips the first `draws` draws, unless they are behind already."""
        self.draws.assign(max(draws, int(self.draws.numpy())))

    def gaussians(self, stddev: float, shapes: list) -> list[tf.Tensor]:
        """Draws independent N(0, stddev^2) float32 tensors of the given shapes, in order.

        Args:
            stddev: standard deviation of each coordinate, >= 0; zero draws nothing random.
            shapes: fully defined shapes, at most 2^20 of them.
        """
        draw = self.draws.assign_add(1)
        if stddev == 0.0:
            return [tf.zeros(shape, tf.float32) for shape in shapes]
        if len(shapes) > _VARIABLES_PER_DRAW:
            raise ValueError(
                f"Expected at most {_VARIABLES_PER_DRAW} variables. Received: {len(shapes)}."
            )
        key = tf.bitcast(tf.constant([self._key], tf.int64), tf.uint64)
        noise = []
        for index, shape in enumerate(shapes):
            # The low counter word runs within a tensor; the high word is this tensor's own.
            # Wrapping around is fine: it maps distinct draws to distinct words.
            high = tf.constant(self._base, tf.int64) + draw * _VARIABLES_PER_DRAW + index
            counter = tf.bitcast(tf.stack([tf.zeros_like(high), high]), tf.uint64)
            normal = tf.raw_ops.StatelessRandomNormalV2(
                shape=tf.constant(list(shape), tf.int32),
                key=key,
                counter=counter,
                alg=_PHILOX,
                dtype=tf.float32,
            )
            noise.append(stddev * normal)
        return noise
