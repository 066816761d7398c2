"""Runs one experiment, from its settings to a trained model and its two guarantees."""

import dataclasses
import math
import operator
import time

import keras
import numpy as np

from tfdp import data
from tfdp.accounting import Guarantee, Run, Statement
from tfdp.callbacks import PrivacyProgress, PrivacyTensorBoard
from tfdp.experiments import network, validation
from tfdp.experiments.backups import backup_of
from tfdp.experiments.construction import budget, make_optimizer, plan
from tfdp.experiments.correlation import complete
from tfdp.experiments.curves import TEST, VALIDATION, Curve, accuracy_of, curve_of
from tfdp.experiments.public_data import PUBLIC
from tfdp.experiments.rules import check_number
from tfdp.experiments.run_folder import RunFolder
from tfdp.experiments.settings import Experiment
from tfdp.training.dp_model import make_private
from tfdp.training.export import plain_copy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an experiment.

    Attributes:
        experiment: the settings.
        model: the trained Keras model, whose weights are the release.
        runs: the accounted runs of the ledger.
        test_accuracy: accuracy of the released weights on the test split, from 0 to 1; with weight
            noise, the mean over the experiment's `noise_draws` draws of it.
        statement: both guarantees at the experiment's delta and adjacency, and what they mean.
        seconds: time of the whole training, in all processes.
        history: for each of Keras' metrics, its value in every epoch.
        notes: sentences about the data, the words, the initial weights and what was frozen.
        trained_on: the data set and the mechanism of every training of these weights that is known,
            the last one included.
        restarts: how often the training was resumed.
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
    runs: tuple[Run, ...]
    test_accuracy: float
    statement: Statement
    seconds: float
    history: dict
    notes: tuple[str, ...] = ()
    trained_on: tuple[dict, ...] = ()
    restarts: int = 0
    lost_steps: int = 0
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def run(self) -> Run:
        """The last run."""
        return self.runs[-1]

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


def run(
    experiment: Experiment,
    verbose: int | str = "auto",
    *,
    world=None,
    folder: RunFolder | None = None,
    checkpoint_every: str = "10s",
) -> Result:
    """Trains a model, evaluates the release and computes both guarantees.

    Args:
        experiment: the settings.
        verbose: as in `keras.Model.fit`.
        world: the canaries of an audit (a `tfdp.auditing.DiracWorld` or `ExampleWorld`), which become
            part of the data and of the model; None trains without.
        folder: an entered folder, for TensorBoard's log and the state of the training, so that the same
            call, in another process, resumes it after a crash; None keeps neither.
        checkpoint_every: how often the state is written, as for `--checkpoint_every`.

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
    backup = None
    if folder is not None:
        folder.begin()
        backup = backup_of(experiment, folder.backup, checkpoint_every, task.steps)
    callbacks = _callbacks(task, None if folder is None else folder.log_dir)
    callbacks += [] if world is None else world.callbacks
    started = time.perf_counter()
    epochs = _fit(task, verbose, callbacks, backup)
    seconds = time.perf_counter() - started
    result = _evaluate(task, planned, epochs, seconds)
    if folder is None:
        return result
    return dataclasses.replace(
        result,
        seconds=seconds + backup.earlier_seconds,
        restarts=folder.restarts,
        lost_steps=backup.lost_steps,
    )


@dataclasses.dataclass(frozen=True)
class _Task:
    """A training that is ready to be compiled; `correlation.complete` made `experiment` of `asked`."""

    experiment: Experiment
    asked: Experiment
    model: keras.Model
    dataset: data.Dataset
    lots: data.Lots
    steps: int
    trained_on: tuple[dict, ...]
    notes: tuple[str, ...]


def _prepare(asked, world) -> _Task:
    """Loads the data, builds the network and makes the lots."""
    dataset, words = network.load(asked)
    dataset, sample_weight = validation.hold_out(dataset, asked), None
    if world is not None:
        dataset, sample_weight = _with_canaries(dataset, world)
    check_number(asked, len(dataset.y_train))
    experiment = complete(asked, len(dataset.y_train))
    model, trained_on, notes = network.build(experiment, dataset, words)
    lots = data.make_lots(
        experiment.sampling,
        dataset.x_train,
        dataset.y_train,
        lot_size=experiment.batch_size,
        sample_weight=sample_weight,
        physical_batch_size=experiment.physical_batch_size,
        seed=experiment.insecure_seed,
        groups=experiment.groups,
        microbatch_size=experiment.batch_size // (experiment.microbatches or experiment.batch_size),
        row_multiple=None
        if experiment.jit_compile
        else data.row_multiple_for(experiment.batch_size),
    )
    steps = experiment.steps or max(1, round(experiment.epochs * lots.steps_per_epoch))
    model = model if world is None else world.model(model)
    return _Task(experiment, asked, model, dataset, lots, steps, trained_on, notes)


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
            start="public" if experiment.starts_public else None,
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


def _fit(task, verbose, callbacks, backup) -> dict[int, dict]:
    """Trains whole epochs, then a short one for the rest; returns the metrics of every epoch."""
    experiment, per_epoch = task.experiment, task.lots.steps_per_epoch
    resumed, epochs = 0, {}
    if backup is not None:
        callbacks = [*callbacks, backup]  # it sees what the others add to the logs
        if not experiment.private:
            epochs = dict(backup.epochs)
            resumed = len(epochs) if not backup.ended else task.steps
    whole, rest = divmod(task.steps, per_epoch)
    for first, number, length in ((0, whole, per_epoch), (whole, bool(rest), rest)):
        if not number or (first and _stopped_after(task, epochs) is not None):
            continue
        fitted = task.model.fit(
            _train_data(task),
            initial_epoch=min(max(first, resumed), first + number),  # none restores the weights
            epochs=first + number,
            steps_per_epoch=length,
            callbacks=callbacks,
            verbose=verbose,
            # Keras would warn that it does not shuffle a dataset.
            **({} if experiment.private else {"shuffle": False}),
        )
        for name, values in fitted.history.items():
            for epoch, value in zip(fitted.epoch, values, strict=True):
                epochs.setdefault(epoch, {})[name] = value
    return dict(sorted(epochs.items()))


def _stopped_after(task, epochs) -> int | None:
    """The number of epochs after which the validation examples ended the training; None if not."""
    number = max(epochs, default=-1) + 1
    early = number < task.steps // task.lots.steps_per_epoch
    return number if early and task.experiment.validation_split is not None else None


def _evaluate(task, planned, epochs, seconds) -> Result:
    """Measures the release and states what it cost."""
    experiment, model, dataset = task.experiment, task.model, task.dataset
    runs = _finished_runs(task, planned)
    accuracy = accuracy_of(plain_copy(model), dataset.x_test, dataset.y_test, experiment)
    notes = task.notes
    if dataset.y_validation is not None:
        stopped = _stopped_after(task, epochs)
        notes += (validation.note(len(dataset.y_validation), stopped, experiment.private),)
    return Result(
        experiment=task.asked,
        model=model,
        runs=runs,
        test_accuracy=accuracy,
        statement=Statement.of(runs, experiment.delta, experiment.adjacency, planned=False),
        seconds=seconds,
        history=_by_name(epochs),
        curve=curve_of(epochs),
        notes=notes,
        trained_on=(*task.trained_on, _trained_on(experiment)),
    )


def _with_canaries(dataset, world):
    """The data set with the canaries among its training examples, and the weights of these or None."""
    x, y, *weight = world.data(dataset.x_train, dataset.y_train)
    inputs = {"x_test": world.inputs(dataset.x_test)}
    if dataset.x_validation is not None:
        inputs["x_validation"] = world.inputs(dataset.x_validation)
    dataset = dataclasses.replace(dataset, x_train=x, y_train=y, **inputs)
    return dataset, weight[0] if weight else None


def _callbacks(task, log_dir) -> list:
    """The callbacks that measure, stop and report; those that come first add to the logs."""
    experiment, dataset, found = task.experiment, task.dataset, []
    if experiment.test_every is not None:
        test = (dataset.x_test, dataset.y_test)
        found.append(Curve(TEST, *test, experiment, experiment.test_every))
    if dataset.y_validation is not None:
        found.append(Curve(VALIDATION, dataset.x_validation, dataset.y_validation, experiment))
        found.append(keras.callbacks.EarlyStopping(VALIDATION, patience=experiment.patience))
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


def _finished_runs(task, planned) -> tuple[Run, ...]:
    """The runs of the trained weights; makes the weights those of the release."""
    experiment, model = task.experiment, task.model
    if experiment.private:
        # An early end: fit() has counted what was left of it, and not a short epoch after it.
        if (left := task.steps - model.privacy.ledger.runs[-1].steps) > 0:
            model.privacy.count_left_out(left)
        if experiment.release == "mu":
            model.optimizer.release_means(model.trainable_variables)
    if not _is_finite(task):
        raise Diverged(
            "The model's output is not a finite number after training: it diverged; lower "
            "--learning_rate."
        )
    if experiment.private:
        return tuple(model.privacy.ledger.runs)
    return (planned.with_steps(int(model.optimizer.iterations.numpy())),)


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
