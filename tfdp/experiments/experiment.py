"""Runs one experiment, from its settings to a trained model and its two guarantees."""

import dataclasses
import math
import operator
import time
from collections.abc import Callable

import keras
import numpy as np

from tfdp import data
from tfdp.accounting import Guarantee, Run, Statement
from tfdp.callbacks import PrivacyProgress, PrivacyTensorBoard
from tfdp.experiments import network, validation
from tfdp.experiments.backups import Checkpoints
from tfdp.experiments.construction import budget, make_optimizer, plan
from tfdp.experiments.correlation import complete
from tfdp.experiments.curves import TEST, VALIDATION, Curve, accuracy_of, curve_of
from tfdp.experiments.public_data import PUBLIC
from tfdp.experiments.rules import check_number
from tfdp.experiments.settings import Experiment
from tfdp.training.dp_model import make_private
from tfdp.training.export import plain_copy


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
        seconds: time of the whole training, in all processes.
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
    before_training: Callable[[], None] | None = None,
    world=None,
    checkpoints: Checkpoints | None = None,
) -> Result:
    """Trains a model, evaluates the release and computes both guarantees.

    Args:
        experiment: the settings.
        log_dir: the folder for TensorBoard's events; None writes no events.
        verbose: as in `keras.Model.fit`.
        before_training: a function that is called after all settings have been checked and before the
            first step.
        world: the canaries of an audit (a `tfdp.auditing.DiracWorld` or `ExampleWorld`), which become
            part of the data and of the model; None trains without.
        checkpoints: where and how often the state of the training is kept, so that the same call, in
            another process, resumes it after a crash; None keeps none.

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
    task = _prepare(experiment, world)
    planned = _compile(task)
    if before_training is not None:
        before_training()
    fitted = _fit(task, log_dir, verbose, world, checkpoints)
    return _evaluate(task, planned, fitted)


@dataclasses.dataclass(frozen=True)
class _Task:
    """A training that is ready to be compiled: a model, its data and the number of steps."""

    experiment: Experiment
    prepared: network.Prepared
    model: keras.Model
    lots: data.Lots
    steps: int

    @property
    def dataset(self) -> data.Dataset:
        return self.prepared.dataset


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """What a training leaves beside the weights."""

    epochs: dict  # for each epoch, the values of Keras' metrics by name
    seconds: float
    seconds_per_step: float
    lost_steps: int


def _prepare(experiment, world) -> _Task:
    """Loads the data, builds the network and makes the lots."""
    dataset, words = network.load(experiment)
    dataset, sample_weight = validation.hold_out(dataset, experiment), None
    if world is not None:
        dataset, sample_weight = _with_canaries(dataset, world)
    check_number(experiment, len(dataset.y_train))
    experiment = complete(experiment, len(dataset.y_train))
    prepared = network.prepare(experiment, dataset, words)
    multiple = None if experiment.jit_compile else data.row_multiple_for(experiment.batch_size)
    lots = data.make_lots(
        experiment.sampling,
        prepared.dataset.x_train,
        prepared.dataset.y_train,
        lot_size=experiment.batch_size,
        sample_weight=sample_weight,
        physical_batch_size=experiment.physical_batch_size,
        seed=experiment.insecure_seed,
        groups=experiment.groups,
        microbatch_size=experiment.batch_size // (experiment.microbatches or experiment.batch_size),
        row_multiple=multiple,
    )
    steps = experiment.steps or max(1, round(experiment.epochs * lots.steps_per_epoch))
    model = prepared.model if world is None else world.model(prepared.model)
    return _Task(experiment, prepared, model, lots, steps)


def _compile(task) -> Run:
    """Compiles the model with the optimizer of the experiment; returns the planned run."""
    experiment, model = task.experiment, task.model
    if experiment.private:
        make_private(
            model,
            engine=experiment.engine,
            physical_batch_size=experiment.physical_batch_size,
            budget=budget(experiment),
            seed=experiment.insecure_seed,
            start="public" if task.prepared.start.public else None,
        )
    planned = plan(experiment, task.lots, task.steps, model)
    noise_multiplier = getattr(planned.mechanism, "noise_multiplier", None)
    model.compile(
        optimizer=make_optimizer(experiment, task.lots, task.steps, noise_multiplier),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],  # the rows that pad a lot have weight zero
        jit_compile=experiment.jit_compile,
    )
    if not _is_finite(task):
        raise FloatingPointError("The model's output is not a finite number before training.")
    return planned


def _fit(task, log_dir, verbose, world, checkpoints) -> _Fitted:
    """Trains all steps: whole epochs, then one short epoch for the rest."""
    experiment, per_epoch = task.experiment, task.lots.steps_per_epoch
    backup = None if checkpoints is None else checkpoints.callback(experiment, task.steps)
    callbacks, times = _callbacks(task, log_dir, backup), _StepTimes()
    callbacks += [times, *(() if world is None else world.callbacks)]
    callbacks += [] if backup is None else [backup]  # it sees what the others add to the logs
    # A plain training that is resumed knows its epochs already, a private one when it is fitted.
    epochs = {} if backup is None else dict(backup.epochs)
    started = time.perf_counter()
    whole, rest = divmod(task.steps, per_epoch)
    for first, number, length in ((0, whole, per_epoch), (whole, bool(rest), rest)):
        over = _is_over(epochs, experiment)
        if not number or (over and first):
            continue
        fitted = task.model.fit(
            _train_data(task),
            initial_epoch=first,
            epochs=first + (0 if over else number),  # none only restores the weights
            steps_per_epoch=length,
            callbacks=callbacks,
            verbose=verbose,
            # Keras would warn that it does not shuffle a dataset.
            **({} if experiment.private else {"shuffle": False}),
        )
        for name, values in fitted.history.items():
            for epoch, value in zip(fitted.epoch, values, strict=True):
                epochs.setdefault(epoch, {})[name] = value
    seconds = time.perf_counter() - started + (0.0 if backup is None else backup.earlier_seconds)
    lost = 0 if backup is None else backup.lost_steps
    return _Fitted(dict(sorted(epochs.items())), seconds, times.mean, lost)


def _evaluate(task, planned, fitted) -> Result:
    """Measures the release and states what it cost."""
    experiment, model, dataset = task.experiment, task.model, task.dataset
    runs = _finished_runs(task, planned, fitted.epochs)
    accuracy = accuracy_of(plain_copy(model), dataset.x_test, dataset.y_test, experiment)
    notes = task.prepared.notes
    if dataset.y_validation is not None:
        notes += (validation.note(len(dataset.y_validation), fitted.epochs, experiment),)
    return Result(
        experiment=experiment,
        model=model,
        run=runs[-1],
        runs=runs,
        test_accuracy=accuracy,
        statement=Statement.of(runs, experiment.delta, experiment.adjacency, planned=False),
        seconds_per_step=fitted.seconds_per_step,
        seconds=fitted.seconds,
        advice=runs[-1].mechanism.advice,
        history=_by_name(fitted.epochs),
        curve=curve_of(fitted.epochs),
        notes=notes,
        trained_on=(*task.prepared.start.trained_on, _trained_on(experiment)),
        lost_steps=fitted.lost_steps,
    )


def _with_canaries(dataset, world):
    """The data set with the canaries among its training examples, and the weights of these or None."""
    x, y, *weight = world.data(dataset.x_train, dataset.y_train)
    inputs = {"x_test": world.inputs(dataset.x_test)}
    if dataset.x_validation is not None:
        inputs["x_validation"] = world.inputs(dataset.x_validation)
    dataset = dataclasses.replace(dataset, x_train=x, y_train=y, **inputs)
    return dataset, weight[0] if weight else None


def _callbacks(task, log_dir, backup) -> list:
    """The callbacks that measure, stop and report; those that come first add to the logs."""
    experiment, dataset, found = task.experiment, task.dataset, []
    if experiment.test_every is not None:
        test = (dataset.x_test, dataset.y_test)
        found.append(Curve(TEST, *test, experiment, experiment.test_every))
    if dataset.y_validation is not None:
        found.append(Curve(VALIDATION, dataset.x_validation, dataset.y_validation, experiment))
        found.append(validation.ValidationStop(experiment, backup))
    if experiment.private:
        found.append(PrivacyProgress(experiment.delta, experiment.guarantee, experiment.adjacency))
        if log_dir is not None:
            found.append(PrivacyTensorBoard(log_dir, experiment.delta, experiment.adjacency))
    elif log_dir is not None:
        found.append(keras.callbacks.TensorBoard(log_dir, write_graph=False))
    return found


def _train_data(task):
    if task.experiment.private:
        return task.lots
    dataset = task.lots.as_dataset()
    return dataset.map(_weigh_every_label) if task.dataset.y_train.ndim > 1 else dataset


def _weigh_every_label(x, y, weight):
    """Gives each label of a row the row's weight, which plain Keras training needs."""
    return x, y, keras.ops.broadcast_to(weight[:, None], keras.ops.shape(y))


def _is_over(epochs, experiment) -> bool:
    return experiment.validation_split is not None and validation.is_over(epochs, experiment)


def _finished_runs(task, planned, epochs) -> tuple[Run, ...]:
    """The runs of the trained weights; makes the weights those of the release."""
    experiment, model = task.experiment, task.model
    if experiment.private and _is_over(epochs, experiment):
        # fit() has counted what was left of it; the rest of an epoch would have been a fit of its own.
        model.privacy.count_left_out(max(0, task.steps - model.privacy.ledger.runs[-1].steps))
    if experiment.private and experiment.release == "mu":
        model.optimizer.release_means(model.trainable_variables)
    if not _is_finite(task):
        raise Diverged(
            "The model's output is not a finite number after training: it diverged; lower "
            "--learning_rate."
        )
    if experiment.private:
        return tuple(model.privacy.ledger.runs)
    if experiment.validation_split is not None:  # it may have ended early
        planned = planned.with_steps(int(model.optimizer.iterations.numpy()))
    return (planned,)


def _is_finite(task) -> bool:
    rows = keras.tree.map_structure(operator.itemgetter(slice(64)), task.dataset.x_test)
    return bool(np.isfinite(task.model.predict(rows, verbose=0)).all())


def _trained_on(experiment) -> dict[str, str]:
    """The data set and the mechanism, and the public examples, which shape the weights, too."""
    found = {"dataset": experiment.dataset, "mechanism": experiment.mechanism}
    if experiment.takes_public_data:
        found["public_data"] = experiment.public_data or PUBLIC[experiment.dataset]
    return found


def _by_name(epochs) -> dict:
    """The values of each metric; NaN for an epoch that lacks it."""
    names = dict.fromkeys(name for logs in epochs.values() for name in logs)
    return {name: [logs.get(name, math.nan) for logs in epochs.values()] for name in names}
