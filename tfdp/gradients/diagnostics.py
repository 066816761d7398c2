"""Running means of what the bound and the noise did, for the person who trains.

They are functions of private gradients without noise, so they are no part of what may be released.
"""

import math

import keras
import tensorflow as tf


class Diagnostics:
    """Means over lots; a plain object, so that Keras neither saves nor prints it."""

    NAMES = ("fraction_clipped", "median_gradient_norm", "noise_to_signal", "non_finite_examples")

    def __init__(self):
        self._means = {name: keras.metrics.Mean(name=name) for name in self.NAMES}

    def update(self, lot, noise_multiplier: float) -> None:
        """Adds one lot (`engine.BoundedSum`)."""
        present = tf.cast(lot.present, tf.float32)
        count = tf.reduce_sum(present)
        somebody = tf.cast(count > 0, tf.float32)
        # The median of those present: absent ones sort to the end.
        ordered = tf.sort(tf.where(lot.present, lot.norms, math.inf))
        middle = tf.cast(tf.maximum(count - 1.0, 0.0) / 2.0, tf.int32)
        median = tf.where(count > 0, ordered[middle], 0.0)
        signal = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(s)) for s in lot.sums]))
        size = sum(math.prod(s.shape) for s in lot.sums)
        noise = noise_multiplier * lot.l2_norm_clip * math.sqrt(size)
        clipped = tf.reduce_sum(lot.clipped) / tf.maximum(count, 1.0)
        self._means["fraction_clipped"].update_state(clipped, sample_weight=somebody)
        self._means["median_gradient_norm"].update_state(median, sample_weight=somebody)
        ratio = noise / tf.maximum(signal, 1e-12)
        self._means["noise_to_signal"].update_state(ratio, sample_weight=somebody)
        self._means["non_finite_examples"].update_state(lot.non_finite)

    def result(self, reset: bool) -> dict[str, float]:
        """The means so far, as Python floats."""
        values = {name: float(mean.result()) for name, mean in self._means.items()}
        if reset:
            for mean in self._means.values():
                mean.reset_state()
        return values
