"""Refuses callbacks that act on metrics of private data, which are computed without noise.

The number of steps, the choice of weights and the learning rate are published with the model, or shape
it. If they depend on the training loss or accuracy, they reveal information about the private data that
no noise covers and no accounting includes.
"""

import keras
from absl import logging

# Public figures, which callbacks may monitor besides metrics of held-out data.
_PUBLIC = ("epsilon", "claimed_epsilon", "learning_rate")
# Keras callbacks that are refused. They are found by name, since versions of Keras differ in them.
_REFUSED = {
    "TerminateOnNaN": "It stops when the loss of private examples is not a number, so the number of "
    "steps would reveal information about them. Remove it: an example whose gradient is not finite "
    "counts zero here (see model.privacy.diagnostics).",
    "BackupAndRestore": "It restores the weights of a checkpoint and forgets the steps after it. Use "
    "tfdp.callbacks.BackupAndRestore, which counts them.",
    "OrbaxCheckpoint": "Its checkpoints hold no ledger, so what was spent would be lost. Use "
    "keras.callbacks.ModelCheckpoint, or tfdp.callbacks.BackupAndRestore to resume a training.",
}
_ASSIGN_RATES = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


def check_callbacks(callbacks, optimizer, holds_out: bool = True):
    """Refuses callbacks that private training does not allow.

    A callback is refused if it acts on training metrics, would save a file without a ledger, resumes a
    training without its counted steps, or assigns a fixed learning rate. A second backup is refused,
    too.

    Args:
        callbacks: The argument `callbacks` of `fit`.
        optimizer: The private optimizer.
        holds_out: Whether the validation data are held out. If they are training data, callbacks may
            not act on their metrics either.

    Returns:
        The `BackupAndRestore` among the callbacks, or None, and the list of all callbacks.

    Raises:
        ValueError: If a callback is refused.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    callbacks = [each for each in keras.tree.flatten(callbacks) if each is not None]
    for callback in callbacks:
        name = type(callback).__name__
        for refused, reason in _REFUSED.items():
            if isinstance(callback, getattr(keras.callbacks, refused, ())):
                raise ValueError(f"{name} cannot be used in private training. {reason}")
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            refuse_legacy(callback.filepath)  # before the steps of an epoch are spent
        _warn_of_objective(callback)
        monitor = getattr(callback, "monitor", None)
        acts = getattr(callback, "save_best_only", True)
        if isinstance(monitor, str) and acts and not _is_public(monitor, holds_out):
            raise ValueError(
                f"{name} acts on {monitor!r}. Metrics of the training data have no noise, so its "
                "actions would reveal private examples. Monitor a metric of validation data, such as "
                "'val_loss' (pass validation_data, which are not protected, and none of the training "
                "data), or train a fixed number of steps."
            )
        if isinstance(callback, _ASSIGN_RATES):
            _check_rate(name, optimizer)
        if isinstance(callback, keras.callbacks.EarlyStopping):
            logging.warning(
                "%s may end this training early. All planned steps are counted nevertheless, because "
                "the end depends on results. Plan fewer epochs, or end by a PrivacyBudget with "
                "tfdp.callbacks.StopAtBudget, which counts only the steps taken.",
                name,
            )
    # `BackupAndRestore` is recognized by a method, so that its module is imported only by its users.
    backups = [each for each in callbacks if hasattr(each, "attached")]
    if len(backups) > 1:
        raise ValueError(
            f"Expected at most one BackupAndRestore. Received {len(backups)}. Remove the others."
        )
    return backups[0] if backups else None, callbacks


def _is_public(figure: str, holds_out: bool = True) -> bool:
    return (figure.startswith("val_") and holds_out) or figure in _PUBLIC


def _warn_of_objective(callback) -> None:
    """Warns if KerasTuner compares trials by a metric of the training data.

    Its callback `SaveBestEpoch` has the objective.
    """
    objective = getattr(callback, "objective", None)
    for each in getattr(objective, "objectives", [objective]):
        name = getattr(each, "name", None)
        if isinstance(name, str) and name != "default_objective" and not _is_public(name):
            logging.warning(
                "The search compares trials and epochs by %r. Metrics of the training data have no "
                "noise, so a choice by them reveals private examples. Use a metric of validation data, "
                "such as objective='val_loss', and pass validation_data, which are not protected.",
                name,
            )


def _check_rate(callback: str, optimizer) -> None:
    """Raises ValueError if a learning rate cannot be assigned, before that ends a `fit` midway."""
    try:
        optimizer.learning_rate = optimizer.learning_rate
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{callback} assigns learning rates, but that of {type(optimizer).__name__} is fixed. "
            "Remove the callback, and pass a LearningRateSchedule to the optimizer."
        ) from error


def refuse_legacy(path) -> None:
    """Raises ValueError for a file name of Keras' old HDF5 format, which has no place for a ledger."""
    name = str(path)
    if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):
        raise ValueError(
            "Keras' old HDF5 format holds no privacy ledger, so what was spent would be lost. Expected "
            f"a file name that ends in '.keras' or '.weights.h5'. Received: {name!r}"
        )
