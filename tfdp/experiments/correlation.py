"""Chooses the strategy, bands and groups that an experiment with correlated noise leaves open."""

import dataclasses

from tfdp.accounting.choices import CorrelatedNoise
from tfdp.accounting.mechanisms.registry import mechanism_class
from tfdp.experiments.settings import Experiment


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
    if "strategy" not in mechanism_class(experiment.mechanism).settings:
        return experiment
    per_epoch = max(1, num_examples // experiment.batch_size)
    noise = CorrelatedNoise(
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
    ).completed()
    return dataclasses.replace(
        experiment, strategy=noise.strategy, bands=noise.bands, groups=noise.groups
    )
