"""Converts the noisy sums of a lot to the gradients for an update rule."""

import tensorflow as tf


def means_of(totals: list, divisor: int, penalties: list) -> list:
    """Returns the noisy means over a nominal lot, plus the gradients of the weight regularizers.

    Args:
        totals: Noisy sums over the lot, one tensor for each variable.
        divisor: Number of examples (microbatches) in a nominal lot.
        penalties: For each variable, the gradient of its regularizer, or None.
    """
    divisor = tf.constant(float(divisor), totals[0].dtype)
    means = [total / divisor for total in totals]
    return [
        mean if penalty is None else mean + tf.cast(penalty, mean.dtype)
        for mean, penalty in zip(means, penalties, strict=True)
    ]
