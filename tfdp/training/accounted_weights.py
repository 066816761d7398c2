"""The part of a private model that keeps the ledger of its weights.

The account is attached to the variables (`account.Account`). This module attaches it, reads it, and
updates it wherever Keras reads or writes weights: copies, files, `set_weights`, callbacks.
"""

import keras
import numpy as np

from tfdp._compat.keras import moving_averages
from tfdp.account import Account, account_of, ledger_in_file
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
        self._look()
        optimizer, ledger = getattr(self, "optimizer", None), self._account.ledger
        if isinstance(optimizer, DPKerasOptimizer):
            optimizer.check_ledger(ledger)
        return self._account.stated.runs

    # -- the weights and their account -----------------------------------------------------------

    def _look(self):
        """Notes the present values, so that the account recognizes them wherever they are put."""
        self._account.look(self.weights)

    def get_weights(self):
        """`keras.Model.get_weights`; within this process the ledger follows the returned values."""
        self._look()
        return super().get_weights()

    def set_weights(self, weights):
        """`keras.Model.set_weights`; values that this process trained privately bring their ledger."""
        super().set_weights(weights)
        self._take_up()

    def load_weights(self, filepath, skip_mismatch=False, **kwargs):
        """`keras.Model.load_weights`; merges the file's ledger even if the model has no optimizer."""
        super().load_weights(filepath, skip_mismatch=skip_mismatch, **kwargs)
        ledger = ledger_in_file(filepath)
        if ledger is not None:
            self._account.bring(ledger)
        self._take_up()

    def _take_up(self):
        """Accepts weights that the user has put in; values that are recognized bring their ledger.

        Values that are not recognized are accepted without an entry: they cannot be told from fresh
        weights.
        """
        account = self._account
        for variable in self.weights:
            variable._tfdp_seen = None
        account.examine(self.weights)

    def save(self, filepath, *args, **kwargs):
        """`keras.Model.save`; formats that hold no ledger are refused."""
        refuse_unsavable(self)
        self._check_saving(filepath)
        return super().save(filepath, *args, **kwargs)

    def save_weights(self, filepath, *args, **kwargs):
        """`keras.Model.save_weights`; formats that hold no ledger are refused."""
        self._check_saving(filepath)
        return super().save_weights(filepath, *args, **kwargs)

    def _check_saving(self, filepath):
        _refuse_legacy(filepath)
        self._look()
        optimizer = getattr(self, "optimizer", None)
        ledger = self._account.ledger
        if isinstance(optimizer, DPKerasOptimizer):
            # Keras saves the weights of an optimizer, among them the ledger, only once it is built.
            if self.built and not optimizer.built and (ledger.runs or ledger.budgets):
                optimizer.build(self.trainable_variables)
        elif ledger.runs or ledger.budgets:
            raise ValueError(
                "These weights have a privacy ledger or a budget, which are saved with a private "
                f"optimizer, and model '{self.name}' has none, so they would be lost. Expected "
                "model.compile(...) before saving, or tfdp.export(model, path) for a release."
            )


# Hooks that run between two steps of an epoch.
_BETWEEN_STEPS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")


def bracketed(model, callbacks, training_metrics):
    """The callbacks of a fit, between two that watch what the others do to the weights.

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
    given = [c for c in given if c is not None and not isinstance(c, _Remember | _Examine)]
    refuse_steering(given, training_metrics)
    for callback in given:
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            # Not only after the steps of an epoch are spent.
            _refuse_legacy(callback.filepath)
            if not callback.save_weights_only:
                refuse_unsavable(model)
    between = any(_acts_between_steps(callback) for callback in given)
    swaps = any(isinstance(callback, keras.callbacks.SwapEMAWeights) for callback in given)
    first = (_RememberSteps if between else _Remember)(swaps)
    last = _ExamineSteps(first) if between else _Examine(first, given)
    given = [first, *given, last]
    if not a_list:
        return given
    for callback in (first, last):
        callback.set_model(model)
    # The given list has recorded already which hooks its callbacks have, so a new one is made.
    return keras.callbacks.CallbackList(given, model=model, **callbacks.params)


def _acts_between_steps(callback) -> bool:
    """Whether a callback has a hook between steps that neither Keras nor tfdp defines."""
    hooks = (getattr(callback, name, None) for name in _BETWEEN_STEPS)
    rooms = {(getattr(hook, "__module__", None) or "").partition(".")[0] for hook in hooks if hook}
    return not rooms <= {"keras", "tfdp"}


class _Remember(keras.callbacks.Callback):
    """Runs before all other callbacks and notes the weights as the last private step left them.

    Args:
        swaps: whether a callback (`SwapEMAWeights`) exchanges the weights for their moving averages,
            which is post-processing. Keras computes the exchange by sums and differences, so the
            values are not equal to the last bit.
    """

    def __init__(self, swaps: bool):
        super().__init__()
        self._swaps, self._states = swaps, []

    def on_epoch_begin(self, epoch, logs=None):
        self.model._privacy.progress.begin_epoch()

    def on_epoch_end(self, epoch, logs=None):
        self.model._privacy.progress.end_epoch()
        self._note()

    def on_train_end(self, logs=None):
        self.model._privacy.progress.over = True

    def on_test_begin(self, logs=None):
        self._note()

    def _note(self):
        if self.is_swapped():
            self.model._account.remember(self.model.weights)
        else:
            self.model._look()
        if self._swaps:
            averages = moving_averages(self.model.optimizer)
            shown = self.model.trainable_variables
            self._states = [[v.numpy() for v in each] for each in (shown, averages)]

    def is_swapped(self) -> bool:
        """Whether the weights equal the noted weights, or their averages, up to rounding.

        False if no callback swaps weights.
        """
        now = [v.numpy() for v in self.model.trainable_variables]
        return any(
            len(state) == len(now)
            and all(np.allclose(a, b, 1e-5, 1e-6) for a, b in zip(state, now, strict=True))
            for state in self._states
        )


class _RememberSteps(_Remember):
    """Notes the weights after every step, too.

    This computes digests of all weights at each step, so it is used only if another callback may
    change weights between steps.
    """

    def on_train_batch_end(self, batch, logs=None):
        self.model._account.look(self.model.weights, for_good=False)


class _Examine(keras.callbacks.Callback):
    """Runs after all other callbacks and looks for changes that they made to the weights.

    Args:
        first: the callback that runs before all others.
        others: those that must not act between steps, since nothing would look for their changes.
    """

    def __init__(self, first: _Remember, others=()):
        super().__init__()
        self._first, self._others = first, others

    def on_epoch_begin(self, epoch, logs=None):
        for callback in self._others:
            if _acts_between_steps(callback):  # a hook that it got after `fit` began
                raise RuntimeError(
                    f"Callback {type(callback).__name__} got a hook between steps (such as "
                    "on_train_batch_end) after fit began, when it was decided that nothing has to "
                    "look for changed weights between steps. Expected a callback that has all its "
                    "hooks before fit. Define the hook as a method of its class."
                )
        self.examine()

    def on_epoch_end(self, epoch, logs=None):
        self.examine()

    def on_train_end(self, logs=None):
        self.examine()

    def examine(self):
        account = self.model._account
        if self._first.is_swapped():
            account.remember(self.model.weights)
        else:
            account.examine(self.model.weights)


class _ExamineSteps(_Examine):
    """Looks for changes between steps, too: before each step, and at the end of the epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        self.examine()


def _refuse_legacy(path):
    name = str(path)
    if name.endswith((".h5", ".hdf5")) and not name.endswith(".weights.h5"):
        raise ValueError(
            "Keras' old HDF5 format holds no privacy ledger, so what was spent would be lost. Expected "
            f"a file name that ends in '.keras' or '.weights.h5'. Received: {name!r}"
        )
