"""Early stopping on a part of the training data that is not trained on."""

import dataclasses
from collections.abc import Mapping

import keras
import numpy as np

from tfdp.data import Dataset
from tfdp.experiments.curves import VALIDATION
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


def note(held: int, epochs: Mapping, experiment: Experiment) -> str:
    """Returns the sentence about the validation examples for the record and the model card."""
    ended = "it did not stop early"
    if is_over(epochs, experiment):
        ended = f"it stopped after epoch {max(epochs) + 1}"
        if experiment.private:
            ended += (
                ", and all planned steps are counted, because the weights, too, decided about it"
            )
    if not experiment.private:
        return f"The accuracy on {held:,} validation examples decided when training ends ({ended})."
    return (
        f"The {held:,} validation examples were not trained on and have NO guarantee: their accuracy "
        f"decided when training ends, without noise ({ended}). The guarantee is that of the training "
        "examples."
    )


def is_over(epochs: Mapping[int, Mapping], experiment: Experiment) -> bool:
    """Whether the last `patience` epochs had no better validation accuracy than one before."""
    seen = {epoch: logs[VALIDATION] for epoch, logs in epochs.items() if VALIDATION in logs}
    if not seen:
        return False
    best = min(epoch for epoch, value in seen.items() if value == max(seen.values()))
    return max(seen) - best >= experiment.patience


class ValidationStop(keras.callbacks.Callback):
    """Ends training when the accuracy on held out examples has stopped to rise.

    It stands behind the `Curve` of this accuracy. `keras.callbacks.EarlyStopping` would not know the
    epochs of earlier processes.

    Formal guarantee: for the training examples the end is post-processing of what all planned steps
    would release, so that all of these are counted (`ModelPrivacy.count_left_out`). The held out
    examples have none.

    Args:
        experiment: the settings.
        backup: keeps the logs of the epochs of earlier processes; or None.
    """

    def __init__(self, experiment: Experiment, backup):
        super().__init__()
        self._experiment, self._backup, self._epochs = experiment, backup, {}

    def on_epoch_end(self, epoch, logs=None):
        earlier = {} if self._backup is None else self._backup.epochs
        self._epochs[epoch] = dict(logs or {})
        if is_over({**earlier, **self._epochs}, self._experiment):
            self.model.stop_training = True
