"""What an experiment with correlated noise leaves open: strategy, bands and groups."""

import dataclasses

from tfdp.accounting import Run, best_bands
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.mechanisms.registry import mechanism_class
from tfdp.accounting.sampling import Poisson
from tfdp.experiments.settings import Experiment

_CUT = ("banded_toeplitz", "sqrt_toeplitz")


def _fields_of(mechanism: str) -> set[str]:
    return {field.name for field in dataclasses.fields(mechanism_class(mechanism))}


def complete(experiment: Experiment, num_examples: int) -> Experiment:
    """The experiment with everything set that the mechanism "matrix" needs; others stay as they are.

    The strategy is banded_toeplitz. With cyclic Poisson lots it has as many bands as there are groups,
    and where neither is set, as many as give the least noise at the experiment's epsilon
    (`accounting.best_bands`). With a fixed order it has as many as an epoch has steps.

    Args:
        experiment: the settings.
        num_examples: how many training examples there are.

    Raises:
        ValueError: something is open that has no default.
    """
    if "strategy" not in _fields_of(experiment.mechanism):
        return experiment
    strategy = experiment.strategy or "banded_toeplitz"
    bands, groups = experiment.bands, experiment.groups
    per_epoch = max(1, num_examples // experiment.batch_size)
    steps = experiment.steps or max(1, round(experiment.epochs * per_epoch))
    if experiment.sampling == "cyclic_poisson":
        groups = groups or bands
        if groups is None and (strategy != "banded_toeplitz" or experiment.epsilon is None):
            raise ValueError(
                "Expected --groups or --bands with --sampling=cyclic_poisson. Found neither. They are "
                "chosen for --strategy=banded_toeplitz and a given --epsilon only."
            )
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
        if experiment.sampling != "cyclic":
            raise ValueError(
                f"Expected --bands with --sampling={experiment.sampling}. Found none. Or take "
                "--sampling=cyclic_poisson, for which they are chosen."
            )
        bands = min(per_epoch, steps)
    return dataclasses.replace(experiment, strategy=strategy, bands=bands, groups=groups)
