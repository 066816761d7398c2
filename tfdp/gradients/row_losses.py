"""Computes the loss of each row of a batch by itself, and its gradient at the model's outputs."""

import keras
import tensorflow as tf

from tfdp._compat import pfor_repairs
from tfdp._compat.keras import (
    CompileLoss,
    LossFunctionWrapper,
    compiled_loss,
    flat_losses,
    get_keras_mask,
    loss_arguments,
    set_keras_mask,
)
from tfdp.gradients.forward import has_own_compute_loss, losses_of_outputs
from tfdp.gradients.rules import UnsupportedModelError
from tfdp.gradients.targets import apart
from tfdp.gradients.vectorizing import vectorized_map

# Keras' losses that compute a value for every row from that row alone.
_FUNCTIONS = {
    keras.losses.binary_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.mean_absolute_error,
    keras.losses.mean_squared_error,
    keras.losses.sparse_categorical_crossentropy,
}
_CLASSES = {
    LossFunctionWrapper,
    keras.losses.BinaryCrossentropy,
    keras.losses.CategoricalCrossentropy,
    keras.losses.MeanAbsoluteError,
    keras.losses.MeanSquaredError,
    keras.losses.SparseCategoricalCrossentropy,
}
_ARGUMENTS = {"axis": (-1,), "ignore_class": (None,), "from_logits": (True, False)}
_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


def row_losses(forward, scope, x, y, y_pred, sample_weight):
    """Returns the loss of each row by itself: reductions, class weights and masks stay inside a row.

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
        UnsupportedModelError: the loss does not depend on the model's output.
    """
    values = _values(forward.model, scope, y, y_pred)
    if values is None:
        return _vectorized(forward, scope, x, y, y_pred, sample_weight)
    # Keras' losses compute with the logits behind the output of a softmax, where they find them. They
    # do not find them behind a copy, so the loss depends on the tensor that the tape watches.
    y_pred = tf.identity(y_pred)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(y_pred)
        losses = values(y_pred)
        weighted = losses * sample_weight
    gradient = tape.gradient(weighted, y_pred)
    if gradient is None:
        raise UnsupportedModelError(
            f"The loss of model '{forward.model.name}' does not depend on the model's output."
        )
    return losses, losses[:, tf.newaxis][:, :0], [gradient]


def _values(model, scope, y, y_pred):
    """Returns a function from outputs to losses [rows] of the whole batch at once, or None.

    There is such a function if the model's loss is known to keep rows separate: one output, one of
    Keras' own losses with no more than its usual arguments, no losses from `add_loss`. The function
    saves most of the vectorizer's cost (some 80 small operations).
    """
    if has_own_compute_loss(model):
        return None
    compiled = compiled_loss(model)
    if type(compiled) is not CompileLoss or scope.losses:
        return None
    y, weights = apart(y)
    if not (tf.is_tensor(y) and tf.is_tensor(y_pred)):
        return None
    if not compiled.built:
        compiled.build(y, y_pred)
    if len(flat_losses(compiled)) != 1:
        return None
    path, loss, loss_weight, _ = flat_losses(compiled)[0]
    if path or loss_weight is not None or not is_row_by_row(loss):
        return None
    if get_keras_mask(y_pred) is not None or not _same_rows(loss, y, y_pred):
        return None
    if weights is not None and not _one_weight_for_each_value(loss, weights, y_pred):
        return None

    def values(y_pred):
        predicted = tf.cast(y_pred, loss.dtype)
        if loss.fn is keras.losses.sparse_categorical_crossentropy:
            found = _of_classes(loss, y, predicted)
        else:
            found = loss.call(keras.ops.convert_to_tensor(y, dtype=loss.dtype), predicted)
        if weights is not None:
            found *= tf.cast(weights, found.dtype)
        reduce = tf.reduce_mean if loss.reduction in _MEANS else tf.reduce_sum
        if found.shape.rank > 1:
            found = reduce(found, axis=[*range(1, found.shape.rank)])
        return tf.cast(found, tf.float32)

    return values


def _of_classes(loss, y, predicted):
    """Returns the values of a loss of labels: NaN where a label is no class.

    TensorFlow would end the step with an error on a CPU. A row that is not finite counts zero.
    """
    exists = (y >= 0) & (y < tf.cast(predicted.shape[-1], y.dtype))
    y = keras.ops.convert_to_tensor(tf.where(exists, y, tf.zeros([], y.dtype)), dtype=loss.dtype)
    found = loss.call(y, predicted)
    # A product, since the gradient has to be NaN as well.
    exists = tf.reshape(exists, tf.shape(found))
    return found * tf.where(exists, tf.ones([], found.dtype), float("nan"))


def is_row_by_row(loss) -> bool:
    """Whether a loss is one of Keras' own that computes a value for every row from that row alone."""
    if type(loss) not in _CLASSES or loss.fn not in _FUNCTIONS or "call" in vars(loss):
        return False
    if loss.reduction not in (*_MEANS, "sum"):
        return False
    arguments = loss_arguments(loss).items()
    return all(k == "label_smoothing" or v in _ARGUMENTS.get(k, ()) for k, v in arguments)


def _one_weight_for_each_value(loss, weights, y_pred):
    """Whether Keras would multiply the values of a loss by weights of the same shape, and no more."""
    if loss.reduction == "mean_with_sample_weight":
        return False
    values = y_pred.shape[:-1]  # the losses in `_FUNCTIONS` reduce the last axis
    return weights.shape.rank == values.rank and weights.shape[1:] == values[1:]


def _same_rows(loss, y, y_pred):
    """Whether the ranks of targets and outputs rule out broadcasting along the batch."""
    if y.shape.rank is None or y_pred.shape.rank is None or y_pred.shape.rank < 2:
        return False
    sparse = loss.fn is keras.losses.sparse_categorical_crossentropy
    if sparse and y.shape.rank == y_pred.shape.rank - 1:
        return y_pred.shape[-1] != 1
    if y.shape.rank != y_pred.shape.rank:
        return False
    return not sparse or y.shape[-1] == 1


def _vectorized(forward, scope, x, y, y_pred, sample_weight):
    """Computes any loss, with each row as a batch of one, vectorized.

    The vectorized function also computes the gradients. If it were differentiated from outside, XLA
    would treat its inputs as constants and compile at every step.
    """
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
