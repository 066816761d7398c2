"""The mixin that makes the training step of a Keras model private.

Formal guarantee: the weights change only by `DPKerasOptimizer.update`, once per lot, from one bounded
sum of gradients; every step is counted before it is computed, and a step beyond the budget is
refused. Anything that would train another way raises.
"""

import contextlib
import dataclasses
import warnings

import keras
import tensorflow as tf

from tfdp._compat.keras import layers_of
from tfdp._validate import one_of, whole
from tfdp.account import DECLARED, Account
from tfdp.accounting import PrivacyBudget, Run
from tfdp.data.arrays import all_arrays, in_floatx
from tfdp.gradients.diagnostics import Diagnostics
from tfdp.gradients.lot import ENGINES
from tfdp.optimizers import DPKerasOptimizer
from tfdp.session import OPEN_ENDED, Plan, Session
from tfdp.training.accounted_weights import with_epochs
from tfdp.training.backup import backup_among, kept_safe, past_steps_behind
from tfdp.training.batches import said_plainly
from tfdp.training.building import build_for, build_for_lots
from tfdp.training.checks import (
    check_optimizer,
    refuse_mixing_layers,
    refuse_own_train_step,
)
from tfdp.training.chosen_ends import Progress, keeps_the_best, refuse_unknown_plan
from tfdp.training.feeding import Feeder, check_targets, placed
from tfdp.training.files import SavedWithLedger
from tfdp.training.model_privacy import EARLIER_NAMES, ModelPrivacy
from tfdp.training.planning import planned_fields
from tfdp.training.preparing import past_preparation, prepared, prepared_validation
from tfdp.training.steering import names_of_metrics
from tfdp.training.step import frozen_step, private_step, refuse_replicas
from tfdp.training.train_function import Epoch, comes_from, in_steps, lean

STARTS = ("assumed", "public")


class _Privacy:
    """Settings and state of a private model; a plain object, so that no file holds it."""

    def __init__(self):
        self.engine = "auto"
        self.physical_batch_size = None
        self.feeder = Feeder(None)
        self.account = Account()  # becomes the account of the weights once the model has any
        self.feed = None  # the `Feed` of the running fit
        self.plan = None  # the plan of the running fit, until its first step
        self.epoch = Epoch()  # the steps that the running epoch has left
        self.batch = False  # whether train_on_batch may run its one step
        self.feeding = False  # whether a step of fit or train_on_batch is running
        self.passes_by = False  # whether the last steps of fit lay behind and were not taken
        self.progress = None  # what the running fit has taken of its plan (`Progress`)
        self.stops = False  # whether a callback has decided that training ends
        self.backup = None  # the callback that keeps the running fit safe from crashes
        self.watch = None  # called with every lot before its step (`auditing.record`)
        # Whether Keras is making the train function; the function that counts steps (or None).
        self.making, self.guarded = False, None
        self.public_preprocessing = ()
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

    def __getattr__(self, name):
        # Only names that nothing else defines arrive here, so that they shadow no member of a user's.
        if name in EARLIER_NAMES:
            new = EARLIER_NAMES[name]
            warnings.warn(
                f"model.{name} is called model.privacy.{new} now.", DeprecationWarning, stacklevel=2
            )
            return getattr(self.privacy, new)
        inherited = getattr(super(), "__getattr__", None)
        if inherited is not None:
            return inherited(name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

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
                steps -= optimizer.known_steps(account.ledger)
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

    @said_plainly()
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
            turn=self.optimizer.next_turn,
        )
        build_for_lots(self, feed.dataset)
        backup, privacy = backup_among(callbacks), self._privacy
        chosen_among = keeps_the_best(callbacks)
        if chosen_among:
            refuse_unknown_plan(feed.steps)
        callbacks = with_epochs(self, callbacks, names_of_metrics(self))
        with kept_safe(backup, self, feed, initial_epoch, epochs) as place:
            feed = placed(feed, place, self.optimizer.next_turn)
            plan = feed.planned(epochs - place.epoch, place.step)
            progress = Progress(plan.steps, epochs - place.epoch, place.step, privacy.epoch)
            self._begin(plan)
            progress.note(self._session)
            privacy.plan, privacy.feed, privacy.epoch.steps = plan, feed, feed.steps
            privacy.epoch.longest = None if backup is None else backup.longest_epoch
            privacy.backup, privacy.progress = backup, progress
            self._account.chosen_among = chosen_among
            self._account.chosen_end = lambda: (progress.session, progress.left_out())
            callbacks = past_steps_behind(
                callbacks, self, place, verbose=verbose, epochs=epochs, steps=feed.steps
            )
            try:
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
                return history if backup is None else backup.with_earlier_epochs(history)
            finally:
                self._account.chosen_end = lambda: (None, 0)
                privacy.plan = privacy.feed = privacy.backup = privacy.progress = None
                if left := progress.left_out():
                    self._account.count_left_out(left, progress.session)
                privacy.passes_by = False
                self._account.chosen_among = False

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """Takes one private step on one batch, accounted without amplification by sampling."""
        self._refuse_nested()
        x, y, sample_weight = in_floatx(prepared(self, x, y, sample_weight))
        lot_size = int(all_arrays(x)[0].shape[0])
        check_targets(self, y)
        build_for(self, x)
        plan = Plan(
            sampling="unknown",
            num_examples=lot_size,
            lot_size=lot_size,
            physical_batch_size=self._privacy.physical_batch_size,
        )
        self._begin(plan)
        self._privacy.batch = True
        try:
            train_on_batch = past_preparation(self, PrivateTraining, "train_on_batch")
            return train_on_batch(x, y, sample_weight=sample_weight, **kwargs)
        finally:
            self._privacy.batch = False

    def _refuse_nested(self):
        if self._privacy.feed is not None or self._privacy.feeding:
            raise RuntimeError(
                "Another training of these weights was started while fit() runs. Expected fit() and "
                "train_on_batch() one after the other, and no training by callbacks or other threads."
            )

    # -- accounting ------------------------------------------------------------------------------

    def _begin(self, plan: Plan):
        """Opens a session for the steps that `plan` describes, or goes on with the open session."""
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
        refuse_replicas(self.distribute_strategy)
        account, variables = self._account, self.trainable_variables
        if not variables:
            warnings.warn("The model does not have any trainable weights.", stacklevel=3)
            account.close_session()
            self.train_function = None
            return
        if not optimizer.built:
            optimizer.build(variables)
        optimizer.check_ledger(account.ledger)
        fields = planned_fields(self, plan, optimizer, account.start)
        self._open(account, plan, fields, variables)
        account.session.limit_steps()

    def _open(self, account, plan, fields, variables):
        optimizer, session = self.optimizer, account.session
        goes_on = (
            session is not None
            and session.continues_with(fields, plan, optimizer, variables)
            and optimizer.continues(session)
        )
        resumed = None if goes_on else optimizer.resume(plan, fields, variables)
        if goes_on:
            first, done = session.first_iteration, session.spent
        elif resumed is not None:
            first, done = resumed.first_iteration, resumed.steps
        else:
            first, done = int(optimizer.iterations.numpy()), 0
        if plan.start and plan.start != done % plan.lots.steps_per_epoch:
            raise RuntimeError(
                "A callback changed the weights of a training that goes on in the middle of an epoch, "
                "and a new run begins with an epoch. Expected the weights of the saved state. Leave "
                "out the callback."
            )
        steps = plan.steps
        if steps is None:
            steps = 1 if goes_on and done < session.run.steps else OPEN_ENDED
            if optimizer.described_steps is not None:
                steps = max(1, min(steps, optimizer.described_steps - done))
        if goes_on and done + steps <= session.run.steps:
            return
        known = session.run if goes_on else None
        known = known if resumed is None else resumed.run
        tables = optimizer.tables(variables, first, done + steps, known)
        run = Run(steps=done + steps, **tables, **fields)
        if goes_on:
            session.extend(run)
            if tables:
                self.train_function = None  # the traced step holds the old table as a constant
            return
        account.close_session()
        account.session = Session(
            account.ledger,
            run,
            plan,
            fields,
            optimizer,
            variables,
            first,
            None if resumed is None else resumed.run_id,
        )
        if resumed is None:
            optimizer.begin(account.session)
        self.train_function = None  # a step is traced for one session

    def make_train_function(self, force=False):
        """Wraps Keras' train function so that steps are counted, or refused, before they run."""
        if self.train_function is not None and not force:
            return
        privacy = self._privacy
        inner = in_steps(self, self._uncounted_function)

        def guarded(iterator):
            from_batch = privacy.batch
            self._check_feed(iterator)
            if privacy.feeding:
                raise RuntimeError("Two steps at a time. Expected one training in one thread.")
            steps = 1 if from_batch else privacy.epoch.next_execution(self.steps_per_execution)
            backup = None if from_batch else privacy.backup
            if backup is not None and backup.behind:
                steps -= self._pass_by(iterator, backup, steps)
                if not steps:
                    return {}
            privacy.passes_by = False
            if privacy.plan is not None:
                # Between the beginning of fit and its first step, callbacks may have restored weights
                # or a ledger, so the session is opened anew.
                plan, privacy.plan = privacy.plan, None
                self._begin(plan)
                self._note_session()
                if self.train_function is not guarded:
                    self.make_train_function()
                    return self.train_function(iterator)
            session = self._session
            if session is None and not self.trainable_variables:
                privacy.epoch.count(steps)
                with _flag(privacy):
                    return inner(iterator, steps)  # `frozen_step`, which changes no weight
            if session is None:
                raise RuntimeError(
                    "The ledger entry of this training is closed, so no step can be accounted under "
                    "it. Expected fit() or train_on_batch() to be called anew."
                )
            if not from_batch and self._extend(session, steps):
                return self.train_function(iterator)
            session.authorize(steps)
            if backup is not None:
                backup.before(session, steps)
            privacy.epoch.count(steps)
            with _flag(privacy):
                return inner(iterator, steps)

        privacy.guarded = guarded
        self.train_function = guarded

    def _pass_by(self, iterator, backup, steps):
        """Passes by the next steps of an epoch that lie behind it; returns how many."""
        steps, passed = min(steps, backup.behind), 0
        try:
            if self._privacy.feed.plan.lots is None:
                while passed < steps:
                    next(iterator)  # a user's batches, which begin anew; they may end
                    passed += 1
            passed = steps
        finally:
            self._privacy.epoch.pass_by(passed)
            self._privacy.passes_by = True  # until a step is taken
            backup.pass_by(passed)
        return passed

    @property
    def stop_training(self) -> bool:
        """Whether a callback has decided that training ends, as Keras has it."""
        return self._privacy.stops

    @stop_training.setter
    def stop_training(self, stops):
        privacy = self._privacy
        privacy.stops = bool(stops)
        if privacy.progress is not None:
            privacy.progress.decide(privacy.stops)

    def get_metrics_result(self):
        """As Keras has it; nothing where the steps of the epoch have lain behind until now."""
        return {} if self._privacy.passes_by else super().get_metrics_result()

    def _extend(self, session, steps):
        """Describes further steps of a fit whose length is unknown; returns whether a trace is void."""
        feed, function = self._privacy.feed, self.train_function
        unknown = feed.steps is None and self.optimizer.described_steps is None
        if not unknown or session.authorized + steps <= session.run.steps:
            return False
        self._begin(dataclasses.replace(feed.plan, steps=OPEN_ENDED))
        self._note_session()
        self.make_train_function()
        return self.train_function is not function

    def _note_session(self):
        if self._privacy.progress is not None:  # in `fit`, and not in a loop of one's own
            self._privacy.progress.note(self._session)

    def _uncounted_function(self):
        privacy = self._privacy
        privacy.making = True
        try:
            super().make_train_function(force=True)
        finally:
            privacy.making = False
        return lean(self, self.train_function)

    @property
    def train_function(self):
        """The function that Keras calls for every step; only `make_train_function` sets it."""
        return self.__dict__.get("_tfdp_train_function")

    @train_function.setter
    def train_function(self, function):
        privacy = self._privacy
        if not (function is None or privacy.making or function is privacy.guarded):
            raise AttributeError(
                "The train function of a private model counts its steps, so it cannot be exchanged. "
                "Expected model.fit(...) or model.train_on_batch(...) as they are."
            )
        self.__dict__["_tfdp_train_function"] = function

    def _check_feed(self, iterator):
        """Refuses batches that come neither from fit's lots nor from train_on_batch."""
        privacy = self._privacy
        if privacy.batch:
            privacy.batch = False  # for one call
            return
        if privacy.feed is None or not comes_from(iterator, privacy.feed.dataset):
            raise RuntimeError(
                "The train function was given batches that fit() did not draw, so nothing is known "
                "about their sampling. Expected model.fit(...) or model.train_on_batch(...) of this "
                "private model, not keras.Model.fit or model.train_function."
            )

    # -- the step --------------------------------------------------------------------------------

    def train_step(self, data):
        """Takes one private step on one lot; only `fit` and `train_on_batch` may call it.

        Raises:
            RuntimeError: something else called it.
        """
        privacy, session = self._privacy, self._session
        if privacy.feeding and not self.trainable_variables:
            return frozen_step(self, data)
        if session is None or not privacy.feeding:
            raise RuntimeError(
                "train_step was called by something that does not know how lots are drawn. Expected "
                "model.fit(...), or model.train_on_batch(...) in a loop of your own."
            )
        if privacy.watch is not None:
            privacy.watch(data)
        # Again for each trace: a callback may have unfrozen a layer since the fit began.
        with tf.init_scope():  # it reads values of layers, which have none inside of a trace
            refuse_mixing_layers(self, privacy.public_preprocessing)
        return private_step(self, session, data, privacy.engine, privacy.diagnostics)


@contextlib.contextmanager
def _flag(privacy):
    privacy.feeding = True
    try:
        yield
    finally:
        privacy.feeding = False


def _refuse_larger(budget, known):
    for other in known:
        same = dataclasses.replace(other, epsilon=budget.epsilon) == budget
        if same and other.epsilon < budget.epsilon:
            raise ValueError(
                f"These weights have a budget of epsilon {other.epsilon:g} already. Expected a smaller "
                f"one. Received {budget.epsilon:g}. To raise it on purpose, and for every model that "
                "shares these weights, set model.privacy.budget."
            )
