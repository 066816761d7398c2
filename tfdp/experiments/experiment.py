"""`run`, which trains one experiment, evaluates the model and states both guarantees."""

import csv
import dataclasses
import math
import operator
import os
import time
from collections.abc import Mapping

import keras
import numpy as np

from tfdp import data
from tfdp._compat.keras import layers_of
from tfdp.accounting import Guarantee, Run, Statement
from tfdp.callbacks import BackupAndRestore, PrivacyProgress, PrivacyTensorBoard
from tfdp.experiments import distribution, network
from tfdp.experiments.construction import budget, complete, make_optimizer, plan
from tfdp.experiments.run_folder import RunFolder
from tfdp.experiments.settings import Experiment
from tfdp.layers import NoisyWeights
from tfdp.training.dp_model import make_private
from tfdp.training.export import plain_copy, values_into

# The file with the metrics of each epoch of a plain training.
_LOGS = "epochs.csv"
# The name of the test accuracy in the logs of an epoch.
_TEST = "test_accuracy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of an experiment: the trained model, its accuracy and its guarantees.

    Attributes:
        experiment: The settings, including chosen defaults.
        model: The trained Keras model, whose weights are the release.
        runs: The accounted runs of the ledger.
        test_accuracy: Accuracy of the released weights on the test split, from 0 to 1. With weight
            noise, the mean over the experiment's `noise_draws` draws.
        statement: Both guarantees at the experiment's delta and adjacency, with explanations.
        seconds: Seconds of the whole training; without privacy, since it was last resumed.
        history: The values of each Keras metric, one for every epoch.
        notes: Sentences about the data, the words, the initial weights and the frozen layers.
        restarts: Number of times that the training was resumed.
        lost_steps: Number of steps that are counted but not in the weights, because of a crash.
        curve: Pairs (number of epochs, test accuracy after them), if `test_every` is set.
        encoder: For a table, the Keras model that maps its columns to the inputs. None for other data.
    """

    experiment: Experiment
    model: keras.Model
    runs: tuple[Run, ...]
    test_accuracy: float
    statement: Statement
    seconds: float
    history: dict
    notes: tuple[str, ...] = ()
    restarts: int = 0
    lost_steps: int = 0
    curve: tuple[tuple[int, float], ...] = ()
    encoder: keras.Model | None = None

    def __repr__(self) -> str:
        return (
            f"Result({self.experiment!r}, test_accuracy={self.test_accuracy:.4f}, "
            f"{self.proven!r}, {self.claimed!r})"
        )

    @property
    def release(self) -> keras.Model:
        """The model that may be published: `model`, for a table with the encoder of its columns."""
        if self.encoder is None:
            return self.model
        outputs = plain_copy(self.model)(self.encoder.output)
        return keras.Model(self.encoder.input, outputs, name=self.model.name)

    @property
    def run(self) -> Run:
        """The last run."""
        return self.runs[-1]

    @property
    def claimed(self) -> Guarantee:
        """The guarantee by the formula of the mechanism's paper."""
        return self.statement.claimed

    @property
    def proven(self) -> Guarantee:
        """The proven guarantee of the run as executed."""
        return self.statement.proven


def run(
    experiment: Experiment,
    verbose: int | str = "auto",
    *,
    world=None,
    folder: RunFolder | None = None,
    checkpoint_every: int | None = None,
) -> Result:
    """Trains a model by its settings, evaluates the release and computes both guarantees.

    It writes no result: `run_into` does, and `train.py` calls it.

    Args:
        experiment: The settings.
        verbose: As in `keras.Model.fit`.
        world: The canaries of an audit (a `tfdp.auditing.DiracWorld` or `ExampleWorld`), which
            become part of the data and of the model. None trains without canaries.
        folder: An entered folder for TensorBoard's log and the state of the training, so that the
            same call in another process resumes it after a crash. None writes neither.
        checkpoint_every: Number of steps between two writes of the state. None writes it every ten
            seconds. Without privacy it is written after each epoch.

    Returns:
        A `Result`, with the model, the test accuracy and the statement.

    Raises:
        ValueError: If the settings conflict with each other or with the data.
        DataUnavailable: If the data set cannot be loaded.
        FloatingPointError: If the model's output is not finite after training.

    Example:
        >>> from tfdp.experiments import Experiment, run
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=30, epsilon=2.0, seed=1)
        >>> result = run(experiment, verbose=0)
        >>> 1.999 < result.proven.epsilon <= 2.0, result.test_accuracy > 0.5
        (True, True)
    """
    with distribution.scope(experiment):
        if experiment.seed is not None:
            keras.utils.set_random_seed(experiment.seed)
        task = _prepare(experiment, world)
        planned = _compile(task)
    callbacks = []  # the first ones add to the logs that the others receive
    if experiment.test_every is not None:
        callbacks.append(_Curve(task.dataset.x_test, task.dataset.y_test, experiment))
    if experiment.private:
        callbacks.append(
            PrivacyProgress(experiment.delta, experiment.guarantee, experiment.adjacency)
        )
    callbacks += [] if world is None else world.callbacks
    if folder is not None:
        folder.begin()
        callbacks += _saving(task, folder, checkpoint_every)
    started = time.perf_counter()
    epochs = _fit(task, verbose, callbacks)
    seconds = time.perf_counter() - started
    if folder is None:
        return _evaluate(task, planned, epochs, seconds)
    if not experiment.private:
        result = _evaluate(task, planned, _logged(folder), seconds)
        return dataclasses.replace(result, restarts=folder.restarts)
    backup = callbacks[-1]
    result = _evaluate(task, planned, epochs, seconds + backup.earlier_seconds)
    return dataclasses.replace(result, restarts=folder.restarts, lost_steps=backup.lost_steps)


@dataclasses.dataclass(frozen=True)
class _Task:
    """A training that is ready to be compiled."""

    experiment: Experiment
    model: keras.Model
    dataset: data.Dataset
    lots: data.Lots
    steps: int
    notes: tuple[str, ...]


def _prepare(experiment, world) -> _Task:
    """Loads the data, builds the network and creates the lots."""
    dataset, sample_weight = network.load(experiment), None
    if world is not None:
        x, y, *weight = world.data(dataset.x_train, dataset.y_train)
        x_test, sample_weight = world.inputs(dataset.x_test), weight[0] if weight else None
        dataset = dataclasses.replace(dataset, x_train=x, y_train=y, x_test=x_test)
    if experiment.batch_size > (examples := len(dataset.y_train)):
        raise ValueError(
            f"--batch_size={experiment.batch_size} is more than the {examples} training examples. "
            f"Smaller lots gain more privacy from sampling: --batch_size={max(1, examples // 10)}."
        )
    experiment = complete(experiment, examples)
    model, notes = network.build(experiment, dataset)
    lots = data.make_lots(
        experiment.sampling,
        dataset.x_train,
        dataset.y_train,
        lot_size=experiment.batch_size,
        sample_weight=sample_weight,
        physical_batch_size=experiment.physical_batch_size,
        seed=experiment.insecure_seed,
        groups=experiment.groups,
        nominal_examples=experiment.nominal_examples,
        microbatch_size=experiment.batch_size // (experiment.microbatches or experiment.batch_size),
        row_multiple=None
        if experiment.jit_compile
        else data.row_multiple_for(experiment.batch_size),
    )
    steps = experiment.steps or max(1, round(experiment.epochs * lots.steps_per_epoch))
    model = model if world is None else world.model(model)
    return _Task(experiment, model, dataset, lots, steps, notes)


def _compile(task) -> Run:
    """Compiles the model with the optimizer of the experiment, and returns the planned run."""
    experiment, model = task.experiment, task.model
    if experiment.private:
        make_private(
            model,
            physical_batch_size=experiment.physical_batch_size,
            budget=budget(experiment),
            seed=experiment.insecure_seed,
            start=None if experiment.initial_weights is None else "public",
        )
    planned = plan(experiment, task.lots, task.steps, model)
    noise_multiplier = getattr(planned.mechanism, "noise_multiplier", None)
    model.compile(
        optimizer=make_optimizer(experiment, task.lots, task.steps, noise_multiplier),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],  # the rows that pad a lot have weight zero
        jit_compile=experiment.jit_compile,
    )
    return planned


def _saving(task, folder, every) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that write TensorBoard's log and, last, the state of the training."""
    experiment, delta = task.experiment, task.experiment.delta
    if experiment.private:
        adjacency = experiment.adjacency
        backup = BackupAndRestore(
            folder.backup, every, delete_checkpoint=False, delta=delta, adjacency=adjacency
        )
        task.model.privacy.plan(steps=task.steps)  # several calls of fit take them
        return [PrivacyTensorBoard(folder.log_dir, delta, adjacency), backup]
    os.makedirs(folder.backup, exist_ok=True)
    return [
        keras.callbacks.TensorBoard(folder.log_dir, write_graph=False),
        keras.callbacks.CSVLogger(os.path.join(folder.backup, _LOGS), append=True),
        keras.callbacks.BackupAndRestore(
            folder.backup, double_checkpoint=True, delete_checkpoint=False
        ),
    ]


def _logged(folder) -> dict[int, dict]:
    """Returns the metrics of every epoch of a plain training, from all its processes."""
    with open(os.path.join(folder.backup, _LOGS), newline="") as file:
        rows = [*csv.DictReader(file)]  # if an epoch was trained twice, its last row counts
    return {
        int(row.pop("epoch")): {name: float(text) for name, text in row.items() if text != "NA"}
        for row in rows
    }


def _fit(task, verbose, callbacks) -> dict[int, dict]:
    """Trains whole epochs, then a short one for the rest. Returns the metrics of every epoch."""
    per_epoch = task.lots.steps_per_epoch
    epochs: dict[int, dict] = {}
    whole, rest = divmod(task.steps, per_epoch)
    for first, number, length in ((0, whole, per_epoch), (whole, bool(rest), rest)):
        if not number:
            continue
        fitted = task.model.fit(
            _train_data(task),
            initial_epoch=first,
            epochs=first + number,
            steps_per_epoch=length,
            callbacks=callbacks,
            verbose=verbose,
            # Keras would warn that datasets are not shuffled.
            **({} if task.experiment.private else {"shuffle": False}),
        )
        for name, values in fitted.history.items():
            for epoch, value in zip(fitted.epoch, values, strict=True):
                epochs.setdefault(epoch, {})[name] = value
    return dict(sorted(epochs.items()))


def _evaluate(task, planned, epochs, seconds) -> Result:
    """Evaluates the release and states its privacy cost."""
    experiment, model, dataset = task.experiment, task.model, task.dataset
    runs = _finished_runs(task, planned)
    names = dict.fromkeys(name for logs in epochs.values() for name in logs)
    return Result(
        experiment=experiment,
        model=model,
        runs=runs,
        test_accuracy=_accuracy(plain_copy(model), dataset.x_test, dataset.y_test, experiment),
        statement=Statement.of(runs, experiment.delta, experiment.adjacency, planned=False),
        seconds=seconds,
        # Epochs lost in a crash have no metrics.
        history={n: [logs.get(n, math.nan) for logs in epochs.values()] for n in names},
        curve=_curve_of(epochs),
        notes=(*task.notes, *_share_of_largest_class(dataset)),
        encoder=dataset.encoder,
    )


def _share_of_largest_class(dataset) -> list[str]:
    """Returns a sentence with the baseline of the test accuracy, if test classes are uneven."""
    largest = np.bincount(dataset.y_test.ravel()).max() / dataset.y_test.size
    if dataset.y_test.ndim > 1 or largest <= 1.5 / dataset.num_classes:
        return []
    return [
        f"Always answering the most frequent class has a test accuracy of {100 * largest:.2f}%. For "
        "class weights and other metrics, train with Keras (docs/tables.md)."
    ]


def _train_data(task):
    if task.experiment.private:
        return task.lots
    dataset = task.lots.as_dataset()
    return dataset.map(_weigh_every_label) if task.dataset.y_train.ndim > 1 else dataset


def _weigh_every_label(x, y, weight):
    """Gives each label of a row the weight of the row, as plain Keras training requires."""
    return x, y, keras.ops.broadcast_to(weight[:, None], keras.ops.shape(y))


def _finished_runs(task, planned) -> tuple[Run, ...]:
    """Returns the runs of the trained weights, and sets the weights to the release."""
    experiment, model = task.experiment, task.model
    if experiment.release == "mu":
        model.optimizer.release_means(model.trainable_variables)
    rows = keras.tree.map_structure(operator.itemgetter(slice(64)), task.dataset.x_test)
    if not np.isfinite(model.predict(rows, verbose=0)).all():
        raise FloatingPointError(
            "The training diverged: the model's output is not a finite number. Use a smaller "
            "--learning_rate."
        )
    if experiment.private:
        return tuple(model.privacy.ledger.runs)
    return (planned.with_steps(int(model.optimizer.iterations.numpy())),)


def _accuracy(released: keras.Model, x, y: np.ndarray, experiment: Experiment) -> float:
    """Returns the accuracy of a released model, with weight noise the mean over several draws."""
    right = total = 0
    noisy = [la for la in layers_of(released, itself=True) if isinstance(la, NoisyWeights)]
    for _ in range(experiment.noise_draws if noisy else 1):
        # In parts, since the logits of all characters of a large test split would fill the memory.
        for first in range(0, len(y), 5000):
            part = slice(first, first + 5000)
            rows = keras.tree.map_structure(operator.itemgetter(part), x)
            logits = released.predict(rows, batch_size=500, verbose=0)
            right += np.sum(np.argmax(logits, axis=-1) == y[part])
            total += y[part].size
        for layer in noisy:
            layer.advance_noise()
    return float(right / total)


class _Curve(keras.callbacks.Callback):
    """Adds the test accuracy of the current release to the logs of an epoch.

    Formal guarantee: the accuracy is a function of weights between two steps, and the proven epsilon of
    every mechanism covers the weights after each step. Epochs without a measurement have NaN.
    """

    def __init__(self, x, y: np.ndarray, experiment: Experiment):
        super().__init__()
        self._x, self._y, self._experiment, self._released = x, y, experiment, None

    def on_epoch_end(self, epoch, logs=None):
        # Keras stores the values of a metric in order, so every epoch needs a value.
        logs[_TEST] = math.nan
        if (epoch + 1) % self._experiment.test_every == 0:
            logs[_TEST] = _accuracy(self._release(), self._x, self._y, self._experiment)

    def _release(self):
        """Returns the current release, as it would be published now."""
        if self._released is None:
            self._released = plain_copy(self.model)
        else:
            values_into(self._released, self.model)
        if self._experiment.private and self._experiment.release == "mu":
            self.model.optimizer.release_means(self._released.trainable_variables)
        return self._released


def _curve_of(epochs: Mapping[int, Mapping]) -> tuple[tuple[int, float], ...]:
    """Returns ((number of epochs, test accuracy), ...) from the logs of all epochs, by index."""
    values = ((epoch + 1, float(logs.get(_TEST, math.nan))) for epoch, logs in epochs.items())
    return tuple((number, value) for number, value in values if not math.isnan(value))
