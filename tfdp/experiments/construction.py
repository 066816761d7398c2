"""Creates the optimizer of an experiment, and its planned `Run`.

Mechanisms need no code in this module. If a constructor parameter of the optimizer class has the name
of a setting of the experiment, or of a fact about the run, it receives that value.
"""

import dataclasses
import inspect
from collections.abc import Sequence

import keras
import numpy as np

from tfdp.accounting import Contribution, PrivacyBudget, Run, noise_for
from tfdp.accounting.band_choice import completed
from tfdp.accounting.mechanisms import NoMechanism, mechanism_class
from tfdp.experiments.settings import Experiment
from tfdp.optimizers import MECHANISMS, NoisySGD
from tfdp.training.describe import planned_run
from tfdp.training.feed import feed_of, sampling_of

# Parameters of Keras optimizers that share their name with an unrelated setting.
_FOREIGN = ("epsilon",)


def complete(experiment: Experiment, num_examples: int) -> Experiment:
    """Returns the experiment with defaults for strategy, bands and groups of mechanism "matrix".

    Raises:
        ValueError: If a setting without a default here is missing.
    """
    if "strategy" not in mechanism_class(experiment.mechanism).settings:
        return experiment
    per_epoch = max(1, num_examples // experiment.batch_size)
    steps = experiment.steps or max(1, round(experiment.epochs * per_epoch))
    chosen = completed(experiment, num_examples, experiment.batch_size, steps)
    return dataclasses.replace(experiment, **chosen)


def learning_rate(experiment: Experiment, steps_per_epoch: int):
    """Returns the learning rate, a float or a Keras schedule that decays once per epoch."""
    if experiment.learning_rate_decay == 1.0:
        return float(np.float32(experiment.learning_rate))
    return keras.optimizers.schedules.ExponentialDecay(
        experiment.learning_rate,
        decay_steps=steps_per_epoch,
        decay_rate=experiment.learning_rate_decay,
        staircase=True,
    )


def make_optimizer(
    experiment: Experiment, lots, steps: int, noise_multiplier: float | Sequence[float] | None
):
    """Creates the optimizer of an experiment: a private one, or a plain one for mechanism "none".

    Args:
        experiment: The settings.
        lots: The `tfdp.data.Lots` of the training.
        steps: Number of steps of the training.
        noise_multiplier: The noise multiplier of the mechanism, or one for each step.
            `experiment.noise_multiplier` is not used, because it is None if the noise is
            calibrated.
    """
    base = type(keras.optimizers.get(experiment.optimizer))
    rate = learning_rate(experiment, lots.steps_per_epoch)
    offered = {
        name: value
        for name, value in vars(experiment).items()
        if value is not None and name not in _FOREIGN
    }
    offered |= {
        "learning_rate": rate,
        "num_microbatches": experiment.microbatches,
        "seed": experiment.insecure_seed,  # the seed of the noise; --seed is public
        "noise_multiplier": noise_multiplier,
        "num_examples": lots.num_examples,
        "lot_size": lots.lot_size,
        "steps_per_epoch": lots.steps_per_epoch,
        "steps": steps,
    }
    made = MECHANISMS[experiment.mechanism](base) if experiment.private else base
    if experiment.update_noise:
        made = NoisySGD
        offered["seed"] = experiment.seed  # this noise protects nothing, so its seed is public
    taken = inspect.signature(made).parameters
    if experiment.optimizer != "sgd" and not issubclass(made, base):
        offered["update_rule"] = base(learning_rate=rate)
    given = {name: offered[name] for name in taken if offered.get(name) is not None}
    return made(**given)


def plan(experiment: Experiment, lots, steps: int, model: keras.Model) -> Run:
    """Returns the planned `Run` of an experiment, with noise calibrated to its budget.

    Args:
        experiment: The settings. If `noise_multiplier` is None, the noise is calibrated to
            `epsilon`.
        lots: The `tfdp.data.Lots` of the training.
        steps: Number of steps of the training.
        model: The built model, private if the experiment is.
    """
    if not experiment.private:
        clip = Contribution(l2_norm_clip=experiment.l2_norm_clip)
        return Run(
            mechanism=NoMechanism(), sampling=sampling_of(lots), steps=steps, contribution=clip
        )
    noise: float | list[float] = 1.0
    if experiment.noise_multiplier is not None:
        noise = experiment.noise_multiplier
    if experiment.noise_decay is not None:
        epochs = np.arange(steps) // lots.steps_per_epoch
        noise = [float(each) for each in noise * experiment.noise_decay**epochs]
    optimizer = make_optimizer(experiment, lots, steps, noise)
    feed = feed_of(lots, experiment.physical_batch_size)
    planned = planned_run(model, feed, steps, optimizer, model.privacy.account.start)
    # With an insecure seed nothing finite is proven, so no noise would satisfy the calibration.
    # Therefore the plan assumes secret noise; the ledger records the insecure seed.
    planned = dataclasses.replace(planned, insecure_seed=False)
    if experiment.noise_multiplier is not None:
        return planned
    return planned.with_noise(
        noise_for(
            experiment.epsilon,
            experiment.delta,
            planned,
            kind=experiment.guarantee,
            adjacency=experiment.adjacency,
        )
    )


def budget(experiment: Experiment) -> PrivacyBudget | None:
    """Returns the budget of the training. None if the noise is given or insecure."""
    epsilon, given = experiment.epsilon, (experiment.noise_multiplier, experiment.insecure_seed)
    if epsilon is None or given != (None, None):
        return None
    return PrivacyBudget(epsilon, experiment.delta, experiment.guarantee, experiment.adjacency)
