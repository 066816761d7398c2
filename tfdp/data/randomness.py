"""Secret random numbers for drawing lots: a pure function of (secret, stream, position)."""

import numpy as np
import tensorflow as tf
from tensorflow.autograph.experimental import do_not_convert

_PHILOX = 1  # TensorFlow's number for the algorithm
# Philox counts blocks of four 32-bit words. Each position has 2**32 blocks.
_BLOCKS_PER_POSITION = 2**32


class RandomWords:
    """Random words by Philox4x32-10, in numbered streams that never overlap.

    The secret has 128 bits: Philox's key and the upper half of its counter. They come from the
    operating system's entropy unless a seed is given, and never from the global seeds of NumPy,
    TensorFlow or Keras, which are meant to be known.

    Args:
        seed: a non-negative integer, or None for the operating system's entropy.
    """

    def __init__(self, seed: int | None = None):
        secret = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._take(secret)

    def _take(self, secret):
        with tf.device("CPU:0"):
            self._key = tf.constant(secret[:1])
            self._counter = tf.constant(secret[1])
            # The count is a variable, not a Python number, because `tf.data` increments it.
            self._streams = tf.Variable(0, dtype=tf.int64, trainable=False)

    def new_stream(self) -> tf.data.Dataset:
        """Returns a dataset with one element: a new stream number for every iterator."""
        count = do_not_convert(lambda _: self._streams.assign_add(1))
        return tf.data.Dataset.range(1).map(count)

    def new_secret(self) -> bytes:
        """Returns 16 bytes for a `RepeatedWords`, from a stream of their own."""
        stream = self._streams.assign_add(1)
        words = self.words(stream, tf.constant(0, tf.int64), 2, tf.uint64)
        return words.numpy().astype("<u8").tobytes()

    def words(
        self, stream: tf.Tensor, position: tf.Tensor, count: int | tf.Tensor, dtype: tf.DType
    ) -> tf.Tensor:
        """Returns words that depend on the secret, the stream and the position only.

        Args:
            stream: int64 scalar, the number of the stream.
            position: int64 scalar below 2**32, the place in the stream (a step, an epoch).
            count: number of words, below 2**33; a Python number or an int32 scalar.
            dtype: uint32, int32, uint64 or int64.

        Returns:
            Tensor of shape (count,), uniform over all values of its dtype.
        """
        lower = tf.cast(position, tf.uint64) * tf.constant(_BLOCKS_PER_POSITION, tf.uint64)
        upper = self._counter + tf.cast(stream, tf.uint64)
        return tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=(count,),
            key=self._key,
            counter=tf.stack([lower, upper]),
            alg=_PHILOX,
            dtype=dtype,
        )


class RepeatedWords(RandomWords):
    """Words of a given secret, the same in every stream: for one sequence that goes on elsewhere.

    Args:
        secret: 16 bytes, as from `RandomWords.new_secret`.
    """

    def __init__(self, secret: bytes):
        self._take(np.frombuffer(secret, "<u8").astype(np.uint64))

    def new_stream(self) -> tf.data.Dataset:
        """Returns a dataset with one element: the number of the only stream."""
        return tf.data.Dataset.from_tensors(tf.zeros([], tf.int64))
