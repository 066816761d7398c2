"""Keras models whose training step is private.

Formal guarantee: the weights change only by `DPKerasOptimizer.update`, once per lot, from one bounded
sum of gradients; every step is counted before it is computed, and a step beyond the budget is
refused. Anything that would train another way raises.
"""

import contextlib
import dataclasses
import math

import keras
import tensorflow as tf

from tfdp import _backend  # noqa: F401
from tfdp.accounting import (
    Guarantee,
    Ledger,
    PrivacyBudget,
    Run,
    claimed_composition,
    proven_composition,
    statement,
)
from tfdp.feeding import Feeder, check_labels
from tfdp.gradients.diagnostics import Diagnostics
from tfdp.gradients.engine import ENGINES, bounded_sum, choose_engine
from tfdp.gradients.forward import Forward
from tfdp.gradients.precision import keep_float32_products
from tfdp.gradients.validation import refuse_mixing_layers
from tfdp.layers.public import public_layers, uses_batch_statistics
from tfdp.optimizers import DPKerasOptimizer
from tfdp.spending import OPEN_ENDED, Entry, Plan
from tfdp.train_function import lean


class _Privacy:
    """Settings of a private model; a plain object, so that no file holds it."""

    def __init__(self):
        self.engine = "auto"
        self.physical_batch_size = None
        self.budget = None
        self.feeder = Feeder(None)
        self.optimizer = None  # whose ledger knows what was spent so far
        self.plan = None  # of the fit that was started and has not done a step
        self.feeding = False  # whether fit or train_on_batch, which know the sampling, run the step
        self.diagnostics = Diagnostics()


class PrivateTraining:
    """Mixin that gives a Keras model a private `train_step`; use `make_private` or `DPModel`."""

    # -- configuration ---------------------------------------------------------------------------

    @property
    def _privacy(self) -> _Privacy:
        if "_tfdp_privacy" not in self.__dict__:
            # Past Keras' attribute tracking: nothing in here may be saved.
            self.__dict__["_tfdp_privacy"] = _Privacy()
        return self.__dict__["_tfdp_privacy"]

    def configure_privacy(
        self,
        *,
        engine: str = "auto",
        physical_batch_size: int | None = None,
        budget: PrivacyBudget | None = None,
        seed: int | None = None,
    ):
        """Sets how this model trains privately; see `make_private` for the arguments."""
        if physical_batch_size is not None and not physical_batch_size >= 1:
            raise ValueError(
                "Invalid value received for argument `physical_batch_size`. Expected None or an "
                f"integer >= 1. Received: {physical_batch_size!r}"
            )
        if engine not in ENGINES:
            raise ValueError(
                "Invalid value received for argument `engine`. Expected one of "
                f"{list(ENGINES)}. Received: {engine!r}"
            )
        privacy = self._privacy
        privacy.engine = engine
        privacy.physical_batch_size = physical_batch_size
        privacy.budget = budget
        privacy.feeder = Feeder(seed)
        if self._entry is not None:
            self._entry.limit_to(budget)
        self.train_function = None
        return self

    def compile(
        self,
        optimizer=None,
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        **kwargs,
    ):
        """`keras.Model.compile`; the optimizer has to be a private one.

        All metrics are weighted, because the rows that pad a lot have weight zero.
        """
        if isinstance(optimizer, (str, dict)):
            optimizer = keras.optimizers.get(optimizer)
        _check_optimizer(self, optimizer)
        if metrics is not None and weighted_metrics is not None:
            raise ValueError(
                "Private training weights every metric, since padding rows have weight zero. "
                "Expected either `metrics` or `weighted_metrics`. Received both."
            )
        super().compile(
            optimizer,
            loss=loss,
            loss_weights=loss_weights,
            weighted_metrics=metrics if weighted_metrics is None else weighted_metrics,
            **kwargs,
        )
        _check_optimizer(self, self.optimizer)
        self._settle()

    def compile_from_config(self, config):
        """Compiles a model that is loaded; Keras would not, since `compile` is ours."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)

    # -- what was spent --------------------------------------------------------------------------

    @property
    def _entry(self) -> Entry | None:
        return getattr(getattr(self, "optimizer", None), "entry", None)

    def _settle(self) -> Ledger:
        """The optimizer's ledger, after it took over what the one before it had spent."""
        privacy, optimizer = self._privacy, self.optimizer
        before = privacy.optimizer
        if before is not optimizer:
            privacy.optimizer = optimizer
            if before is not None:
                if before.entry is not None:
                    before.entry.close()
                optimizer.ledger.merge(before.ledger)
        return optimizer.ledger

    @property
    def ledger(self) -> Ledger:
        """Every private step ever taken on these weights, as far as the optimizer was saved."""
        _check_optimizer(self, getattr(self, "optimizer", None))
        return self._settle()

    def privacy_spent(
        self, delta: float, kind: str = "proven", adjacency: str = "zero_out"
    ) -> Guarantee:
        """The guarantee for everything trained so far.

        Args:
            delta: in (0, 1).
            kind: "proven" or "claimed".
            adjacency: "zero_out", "replace_one" or "add_or_remove_one".
        """
        compose = {"proven": proven_composition, "claimed": claimed_composition}[kind]
        return compose(self.ledger.runs, delta, adjacency)

    def privacy_statement(self, delta: float, adjacency: str = "zero_out") -> str:
        """Both guarantees, what they rest on and what they do not cover, in words."""
        return statement(self.ledger.runs, delta, adjacency)

    @property
    def current_run(self) -> Run | None:
        """What the training that runs, or ran last, is accounted as; its steps are those planned."""
        return None if self._entry is None else self._entry.run

    @property
    def planned_steps(self) -> int:
        """Steps that the open ledger entry will have when the current fit is done."""
        return 0 if self._entry is None else self._entry.run.steps

    @property
    def steps_taken(self) -> int:
        """Steps of the open ledger entry so far."""
        return 0 if self._entry is None else self._entry.spent

    @property
    def steps_left(self) -> float:
        """Steps that the budget still allows; infinite without a budget."""
        return math.inf if self._entry is None else self._entry.left

    @property
    def earlier_runs(self) -> list[Run]:
        """How these weights were trained privately before the open ledger entry."""
        return self.ledger.runs if self._entry is None else self._entry.earlier()

    @property
    def has_earlier_spending(self) -> bool:
        """Whether these weights were trained privately before the open ledger entry."""
        return bool(self.earlier_runs)

    def privacy_diagnostics(self, reset: bool = False) -> dict[str, float]:
        """Means since the last reset: fraction clipped, median gradient norm, noise to signal.

        They are computed from private gradients without noise: for the person who trains, not for
        release.
        """
        return self._privacy.diagnostics.result(reset)

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
        **kwargs,
    ):
        """Trains privately; the arguments are those of `keras.Model.fit`.

        Arrays are drawn in Poisson lots of nominal size `batch_size` (with `shuffle=False`: in
        epochs of fixed order). `tfdp.data.Lots`, or the dataset of one, are drawn as they say. Any
        other `tf.data.Dataset` is accounted without amplification by sampling; its batches need
        one static size.
        """
        _check_optimizer(self, getattr(self, "optimizer", None))
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
        # Keras starts whole executions, also where an epoch ends within one.
        executions = -(-feed.steps // self.steps_per_execution)
        steps = max(0, epochs - initial_epoch) * executions * self.steps_per_execution
        plan = dataclasses.replace(feed.plan, steps=steps)
        self._begin(plan)
        self._privacy.plan = plan
        try:
            return super().fit(
                feed.dataset,
                shuffle=False,  # the lots are drawn already
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_data=feed.validation_data,
                initial_epoch=initial_epoch,
                steps_per_epoch=feed.steps_per_epoch,
                **kwargs,
            )
        finally:
            self._privacy.plan = None

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """One private step on one batch, accounted without amplification by sampling."""
        lot_size = int(tf.nest.flatten(x)[0].shape[0])
        check_labels(self, y)
        plan = Plan(
            sampling="unknown",
            num_examples=lot_size,
            lot_size=lot_size,
            physical_batch_size=self._privacy.physical_batch_size,
        )
        self._begin(plan)
        return super().train_on_batch(x, y, sample_weight=sample_weight, **kwargs)

    # -- accounting ------------------------------------------------------------------------------

    def _begin(self, plan: Plan):
        """Opens a ledger entry for what is about to run, or goes on with the open one."""
        privacy, optimizer = self._privacy, self.optimizer
        _check_optimizer(self, optimizer)
        if not self.built:
            raise ValueError(
                f"Model '{self.name}' is not built, so its layers cannot be checked. Expected a "
                "model with an Input layer, or one that was called once on data."
            )
        refuse_mixing_layers(self)
        keep_float32_products()
        _refuse_replicas(self.distribute_strategy)
        if getattr(self._compile_metrics, "_user_metrics", None):
            raise ValueError(
                f"Model '{self.name}' was compiled before it was made private, so its metrics would "
                "count padding rows. Expected model.compile(...) after make_private(model)."
            )
        variables = self.trainable_variables
        if not optimizer.built:
            optimizer.build(variables)
        microbatch_size = optimizer.microbatch_size(plan.lot_size)
        if plan.physical_batch_size is not None and plan.physical_batch_size % microbatch_size:
            raise ValueError(
                "Invalid value received for argument `physical_batch_size`. Expected a multiple of "
                f"the microbatch size {microbatch_size}. Received: {plan.physical_batch_size}"
            )
        ledger, entry = self._settle(), self._entry
        iteration = int(optimizer.iterations.numpy())
        known = sum(run.steps for run in ledger.runs)
        if iteration > known:
            raise ValueError(
                f"The optimizer has taken {iteration} steps, and its ledger knows of {known}: it was "
                "restored from something that holds no ledger, such as a tf.train.Checkpoint. Save "
                "with model.save or model.save_weights, or keep model.ledger.to_json() beside the "
                "checkpoint and merge it: model.ledger.merge(Ledger.from_json(text))."
            )
        fields = dict(
            num_examples=plan.num_examples,
            lot_size=plan.lot_size,
            sampling=plan.sampling,
            groups=plan.groups,
            microbatch_size=microbatch_size,
            batch_statistics=uses_batch_statistics(self),
            public_examples=sum(layer.count for layer in public_layers(self)),
            **optimizer.run_fields(variables),
        )
        fields["seeded"] |= plan.seeded
        identity = (fields, plan.physical_batch_size, [id(v) for v in variables])
        first, done = iteration, 0
        goes_on = (
            entry is not None
            and entry.identity == identity
            and entry.first_iteration == iteration - entry.spent
            and entry.goes_on_with(plan)
            and optimizer.continues(variables)
        )
        resumed = None
        if goes_on:
            first, done = entry.first_iteration, entry.spent
        else:
            resumed = optimizer.resume(plan, fields, variables)
        if resumed is not None:
            first, done = resumed.first_iteration, resumed.steps
        steps = plan.steps
        if steps is None:
            steps = 1 if goes_on and done < entry.run.steps else OPEN_ENDED
        if not goes_on or done + steps > entry.run.steps:
            rates = optimizer.learning_rates(first, done + steps)
            run = Run(steps=done + steps, learning_rates=rates, **fields)
        if not goes_on:
            if entry is not None:
                entry.close()
            if resumed is None:
                optimizer.start_segment(variables)
            entry = Entry(ledger, run, plan, first, identity, resumed and resumed.run_id)
            optimizer.entry = entry
            self.train_function = None  # the step is traced for one entry
        elif done + steps > entry.run.steps:
            entry.extend(run)
        entry.limit_to(privacy.budget)

    def make_train_function(self, force=False):
        """Wraps Keras' train function: steps are counted, or refused, before they run."""
        if self.train_function is not None and not force:
            return
        super().make_train_function(force=True)
        inner, privacy = lean(self, self.train_function), self._privacy

        def guarded(iterator):
            if privacy.plan is not None:
                # Callbacks run between fit's beginning and the first step, and may have restored
                # weights or a ledger.
                plan, privacy.plan = privacy.plan, None
                self._begin(plan)
                if self.train_function is not guarded:
                    self.make_train_function()
                    return self.train_function(iterator)
            self._entry.authorize(self.steps_per_execution)
            with _flag(privacy):
                return inner(iterator)

        self.train_function = guarded

    # -- the step --------------------------------------------------------------------------------

    def train_step(self, data):
        """One private step on one lot.

        `fit` and `train_on_batch` call it. A loop of one's own may do so after a `train_on_batch` with
        the same number of rows has told the accounting what to expect: no amplification.
        """
        privacy, optimizer, entry = self._privacy, self.optimizer, self._entry
        _refuse_replicas(tf.distribute.get_strategy())
        if entry is None or not (privacy.feeding or entry.run.sampling == "unknown"):
            raise RuntimeError(
                "train_step was called by something that does not know how lots are drawn. Expected "
                "model.fit(...) or model.train_on_batch(...); a loop of your own may call train_step "
                "once train_on_batch has opened a ledger entry for it."
            )
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if sample_weight is None:
            sample_weight = tf.ones([tf.shape(tf.nest.flatten(x)[0])[0]], tf.float32)
        sample_weight = tf.cast(tf.convert_to_tensor(sample_weight), tf.float32)
        if sample_weight.shape.rank != 1:
            raise ValueError(
                "Expected one sample weight per example, shape (rows,). Received shape "
                f"{sample_weight.shape}."
            )
        x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
        forward = Forward(self)
        before = forward.state()
        lot = bounded_sum(
            choose_engine(privacy.engine, self),
            forward,
            optimizer.bound(forward.variables),
            x,
            y,
            sample_weight,
            physical_batch_size=entry.plan.physical_batch_size,
            microbatch_size=entry.run.microbatch_size,
            expected_rows=entry.run.lot_size,
        )

        penalty = forward.penalty()

        def update():
            forward.advance(before, lot.state)
            groups = entry.run.lot_size // entry.run.microbatch_size
            optimizer.update(lot, groups, forward.variables, forward.regularization())
            return tf.constant(True)

        # Only the update touches weights, and it waits for the count, which waits for the data: where
        # they have ended, no step is taken.
        with tf.control_dependencies(tf.nest.flatten(x)):
            allowed = entry.count()
        if tf.executing_eagerly():
            if not allowed:
                entry.refuse()
            update()
        else:
            # The host refuses first (`guarded`). A loop that calls this step by itself gets the
            # error from the assertion, or, under XLA, which drops assertions, an unchanged model.
            message = "No further step is allowed: the privacy budget is exhausted, or the ledger "
            message += "entry that this function was traced for is closed."
            tf.debugging.Assert(allowed, [message])
            tf.cond(allowed, update, lambda: tf.constant(False))
        privacy.diagnostics.update(lot, optimizer.noise_multiplier)
        weights = tf.cast(tf.not_equal(sample_weight, 0.0), tf.float32)
        for metric in self.metrics:
            if metric.name == "loss":
                # What the model makes of a padding row may be NaN.
                losses = tf.math.multiply_no_nan(lot.losses, sample_weight)
                metric.update_state(losses + penalty, sample_weight=weights)
        logs = self.compute_metrics(x, y, lot.outputs, sample_weight=sample_weight)
        # Keras follows the losses of several outputs inside of the loss, which engines keep pure.
        untracked = {metric.name for metric in getattr(self._compile_loss, "metrics", ())}
        return {name: value for name, value in logs.items() if name not in untracked}


@contextlib.contextmanager
def _flag(privacy):
    privacy.feeding = True
    try:
        yield
    finally:
        privacy.feeding = False


def _refuse_replicas(strategy):
    if strategy.num_replicas_in_sync > 1:
        raise NotImplementedError(
            "Private training runs on one replica: with several, noise and sums would be counted "
            "once for each. Expected no tf.distribute strategy with more than one replica. Found "
            f"{strategy.num_replicas_in_sync}."
        )


def _check_optimizer(model, optimizer):
    if not isinstance(optimizer, DPKerasOptimizer):
        raise ValueError(
            f"Private model '{model.name}' needs a private optimizer, such as "
            "tfdp.DPKerasSGDOptimizer or tfdp.make_dp_optimizer_class(keras.optimizers.AdamW). "
            f"Received: {type(optimizer).__name__}. For training without privacy, use the plain "
            "Keras model."
        )
    policy = getattr(model, "dtype_policy", None)
    if policy is not None and policy.compute_dtype == "float16":
        raise ValueError(
            "The float16 policy needs loss scaling, which scales gradients before they are clipped. "
            "Expected float32 or mixed_bfloat16."
        )
