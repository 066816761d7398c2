"""Early stopping on a part of the training data that is not trained on."""

import dataclasses
from collections.abc import Mapping

import keras
import numpy as np

from tfdp.experiments.curves import accuracy_of, release_into

_NAME = "validation_accuracy"


def hold_out(dataset, experiment):
    """Takes the validation examples out of the training data.

    Which examples these are is drawn from the public seed of the experiment, or from 0, so that a
    training that goes on in another process has the same ones.

    Returns:
        (the data set without them, with them behind the test examples; their number).
    """
    if experiment.validation_split is None:
        return dataset, 0
    number = len(dataset.y_train)
    held = round(experiment.validation_split * number)
    if not 0 < held < number:
        raise ValueError(
            f"Expected --validation_split to leave an example for each part of {number}. Found "
            f"{experiment.validation_split:g}."
        )
    order = np.random.default_rng(experiment.seed or 0).permutation(number)
    kept, held_out = np.sort(order[held:]), np.sort(order[:held])
    changed = dataclasses.replace(
        dataset,
        x_train=dataset.x_train[kept],
        y_train=dataset.y_train[kept],
        x_test=np.concatenate([dataset.x_test, dataset.x_train[held_out]]),
        y_test=np.concatenate([dataset.y_test, dataset.y_train[held_out]]),
    )
    return changed, held


def parted(dataset, held: int):
    """Returns (the data set with its own test examples, (validation inputs, labels))."""
    if not held:
        return dataset, None
    tested = len(dataset.y_test) - held

    def part(which):
        return keras.tree.map_structure(lambda values: values[which], dataset.x_test)

    own = dataclasses.replace(dataset, x_test=part(slice(tested)), y_test=dataset.y_test[:tested])
    return own, (part(slice(tested, None)), dataset.y_test[tested:])


def note(held: int, epochs: Mapping, experiment) -> str:
    """Returns the sentence about the validation examples for the record and the model card."""
    ended = "it did not stop early"
    if over(epochs, experiment.patience):
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


def over(epochs: Mapping[int, Mapping], patience: int) -> bool:
    """Whether the last `patience` epochs had no better validation accuracy than one before."""
    seen = {epoch: logs[_NAME] for epoch, logs in epochs.items() if _NAME in logs}
    if not seen:
        return False
    best = min(epoch for epoch, value in seen.items() if value == max(seen.values()))
    return max(seen) - best >= patience


class ValidationStop(keras.callbacks.Callback):
    """Ends training when the accuracy on held out examples has stopped to rise.

    Formal guarantee: for the training examples the end is post-processing of what all planned steps
    would release, so that all of these are counted (`ModelPrivacy.count_left_out`). The held out
    examples have none.

    Args:
        held: (inputs, labels) of the validation examples.
        experiment: the settings; `patience` says how many epochs without a better one end it.
        backup: what keeps the logs of epochs before the training went on, or None.
    """

    def __init__(self, held, experiment, backup):
        super().__init__()
        self._held, self._experiment, self._backup = held, experiment, backup
        self._epochs, self._released = {}, None

    def on_epoch_begin(self, epoch, logs=None):
        """Measures the epoch before, if a crash took its end and left the weights that it had."""
        if self._backup is None or self._epochs or not epoch or epoch - 1 in self._known():
            return
        self._backup.epochs[epoch - 1] = {_NAME: self._accuracy()}
        self._end_if_over()

    def on_epoch_end(self, epoch, logs=None):
        logs = {} if logs is None else logs
        logs[_NAME] = self._accuracy()
        self._epochs[epoch] = {_NAME: logs[_NAME]}
        self._end_if_over()

    def _known(self):
        earlier = {} if self._backup is None else self._backup.epochs
        return {**earlier, **self._epochs}

    def _end_if_over(self):
        if over(self._known(), self._experiment.patience):
            self.model.stop_training = True

    def _accuracy(self):
        self._released = release_into(self._released, self.model, self._experiment)
        return accuracy_of(self._released, *self._held, self._experiment)


def ended(epochs: Mapping[int, Mapping], experiment) -> bool:
    """Whether a training that has these epochs behind it is over before its last step."""
    return experiment.validation_split is not None and over(epochs, experiment.patience)
