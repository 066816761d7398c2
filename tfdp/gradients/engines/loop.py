"""The loop engine: one example after the other, for any model that TensorFlow can differentiate.

Each example passes through the model alone, as a batch of one, in a loop that is part of the graph
(`tf.map_fn`). Nothing is vectorized, so operations work for which `tf.vectorized_map` has no rule:
sorting, searching, loops within the model, CTC. It is slow, because a step takes as many small passes
as the lot has rows, and so it runs only where the caller asks for it by name.
"""

import tensorflow as tf

from tfdp._compat import pfor_repairs
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.engines.ending import bounded
from tfdp.gradients.forward import Forward, losses_of_outputs
from tfdp.gradients.rules.per_example_gradient import Instantiated


def per_example_gradients(forward: Forward, x, y, sample_weight, chunk):
    """Returns the per-example gradients of the weighted loss.

    Arguments and results are those of `exact.per_example_gradients`. Every row draws random numbers of
    its own: row r starts from the chunk's seed, folded with r.
    """
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    state = forward.state(chunk)
    changed = []

    def one(x, y, weight, row):
        own = [
            _seed_of_row(s, row) if forward.is_per_example(i) else s for i, s in enumerate(state)
        ]
        x, y = pfor_repairs.batch_of_one((x, y))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            y_pred, scope, new_state = forward.outputs(values, own, x)
            loss = forward.loss(scope, x, y, y_pred)
            weighted = loss * weight
        gradients = tape.gradient(weighted, values, unconnected_gradients="zero")
        gradients = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
        changed[:] = [new is not None for new in new_state]
        steps = [new - old for new, old in zip(new_state, own, strict=True) if new is not None]
        parts = losses_of_outputs(forward.model, scope)
        return gradients, loss, parts, tf.nest.map_structure(lambda o: o[0], y_pred), steps

    rows = tf.range(tf.shape(sample_weight)[0])
    mapped = _map_rows(one, (x, y, sample_weight, rows))
    gradients, losses, parts, outputs, steps = mapped
    gradients = [
        tf.ensure_shape(g, [sample_weight.shape[0], *v.shape])
        for g, v in zip(gradients, forward.variables, strict=True)
    ]
    steps = iter(steps)
    # All rows advance the random state by the same number of draws. A chunk has at least one row.
    new_state = [
        old + next(steps)[0] if moved else None for old, moved in zip(state, changed, strict=True)
    ]
    return gradients, losses, parts, outputs, new_state


def _seed_of_row(seed, row):
    return tf.ensure_shape(
        tf.random.experimental.stateless_fold_in(seed, tf.cast(row, seed.dtype)), seed.shape
    )


def _map_rows(function, arguments):
    """Calls `function` with each row of `arguments`, one after the other, and stacks the results.

    `tf.map_fn` wants the types of the results before it traces the function. So the function is traced
    once by itself, and the loop calls the graph.
    """
    rows = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), arguments)
    graph = concrete_function(tf.function(function, autograph=False), *rows)
    results = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape, spec.dtype), graph.structured_outputs
    )
    return tf.map_fn(
        lambda row: tf.nest.pack_sequence_as(results, tf.nest.flatten(graph(*row))),
        arguments,
        fn_output_signature=results,
        parallel_iterations=1,
    )


def bounded_sum(
    forward: Forward,
    bound: L2Clip,
    x,
    y,
    sample_weight,
    chunk,
    microbatch_size: int = 1,
) -> BoundedSum:
    """Computes the bounded sum of a chunk; see `contract.Engine`."""
    gradients, losses, output_losses, outputs, state = per_example_gradients(
        forward, x, y, sample_weight, chunk
    )
    return bounded(
        [Instantiated(g) for g in gradients],
        forward.variables,
        bound,
        sample_weight,
        microbatch_size,
        losses=losses,
        output_losses=output_losses,
        outputs=outputs,
        state=state,
    )
