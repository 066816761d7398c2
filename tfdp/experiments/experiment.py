"""Runs one experiment, from its settings to a trained model and its two guarantees."""

import contextlib
import dataclasses
import math
import operator
import time
from collections.abc import Callable

import keras
import numpy as np

from tfdp import data
from tfdp.accounting import Guarantee, PrivacyBudget, Run, Statement, noise_for
from tfdp.callbacks import PrivacyProgress, PrivacyTensorBoard
from tfdp.experiments import network, validation
from tfdp.experiments.checkpoints import Checkpoints, PlainBackup, parts
from tfdp.experiments.construction import make_optimizer, plan
from tfdp.experiments.correlation import complete
from tfdp.experiments.curves import TestCurve, curve_of, test_accuracy
from tfdp.experiments.public_data import PUBLIC
from tfdp.experiments.rules import check_number
from tfdp.experiments.settings import Experiment
from tfdp.experiments.validation import ValidationStop
from tfdp.training.dp_model import make_private


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an experiment.

    Attributes:
        experiment: the settings, completed by `correlation.complete`.
        model: the trained Keras model, whose weights are the release.
        run: the accounted run; the last one, if the ledger holds several.
        test_accuracy: accuracy of the released weights on the test split, from 0 to 1; with weight
            noise, the mean over the experiment's `noise_draws` draws of it.
        statement: both guarantees at the experiment's delta and adjacency, and what they mean.
        seconds_per_step: mean time of a training step after the first; NaN if there was only one.
        seconds: time of the whole training.
        advice: a sentence about a better mechanism at the same proven epsilon, or None.
        history: for each of Keras' metrics, its value in every epoch.
        notes: sentences about the data, the words, the initial weights and what was frozen.
        trained_on: the data set and the mechanism of every training of these weights that is known,
            the last one included.
        restarts: how often the training went on after it was interrupted.
        lost_steps: how many steps are counted and are not in the weights, since a crash lost them.
        curve: ((number of epochs, test accuracy after them), ...), where `test_every` asks for it.

    Example:
        >>> from tfdp.experiments import Experiment, run
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0, seed=1)
        >>> result = run(experiment, verbose=0)
        >>> print(f"proven {result.proven.epsilon:.3f}, claimed {result.claimed.epsilon:.3f}")
        proven 0.926, claimed 0.883
        >>> result.run.steps, len(result.history["loss"])
        (3, 1)
    """

    experiment: Experiment
    model: keras.Model
    run: Run
    test_accuracy: float
    statement: Statement
    seconds_per_step: float
    seconds: float
    advice: str | None
    runs: tuple[Run, ...] = ()
    history: dict
    notes: tuple[str, ...] = ()
    trained_on: tuple[dict, ...] = ()
    restarts: int = 0
    lost_steps: int = 0
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def claimed(self) -> Guarantee:
        """The guarantee that the mechanism's paper claims."""
        return self.statement.claimed

    @property
    def proven(self) -> Guarantee:
        """The proven guarantee of the run as executed."""
        return self.statement.proven


class Diverged(FloatingPointError):
    """The model's output is not finite after training."""


class _StepTimes(keras.callbacks.Callback):
    """Measures the mean time of a step, without the first step, which traces and compiles."""

    def __init__(self):
        super().__init__()
        self.seconds, self.steps, self._last = 0.0, 0, None

    def on_train_batch_begin(self, batch, logs=None):
        self._last = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if self.steps:
            self.seconds += time.perf_counter() - self._last
        self.steps += 1

    @property
    def mean(self):
        return self.seconds / (self.steps - 1) if self.steps > 1 else float("nan")


def run(
    experiment: Experiment,
    log_dir: str | None = None,
    verbose: int | str = "auto",
    before_training: Callable[[keras.Model], None] | None = None,
    world=None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Trains a model, evaluates the release and computes both guarantees.

    Args:
        experiment: the settings.
        log_dir: the folder for TensorBoard's events; None writes no events.
        verbose: as in `keras.Model.fit`.
        before_training: a function that is called with the compiled model after all settings have
            been checked and before the first step.
        world: the canaries of an audit (a `tfdp.auditing.DiracWorld` or `ExampleWorld`), which become
            part of the data and of the model; None trains without.
        checkpoints: where and how often the state of the training is kept, so that the same call, in
            another process, goes on after a crash; None keeps none.

    Raises:
        ValueError: the settings do not fit together, or do not fit the data.
        DataUnavailable: the data set cannot be loaded.
        FloatingPointError: the model's output is not finite, before or after training.

    Example:
        >>> from tfdp.experiments import Experiment, run
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=30, epsilon=2.0, seed=1)
        >>> result = run(experiment, verbose=0)
        >>> 1.999 < result.proven.epsilon <= 2.0, result.test_accuracy > 0.5
        (True, True)
    """
    if experiment.seed is not None:
        keras.utils.set_random_seed(experiment.seed)
    dataset, words = network.load(experiment)
    dataset, held = validation.hold_out(dataset, experiment)
    sample_weight = None
    if world is not None:
        dataset, sample_weight = _with_canaries(dataset, world)
    check_number(experiment, len(dataset.y_train))
    experiment = complete(experiment, len(dataset.y_train))
    # A process that goes on after a crash needs the same frozen beginning, which no state holds.
    same = experiment.seed is not None or experiment.initial_weights is not None
    cache = world is None and (checkpoints is None or same)
    prepared = network.prepare(experiment, dataset, words, cache=cache)
    model = prepared.model
    dataset, validation_data = validation.parted(prepared.dataset, held)
    lots = data.make_lots(
        experiment.sampling,
        dataset.x_train,
        dataset.y_train,
        lot_size=experiment.batch_size,
        sample_weight=sample_weight,
        physical_batch_size=experiment.physical_batch_size,
        seed=experiment.insecure_seed,
        groups=experiment.groups,
        microbatch_size=_microbatch_size(experiment),
        row_multiple=(
            None if experiment.jit_compile else data.row_multiple_for(experiment.batch_size)
        ),
    )
    steps = _total_steps(experiment, lots)
    if world is not None:
        model = world.model(model)
    planned = plan(experiment, lots, steps, model.trainable_variables)
    if experiment.noise_multiplier is None and experiment.private:
        factor = noise_for(
            experiment.epsilon,
            experiment.delta,
            planned,
            kind=experiment.guarantee,
            adjacency=experiment.adjacency,
        )
        planned = planned.with_noise(factor)
    private = experiment.private
    if private:
        budget = None
        if experiment.noise_multiplier is None and experiment.insecure_seed is None:
            budget = PrivacyBudget(
                experiment.epsilon, experiment.delta, experiment.guarantee, experiment.adjacency
            )
        make_private(
            model,
            engine=experiment.engine,
            physical_batch_size=experiment.physical_batch_size,
            budget=budget,
            seed=experiment.insecure_seed,
            start="public" if prepared.start.public else None,
        )
    model.compile(
        optimizer=make_optimizer(
            experiment, lots, steps, getattr(planned.mechanism, "noise_multiplier", None)
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],  # the rows that pad a lot have weight zero
        jit_compile=experiment.jit_compile,
    )
    _check_finite(model, dataset.x_test, "before training, at the initial weights")
    if before_training is not None:
        before_training(prepared.whole if prepared.cached else model)
    backup = None if checkpoints is None else checkpoints.callback(experiment, steps)
    times, stops = _StepTimes(), ()
    if held:
        stops = (ValidationStop(validation_data, experiment, backup),)
    callbacks = [
        *(() if experiment.test_every is None else (TestCurve(dataset, experiment),)),
        *stops,
        times,
        *(() if world is None else world.callbacks),
    ]
    if private:
        callbacks.append(
            PrivacyProgress(experiment.delta, experiment.guarantee, experiment.adjacency)
        )
        if log_dir is not None:
            callbacks.append(PrivacyTensorBoard(log_dir, experiment.delta, experiment.adjacency))
    elif log_dir is not None:
        callbacks.append(keras.callbacks.TensorBoard(log_dir, write_graph=False))
    started = time.perf_counter()
    train_data = lots if private else lots.as_dataset()
    if not private and dataset.y_train.ndim > 1:
        train_data = train_data.map(_weigh_every_label)
    # Keras would warn that it does not shuffle a dataset.
    options = {} if private else {"shuffle": False}
    epochs = _fit(
        model,
        train_data,
        steps,
        lots.steps_per_epoch,
        callbacks,
        backup,
        over=lambda epochs: validation.ended(epochs, experiment),
        verbose=verbose,
        **options,
    )
    seconds = time.perf_counter() - started
    if private and validation.ended(epochs, experiment):
        # fit() has counted what was left of it; the rest of an epoch would have been a fit of its own.
        model.privacy.count_left_out(max(0, steps - model.privacy.ledger.runs[-1].steps))
    if private and experiment.release == "mu":
        model.optimizer.release_means(model.trainable_variables)
    try:
        _check_finite(model, dataset.x_test, "after training: it diverged; lower --learning_rate")
    except FloatingPointError as error:
        raise Diverged(str(error)) from None
    if held and not private:  # it may have ended early
        planned = planned.with_steps(int(model.optimizer.iterations.numpy()))
    runs = model.privacy.ledger.runs if private else [planned]
    accuracy = test_accuracy(model, dataset, experiment)
    if prepared.cached:
        model = _released(prepared, experiment)
    said = Statement.of(runs, experiment.delta, experiment.adjacency)
    notes = [validation.note(held, epochs, experiment)] if held else []
    return Result(
        experiment=experiment,
        model=model,
        run=runs[-1],
        runs=tuple(runs),
        test_accuracy=accuracy,
        statement=said,
        seconds_per_step=times.mean,
        seconds=seconds + (0.0 if backup is None else backup.earlier_seconds),
        advice=runs[-1].mechanism.advice,
        history=_by_name(epochs),
        curve=curve_of(epochs),
        notes=(*prepared.notes, *notes),
        trained_on=(
            *prepared.start.trained_on,
            {"dataset": experiment.dataset, "mechanism": experiment.mechanism}
            | _public_of(experiment),
        ),
        restarts=0 if backup is None else backup.restarts,
        lost_steps=0 if backup is None else backup.lost_steps,
    )


def _microbatch_size(experiment) -> int:
    if experiment.microbatches is None:
        return 1
    return experiment.batch_size // experiment.microbatches


def _public_of(experiment) -> dict[str, str]:
    """The name of the public examples, which shape the weights, too; empty without some."""
    if not experiment.takes_public_data:
        return {}
    return {"public_data": experiment.public_data or PUBLIC[experiment.dataset]}


def _with_canaries(dataset, world):
    """The data set with the canaries among its training examples, and the weights of these or None."""
    x, y, *weight = world.data(dataset.x_train, dataset.y_train)
    changed = dataclasses.replace(
        dataset, x_train=x, y_train=y, x_test=world.inputs(dataset.x_test)
    )
    return changed, weight[0] if weight else None


def _weigh_every_label(x, y, weight):
    """Gives each label of a row the row's weight, which plain Keras training needs."""
    return x, y, keras.ops.broadcast_to(weight[:, None], keras.ops.shape(y))


def _released(prepared, experiment):
    """Returns the whole network with the ledger and the optimizer of the part that was trained."""
    prepared.check_release()
    whole, part = prepared.whole, prepared.model
    if experiment.private:
        make_private(whole, engine=experiment.engine)
    whole.compile(optimizer=part.optimizer, loss=part.loss, jit_compile=experiment.jit_compile)
    return whole


def _total_steps(experiment, lots) -> int:
    if experiment.steps is not None:
        return experiment.steps
    return max(1, round(experiment.epochs * lots.steps_per_epoch))


def _fit(model, train_data, steps, per_epoch, callbacks, backup, over, **options) -> dict:
    """Trains exactly `steps` steps: whole epochs, then one short epoch for the rest.

    It ends sooner where `over(epochs)` says so.

    Returns:
        For each epoch, the values of Keras' metrics by name.
    """
    epochs = {}
    with contextlib.ExitStack() as stack:
        behind = 0
        if isinstance(backup, PlainBackup):
            behind = stack.enter_context(backup.attached(model, steps))
            epochs |= backup.epochs
        # The callback of a private training goes on where it was in each of the fits.
        for first, number, length in parts(steps, per_epoch, behind):
            if over(epochs):
                break
            part = model.fit(
                train_data,
                initial_epoch=first,
                epochs=first + number,
                steps_per_epoch=length,
                callbacks=callbacks if backup is None else [*callbacks, backup],
                **options,
            )
            for name, values in part.history.items():
                for epoch, value in zip(part.epoch, values, strict=True):
                    epochs.setdefault(epoch, {})[name] = value
        if isinstance(backup, PlainBackup):
            epochs = backup.epochs | epochs
    return {epoch: epochs[epoch] for epoch in sorted(epochs)}


def _by_name(epochs) -> dict:
    """The values of each metric; NaN for an epoch that lacks it."""
    names = dict.fromkeys(name for logs in epochs.values() for name in logs)
    return {name: [logs.get(name, math.nan) for logs in epochs.values()] for name in names}


def _check_finite(model, x, when):
    first = keras.tree.map_structure(operator.itemgetter(slice(64)), x)
    if not np.isfinite(model.predict(first, verbose=0)).all():
        raise FloatingPointError(f"The model's output is not a finite number {when}.")
