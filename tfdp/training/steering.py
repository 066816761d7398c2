"""Refuses callbacks that steer training by figures which are computed from private data without noise.

The number of steps, the weights that are kept and the learning rate are published with the model, or
shape it. If they depend on the training loss or accuracy, they reveal something about the private
data that no noise covers and no accounting includes.
"""

from collections.abc import Iterable

import keras

from tfdp._compat.keras import all_metrics, compiled_metrics

_REMEDY = (
    "Expected a figure of validation data (such as 'val_loss', which needs validation_data; those data "
    "are not protected then), or a fixed number of steps."
)
# Public figures, which callbacks may monitor besides figures of held-out data.
_PUBLIC = ("epsilon", "claimed_epsilon", "learning_rate")
_MONITORS = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau)


def list_of(callbacks) -> list:
    """The argument `callbacks` of `fit` as a list of callbacks."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return [each for each in keras.tree.flatten(callbacks) if each is not None]


def refuse_steering(callbacks: Iterable, training_metrics: Iterable[str] = ()) -> None:
    """Raises ValueError, with the remedy, for callbacks that act on training metrics.

    Args:
        callbacks: the callbacks that `fit` was given.
        training_metrics: names of metrics that training updates. A monitor with such a name is
            refused even if the name begins with "val_".
    """
    training_metrics = set(training_metrics)
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.TerminateOnNaN):
            raise ValueError(
                f"{name} stops training when the loss of private examples is not a number, so the "
                "number of steps would tell of them. Expected training without it: an example whose "
                "gradient is not finite counts zero here (see model.privacy.diagnostics)."
            )
        monitors = isinstance(callback, _MONITORS)
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            monitors = callback.save_best_only
        if monitors and not _is_allowed(callback.monitor, training_metrics):
            raise ValueError(f"{name} {_why(callback.monitor, training_metrics)} {_REMEDY}")


def _why(monitor: str, training_metrics: set[str]) -> str:
    if monitor in (*training_metrics, "loss"):
        return f"would act on {monitor!r}, which is computed from private examples without noise."
    return f"monitors {monitor!r}, and there is no such figure: no metric of this model is called that."


def names_of_metrics(model) -> list[str]:
    """Names of the metrics and of the loss in the logs, with the prefixes of all outputs."""
    names = [
        getattr(metric, "name", None) or getattr(metric, "__name__", metric)
        for metric in keras.tree.flatten((*compiled_metrics(model), all_metrics(model)))
        if metric is not None
    ]
    outputs = getattr(model, "output_names", None) or []
    # A subclassed model has no names of outputs; those with losses are the keys of a dictionary.
    outputs = [*outputs, *(model.loss if isinstance(model.loss, dict) else ())]
    outputs = ["", *(f"{name}_" for name in outputs)]
    return [prefix + str(name) for prefix in outputs for name in (*names, "loss")]


def _is_allowed(monitor: str, training_metrics: set[str]) -> bool:
    if monitor in training_metrics:
        return False
    return monitor.startswith("val_") or monitor in _PUBLIC
