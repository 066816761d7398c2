"""The losses of rows that passed through the model together, where only the lot as a whole can pass."""

import tensorflow as tf

from tfdp._compat import pfor_repairs
from tfdp._compat.keras import get_keras_mask, set_keras_mask
from tfdp.gradients.forward import losses_of_outputs
from tfdp.gradients.vectorizing import vectorized_map


def row_losses(forward, scope, x, y, y_pred, sample_weight):
    """Returns the loss of each row as a batch of one.

    Args:
        forward: the `Forward` whose `outputs` returned `scope` and `y_pred`.
        scope, y_pred: the scope and the outputs for all rows.
        x, y: inputs and targets, structures of tensors [rows, ...]; the targets may be
            `WeightedTargets`.
        sample_weight: float32 [rows].

    Returns:
        (losses, output_losses, gradients): losses is float32 [rows], not weighted by `sample_weight`;
        output_losses is as in `BoundedSum`; gradients are those of the weighted losses with respect
        to the leaves of `y_pred`.

    Raises:
        NotImplementedError: TensorFlow cannot vectorize the loss.
    """
    # The vectorized function computes the gradients, too. If it were differentiated from outside, XLA
    # would take its inputs for constants and compile at every step.
    masks = [get_keras_mask(leaf) for leaf in tf.nest.flatten(y_pred)]
    known = [mask for mask in masks if mask is not None]

    def one(args):
        *rows, weight = args
        x, y, y_pred, row_masks = pfor_repairs.batch_of_one(tuple(rows))
        row_masks = iter(row_masks)
        leaves = tf.nest.flatten(y_pred)
        for leaf, mask in zip(leaves, masks, strict=True):
            if mask is not None:
                set_keras_mask(leaf, next(row_masks))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(leaves)
            loss = forward.loss(scope, x, y, y_pred)
            weighted = loss * weight
        gradients = tape.gradient(weighted, leaves, unconnected_gradients="zero")
        parts = losses_of_outputs(forward.model, scope)
        return loss, parts, [tf.convert_to_tensor(gradient)[0] for gradient in gradients]

    losses, parts, gradients = vectorized_map(
        forward.model, one, (x, y, y_pred, known, sample_weight)
    )
    leaves = tf.nest.flatten(y_pred)
    # The vectorizer may lose static shapes.
    gradients = [tf.ensure_shape(g, p.shape) for g, p in zip(gradients, leaves, strict=True)]
    return losses, parts, gradients
