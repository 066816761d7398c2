"""Updates a model's metrics with the chunks of a lot, as Keras does with batches.

Metrics see private data without noise, so they are for the person who trains, and no release has them.
They see only the examples of a lot: neither padding nor rows of weight zero.
"""

import contextlib

import keras
import tensorflow as tf

from tfdp._compat.keras import (
    compile_metrics,
    compiled_loss,
    compute_loss_as_keras,
    loss_tracker,
)
from tfdp.gradients.forward import own_metrics
from tfdp.gradients.targets import apart, with_none


def sees_chunks(model) -> bool:
    """Whether the metrics of a model can be updated chunk by chunk.

    A custom `compute_metrics` may return logs about its rows, so it needs the whole lot.
    """
    return type(model).compute_metrics is keras.Model.compute_metrics


def update_metrics(forward, traced, seen, x, y, sample_weight, outputs) -> None:
    """Updates the metrics with a chunk of a lot.

    Args:
        forward: The `Forward` of the step.
        traced: The result of `first_pass.examine`.
        seen: Pairs (variable, value) of the weights and state that the chunk was computed with.
        x, y: Structures of tensors [rows, ...]. y may be `WeightedTargets`.
        sample_weight: Weights, float32 of shape [rows]. Rows of weight zero are absent.
        outputs: The model's `Outputs` for the rows.
    """
    compiled = compile_metrics(forward.model)
    if compiled is None and not (traced.updates_metrics or traced.loss_updates_metrics):
        return
    if tf.executing_eagerly() and not tf.reduce_any(tf.not_equal(sample_weight, 0.0)):
        return  # Keras' losses fail without rows; in a graph, `_examples` takes care of that
    with _examples(forward, traced, seen, x, y, sample_weight, outputs) as (_, y, y_pred, weight):
        if compiled is not None:
            compiled.update_state(y, y_pred, weight)


def own_logs(forward, traced, seen, x, y, sample_weight, outputs) -> dict:
    """Calls the model's custom `compute_metrics` for a whole lot, and returns its logs.

    The arguments are those of `update_metrics`.
    """
    with _examples(forward, traced, seen, x, y, sample_weight, outputs) as (x, y, y_pred, weight):
        return forward.model.compute_metrics(x, y, y_pred, sample_weight=weight)


@contextlib.contextmanager
def _examples(forward, traced, seen, x, y, sample_weight, outputs):
    """Context that gives (x, y, outputs, weights) without absent rows. Without rows, metrics stay."""
    model, present = forward.model, tf.not_equal(sample_weight, 0.0)
    y, finer = apart(y)
    given = with_none(x), with_none(y), outputs, sample_weight if finer is None else finer
    places = tf.squeeze(tf.where(present), axis=1)
    x, y, outputs, weight = (_rows(places, tree) for tree in given)
    y_pred, weight = outputs.masked(), _fitting(outputs, weight)
    known = own_metrics(model)
    before = [tf.convert_to_tensor(v) for v in known]
    if traced.updates_metrics or traced.loss_updates_metrics:
        _update_inside(model, traced, seen, x, y, y_pred, weight)
    yield x, y, y_pred, weight
    # The mean over no examples is NaN, and would stay in a metric for the whole epoch.
    some = tf.reduce_any(present)
    for variable, value in zip(known, before, strict=True):
        variable.assign(tf.where(some, tf.convert_to_tensor(variable), value))


def update_losses(model, lot, sample_weight, penalty, views: int) -> None:
    """Updates the logged loss, and the losses of single outputs if the model has several.

    Args:
        model: A compiled private model.
        lot: The `BoundedSum` of a lot.
        sample_weight: As in `update_metrics`.
        penalty: The sum of the weight regularizers' penalties, a scalar. It belongs to the loss.
        views: Number of consecutive rows that are averaged, present or not.
    """
    weights = tf.cast(tf.not_equal(sample_weight, 0.0), tf.float32)
    if views > 1:
        units = tf.reduce_max(tf.reshape(weights, [-1, views]), axis=1)
        weights = tf.repeat(units, views)
    # The loss of a padding row may be NaN, and NaN times zero is NaN.
    losses = tf.math.multiply_no_nan(lot.losses, sample_weight)
    loss_tracker(model).update_state(losses + penalty, sample_weight=weights)
    compiled = compiled_loss(model)
    metrics = [] if compiled is None else compiled.metrics
    for place, metric in enumerate(metrics):
        weighted = tf.math.multiply_no_nan(lot.output_losses[:, place], sample_weight)
        metric.update_state(weighted, sample_weight=weights)


def _update_inside(model, traced, seen, x, y, y_pred, sample_weight):
    """Updates the metrics that layers and `compute_loss` update, by calling these again.

    The calls that were differentiated treated each example alone, and their updates were dropped.
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
    """Makes the variables of the compiled metrics, if there are none yet.

    Only shapes and dtypes of targets and outputs (tensors or `tf.TensorSpec`s [rows, ...]) matter.
    """
    compiled = compile_metrics(model)
    if compiled is not None and not compiled.built:
        compiled.build(with_none(apart(y)[0]), outputs)


def _rows(places, tree):
    """Returns the rows at some places of a structure of tensors."""
    return tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.gather(leaf, places), tree
    )


def _fitting(outputs, weight):
    """Returns weights that broadcast with the masks of outputs, which Keras multiplies them with.

    Weights [rows] become [rows, 1] for a mask [rows, tokens], because Keras would apply them to tokens.
    """
    if not outputs.masks:
        return weight
    if not tf.nest.is_nested(weight):
        weight = tf.nest.map_structure(lambda _: weight, outputs.values)
    leaves = tf.nest.flatten(weight)
    for place, mask in outputs.masks.items():
        if leaves[place].shape.rank == 1:
            leaves[place] = tf.reshape(leaves[place], [-1] + [1] * (mask.shape.rank - 1))
    return tf.nest.pack_sequence_as(weight, leaves)
