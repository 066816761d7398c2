"""Chooses the strategy, bands and groups that an experiment with correlated noise leaves open."""

import dataclasses

from tfdp.accounting import Run, best_bands
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.mechanisms.registry import mechanism_class
from tfdp.accounting.sampling import Poisson
from tfdp.experiments.settings import Experiment

_CUT = ("banded_toeplitz", "sqrt_toeplitz")


def _fields_of(mechanism: str) -> set[str]:
    return {field.name for field in dataclasses.fields(mechanism_class(mechanism))}


def check_open(experiment: Experiment) -> None:
    """Raises ValueError if `complete` has no default for a setting that is not set."""
    if "strategy" not in _fields_of(experiment.mechanism):
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

    The default strategy is banded_toeplitz. With cyclic Poisson lots, the number of bands and the
    number of groups are equal by default; if neither is set, `accounting.best_bands` chooses the
    number with the least noise at the experiment's epsilon. With lots in a fixed order (sampling
    "cyclic"), the default number of bands is the number of steps in an epoch. The default number of
    bands is never larger than the number of steps. Experiments with other mechanisms are returned
    unchanged.

    Args:
        experiment: the settings.
        num_examples: how many training examples there are.

    Raises:
        ValueError: a setting that has no default here is not set.
    """
    check_open(experiment)
    if "strategy" not in _fields_of(experiment.mechanism):
        return experiment
    strategy = experiment.strategy or "banded_toeplitz"
    bands, groups = experiment.bands, experiment.groups
    per_epoch = max(1, num_examples // experiment.batch_size)
    steps = experiment.steps or max(1, round(experiment.epochs * per_epoch))
    if experiment.sampling == "cyclic_poisson":
        groups = groups or bands
        if groups is None:
            run = Run(
                mechanism=DPSGD(noise_multiplier=0.0),
                sampling=Poisson(
                    num_examples=num_examples, lot_size=min(experiment.batch_size, num_examples)
                ),
                steps=steps,
            )
            objective = experiment.objective or "mean"
            best = best_bands(
                experiment.epsilon, experiment.delta, run, experiment.adjacency, objective
            )
            groups = best.bands
        if bands is None and strategy in _CUT:
            bands = min(groups, steps)
    elif bands is None and strategy == "banded_toeplitz":
        bands = min(per_epoch, steps)
    return dataclasses.replace(experiment, strategy=strategy, bands=bands, groups=groups)
