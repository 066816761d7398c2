"""Updates a model's metrics with one lot, as Keras' own training step does, and returns the logs.

Metrics see private data without noise, so they are for the person who trains, and no release has them.
They get the examples of a lot only: neither the rows that pad it nor rows of weight zero.
"""

import keras
import tensorflow as tf

from tfdp._compat.keras import (
    compile_metrics,
    compiled_loss,
    compute_loss_as_keras,
    get_keras_mask,
    loss_tracker,
    set_keras_mask,
)
from tfdp.gradients.forward import own_metrics
from tfdp.gradients.targets import apart, with_none


def update_metrics(forward, traced, seen, x, y, sample_weight, lot, penalty) -> dict:
    """Updates the metrics with one lot and returns the logs of Keras' `train_step`.

    Args:
        forward: the `Forward` of the step.
        traced: what `first_pass.examine` returned.
        seen: pairs (variable, value): weights and state that the lot was computed with.
        x, y: structures of tensors [rows, ...]; y may be `WeightedTargets`.
        sample_weight: float32 [rows]; rows of weight zero are absent.
        lot: the `BoundedSum`, with losses and outputs.
        penalty: scalar; the penalties of the weight regularizers, which belong to the loss.
    """
    model, present = forward.model, tf.not_equal(sample_weight, 0.0)
    _update_losses(model, lot, sample_weight, tf.cast(present, tf.float32), penalty)
    build_metrics(model, y, lot.outputs)
    y, finer = apart(y)
    # The metrics get the examples of the lot, without its other rows.
    given = with_none(x), with_none(y), lot.outputs, sample_weight if finer is None else finer
    places = tf.squeeze(tf.where(present), axis=1)
    x, y, y_pred, weight = (_rows(places, tree) for tree in given)
    known = own_metrics(model)
    before = [tf.convert_to_tensor(v) for v in known]
    if traced.updates_metrics or traced.loss_updates_metrics:
        _update_inside(model, traced, seen, x, y, y_pred, weight)
    logs = model.compute_metrics(x, y, y_pred, sample_weight=weight)
    # The mean over no examples is no number, and would stay in a metric for the whole epoch.
    some = tf.reduce_any(present)
    for variable, value in zip(known, before, strict=True):
        variable.assign(tf.where(some, tf.convert_to_tensor(variable), value))
    return logs


def _update_losses(model, lot, sample_weight, weights, penalty):
    """Updates the loss, and the losses of single outputs, which Keras logs for models with several."""
    # The loss of a padding row may be NaN, and NaN times zero is NaN.
    losses = tf.math.multiply_no_nan(lot.losses, sample_weight)
    loss_tracker(model).update_state(losses + penalty, sample_weight=weights)
    compiled = compiled_loss(model)
    metrics = [] if compiled is None else compiled.metrics
    for place, metric in enumerate(metrics):
        weighted = tf.math.multiply_no_nan(lot.output_losses[:, place], sample_weight)
        metric.update_state(weighted, sample_weight=weights)


def _update_inside(model, traced, seen, x, y, y_pred, sample_weight):
    """Updates the metrics that layers and `compute_loss` update, by another call of these.

    The calls that were differentiated treated each example alone, and what they gave to metrics was
    dropped.
    """
    with keras.StatelessScope(seen, collect_losses=True) as scope:
        if traced.updates_metrics or traced.adds_losses:
            y_pred = model(x, training=True)
        if traced.loss_updates_metrics:
            compute_loss_as_keras(model, x, y, y_pred, sample_weight)
    for variable in own_metrics(model):
        value = scope.get_current_value(variable)
        if value is not None:
            variable.assign(value)


def build_metrics(model, y, outputs) -> None:
    """Makes the variables of the compiled metrics, if they are not made yet.

    Args:
        model: a compiled Keras model.
        y: the targets of a lot, as in `update_metrics`; only their shapes and dtypes matter.
        outputs: a structure like the model's outputs, tensors or `tf.TensorSpec`s [rows, ...].
    """
    compiled = compile_metrics(model)
    if compiled is not None and not compiled.built:
        compiled.build(with_none(apart(y)[0]), outputs)


def _rows(places, tree):
    """Returns the rows at some places of a structure of tensors, with their masks."""

    def cut(leaf):
        if leaf is None:
            return None
        found = tf.gather(leaf, places)
        mask = get_keras_mask(leaf)
        if mask is not None:
            set_keras_mask(found, tf.gather(mask, places))
        return found

    return tf.nest.map_structure(cut, tree)
