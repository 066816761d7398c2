"""Runs the model on each row alone, as a batch of one: the common part of most engines."""

from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.keras import as_in_a_larger_batch
from tfdp._compat.pfor_map import batch_of_one
from tfdp._compat.pfor_random import draw_by_place, mark_own_seeds, seeds_of_rows
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.contract import BoundedSum, Outputs
from tfdp.gradients.engines.clip_and_sum import clip_and_sum
from tfdp.gradients.forward import Forward, losses_of_outputs
from tfdp.gradients.vectorizing import vectorized_map


def over_rows(
    forward: Forward, run: Callable, x, y, sample_weight, first, *, vectorized: bool = True
):
    """Runs each row alone and stacks the results of all rows.

    Args:
        forward, x, y, sample_weight, first: As in `contract.Engine`.
        run: A function that maps (state, x, y, weight) of one row, a batch of one, to (results, loss,
            scope, y_pred, new_state).
        vectorized: Whether all rows run at once (`tf.vectorized_map`), or one at a time.

    Returns:
        (results, losses, output_losses, outputs, state), where losses are unweighted, float32 [rows];
        output_losses and outputs are as in `BoundedSum`; and state is as `Forward.advance` takes it.
    """
    state = forward.state()
    of_lot = [value for i, value in enumerate(state) if forward.is_per_example(i)]
    places = first + tf.range(tf.shape(sample_weight)[0])
    seeds = [seeds_of_rows(value, places) for value in of_lot]
    moved: list[bool] = []  # for each state variable, found from one row

    def one(row):
        x, y, weight, place, seeds = row
        mark_own_seeds(seeds, of_lot, first if vectorized else place)
        left = iter(seeds)
        own = [next(left) if forward.is_per_example(i) else s for i, s in enumerate(state)]
        x, y = batch_of_one((x, y))
        results, loss, scope, y_pred, new_state = run(own, x, y, weight)
        if not vectorized:
            draw_by_place(tf.compat.v1.get_default_graph())
        moved[:] = [new is not None for new in new_state]
        steps = [new - old for new, old in zip(new_state, own, strict=True) if new is not None]
        outputs = tf.nest.map_structure(lambda leaf: leaf[0], Outputs.of(y_pred))
        return results, loss, losses_of_outputs(forward.model, scope), outputs, steps

    each = (x, y, sample_weight, places, seeds)
    found = vectorized_map(forward.model, one, each) if vectorized else _one_by_one(one, each)
    *found, steps = found
    # All rows advance the random state by the same number of draws. A chunk has at least one row.
    steps = iter(steps)
    new_state = [
        old + next(steps)[0] if changed else None for old, changed in zip(state, moved, strict=True)
    ]
    return (*found, new_state)


def bounded_sum(
    gradients_of: Callable,
    forward: Forward,
    bound: L2Clip,
    x,
    y,
    sample_weight,
    first,
    microbatch_size: int = 1,
    views: int = 1,
) -> BoundedSum:
    """Computes the bounded sum of a chunk from per-example gradients; see `contract.Engine`.

    Args:
        gradients_of: The function `per_example_gradients` of an engine.
        forward, bound, x, y, sample_weight, first, microbatch_size, views: As in `contract.Engine`.
    """
    gradients, losses, output_losses, outputs, state = gradients_of(
        forward, x, y, sample_weight, first
    )
    return clip_and_sum(
        gradients,
        forward.variables,
        bound,
        sample_weight,
        microbatch_size,
        views,
        losses=losses,
        output_losses=output_losses,
        outputs=outputs,
        state=state,
    )


def _one_by_one(function, rows):
    """Calls `function` with each row of `rows`, one at a time, and stacks the results.

    `tf.map_fn` needs the types of the results before it traces the function. So the function is traced
    once by itself, and the loop calls the graph.
    """
    row = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), rows)
    with as_in_a_larger_batch():
        graph = concrete_function(tf.function(function, autograph=False), row)
    results = tf.nest.map_structure(
        lambda spec: tf.TensorSpec(spec.shape, spec.dtype), graph.structured_outputs
    )
    return tf.map_fn(
        lambda row: tf.nest.pack_sequence_as(results, tf.nest.flatten(graph(row))),
        rows,
        fn_output_signature=results,
        parallel_iterations=1,
    )
