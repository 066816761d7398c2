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
from tfdp.training.checks import refuse_unsavable
from tfdp.training.steering import refuse_steering


class AccountedWeights:
    """Mixin for a Keras model: keeps the ledger of what was spent with the weights.

    The class that it is mixed into provides `_privacy.account`, the account of a model that has no
    weights yet, and `_privacy.epoch`, which counts the steps of an epoch.
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
        runs = self._account.stated.runs
        if self._account.start == "public":  # declared later, perhaps
            runs = [dataclasses.replace(run, start="public") for run in runs]
        return runs


def with_epochs(model, callbacks, training_metrics):
    """The callbacks of a fit, after one that tells the model where epochs begin and end.

    Args:
        model: a private model.
        callbacks: the argument of `fit`.
        training_metrics: names of metrics that training updates.

    Returns:
        A list of callbacks; a `CallbackList` if `callbacks` is one.

    Raises:
        ValueError: a callback steers by training metrics, or would save a file without a ledger.
    """
    a_list = isinstance(callbacks, keras.callbacks.CallbackList)
    given = callbacks.callbacks if a_list else keras.tree.flatten(callbacks)
    given = [c for c in given if c is not None and not isinstance(c, _Epochs)]
    refuse_steering(given, training_metrics)
    for callback in given:
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            # Not only after the steps of an epoch are spent.
            refuse_legacy(callback.filepath)
            if not callback.save_weights_only:
                refuse_unsavable(model)
    first = _Epochs()
    if not a_list:
        return [first, *given]
    first.set_model(model)
    # The given list has recorded already which hooks its callbacks have, so a new one is made.
    return keras.callbacks.CallbackList([first, *given], model=model, **callbacks.params)


class _Epochs(keras.callbacks.Callback):
    """Runs before all other callbacks, which may decide that training ends."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model._privacy.progress.begin_epoch()

    def on_epoch_end(self, epoch, logs=None):
        self.model._privacy.progress.end_epoch()

    def on_train_end(self, logs=None):
        self.model._privacy.progress.over = True


def refuse_legacy(path) -> None:
    """Raises ValueError for a name of Keras' old HDF5 format."""
    name = str(path)
    if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):
        raise ValueError(
            "Keras' old HDF5 format holds no privacy ledger, so what was spent would be lost. Expected "
            f"a file name that ends in '.keras' or '.weights.h5'. Received: {name!r}"
        )
