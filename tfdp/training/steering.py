"""Refuses callbacks that steer training by figures which are computed from private data without noise.

The number of steps, the weights that are kept and the learning rate are published with the model, or
shape it. If they depend on the training loss or accuracy, they reveal something about the private
data that no noise covers and no accounting includes.
"""

import keras
from absl import logging

# Public figures, which callbacks may monitor besides figures of held-out data.
_PUBLIC = ("epsilon", "claimed_epsilon", "learning_rate")
_MONITORS = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau)


def list_of(callbacks) -> list:
    """The argument `callbacks` of `fit` as a list of callbacks."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return [each for each in keras.tree.flatten(callbacks) if each is not None]


def check_callbacks(callbacks) -> None:
    """Refuses callbacks of a fit.

    Args:
        callbacks: the argument of `fit`.

    Raises:
        ValueError: a callback steers by training metrics, would save a file without a ledger, or
            resumes a training without its counted steps.
    """
    for callback in list_of(callbacks):
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.TerminateOnNaN):
            raise ValueError(
                f"{name} stops training when the loss of private examples is not a number, so the "
                "number of steps would tell of them. Expected training without it: an example whose "
                "gradient is not finite counts zero here (see model.privacy.diagnostics)."
            )
        monitors = isinstance(callback, _MONITORS)
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            refuse_legacy(callback.filepath)  # not only after the steps of an epoch are spent
            monitors = callback.save_best_only
        if monitors and not (callback.monitor.startswith("val_") or callback.monitor in _PUBLIC):
            raise ValueError(
                f"{name} would act on {callback.monitor!r}, which is computed from private examples "
                "without noise, if there is such a figure. Expected a figure of validation data "
                "(such as 'val_loss', which needs validation_data; those data are not protected "
                "then), or a fixed number of steps."
            )
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "keras.callbacks.BackupAndRestore restores the weights of a checkpoint and forgets the "
                "steps after it. Use tfdp.callbacks.BackupAndRestore, which counts them."
            )
        if isinstance(callback, keras.callbacks.EarlyStopping):
            logging.warning(
                "%s may end this training early. All planned steps are counted then, because results "
                "decide when it ends. Plan fewer epochs, or end by a PrivacyBudget with "
                "tfdp.callbacks.StopAtBudget, which counts only the steps taken.",
                name,
            )


def refuse_legacy(path) -> None:
    """Raises ValueError for a name of Keras' old HDF5 format."""
    name = str(path)
    if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):
        raise ValueError(
            "Keras' old HDF5 format holds no privacy ledger, so what was spent would be lost. Expected "
            f"a file name that ends in '.keras' or '.weights.h5'. Received: {name!r}"
        )
