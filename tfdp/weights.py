"""What a private model does for the ledger of its weights.

The account hangs on the variables (`account.Account`); here it is attached, asked, and kept up to date
wherever Keras reads or writes weights: copies, files, `set_weights`, callbacks.
"""

import math

import keras

from tfdp import _backend  # noqa: F401
from tfdp.account import Account, account_of, ledger_in_file
from tfdp.accounting import (
    Guarantee,
    Ledger,
    Run,
    Statement,
    claimed_composition,
    proven_composition,
)
from tfdp.optimizers import DPKerasOptimizer
from tfdp.session import Session
from tfdp.steering import refuse_steering


class AccountedWeights:
    """Mixin for a Keras model: what was spent on its weights, and how it follows them.

    The class that it is mixed into has `_privacy.account`, the account while there are no weights yet.
    """

    # -- what was spent --------------------------------------------------------------------------

    @property
    def _account(self) -> Account:
        """The account of the weights, or of the model as long as it has none."""
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

    @property
    def ledger(self) -> Ledger:
        """Everything that is known to have been spent on these weights, whoever trained them."""
        return self._account.ledger

    def _checked_runs(self) -> list[Run]:
        self._look()
        optimizer, ledger = getattr(self, "optimizer", None), self.ledger
        if isinstance(optimizer, DPKerasOptimizer):
            optimizer.check_ledger(ledger)
        return ledger.runs

    def privacy_spent(
        self, delta: float, kind: str = "proven", adjacency: str = "zero_out"
    ) -> Guarantee:
        """The guarantee for everything trained so far.

        Args:
            delta: in (0, 1).
            kind: "proven" or "claimed".
            adjacency: "zero_out", "replace_one" or "add_or_remove_one".

        Raises:
            ValueError: the optimizer has taken steps that the ledger does not know of.
        """
        compose = {"proven": proven_composition, "claimed": claimed_composition}[kind]
        return compose(self._checked_runs(), delta, adjacency)

    def privacy_statement(self, delta: float, adjacency: str = "zero_out") -> str:
        """Both guarantees, what they rest on and what they do not cover, in words."""
        return Statement.of(self._checked_runs(), delta, adjacency).text()

    @property
    def current_run(self) -> Run | None:
        """What the training that runs, or ran last, is accounted as; its steps are those planned."""
        return None if self._session is None else self._session.run

    @property
    def planned_steps(self) -> int:
        """Steps that the open ledger entry will have when the current fit is done."""
        return 0 if self._session is None else self._session.run.steps

    @property
    def steps_taken(self) -> int:
        """Steps of the open ledger entry so far."""
        return 0 if self._session is None else self._session.spent

    @property
    def steps_left(self) -> float:
        """Steps that the budget still allows; infinite without a budget."""
        return math.inf if self._session is None else self._session.left

    @property
    def earlier_runs(self) -> list[Run]:
        """How these weights were trained privately before the open ledger entry."""
        return self.ledger.runs if self._session is None else self._session.earlier()

    @property
    def has_earlier_spending(self) -> bool:
        """Whether these weights were trained privately before the open ledger entry."""
        return bool(self.earlier_runs)

    # -- the weights and their account -----------------------------------------------------------

    def _look(self):
        """Notes what the weights look like now, so that the ledger follows them wherever they go."""
        self._account.look(self.weights)

    def get_weights(self):
        """`keras.Model.get_weights`; the ledger follows the values within this process."""
        self._look()
        return super().get_weights()

    def set_weights(self, weights):
        """`keras.Model.set_weights`; values that were trained in this process bring their ledger."""
        super().set_weights(weights)
        self._take_up()

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """`keras.Model.load_weights`; the file's ledger is merged, with an optimizer or without one."""
        super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        ledger = ledger_in_file(filepath)
        if ledger is not None:
            self._account.ledger.merge(ledger)
        self._take_up()

    def _take_up(self):
        account = self._account
        for variable in self.weights:
            variable._tfdp_seen = None  # given by the user: no change behind our back
        account.examine(self.weights)

    def save(self, filepath, *args, **kwargs):
        """`keras.Model.save`; formats that hold no ledger are refused."""
        _refuse_legacy(filepath)
        self._look()
        return super().save(filepath, *args, **kwargs)

    def save_weights(self, filepath, *args, **kwargs):
        """`keras.Model.save_weights`; formats that hold no ledger are refused."""
        _refuse_legacy(filepath)
        self._look()
        return super().save_weights(filepath, *args, **kwargs)


def bracketed(model, callbacks, training_metrics):
    """The callbacks of a fit, between two that watch what the others do to the weights.

    Args:
        model: a private model.
        callbacks: as `fit` is given them.
        training_metrics: names of metrics that training updates.

    Raises:
        ValueError: a callback that steers by training metrics.
    """
    a_list = isinstance(callbacks, keras.callbacks.CallbackList)
    given = callbacks.callbacks if a_list else keras.tree.flatten(callbacks)
    given = [c for c in given if c is not None]
    refuse_steering(given, training_metrics)
    # Averages of released weights, which this callback leaves in the model, are post-processing.
    averages = any(isinstance(c, keras.callbacks.SwapEMAWeights) for c in given)
    first, last = _Remember(), _Examine(averages)
    given = [first, *(c for c in given if not isinstance(c, _Remember | _Examine)), last]
    if not a_list:
        return given
    for callback in (first, last):
        callback.set_model(model)
    callbacks.callbacks = given
    return callbacks


class _Remember(keras.callbacks.Callback):
    """Before all other callbacks: notes the weights as the last private step left them."""

    def on_epoch_end(self, epoch, logs=None):
        self.model._look()

    def on_train_end(self, logs=None):
        if self.model.optimizer.use_ema:  # Keras has just put in the averages
            self.model._account.remember(self.model.weights)


class _Examine(keras.callbacks.Callback):
    """After all other callbacks: looks for what they have done to the weights.

    Args:
        averages: whether one of them exchanges the weights for averages of released ones, which is
            post-processing: they are what the model is left with at the end of an epoch.
    """

    def __init__(self, averages: bool):
        super().__init__()
        self._averages = averages

    def on_epoch_begin(self, epoch, logs=None):
        self._examine()

    def on_epoch_end(self, epoch, logs=None):
        if not self._averages:
            self._examine()

    def on_train_end(self, logs=None):
        if self._averages:
            self.model._account.remember(self.model.weights)
        else:
            self._examine()

    def _examine(self):
        account = self.model._account
        account.examine(self.model.weights)
        if account.session is not None:
            account.session.limit_to(account.ledger.budget)


def _refuse_legacy(path):
    name = str(path)
    if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):
        raise ValueError(
            "Keras' old HDF5 format holds no privacy ledger, so what was spent would be lost. Expected "
            f"a file name that ends in '.keras' or '.weights.h5'. Received: {name!r}"
        )
