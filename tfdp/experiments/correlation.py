"""Chooses the strategy, bands and groups that an experiment with correlated noise leaves open."""

import dataclasses

from tfdp.accounting.choices import CorrelatedNoise
from tfdp.accounting.mechanisms.registry import mechanism_class
from tfdp.experiments.settings import Experiment


def check_open(experiment: Experiment) -> None:
    """Raises ValueError if `complete` has no default for a setting that is not set."""
    if _correlates(experiment):
        # What is checked does not depend on the number of examples.
        _noise(experiment, experiment.batch_size).check_open(experiment.epsilon)


def complete(experiment: Experiment, num_examples: int) -> Experiment:
    """Returns the experiment with all settings that the mechanism "matrix" needs.

    What is left open is chosen by `accounting.choices`. Experiments with other mechanisms are returned
    unchanged.

    Args:
        experiment: the settings.
        num_examples: how many training examples there are.

    Raises:
        ValueError: a setting that has no default here is not set.
    """
    if not _correlates(experiment):
        return experiment
    noise = _noise(experiment, num_examples).completed()
    return dataclasses.replace(
        experiment, strategy=noise.strategy, bands=noise.bands, groups=noise.groups
    )


def _correlates(experiment: Experiment) -> bool:
    return "strategy" in mechanism_class(experiment.mechanism).settings


def _noise(experiment: Experiment, num_examples: int) -> CorrelatedNoise:
    per_epoch = max(1, num_examples // experiment.batch_size)
    return CorrelatedNoise(
        num_examples=num_examples,
        lot_size=experiment.batch_size,
        steps=experiment.steps or max(1, round(experiment.epochs * per_epoch)),
        sampling=experiment.sampling,
        delta=experiment.delta,
        epsilon=experiment.epsilon,
        adjacency=experiment.adjacency,
        strategy=experiment.strategy,
        bands=experiment.bands,
        groups=experiment.groups,
        objective=experiment.objective,
    )
