"""The exact engine: `tf.vectorized_map` over single examples, for any ops that it can vectorize.

Each example passes through the model alone, as a batch of one, so nothing can mix examples. Norm and
gradient come from the same forward pass. For an op that TensorFlow cannot vectorize the engine raises
an error; it never falls back to a loop over the examples. (The rules for a few operations contain one;
see `tfdp._compat.pfor_ops`.)
"""

import tensorflow as tf

from tfdp._compat import pfor_random, pfor_repairs
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.contract import BoundedSum
from tfdp.gradients.engines.ending import bounded
from tfdp.gradients.engines.steps import vectorizable_loops
from tfdp.gradients.forward import Forward, losses_of_outputs
from tfdp.gradients.rules.per_example_gradient import Instantiated
from tfdp.gradients.vectorizing import vectorized_map


def per_example_gradients(forward: Forward, x, y, sample_weight, chunk):
    """Returns the per-example gradients of the weighted loss.

    Args:
        forward, x, y, sample_weight, chunk: as in `contract.Engine`.

    Returns:
        (gradients, losses, output_losses, outputs, state): gradients is a list of float32
        [rows, *variable shape]; losses, float32 [rows], is not weighted; output_losses is as in
        `BoundedSum`; state is as `Forward.advance` takes it.

    Raises:
        NotImplementedError: TensorFlow cannot vectorize an op of the model.
    """
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    state = forward.state(chunk)
    rows = tf.shape(sample_weight)[0]
    seeds = [
        pfor_random.seeds_of_rows(value, rows)
        for i, value in enumerate(state)
        if forward.is_per_example(i)
    ]
    changed = []

    def one(args):
        x_i, y_i, weight, seeds = args
        pfor_random.mark_own_seeds(seeds)
        left = iter(seeds)
        own = [next(left) if forward.is_per_example(i) else s for i, s in enumerate(state)]
        x_i, y_i = pfor_repairs.batch_of_one((x_i, y_i))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            y_pred, scope, new_state = forward.outputs(values, own, x_i)
            loss = forward.loss(scope, x_i, y_i, y_pred)
            weighted = loss * weight
        gradients = tape.gradient(weighted, values, unconnected_gradients="zero")
        gradients = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
        changed[:] = [new is not None for new in new_state]
        steps = [new - old for new, old in zip(new_state, own, strict=True) if new is not None]
        parts = losses_of_outputs(forward.model, scope)
        return gradients, loss, parts, tf.nest.map_structure(lambda o: o[0], y_pred), steps

    own = {id(v): value for v, value in zip(forward.variables, values, strict=True)}
    with vectorizable_loops(forward.model, own):
        gradients, losses, parts, outputs, steps = vectorized_map(
            forward.model, one, (x, y, sample_weight, seeds)
        )
    # The vectorizer may lose static shapes.
    gradients = [
        tf.reshape(g, [-1, *v.shape]) for g, v in zip(gradients, forward.variables, strict=True)
    ]
    steps = iter(steps)
    new_state = [
        old + next(steps)[0] if moved else None for old, moved in zip(state, changed, strict=True)
    ]
    return gradients, losses, parts, outputs, new_state


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
