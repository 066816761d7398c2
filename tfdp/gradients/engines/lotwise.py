"""The lotwise engine, for models in which each example's loss depends on the whole lot.

Such models have batch normalization as the papers write it: `PublicExamples` with statistics="batch".
The gradient of an example's loss flows through the statistics, and so through all other examples.

Formal guarantee, weaker than that of the other engines: when one example becomes a null example, its
own bounded gradient disappears, and each of the others may move from one point of the C-ball to any
other. So in a lot of n examples the sum moves by up to (2n - 1) C, or with microbatches of several
examples by up to 2C for each microbatch; both are multiplied by sqrt(clip_groups).
`Contribution.batch_statistics` records this for the accounting.
"""

import dataclasses
import math

import tensorflow as tf

from tfdp._compat.pfor_map import batch_of_one
from tfdp.gradients.bounds import L2Clip
from tfdp.gradients.contract import BoundedSum, Outputs
from tfdp.gradients.engines.clip_and_sum import clip_and_sum
from tfdp.gradients.factors import Instantiated
from tfdp.gradients.forward import Forward, losses_of_outputs
from tfdp.gradients.vectorizing import vectorized_map
from tfdp.layers.lot_statistics import running_lot


def bounded_sum(
    forward: Forward,
    bound: L2Clip,
    x,
    y,
    sample_weight,
    first,
    microbatch_size: int = 1,
    views: int = 1,
) -> BoundedSum:
    """Computes the bounded sum of a chunk, which must be a whole lot; see `contract.Engine`."""
    present = tf.not_equal(sample_weight, 0.0)
    x, y = _copied_into_absent_rows((x, y), present)
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(values)
        with running_lot(present):
            y_pred, scope, state = forward.outputs(values, forward.state(), x)
        losses, output_losses, at_outputs = _row_losses(forward, scope, x, y, y_pred, sample_weight)
        objectives = tf.add_n(
            [
                tf.reduce_sum(leaf * tf.stop_gradient(at), axis=list(range(1, leaf.shape.rank)))
                for leaf, at in zip(tf.nest.flatten(y_pred), at_outputs, strict=True)
            ]
        )

    def of_row(place):
        at = {"output_gradients": place, "unconnected_gradients": "zero"}
        return tape.gradient(objectives, values, **at)

    gradients = vectorized_map(forward.model, of_row, tf.eye(tf.shape(sample_weight)[0]))
    lot = clip_and_sum(
        [
            Instantiated(tf.cast(tf.reshape(g, [-1, *v.shape]), tf.float32))
            for g, v in zip(gradients, forward.variables, strict=True)
        ],
        forward.variables,
        bound,
        sample_weight,
        microbatch_size,
        views,
        losses=losses,
        output_losses=output_losses,
        outputs=Outputs.of(y_pred),
        state=state,
    )
    moved = _relative_sensitivity(bound, sample_weight.shape[0], microbatch_size, views)
    return dataclasses.replace(lot, relative_sensitivity=moved)


def _copied_into_absent_rows(tree, present):
    """Replaces absent rows by copies of the first row that is present.

    A NaN in an absent row would reach all gradients, since 0 * NaN is NaN: a zero gradient at the row's
    output does not stop it.
    """
    first = tf.argmax(present, output_type=tf.int32)
    places = tf.where(present, tf.range(tf.size(present)), first)
    return tf.nest.map_structure(lambda leaf: tf.gather(leaf, places), tree)


def _relative_sensitivity(bound, rows, microbatch_size, views):
    """Returns the sensitivity in clip norms, infinite if `rows` is None (not static)."""
    if rows is None:
        return math.inf
    shares = math.sqrt(bound.clip_groups)
    means = rows // (microbatch_size * views)
    return (2.0 * means - (1.0 if microbatch_size == 1 else 0.0)) * shares


def _row_losses(forward, scope, x, y, y_pred, sample_weight):
    """Computes the loss of each row as a batch of one.

    Args:
        forward: The `Forward` whose `outputs` returned `scope` and `y_pred`.
        scope, y_pred: The scope and the outputs for all rows.
        x, y: Inputs and targets, structures of tensors [rows, ...]. The targets may be
            `WeightedTargets`.
        sample_weight: Weights, float32 [rows].

    Returns:
        (losses, output_losses, gradients), where losses are unweighted, float32 [rows];
        output_losses are as in `BoundedSum`; and gradients are those of the weighted losses with
        respect to the leaves of `y_pred`.

    Raises:
        NotImplementedError: If TensorFlow cannot vectorize the loss.
    """

    # The vectorized function computes the gradients, too. If it were differentiated from outside, XLA
    # would treat its inputs as constants and recompile at every step.
    def one(args):
        *rows, weight = args
        x, y, outputs = batch_of_one(tuple(rows))
        y_pred = outputs.masked()
        leaves = tf.nest.flatten(y_pred)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            loss = forward.loss(scope, x, y, y_pred)
            weighted = loss * weight
        gradients = tape.gradient(weighted, leaves, unconnected_gradients="zero")
        parts = losses_of_outputs(forward.model, scope)
        return loss, parts, [tf.convert_to_tensor(gradient)[0] for gradient in gradients]

    losses, parts, gradients = vectorized_map(
        forward.model, one, (x, y, Outputs.of(y_pred), sample_weight)
    )
    leaves = tf.nest.flatten(y_pred)
    # The vectorizer may lose static shapes.
    gradients = [tf.ensure_shape(g, p.shape) for g, p in zip(gradients, leaves, strict=True)]
    return losses, parts, gradients
