"""One experiment, from its settings to a trained model and its two guarantees."""

import dataclasses
import math
import time

import keras
import numpy as np

from tfdp import (
    _backend,  # noqa: F401
    data,
    models,
    optimizers,
)
from tfdp.accounting import (
    Guarantee,
    PrivacyBudget,
    Run,
    advice,
    claimed,
    noise_for,
    proven,
    statement,
)
from tfdp.callbacks import PrivacyProgress, PrivacyTensorBoard
from tfdp.optimizers.si_dpsgd import evaluate_schedule
from tfdp.release import plain_copy
from tfdp.training import make_private

MECHANISMS = ("none", "dpsgd", "si_dpsgd")
UPDATE_RULES = ("sgd", "adam", "adamw", "adagrad", "rmsprop", "nadam")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """The settings of one training; `train.py` has a flag for each, with the same name.

    Attributes: see `python train.py --help`. Exactly one of `epsilon` and `noise_multiplier` is
    used: with a noise multiplier, `epsilon` is what comes out.
    """

    mechanism: str
    dataset: str
    model: str
    batch_size: int
    learning_rate: float
    epochs: float = 1.0
    steps: int | None = None
    data_dir: str | None = None
    normalization: str = "none"
    activation: str = "relu"
    normalize_output: bool = False
    epsilon: float | None = None
    delta: float = 1e-5
    guarantee: str = "proven"
    adjacency: str = "zero_out"
    noise_multiplier: float | None = None
    l2_norm_clip: float = 1.0
    clipping: str = "global"
    microbatches: int | None = None
    physical_batch_size: int | None = None
    sampling: str = "poisson"
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    learning_rate_decay: float = 1.0
    release: str = "theta"
    engine: str = "auto"
    jit_compile: bool = False
    seed: int | None = None

    def __post_init__(self):
        if self.mechanism not in MECHANISMS:
            raise ValueError(
                f"Unknown mechanism {self.mechanism!r}. Expected one of {', '.join(MECHANISMS)}."
            )
        if self.optimizer not in UPDATE_RULES:
            raise ValueError(
                f"Unknown optimizer {self.optimizer!r}. Expected one of {', '.join(UPDATE_RULES)}."
            )
        for name in ("learning_rate", "learning_rate_decay", "l2_norm_clip", "epochs"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"Expected --{name} to be a finite number above 0. Found {value}.")
        for name in ("batch_size", "steps", "microbatches", "physical_batch_size"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise ValueError(f"Expected --{name} to be at least 1. Found {value}.")
        if self.noise_multiplier is not None and not (0 <= self.noise_multiplier < math.inf):
            raise ValueError(
                f"Expected --noise_multiplier to be a finite number of at least 0. Found "
                f"{self.noise_multiplier}."
            )
        if self.mechanism != "none" and self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("Expected --epsilon or --noise_multiplier. Found neither.")
        if self.epsilon is not None:
            PrivacyBudget(self.epsilon, self.delta, self.guarantee, self.adjacency)
        else:
            PrivacyBudget(1.0, self.delta, self.guarantee, self.adjacency)
        if self.mechanism == "si_dpsgd" and self.optimizer != "sgd" and self.guarantee != "claimed":
            raise ValueError(
                f"No finite epsilon can be proven for SI-DPSGD with --optimizer={self.optimizer}: its "
                "second moments are un-noised private state. Expected --optimizer=sgd (with or "
                "without --momentum), or --guarantee=claimed."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What an experiment gave.

    Attributes:
        experiment: its settings.
        model: the trained Keras model; its weights are what would be released.
        run: what was accounted.
        test_accuracy: of the released weights, on the test split.
        claimed, proven: the guarantees at the experiment's delta and adjacency.
        seconds_per_step: mean time of a training step after the first.
        seconds: whole training time.
        advice: a sentence about a better mechanism at the same proven epsilon, or None.
        statement: both guarantees in words.
        history: Keras' history of the training.
    """

    experiment: Experiment
    model: keras.Model
    run: Run
    test_accuracy: float
    claimed: Guarantee
    proven: Guarantee
    seconds_per_step: float
    seconds: float
    advice: str | None
    statement: str
    history: dict


class _StepTimes(keras.callbacks.Callback):
    """Times steps; the first one traces and compiles, so it is left out."""

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


def run(experiment: Experiment, log_dir: str | None = None, verbose: int | str = "auto") -> Result:
    """Trains, evaluates the release and accounts.

    Args:
        experiment: the settings.
        log_dir: where TensorBoard's events go; None writes none.
        verbose: as in `keras.Model.fit`.

    Raises:
        ValueError: the settings do not fit together or the data.
        DataUnavailable: the data set is not there.
        FloatingPointError: the model's output is not finite, before or after training.
    """
    if experiment.seed is not None:
        keras.utils.set_random_seed(experiment.seed)
    dataset = data.load(experiment.dataset, experiment.data_dir)
    if dataset.x_train is None or dataset.x_test is None:
        raise ValueError(
            f"Data set {experiment.dataset!r} has no training or no test split here. Expected digits, "
            "mnist or cifar10."
        )
    data.check_labels(dataset.y_train, dataset.num_classes)
    lots = data.make_lots(
        experiment.sampling,
        dataset.x_train,
        dataset.y_train,
        lot_size=experiment.batch_size,
        physical_batch_size=experiment.physical_batch_size,
        seed=experiment.seed,
        row_multiple=(
            None if experiment.jit_compile else data.row_multiple_for(experiment.batch_size)
        ),
    )
    steps = _total_steps(experiment, lots)
    planned = describe(experiment, lots, steps)
    if experiment.noise_multiplier is None and experiment.mechanism != "none":
        planned = planned.with_(
            noise_multiplier=noise_for(
                experiment.epsilon,
                experiment.delta,
                planned,
                kind=experiment.guarantee,
                adjacency=experiment.adjacency,
            )
        )
    model = models.build(
        experiment.model,
        dataset.input_shape,
        dataset.num_classes,
        normalization=experiment.normalization,
        activation=experiment.activation,
        normalize_output=experiment.normalize_output,
    )
    private = experiment.mechanism != "none"
    if private:
        budget = None
        if experiment.noise_multiplier is None:
            budget = PrivacyBudget(
                experiment.epsilon, experiment.delta, experiment.guarantee, experiment.adjacency
            )
        make_private(
            model,
            engine=experiment.engine,
            physical_batch_size=experiment.physical_batch_size,
            budget=budget,
            seed=experiment.seed,
        )
    model.compile(
        optimizer=make_optimizer(experiment, planned),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=experiment.jit_compile,
    )
    _check_finite(model, dataset.x_test, "before training, at the initial weights")
    times = _StepTimes()
    callbacks = [times]
    if private:
        callbacks.append(
            PrivacyProgress(experiment.delta, experiment.guarantee, experiment.adjacency)
        )
        if log_dir is not None:
            callbacks.append(
                PrivacyTensorBoard(
                    log_dir, experiment.delta, experiment.adjacency, hparams=_hparams(planned)
                )
            )
    elif log_dir is not None:
        callbacks.append(keras.callbacks.TensorBoard(log_dir, write_graph=False))
    started = time.perf_counter()
    train_data = lots if private else lots.as_dataset()
    history = _fit(model, train_data, steps, lots.steps_per_epoch, callbacks, verbose)
    seconds = time.perf_counter() - started
    if private and experiment.release == "mu":
        model.optimizer.release_means(model.trainable_variables)
    _check_finite(model, dataset.x_test, "after training: it diverged; lower --learning_rate")
    executed = model.ledger.runs[-1] if private else planned
    accuracy = test_accuracy(model, dataset)
    return Result(
        experiment=experiment,
        model=model,
        run=executed,
        test_accuracy=accuracy,
        claimed=claimed(executed, experiment.delta, experiment.adjacency),
        proven=proven(executed, experiment.delta, experiment.adjacency),
        seconds_per_step=times.mean,
        seconds=seconds,
        advice=(
            advice(executed, experiment.delta, experiment.adjacency).sentence
            if experiment.mechanism == "si_dpsgd"
            else None
        ),
        statement=statement(executed, experiment.delta, experiment.adjacency),
        history=history,
    )


def _total_steps(experiment, lots) -> int:
    if experiment.steps is not None:
        return experiment.steps
    return max(1, round(experiment.epochs * lots.steps_per_epoch))


def _fit(model, train_data, steps, steps_per_epoch, callbacks, verbose) -> dict:
    """Exactly `steps` steps: whole epochs, then one short epoch for what is left."""
    whole, rest = divmod(steps, steps_per_epoch)
    history = {}
    for first, epochs, length in ((0, whole, steps_per_epoch), (whole, bool(rest), rest)):
        if not epochs:
            continue
        part = model.fit(
            train_data,
            initial_epoch=first,
            epochs=first + epochs,
            steps_per_epoch=length,
            callbacks=callbacks,
            verbose=verbose,
        )
        for name, values in part.history.items():
            history.setdefault(name, []).extend(values)
    return history


def describe(experiment: Experiment, lots, steps: int) -> Run:
    """The `Run` that the experiment plans; its noise multiplier is 0 where it is not given yet."""
    fields = {}
    if experiment.mechanism == "si_dpsgd":
        rates = _learning_rate(experiment, lots.steps_per_epoch)
        if not isinstance(rates, float):
            rates = evaluate_schedule(rates, steps)
        fields = {
            "learning_rates": rates,
            "momentum": experiment.momentum,
            "nesterov": experiment.nesterov,
            "release": experiment.release,
        }
    microbatch = 1
    if experiment.microbatches is not None:
        if lots.lot_size % experiment.microbatches:
            raise ValueError(
                f"Expected --microbatches to divide --batch_size ({lots.lot_size}). Found "
                f"{experiment.microbatches}."
            )
        microbatch = lots.lot_size // experiment.microbatches
    return Run(
        mechanism=experiment.mechanism,
        num_examples=lots.num_examples,
        lot_size=lots.lot_size,
        steps=steps,
        sampling=lots.sampling,
        noise_multiplier=experiment.noise_multiplier or 0.0,
        l2_norm_clip=experiment.l2_norm_clip,
        microbatch_size=microbatch,
        optimizer=experiment.optimizer,
        seeded=experiment.seed is not None,
        **fields,
    )


def _learning_rate(experiment, steps_per_epoch):
    """A float, or the Keras schedule that decays once per epoch."""
    if experiment.learning_rate_decay == 1.0:
        return float(np.float32(experiment.learning_rate))
    return keras.optimizers.schedules.ExponentialDecay(
        experiment.learning_rate,
        decay_steps=steps_per_epoch,
        decay_rate=experiment.learning_rate_decay,
        staircase=True,
    )


def make_optimizer(experiment: Experiment, planned: Run):
    """The Keras optimizer of an experiment, private unless the mechanism is "none"."""
    rate = _learning_rate(experiment, planned.steps_per_epoch)
    private = dict(
        l2_norm_clip=experiment.l2_norm_clip,
        noise_multiplier=planned.noise_multiplier,
        num_microbatches=experiment.microbatches,
        clipping=experiment.clipping,
        seed=experiment.seed,
    )
    base = type(keras.optimizers.get(experiment.optimizer))
    rule = {"learning_rate": rate}
    if experiment.optimizer == "sgd":
        rule |= {"momentum": experiment.momentum, "nesterov": experiment.nesterov}
    if experiment.mechanism == "none":
        return base(**rule)
    if experiment.mechanism == "dpsgd":
        return optimizers.make_dp_optimizer_class(base)(**rule, **private)
    if experiment.optimizer != "sgd":
        return optimizers.SIDPSGDOptimizer(
            update_rule=base(**rule),
            guarantee=experiment.guarantee,
            release=experiment.release,
            **private,
        )
    return optimizers.SIDPSGDOptimizer(**rule, release=experiment.release, **private)


def test_accuracy(model, dataset) -> float:
    """Accuracy on the test split of exactly what would be released."""
    logits = plain_copy(model).predict(dataset.x_test, batch_size=500, verbose=0)
    return float(np.mean(np.argmax(logits, axis=1) == dataset.y_test))


def _check_finite(model, x, when):
    if not np.isfinite(model.predict(x[:64], verbose=0)).all():
        raise FloatingPointError(f"The model's output is not a finite number {when}.")


def _hparams(planned):
    names = (
        "mechanism", "lot_size", "steps", "sampling", "l2_norm_clip", "noise_multiplier",
    )  # fmt: skip
    values = {name: getattr(planned, name) for name in names}
    if isinstance(planned.learning_rates, float):
        values["learning_rate"] = planned.learning_rates
    return values
