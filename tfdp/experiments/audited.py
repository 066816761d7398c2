"""Audits an experiment: trains it with canaries and tests its guarantees."""

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
    """Trains an experiment with canaries and returns the audit.

    The canaries are records of the training, so the audited training has more examples than the
    experiment without them, and noise for an epsilon is calibrated again.

    Args:
        experiment: The settings.
        canaries: Number of canaries.
        **options: Arguments of `tfdp.auditing.audit`, such as `runs`, `observe` and `confidence`.

    Raises:
        ValueError: If the experiment has no privacy to audit, or an argument is not in its range.

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
            "mechanism='none' states no epsilon that an audit could refute. Attack its model instead: "
            "python -m tfdp.auditing membership."
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
    """Runs the attacks of an adversary who sees only the released model.

    Args:
        experiment: The settings, with or without privacy.
        examples: Number of training examples that coin flips include or leave out.
        models: As in `tfdp.auditing.membership_inference`.
        seed: Seed of the choice of these examples and of their coin flips.

    Raises:
        ValueError: If the data set has too few training examples, or not one label for each.

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
            f"Expected examples to be in [1, {len(dataset.y_train)}], the training examples of "
            f"{experiment.dataset}. Received {examples}."
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
    """Writes a result with the JSON-safe facts `about`, and plots it with matplotlib."""
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
