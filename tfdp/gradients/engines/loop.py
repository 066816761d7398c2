"""The loop engine: one example at a time, for any model that TensorFlow can differentiate.

Each example passes through the model alone, as a batch of one, in a loop that is part of the graph
(`tf.map_fn`). Nothing is vectorized, so operations work for which `tf.vectorized_map` has no rule:
sorting, searching, loops within the model, CTC. It is slow, because a step takes as many small passes
as the lot has rows, so it runs only on request.
"""

import functools

import tensorflow as tf

from tfdp.gradients.engines import row_pass
from tfdp.gradients.factors import Instantiated
from tfdp.gradients.forward import Forward


def per_example_gradients(forward: Forward, x, y, sample_weight, first):
    """Computes the per-example gradients of the weighted loss, as `ghost.per_example_gradients`."""
    values = [tf.convert_to_tensor(v) for v in forward.variables]

    def run(state, x, y, weight):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            y_pred, scope, new_state = forward.outputs(values, state, x)
            loss = forward.loss(scope, x, y, y_pred)
            weighted = loss * weight
        gradients = tape.gradient(weighted, values, unconnected_gradients="zero")
        gradients = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
        return gradients, loss, scope, y_pred, new_state

    gradients, *others = row_pass.over_rows(
        forward, run, x, y, sample_weight, first, vectorized=False
    )
    rows = sample_weight.shape[0]
    shapes = ([rows, *v.shape] for v in forward.variables)  # the loop may lose static shapes
    gradients = [
        Instantiated(tf.ensure_shape(g, s)) for g, s in zip(gradients, shapes, strict=True)
    ]
    return (gradients, *others)


bounded_sum = functools.partial(row_pass.bounded_sum, per_example_gradients)
