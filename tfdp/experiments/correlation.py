"""Chooses the strategy, bands and groups that an experiment with correlated noise leaves open."""

import dataclasses

from tfdp.accounting.choices import CorrelatedNoise
from tfdp.accounting.mechanisms.registry import mechanism_class
from tfdp.experiments.settings import Experiment


def check_open(experiment: Experiment) -> None:
    """Raises ValueError if `complete` has no default for a setting that is not set."""
    if "strategy" not in mechanism_class(experiment.mechanism).options:
        return
    best = experiment.strategy in (None, "banded_toeplitz")
    if experiment.sampling == "cyclic_poisson":
        chosen = experiment.groups or experiment.bands
        if not chosen and not (best and experiment.epsilon is not None):
            raise ValueError(
                "Expected --groups or --bands with --sampling=cyclic_poisson. Found neither. They are "
                "chosen for --strategy=banded_toeplitz and a given --epsilon only."
            )
    elif best and experiment.bands is None and experiment.sampling != "cyclic":
        raise ValueError(
            f"Expected --bands with --sampling={experiment.sampling}. Found none. Or take "
            "--sampling=cyclic_poisson, for which they are chosen."
        )


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
    check_open(experiment)
    if "strategy" not in mechanism_class(experiment.mechanism).options:
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
