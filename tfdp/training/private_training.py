"""The mixin that makes the training step of a Keras model private.

Formal guarantee: the weights change only by `DPKerasOptimizer.update`, once per lot, from one bounded
sum of gradients; every step is counted before it is computed, and a step beyond the budget is
refused. Anything that would train another way raises.
"""

import contextlib
import dataclasses

import keras
import tensorflow as tf

from tfdp._compat.keras import layers_of
from tfdp._validate import one_of, whole
from tfdp.account import DECLARED, Account, known_steps
from tfdp.accounting import PrivacyBudget
from tfdp.data.arrays import all_arrays, in_floatx
from tfdp.gradients.diagnostics import Diagnostics
from tfdp.gradients.lot import ENGINES
from tfdp.optimizers import DPKerasOptimizer
from tfdp.session import Plan
from tfdp.training.backup import backup_among
from tfdp.training.building import build_for
from tfdp.training.checks import (
    check_optimizer,
    check_tokens,
    refuse_mixing_layers,
    refuse_own_train_step,
)
from tfdp.training.feeding import Feeder, Place, check_targets, placed
from tfdp.training.files import SavedWithLedger
from tfdp.training.model_privacy import ModelPrivacy
from tfdp.training.preparing import past_preparation, prepared, prepared_validation
from tfdp.training.steering import checked_callbacks
from tfdp.training.step import frozen_step, private_step
from tfdp.training.train_function import Steps
from tfdp.training.training import Training

STARTS = ("assumed", "public")


class _Privacy:
    """Settings and state of a private model; a plain object, so that no file holds it."""

    def __init__(self):
        self.engine = "auto"
        self.physical_batch_size = None
        self.feeder = Feeder(None)
        self.public_preprocessing = ()
        self.account = Account()  # becomes the account of the weights once the model has any
        self.training: Training | None = None  # the one that runs
        self.watch = None  # called with every lot before its step (`auditing.record`)
        self.optimizer_state = None  # variables from a file, for the next compile
        self.diagnostics = Diagnostics()


class PrivateTraining(SavedWithLedger):
    """Mixin that gives a Keras model a private `train_step`; use `make_private` or `DPModel`."""

    # -- configuration ---------------------------------------------------------------------------

    @property
    def _privacy(self) -> _Privacy:
        if "_tfdp_privacy" not in self.__dict__:
            # Setting `__dict__` avoids Keras' attribute tracking: nothing in here may be saved.
            self.__dict__["_tfdp_privacy"] = _Privacy()
        return self.__dict__["_tfdp_privacy"]

    @property
    def privacy(self) -> ModelPrivacy:
        """What was spent on the weights, the budget, the ledger, the statement and the release."""
        return ModelPrivacy(self)

    def _configure_privacy(
        self,
        *,
        engine: str = "auto",
        physical_batch_size: int | None = None,
        budget: PrivacyBudget | None = None,
        seed: int | None = None,
        start: str | None = None,
        public_preprocessing=(),
    ):
        """Sets how this model trains privately, and returns it; `make_private` has the arguments."""
        physical_batch_size = whole("physical_batch_size", physical_batch_size, 1, optional=True)
        one_of("engine", engine, ENGINES)
        one_of("start", start, STARTS, optional=True)
        privacy, account = self._privacy, self._account
        privacy.engine = engine
        privacy.physical_batch_size = physical_batch_size
        privacy.feeder = Feeder(seed)
        privacy.public_preprocessing = public_preprocessing
        if start == "public":
            account.declare_public()
        elif start is not None:
            account.start = start
        self._enter_unknown_steps(declared=start == "public")
        if budget is not None:
            _refuse_larger(budget, account.ledger.budgets)
            account.ledger.add_budget(budget)
        if account.session is not None:
            account.session.limit_steps()
        self.train_function = None
        return self

    def _enter_unknown_steps(self, declared):
        """Enters the steps on these weights that an optimizer has counted and no ledger contains.

        Args:
            declared: whether the user says now that they were on public data.
        """
        account = self._account
        for model in (self, *layers_of(self)):
            optimizer = getattr(model, "optimizer", None)
            if not isinstance(optimizer, keras.optimizers.Optimizer):
                continue
            steps = int(optimizer.iterations.numpy())
            if isinstance(optimizer, DPKerasOptimizer):
                steps -= known_steps(account.ledger)
            if declared:
                vars(optimizer)[DECLARED] = steps
            if steps > vars(optimizer).get(DECLARED, 0):
                account.enter_unaccounted(
                    f"Weights of '{model.name}' were trained for {steps} steps by the optimizer "
                    f"{type(optimizer).__name__}, and no ledger accounts for them. If that was on "
                    "public data, say so: make_private(model, start='public')."
                )

    def compile(self, *args, **kwargs):
        """`keras.Model.compile`, or that of the user's class; the optimizer has to be a private one."""
        super().compile(*args, **kwargs)
        check_optimizer(self, self.optimizer)
        account = self._account
        if account.session is not None and account.session.optimizer is not self.optimizer:
            account.close_session()
        self._restore_optimizer()

    # -- entry points ----------------------------------------------------------------------------

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_batch_size=None,
        **kwargs,
    ):
        """Trains privately; the arguments are those of `keras.Model.fit`.

        Arrays are drawn in Poisson lots of nominal size `batch_size` (with `shuffle=False`: in
        epochs of fixed order). `tfdp.data.Lots`, or a dataset made from `Lots`, keep their own
        sampling scheme. Any other `tf.data.Dataset`, `keras.utils.PyDataset`, generator or iterable of
        batches is accounted without amplification by sampling; no batch may be larger than the first.
        """
        check_optimizer(self, getattr(self, "optimizer", None))
        self._refuse_nested()
        x, y, sample_weight = prepared(self, x, y, sample_weight)
        validation_data = prepared_validation(self, validation_data)
        feed = self._privacy.feeder.feed(
            self,
            x,
            y,
            batch_size=batch_size,
            shuffle=shuffle,
            class_weight=class_weight,
            sample_weight=sample_weight,
            validation_split=validation_split,
            validation_data=validation_data,
            physical_batch_size=self._privacy.physical_batch_size,
            steps_per_epoch=steps_per_epoch,
            turn=self._account.next_turn,
        )
        build_for(self, feed.dataset)
        backup = backup_among(callbacks)
        callbacks = checked_callbacks(self, callbacks)
        safe = contextlib.nullcontext(Place(initial_epoch))
        if backup is not None:
            safe = backup.attached(self, self._account, feed, initial_epoch, epochs)
        with safe as place:
            feed = placed(feed, place, self._account.next_turn)
            plan = feed.planned(epochs - place.epoch, place.step)
            arguments = dict(epochs=epochs - place.epoch, place=place, backup=backup)
            with self._training(plan, feed, **arguments) as training:
                history = past_preparation(self, PrivateTraining, "fit")(
                    feed.dataset if feed.adapter is None else feed.adapter,
                    shuffle=False,  # the lots are drawn already
                    epochs=epochs,
                    verbose=verbose,
                    callbacks=callbacks,
                    validation_data=feed.validation_data,
                    initial_epoch=place.epoch,
                    steps_per_epoch=feed.steps_per_epoch,
                    validation_batch_size=validation_batch_size or batch_size,
                    **kwargs,
                )
                training.end(self.stop_training)
            return history if backup is None else backup.with_earlier_epochs(history)

    @contextlib.contextmanager
    def _training(self, plan, feed=None, **arguments):
        """Context of a training, whose steps `train_function` may take; see `Training.running`."""
        privacy = self._privacy
        self._refuse_nested()
        self._check_trainable()
        privacy.training = Training(self, self._account, plan, feed, **arguments)
        try:
            with privacy.training.running() as training:
                yield training
        finally:
            privacy.training = None

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """Takes one private step on one batch, accounted without amplification by sampling."""
        self._refuse_nested()
        x, y, sample_weight = in_floatx(prepared(self, x, y, sample_weight))
        lot_size = int(all_arrays(x)[0].shape[0])
        check_targets(self, y)
        build_for(self, x)
        check_tokens(self, x)
        plan = Plan(
            sampling="unknown",
            num_examples=lot_size,
            lot_size=lot_size,
            physical_batch_size=self._privacy.physical_batch_size,
        )
        with self._training(plan):
            train_on_batch = past_preparation(self, PrivateTraining, "train_on_batch")
            return train_on_batch(x, y, sample_weight=sample_weight, **kwargs)

    def _check_trainable(self):
        optimizer = self.optimizer
        check_optimizer(self, optimizer)
        if not self.built:
            raise ValueError(
                f"Model '{self.name}' is not built, so its layers cannot be checked. Expected a "
                "model with an Input layer, or one that was called once on data."
            )
        refuse_own_train_step(self, PrivateTraining)
        optimizer.check_class()
        refuse_mixing_layers(self, self._privacy.public_preprocessing)

    def _refuse_nested(self):
        if self._privacy.training is not None:
            raise RuntimeError(
                "Another training of these weights was started while fit() runs. Expected fit() and "
                "train_on_batch() one after the other, and no training by callbacks or other threads."
            )

    # -- the step --------------------------------------------------------------------------------

    def make_train_function(self, force=False):
        """Makes the function that Keras calls for every execution; it authorizes its steps first."""
        if self.train_function is not None and not force:
            return
        steps_of = Steps(self)

        def train_function(iterator):
            return self._running_training().execute(iterator, steps_of)

        self.train_function = train_function

    def _running_training(self) -> Training:
        training = self._privacy.training
        if training is None:
            raise RuntimeError(
                "A step was started by something that does not know how its lot was drawn. Expected "
                "model.fit(...) or model.train_on_batch(...); for a loop of your own there is "
                "model.privacy.steps(...)."
            )
        return training

    def train_step(self, data):
        """Takes one private step on one lot; only `fit` and the like may call it.

        Raises:
            RuntimeError: something else called it.
        """
        privacy, session = self._privacy, self._session
        self._running_training()
        if not self.trainable_variables:
            return frozen_step(self, data)
        if privacy.watch is not None:
            privacy.watch(data)
        # Again for each trace: a callback may have unfrozen a layer since the fit began.
        with tf.init_scope():  # it reads values of layers, which have none inside of a trace
            refuse_mixing_layers(self, privacy.public_preprocessing)
        return private_step(self, session, data, privacy.engine, privacy.diagnostics)

    def get_metrics_result(self):
        """As Keras has it; nothing where an epoch ended before a resumed training took a step."""
        training = self._privacy.training
        behind = training is not None and training.behind
        return {} if behind else super().get_metrics_result()


def _refuse_larger(budget, known):
    for other in known:
        same = dataclasses.replace(other, epsilon=budget.epsilon) == budget
        if same and other.epsilon < budget.epsilon:
            raise ValueError(
                f"These weights have a budget of epsilon {other.epsilon:g} already. Expected a smaller "
                f"one. Received {budget.epsilon:g}. To raise it on purpose, and for every model that "
                "shares these weights, set model.privacy.budget."
            )
