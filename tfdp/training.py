"""Keras models whose training step is private.

Formal guarantee: the weights change only by `DPKerasOptimizer.update`, once per lot, from one bounded
sum of gradients; every step is counted before it is computed, and a step beyond the budget is
refused. Anything that would train another way raises.
"""

import functools
import math

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp import _backend  # noqa: F401
from tfdp.accounting import (
    BudgetExhausted,
    Guarantee,
    Ledger,
    PrivacyBudget,
    Run,
    claimed_composition,
    max_steps,
    proven_composition,
    statement,
)
from tfdp.data import Lots, make_lots, row_multiple_for
from tfdp.gradients.diagnostics import Diagnostics
from tfdp.gradients.engine import ENGINES, bounded_sum, choose_engine
from tfdp.gradients.forward import Forward
from tfdp.gradients.validation import refuse_mixing_layers
from tfdp.optimizers import DPKerasOptimizer

_UNLIMITED = np.iinfo(np.int64).max
# Steps that a hand-written loop (train_on_batch) may take in one ledger entry.
_OPEN_ENDED = 10_000


class _Privacy:
    """Settings and counters of a private model; a plain object, so that no file holds it."""

    def __init__(self):
        self.engine = "auto"
        self.physical_batch_size = None
        self.budget = None
        self.seed = None
        self.lots = None  # the Lots of the open ledger entry, or None for foreign data
        self.source = None  # (arrays, settings) that `lots` was made from
        self.run = None  # the Run of the open ledger entry; its steps are the steps planned
        self.run_id = None
        self.authorized = 0  # steps of the open entry that were let through so far
        self.limit = _UNLIMITED  # the largest number of steps that the open entry may reach
        self.spent = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_spent")
        self.limit_variable = tf.Variable(_UNLIMITED, dtype=tf.int64, trainable=False)
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
        privacy.seed = seed
        privacy.lots = privacy.source = privacy.run = None
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

    # -- what was spent --------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """Every private step ever taken on these weights, as far as the optimizer was saved."""
        privacy = self._privacy
        ledger = self.optimizer.ledger
        if privacy.run_id is not None:
            ledger.record(privacy.run_id, int(privacy.spent.numpy()))
        return ledger

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
        return self._privacy.run

    @property
    def planned_steps(self) -> int:
        """Steps that the open ledger entry will have when the current fit is done."""
        return self._privacy.run.steps if self._privacy.run is not None else 0

    @property
    def steps_taken(self) -> int:
        """Steps of the open ledger entry so far."""
        return int(self._privacy.spent.numpy())

    @property
    def steps_left(self) -> float:
        """Steps that the budget still allows; infinite without a budget."""
        privacy = self._privacy
        return math.inf if privacy.limit == _UNLIMITED else privacy.limit - privacy.authorized

    @property
    def has_earlier_spending(self) -> bool:
        """Whether these weights were trained privately before the open ledger entry."""
        return any(
            run_id != self._privacy.run_id and run.steps for run_id, run in self.ledger.entries.items()
        )

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
        lots = x if isinstance(x, Lots) else getattr(x, "tfdp_lots", None)
        if lots is None and isinstance(x, tf.data.Dataset):
            return self._fit_foreign(
                x, epochs, initial_epoch, steps_per_epoch,
                verbose=verbose, callbacks=callbacks, validation_data=validation_data, **kwargs,
            )  # fmt: skip
        if lots is None:
            if y is None or isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__"):
                raise ValueError(
                    "Private training needs to know how its batches are drawn. Expected arrays x "
                    "and y, tfdp.data.Lots, or a tf.data.Dataset with drop_remainder=True. "
                    f"Received: x of type {type(x).__name__}, y of type {type(y).__name__}."
                )
            if validation_split:
                (x, y, sample_weight), validation_data = _split_validation(
                    x, y, sample_weight, validation_split, validation_data
                )
            self._check_labels(y)
            sample_weight = _with_class_weight(y, class_weight, sample_weight)
            lots = self._lots_of(x, y, sample_weight, batch_size or 32, shuffle)
        elif class_weight is not None or sample_weight is not None or validation_split:
            raise ValueError(
                "With Lots, give sample weights to the Lots and validation data as arrays. Expected "
                "no class_weight, sample_weight or validation_split."
            )
        steps_per_epoch = steps_per_epoch or lots.steps_per_epoch
        self._begin(
            lots,
            (epochs - initial_epoch) * steps_per_epoch,
            sampling=lots.sampling,
            num_examples=lots.num_examples,
            lot_size=lots.lot_size,
            seeded=lots.seeded,
        )
        return super().fit(
            lots.as_dataset(),
            shuffle=False,  # the lots are drawn already
            epochs=epochs,
            verbose=verbose,
            callbacks=callbacks,
            validation_data=validation_data,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            **kwargs,
        )

    def _fit_foreign(self, dataset, epochs, initial_epoch, steps_per_epoch, **kwargs):
        leaves = tf.nest.flatten(dataset.element_spec)
        lot_size = leaves[0].shape[0] if leaves and leaves[0].shape.rank else None
        if lot_size is None:
            raise ValueError(
                "The batches of this tf.data.Dataset have no static size, so a last, smaller batch "
                "would be divided by the wrong constant. Expected dataset.batch(n, "
                "drop_remainder=True), arrays, or tfdp.data.Lots."
            )
        batches = int(dataset.cardinality().numpy())
        steps = steps_per_epoch or (batches if batches > 0 else None)
        if steps is None:
            raise ValueError(
                "This tf.data.Dataset does not know its length. Expected the argument "
                "`steps_per_epoch`."
            )
        self._begin(
            None,
            (epochs - initial_epoch) * steps,
            sampling="unknown",
            num_examples=lot_size * (batches if batches > 0 else steps),
            lot_size=lot_size,
        )
        return super().fit(
            dataset,
            shuffle=False,
            epochs=epochs,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            **kwargs,
        )

    def train_on_batch(self, x, y=None, sample_weight=None, **kwargs):
        """One private step on one batch, accounted without amplification by sampling."""
        lot_size = int(tf.nest.flatten(x)[0].shape[0])
        self._check_labels(y)
        self._begin(None, None, sampling="unknown", num_examples=lot_size, lot_size=lot_size)
        return super().train_on_batch(x, y, sample_weight=sample_weight, **kwargs)

    def _lots_of(self, x, y, sample_weight, lot_size, shuffle):
        privacy = self._privacy
        # XLA compiles for every new shape; without it, varying shapes save padding.
        row_multiple = None if self.jit_compile else row_multiple_for(lot_size)
        settings = (lot_size, bool(shuffle), privacy.physical_batch_size, row_multiple)
        source = (x, y, sample_weight, settings)
        if privacy.source is not None and all(
            a is b or a == b
            for a, b in zip(_identities(privacy.source), _identities(source), strict=True)
        ):
            return privacy.lots_of_source
        lots = make_lots(
            "poisson" if shuffle else "cyclic",
            x,
            y,
            lot_size=lot_size,
            physical_batch_size=privacy.physical_batch_size,
            sample_weight=sample_weight,
            seed=privacy.seed,
            row_multiple=row_multiple,
        )
        privacy.source, privacy.lots_of_source = source, lots
        return lots

    def _check_labels(self, y):
        sparse = isinstance(self.loss, keras.losses.SparseCategoricalCrossentropy) or (
            self.loss == "sparse_categorical_crossentropy"
        )
        if not sparse or not self.built or not hasattr(self, "outputs") or y is None:
            return
        classes = self.outputs[0].shape[-1] if len(self.outputs) == 1 else None
        y = np.asarray(y) if not isinstance(y, (dict, list, tuple)) else None
        if classes is None or y is None or y.size == 0:
            return
        if not (y.min() >= 0 and y.max() < classes):
            raise ValueError(
                f"Labels are out of range. Expected integers from 0 to {classes - 1}, one for each "
                f"output of the model. Found labels from {y.min()} to {y.max()}."
            )

    # -- accounting of the open ledger entry -----------------------------------------------------

    def _begin(self, lots, planned, *, sampling, num_examples, lot_size, seeded=False):
        """Opens a ledger entry for what is about to run, or goes on with the open one."""
        privacy, optimizer = self._privacy, self.optimizer
        _check_optimizer(self, optimizer)
        if not self.built:
            raise ValueError(
                f"Model '{self.name}' is not built, so its layers cannot be checked. Expected a "
                "model with an Input layer, or one that was called once on data."
            )
        refuse_mixing_layers(self)
        variables = self.trainable_variables
        if not optimizer.built:
            optimizer.build(variables)
        done = int(privacy.spent.numpy()) if privacy.run is not None else 0
        open_ended = planned is None
        if open_ended:
            planned = max(0, _OPEN_ENDED - done) or _OPEN_ENDED
        physical = privacy.physical_batch_size
        microbatch = optimizer.microbatch_size(lot_size)
        if physical is not None and physical % microbatch:
            raise ValueError(
                "Invalid value received for argument `physical_batch_size`. Expected a multiple of "
                f"the microbatch size {microbatch}. Received: {physical}"
            )
        first = int(optimizer.iterations.numpy()) - done
        fields = optimizer.run_fields(first)
        fields["seeded"] = fields["seeded"] or seeded

        def describe(steps):
            rates = fields.get("learning_rates")
            resolved = {"learning_rates": rates(steps)} if callable(rates) else {}
            return Run(
                num_examples=num_examples,
                lot_size=lot_size,
                steps=steps,
                sampling=sampling,
                microbatch_size=microbatch,
                **(fields | resolved),
            )

        whole_epochs = sampling in ("cyclic", "shuffle") and privacy.run is not None
        goes_on = (
            privacy.run is not None
            and privacy.run_id is not None
            and lots is privacy.lots
            and not (whole_epochs and done % privacy.run.steps_per_epoch)
            and _same_but_steps(privacy.run, fields, num_examples, lot_size, sampling, microbatch)
            and optimizer.continues(variables)
        )
        if not goes_on:
            self.ledger  # noqa: B018 - records what the entry that ends here has spent
            done = 0
            first = int(optimizer.iterations.numpy())
            fields = optimizer.run_fields(first)
            fields["seeded"] = fields["seeded"] or seeded
            optimizer.start_segment(variables)
            privacy.spent.assign(0)
            privacy.run_id = None
        if not goes_on or done + planned > privacy.run.steps:
            run = describe(done + planned)
            if privacy.run_id is None:
                privacy.run_id = optimizer.ledger.open(run)
            else:
                optimizer.ledger.extend(privacy.run_id, run)
            if _traced_constants(run) != _traced_constants(privacy.run):
                self.train_function = None
            privacy.run, privacy.lots = run, lots
            self._set_limit()
        privacy.authorized = done

    def _set_limit(self):
        privacy = self._privacy
        budget = privacy.budget
        limit = _UNLIMITED
        if budget is not None:
            limit = max_steps(
                budget.epsilon,
                budget.delta,
                privacy.run,
                kind=budget.kind,
                adjacency=budget.adjacency,
                earlier=[run for run_id, run in self.ledger.entries.items() if run_id != privacy.run_id],
            )
        had_budget = privacy.limit != _UNLIMITED
        if had_budget != (limit != _UNLIMITED):
            self.train_function = None  # the refusal is part of the traced step
        privacy.limit = limit
        privacy.limit_variable.assign(limit)

    def make_train_function(self, force=False):
        """Wraps Keras' train function: steps are counted, or refused, before they run."""
        if self.train_function is not None and not force:
            return
        super().make_train_function(force=True)
        inner = self.train_function
        privacy = self._privacy

        def guarded(iterator):
            steps = self.steps_per_execution
            if privacy.authorized + steps > privacy.limit:
                self._refuse()
            privacy.authorized += steps
            return inner(iterator)

        self.train_function = guarded

    def _refuse(self):
        privacy = self._privacy
        budget = privacy.budget
        raise BudgetExhausted(
            f"The privacy budget is exhausted: {budget.kind} epsilon {budget.epsilon:g} at delta "
            f"{budget.delta:g} ({budget.adjacency}) allows {privacy.limit} steps of this training, "
            f"and {int(privacy.spent.numpy())} were taken. Stop here, or start with more noise."
        )

    # -- the step --------------------------------------------------------------------------------

    def train_step(self, data):
        """One private step on one lot."""
        privacy, optimizer = self._privacy, self.optimizer
        run = privacy.run
        if run is None:
            raise RuntimeError(
                "train_step was called before training was started, so the sampling and the lot "
                "size are not known. Expected model.fit(...) or model.train_on_batch(...)."
            )
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise NotImplementedError(
                "Private training runs on one replica: with several, noise and sums would be "
                "counted once for each. Expected no tf.distribute strategy with more than one "
                f"replica. Found {tf.distribute.get_strategy().num_replicas_in_sync}."
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
        spent = privacy.spent.assign_add(1)  # before anything is computed from the lot
        x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
        forward = Forward(self)
        before = forward.state()
        lot = bounded_sum(
            choose_engine(privacy.engine, self),
            forward,
            optimizer.bound,
            x,
            y,
            sample_weight,
            physical_batch_size=privacy.physical_batch_size,
            microbatch_size=run.microbatch_size,
        )

        def update():
            forward.advance(before, lot.state)
            optimizer.update(lot, run.lot_size, forward.variables, forward.regularization())
            return tf.constant(True)

        if privacy.limit == _UNLIMITED:
            update()
        elif tf.executing_eagerly():
            if spent > privacy.limit:
                self._refuse()
            update()
        else:
            # The host refuses first (`guarded`). A loop that calls this step by itself gets the
            # error from the assertion, or, under XLA, which drops assertions, an unchanged model.
            allowed = spent <= privacy.limit_variable
            with tf.control_dependencies([tf.debugging.Assert(allowed, ["budget exhausted"])]):
                tf.cond(allowed, update, lambda: tf.constant(False))
        privacy.diagnostics.update(lot, optimizer.noise_multiplier)
        weights = tf.cast(tf.not_equal(sample_weight, 0.0), tf.float32)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(lot.losses * sample_weight, sample_weight=weights)
        return self.compute_metrics(x, y, lot.outputs, sample_weight=sample_weight)


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


def _traced_constants(run):
    return None if run is None else (run.lot_size, run.microbatch_size)


def _same_but_steps(run, fields, num_examples, lot_size, sampling, microbatch):
    wanted = dict(
        num_examples=num_examples,
        lot_size=lot_size,
        sampling=sampling,
        microbatch_size=microbatch,
        **{k: v for k, v in fields.items() if k != "learning_rates"},
    )
    return all(getattr(run, name) == value for name, value in wanted.items())


def _identities(source):
    x, y, weight, settings = source
    return [*map(id, tf.nest.flatten((x, y))), id(weight), settings]


def _split_validation(x, y, sample_weight, fraction, validation_data):
    """The last part of the arrays becomes validation data, as Keras does, before N is counted."""
    if validation_data is not None or not 0.0 < fraction < 1.0:
        raise ValueError(
            "Invalid value received for argument `validation_split`. Expected a number between 0 "
            f"and 1, and no validation_data. Received: {fraction!r}"
        )
    total = len(tf.nest.flatten(x)[0])
    kept = math.floor(total * (1 - fraction))
    parts = (x, y) if sample_weight is None else (x, y, sample_weight)
    train = tf.nest.map_structure(lambda a: a[:kept], parts)
    held_out = tf.nest.map_structure(lambda a: a[kept:], parts)
    logging.info("validation_split: training on N = %d of %d examples.", kept, total)
    if sample_weight is None:
        train = (*train, None)
    return train, held_out


def _with_class_weight(y, class_weight, sample_weight):
    if class_weight is None:
        return sample_weight
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(axis=1)
    weights = np.array([class_weight.get(int(label), 1.0) for label in labels.ravel()], np.float32)
    return weights if sample_weight is None else weights * np.asarray(sample_weight, np.float32)


@keras.saving.register_keras_serializable(package="tfdp")
class DPModel(PrivateTraining, keras.Model):
    """A `keras.Model`, functional or subclassed, that trains privately."""


@keras.saving.register_keras_serializable(package="tfdp")
class DPSequential(PrivateTraining, keras.Sequential):
    """A `keras.Sequential` that trains privately."""


@functools.cache
def _private_class(base: type) -> type:
    """A private subclass that saves itself under the name of `base`.

    So the file of a private model is the file of a plain model, and loads without tfdp.
    """
    # Stock classes are saved under their public name, which Keras looks up by class.
    stock = {keras.Sequential: "Sequential", keras.Model: "Model"}
    stock[type(keras.Model(inputs=(i := keras.Input((1,))), outputs=i))] = "Functional"
    module = "keras" if base in stock else base.__module__
    if stock.get(base) == "Functional":
        module = base.__module__
    members = {"__module__": module, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return type(base.__name__, (PrivateTraining, base), members)


def make_private(
    model: keras.Model,
    *,
    engine: str = "auto",
    physical_batch_size: int | None = None,
    budget: PrivacyBudget | None = None,
    seed: int | None = None,
) -> keras.Model:
    """Makes a Keras model train privately, in place, and returns it.

    Its class name and module stay, so that the saved `.keras` file loads in plain Keras.

    Args:
        model: any Keras model whose layers treat examples one by one.
        engine: "auto", "vectorized" or "ghost": how per-example gradients are computed.
        physical_batch_size: examples that are in memory at once; None takes a lot whole.
        budget: the most that may be spent, what was spent before included; the step that would
            go beyond it raises `BudgetExhausted`.
        seed: makes the lots that `fit` draws from arrays reproducible; the statement names it.

    Raises:
        ValueError: a layer mixes examples, with its name and the remedy.

    Example:
        model = tfdp.make_private(keras.Sequential([...]))
        model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), loss=...)
        model.fit(x, y, batch_size=256, epochs=15)
        print(model.privacy_statement(delta=1e-5))
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"Expected a keras.Model. Received: {type(model).__name__}")
    if model.built:
        refuse_mixing_layers(model)
    if not isinstance(model, PrivateTraining):
        model.__class__ = _private_class(type(model))
    return model.configure_privacy(
        engine=engine, physical_batch_size=physical_batch_size, budget=budget, seed=seed
    )
