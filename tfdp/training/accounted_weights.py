"""The part of a private model that keeps the ledger of its weights.

The account is attached to the variables (`account.Account`). This module attaches it; `files` brings
its ledger into files and out of them.
"""

import dataclasses

import keras

from tfdp.account import Account, account_of
from tfdp.accounting import Run
from tfdp.optimizers import DPKerasOptimizer
from tfdp.session import Session
from tfdp.training.steering import list_of, refuse_steering


class AccountedWeights:
    """Mixin for a Keras model: keeps the ledger of what was spent with the weights.

    The class that it is mixed into provides `_privacy.account`, the account of a model that has no
    weights yet.
    """

    @property
    def _account(self) -> Account:
        """The account of the weights, or of the model itself as long as the model has no weights."""
        privacy = self._privacy
        weights = list(self.weights)
        if weights:
            account = account_of(weights)
            if privacy.account is not account:
                if privacy.account.start != "assumed":
                    account.start = privacy.account.start
                account.absorb(privacy.account)
                privacy.account = account
        return privacy.account

    @property
    def _session(self) -> Session | None:
        return self._account.session

    def _checked_runs(self) -> list[Run]:
        """The runs in the ledger; raises ValueError if the optimizer has taken other steps."""
        optimizer, ledger = getattr(self, "optimizer", None), self._account.ledger
        if isinstance(optimizer, DPKerasOptimizer):
            optimizer.check_ledger(ledger)
        runs = self._account.ledger.runs
        if self._account.start == "public":  # declared later, perhaps
            runs = [dataclasses.replace(run, start="public") for run in runs]
        return runs


def checked_callbacks(callbacks, training_metrics):
    """Returns the callbacks of a fit: a list, or the `CallbackList` that was given.

    Args:
        callbacks: the argument of `fit`.
        training_metrics: names of metrics that training updates.

    Raises:
        ValueError: a callback steers by training metrics, would save a file without a ledger, or
            resumes a training without its counted steps.
    """
    given = list_of(callbacks)
    refuse_steering(given, training_metrics)
    for callback in given:
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "keras.callbacks.BackupAndRestore restores the weights of a checkpoint and forgets the "
                "steps after it. Use tfdp.callbacks.BackupAndRestore, which counts them."
            )
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            # Not only after the steps of an epoch are spent.
            refuse_legacy(callback.filepath)
    return callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else given


def refuse_legacy(path) -> None:
    """Raises ValueError for a name of Keras' old HDF5 format."""
    name = str(path)
    if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):
        raise ValueError(
            "Keras' old HDF5 format holds no privacy ledger, so what was spent would be lost. Expected "
            f"a file name that ends in '.keras' or '.weights.h5'. Received: {name!r}"
        )
