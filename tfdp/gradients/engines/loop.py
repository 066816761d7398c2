"""The loop engine: one example after the other, for any model that TensorFlow can differentiate.

Each example passes through the model alone, as a batch of one, in a loop that is part of the graph
(`tf.map_fn`). Nothing is vectorized, so operations work for which `tf.vectorized_map` has no rule:
sorting, searching, loops within the model, CTC. It is slow, because a step takes as many small passes
as the lot has rows, and so it runs only where the caller asks for it by name.
"""

import functools

import tensorflow as tf

from tfdp.gradients.engines import alone
from tfdp.gradients.forward import Forward


def per_example_gradients(forward: Forward, x, y, sample_weight, chunk):
    """Returns the per-example gradients of the weighted loss; see `alone.per_example_gradients`."""
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    return alone.per_example_gradients(
        forward, values, x, y, sample_weight, chunk, vectorized=False
    )


bounded_sum = functools.partial(alone.bounded_sum, per_example_gradients)
