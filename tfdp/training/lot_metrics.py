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


class LotMetrics:
    """The metrics of a model and the lot that they are about to be given.

    It is made before the step's update, since metrics see the weights that the lot was computed with.

    Args:
        forward: the `Forward` of the step.
        traced: what `first_pass.examine` returned.
        state: what `forward.state()` returned.
    """

    def __init__(self, forward, traced, state):
        self._forward, self._model, self._traced = forward, forward.model, traced
        self._state = state
        self._values = [tf.convert_to_tensor(v) for v in forward.variables]

    def update(self, x, y, sample_weight, losses, output_losses, outputs, penalty) -> dict:
        """Returns the logs of Keras' `train_step`.

        Args:
            x, y: structures of tensors [rows, ...]; y may be `WeightedTargets`.
            sample_weight: float32 [rows]; rows of weight zero are absent.
            losses, output_losses, outputs: as in `BoundedSum`.
            penalty: scalar; the penalties of the weight regularizers, which belong to the loss.

        Raises:
            ValueError: a metric cannot be weighted.
        """
        present = tf.not_equal(sample_weight, 0.0)
        weights = tf.cast(present, tf.float32)
        # The loss of a padding row may be NaN, and NaN times zero is NaN.
        losses = tf.math.multiply_no_nan(losses, sample_weight)
        loss_tracker(self._model).update_state(losses + penalty, sample_weight=weights)
        self._update_output_losses(output_losses, sample_weight, weights)
        build_metrics(self._model, y, outputs)
        y, finer = apart(y)
        x, y = with_none(x), with_none(y)
        return self._with_examples(
            present, x, y, outputs, sample_weight if finer is None else finer
        )

    def _update_output_losses(self, losses, sample_weight, weights):
        """Updates the losses of single outputs, which Keras logs for models with several."""
        compiled = compiled_loss(self._model)
        metrics = [] if compiled is None else compiled.metrics
        if not metrics:
            return
        columns = tf.unstack(losses, num=len(metrics), axis=1)
        for metric, column in zip(metrics, columns, strict=True):
            weighted = tf.math.multiply_no_nan(column, sample_weight)
            metric.update_state(weighted, sample_weight=weights)

    def _with_examples(self, present, x, y, y_pred, sample_weight):
        """Gives the metrics the examples of the lot, without its other rows."""
        known = own_metrics(self._model)
        before = [tf.convert_to_tensor(v) for v in known]
        x, y, y_pred, weight = (_rows(present, tree) for tree in (x, y, y_pred, sample_weight))
        self._update_inside(x, y, y_pred, weight)
        logs = self._model.compute_metrics(x, y, y_pred, sample_weight=weight)
        # The mean over no examples is no number, and would stay in a metric for the whole epoch.
        some = tf.reduce_any(present)
        for variable, value in zip(known, before, strict=True):
            variable.assign(tf.where(some, tf.convert_to_tensor(variable), value))
        if overrides(self._model, "compute_metrics"):
            return logs
        return self._model.get_metrics_result()

    def _update_inside(self, x, y, y_pred, sample_weight):
        """Updates the metrics that layers and `compute_loss` update, by another call of these.

        The calls that were differentiated treated each example alone, and what they gave to metrics
        was dropped.
        """
        traced, forward, model = self._traced, self._forward, self._model
        if not (traced.updates_metrics or traced.loss_updates_metrics):
            return
        mapping = [*zip(forward.variables, self._values, strict=True)]
        mapping += zip(forward.state_variables, self._state, strict=True)
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
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
        y: the targets of a lot, as in `LotMetrics.update`; only their shapes and dtypes matter.
        outputs: a structure like the model's outputs, tensors or `tf.TensorSpec`s [rows, ...].
    """
    compiled = compile_metrics(model)
    if compiled is not None and not compiled.built:
        compiled.build(with_none(apart(y)[0]), outputs)


def overrides(model, method: str) -> bool:
    """Whether a model, or a class of its own, has another method than `keras.Model`."""
    return method in vars(model) or getattr(type(model), method) is not getattr(keras.Model, method)


def _rows(present, tree):
    """Returns the rows of a structure of tensors for which `present` is true, with their masks."""

    def cut(leaf):
        if leaf is None:
            return None
        found = tf.boolean_mask(leaf, present)
        mask = get_keras_mask(leaf)
        if mask is not None:
            set_keras_mask(found, tf.boolean_mask(mask, present))
        return found

    return tf.nest.map_structure(cut, tree)
