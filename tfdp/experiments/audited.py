"""Audits and attacks of experiments, which test whether their guarantees can be true."""

import importlib.util
import json
import os

import keras
import numpy as np
from absl import logging

from tfdp._files import replaced_whole
from tfdp.auditing import (
    Audit,
    DiracCanaries,
    ExampleCanaries,
    Membership,
    audit,
    draw,
    membership_inference,
)
from tfdp.experiments import network
from tfdp.experiments.experiment import run
from tfdp.experiments.settings import Experiment


def audit_experiment(experiment: Experiment, *, canaries: int = 500, **options) -> Audit:
    """Audits an experiment: trains it with canaries, and tests its epsilons by what the weights reveal.

    The canaries are additional records of the training. So the audited training has more examples than
    the experiment itself, and noise for an epsilon is calibrated again.

    Args:
        experiment: The settings of a private training.
        canaries: Number of canaries. More canaries can show larger epsilons.
        **options: Arguments of `tfdp.auditing.audit`, such as `runs`, `observe` and `confidence`.

    Returns:
        The `tfdp.auditing.Audit`, with a lower bound on epsilon.

    Raises:
        ValueError: If the experiment has no privacy to audit, or an argument is invalid.

    Example:
        >>> from tfdp.experiments import Experiment, audit_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> found = audit_experiment(experiment, canaries=100, confidence=0.9999)
        >>> found.refutes("proven")
        False
    """
    if not experiment.private:
        raise ValueError(
            "mechanism='none' states no epsilon, so there is nothing to audit. Attack the model "
            "instead: python -m tfdp.auditing membership."
        )

    def train(world):
        return run(experiment, verbose=0, world=world).model

    return audit(
        train,
        DiracCanaries(canaries),
        delta=experiment.delta,
        adjacency=experiment.adjacency,
        **options,
    )


def attack_experiment(
    experiment: Experiment, *, examples: int = 500, models: int = 16, seed: int = 0
) -> Membership:
    """Measures how well an adversary who sees only the released model can tell who was in the data.

    It trains the experiment several times, with a random half of some examples, and runs membership
    inference attacks on the models. In contrast to `audit_experiment`, it also works without privacy.

    Args:
        experiment: The settings, with or without privacy.
        examples: Number of training examples that coin flips include or leave out.
        models: Number of trained models, as in `tfdp.auditing.membership_inference`.
        seed: Seed of the choice of these examples and of their coin flips.

    Returns:
        The `tfdp.auditing.Membership`, with the success of each attack.

    Raises:
        ValueError: If the data set has too few training examples, or not one label for each example.

    Example:
        >>> from tfdp.experiments import Experiment, attack_experiment
        >>> experiment = Experiment(
        ...     mechanism="dpsgd", model="linear", sampling="cyclic", batch_size=479,
        ...     steps=3, noise_multiplier=4.0)
        >>> found = attack_experiment(experiment, examples=100, models=4)
        >>> found.models, 0.2 < found.attacks["lira"].auc < 0.8
        (4, True)
    """
    dataset = network.load(experiment)
    if not 1 <= examples <= len(dataset.y_train):
        raise ValueError(
            f"Expected examples to be in [1, {len(dataset.y_train)}], up to the number of training "
            f"examples of {experiment.dataset}. Received {examples}."
        )
    random = np.random.default_rng([int.from_bytes(b"examples"), seed])
    rows = random.choice(len(dataset.y_train), examples, replace=False)
    canaries = ExampleCanaries(dataset.x_train[rows], dataset.y_train[rows], rows)

    def train(world):
        keras.utils.clear_session()
        return run(experiment, verbose=0, world=world).model

    return membership_inference(train, canaries, models=models, delta=experiment.delta, seed=seed)


def write(
    found: Audit | Membership,
    about: dict,
    json_file: str | os.PathLike | None = None,
    plot_file: str | os.PathLike | None = None,
) -> None:
    """Writes a result to a JSON file, and plots it with matplotlib.

    Args:
        found: The result of `audit_experiment` or `attack_experiment`.
        about: JSON-safe facts about the training, for the file.
        json_file: Path of the JSON file. None writes none.
        plot_file: Path of the picture. None draws none.
    """
    if json_file is not None:
        with replaced_whole(json_file) as path, open(path, "w") as opened:
            json.dump(about | found.to_dict(), opened, indent=2)
            opened.write("\n")
    if plot_file is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        logging.warning("No plot: matplotlib is not installed (pip install 'tfdp[plot]').")
    else:
        draw(found, plot_file)
