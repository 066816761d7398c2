"""Early stopping on a part of the training data that is not trained on."""

import dataclasses

import numpy as np

from tfdp.data import Dataset
from tfdp.experiments.settings import Experiment


def hold_out(dataset: Dataset, experiment: Experiment) -> Dataset:
    """Moves a part of the training examples to the validation examples, if the experiment says so.

    Which examples these are is drawn from the public seed of the experiment, or from 0, so that a
    training that is resumed in another process has the same ones.
    """
    if experiment.validation_split is None:
        return dataset
    number = len(dataset.y_train)
    held = round(experiment.validation_split * number)
    if not 0 < held < number:
        raise ValueError(
            f"--validation_split={experiment.validation_split:g} leaves no example for one of the two "
            f"parts of {number}. Choose another share."
        )
    order = np.random.default_rng(experiment.seed or 0).permutation(number)
    kept, held_out = np.sort(order[held:]), np.sort(order[:held])
    return dataclasses.replace(
        dataset,
        x_train=dataset.x_train[kept],
        y_train=dataset.y_train[kept],
        x_validation=dataset.x_train[held_out],
        y_validation=dataset.y_train[held_out],
    )


def note(held: int, stopped_after: int | None, private: bool) -> str:
    """Returns the sentence about the validation examples for the record and the model card.

    Args:
        held: how many examples there are.
        stopped_after: the number of epochs, if the training ended early.
        private: whether the training is private.
    """
    ended = "it did not stop early"
    if stopped_after is not None:
        ended = f"it stopped after epoch {stopped_after}"
        if private:
            ended += (
                ", and all planned steps are counted, because the weights, too, decided about it"
            )
    if not private:
        return f"The accuracy on {held:,} validation examples decided when training ends ({ended})."
    return (
        f"The {held:,} validation examples were not trained on and have NO guarantee: their accuracy "
        f"decided when training ends, without noise ({ended}). The guarantee is that of the training "
        "examples."
    )
