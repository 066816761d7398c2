"""Refuses callbacks that steer training by numbers which are computed from private data without noise.

The number of steps, the weights that are kept and the learning rate are published with the model, or
shape it. Where they follow the training loss or accuracy, they tell of the private data something that
no noise covers and no accounting knows.
"""

from collections.abc import Iterable

import keras

_REMEDY = (
    "Expected a figure of validation data (such as 'val_loss'; those data are not protected then), or "
    "a fixed number of steps."
)
# What a training may follow besides figures of held-out data: what is public.
_PUBLIC = ("epsilon", "learning_rate")
_MONITORS = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau)


def refuse_steering(callbacks: Iterable, training_metrics: Iterable[str] = ()) -> None:
    """Raises ValueError, with the remedy, for callbacks that act on training metrics.

    Args:
        callbacks: as `fit` was given them.
        training_metrics: names of metrics that training updates, whatever they look like.
    """
    training_metrics = set(training_metrics)
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.TerminateOnNaN):
            raise ValueError(
                f"{name} stops training when the loss of private examples is not a number, so the "
                "number of steps would tell of them. Expected training without it: an example whose "
                "gradient is not finite counts zero here (see privacy_diagnostics)."
            )
        monitors = isinstance(callback, _MONITORS)
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            monitors = callback.save_best_only
        if monitors and not _is_public(callback.monitor, training_metrics):
            raise ValueError(
                f"{name} would act on {callback.monitor!r}, which is computed from private examples "
                f"without noise. {_REMEDY}"
            )


def names_of_metrics(model) -> list[str]:
    """The names under which training metrics come up in the logs, as far as they are given."""
    given = keras.tree.flatten(getattr(model._compile_metrics, "_user_weighted_metrics", None))
    names = [
        getattr(metric, "name", None) or getattr(metric, "__name__", metric)
        for metric in given
        if metric is not None
    ]
    outputs = ["", *(f"{name}_" for name in getattr(model, "output_names", None) or [])]
    return [prefix + str(name) for prefix in outputs for name in (*names, "loss")]


def _is_public(monitor: str, training_metrics: set[str]) -> bool:
    if monitor in training_metrics:
        return False
    return monitor.startswith("val_") or monitor in _PUBLIC
