"""Figures that show how clipping and noise affect the gradients.

They are computed from private gradients without noise, so a release must not contain them.
"""

import math

import tensorflow as tf


class Diagnostics:
    """Means of figures over lots. A plain Python object, which Keras neither saves nor prints."""

    NAMES = ("fraction_clipped", "median_gradient_norm", "noise_to_signal", "non_finite_examples")

    def __init__(self):  # under a strategy, so that each replica has a copy of the same sums
        # The sums over lots come first, in the order of NAMES. The last of them is over all lots, the
        # others are over lots in which some example is present. Then come the number of such lots and
        # the number of all lots. A single variable needs only one assignment for each lot.
        self._sums = tf.Variable(tf.zeros([len(self.NAMES) + 2]), trainable=False)

    def update(self, lot, noise_scale: float | tf.Tensor) -> None:
        """Adds the figures of one lot.

        Args:
            lot: The `contract.BoundedSum` of the lot.
            noise_scale: Standard deviation of the noise that was added to every entry of the sum.
        """
        count = tf.reduce_sum(tf.cast(lot.present, tf.float32))
        # The median is over the microbatches that are present; absent ones sort to the end.
        ascending = tf.where(lot.present, -lot.norms, -math.inf)
        ascending, _ = tf.math.top_k(ascending, tf.shape(lot.present)[0])
        middle = tf.cast(tf.maximum(count - 1.0, 0.0) / 2.0, tf.int32)
        signal = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(s) for s in lot.sums]))
        size = sum(math.prod(s.shape) for s in lot.sums)
        noise = noise_scale * math.sqrt(size)
        clipped = tf.reduce_sum(lot.clipped) / tf.maximum(count, 1.0)
        # For `ascending[middle]` XLA would treat the index as a constant and compile for each value.
        median = -tf.gather(ascending, middle)
        values = tf.stack([clipped, median, noise / tf.maximum(signal, 1e-12), 1.0])
        values = tf.where(count > 0, values, 0.0)
        non_finite = tf.cast(lot.non_finite, tf.float32)
        fraction, median, ratio, somebody = tf.unstack(values)
        self._sums.assign_add(tf.stack([fraction, median, ratio, non_finite, somebody, 1.0]))

    def result(self, reset: bool) -> dict[str, float]:
        """Returns the means so far as Python floats, 0 without any lot.

        Args:
            reset: Whether to start over afterwards.
        """
        *sums, somebody, lots = self._sums.numpy().tolist()
        counts = [somebody] * (len(sums) - 1) + [lots]
        if reset:
            self._sums.assign(tf.zeros_like(self._sums))
        return {n: s / max(c, 1.0) for n, s, c in zip(self.NAMES, sums, counts, strict=True)}
