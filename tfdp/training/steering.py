"""Refuses callbacks that act on metrics of private data, which are computed without noise.

The number of steps, the weights that are kept and the learning rate are published with the model, or
shape it. If they depend on the training loss or accuracy, they reveal something about the private
data that no noise covers and no accounting includes.
"""

import keras
from absl import logging

# Public figures, which callbacks may monitor besides figures of held-out data.
_PUBLIC = ("epsilon", "claimed_epsilon", "learning_rate")
# Callbacks of Keras that are refused, by name, since versions of Keras differ in them.
_REFUSED = {
    "TerminateOnNaN": "It stops when the loss of private examples is not a number, so the number of "
    "steps would reveal information about them. Leave it out: an example whose gradient is not finite "
    "counts zero here (see model.privacy.diagnostics).",
    "BackupAndRestore": "It restores the weights of a checkpoint and forgets the steps after it. Use "
    "tfdp.callbacks.BackupAndRestore, which counts them.",
    "OrbaxCheckpoint": "Its checkpoints hold no ledger, so what was spent would be lost. Use "
    "keras.callbacks.ModelCheckpoint, or tfdp.callbacks.BackupAndRestore to resume a training.",
}
_ASSIGN_RATES = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)


def check_callbacks(callbacks, optimizer, holds_out: bool = True):
    """Refuses callbacks of a fit; returns its `BackupAndRestore`, or None, and the list of all.

    Refused is a callback that acts on training metrics, would save a file without a ledger, resumes a
    training without its counted steps, or assigns learning rates that are fixed; and a second backup.
    With `holds_out=False`, the validation data are training data.
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
            refuse_legacy(callback.filepath)  # not only after the steps of an epoch are spent
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
                "%s may end this training early. All planned steps are counted even so, because the "
                "end depends on results. Plan fewer epochs, or end by a PrivacyBudget with "
                "tfdp.callbacks.StopAtBudget, which counts only the steps taken.",
                name,
            )
    # A `BackupAndRestore`, whose module only its users import.
    backups = [each for each in callbacks if hasattr(each, "attached")]
    if len(backups) > 1:
        raise ValueError(
            f"Expected at most one BackupAndRestore. Received {len(backups)}. Leave out the others."
        )
    return backups[0] if backups else None, callbacks


def _is_public(figure: str, holds_out: bool = True) -> bool:
    return (figure.startswith("val_") and holds_out) or figure in _PUBLIC


def _warn_of_objective(callback) -> None:
    """Warns of a search by KerasTuner, whose `SaveBestEpoch` knows what trials are compared by."""
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
    """Raises ValueError if a learning rate cannot be assigned, which may else end a fit midway."""
    try:
        optimizer.learning_rate = optimizer.learning_rate
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{callback} assigns learning rates, and that of {type(optimizer).__name__} is fixed. "
            "Leave the callback out, and pass a LearningRateSchedule to the optimizer."
        ) from error


def refuse_legacy(path) -> None:
    """Raises ValueError for a name of Keras' old HDF5 format."""
    name = str(path)
    if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):
        raise ValueError(
            "Keras' old HDF5 format holds no privacy ledger, so what was spent would be lost. Expected "
            f"a file name that ends in '.keras' or '.weights.h5'. Received: {name!r}"
        )
