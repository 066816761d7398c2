"""Test accuracy of what would be released: at the end of a training, and in between."""

import math
import operator

import keras
import numpy as np

from tfdp.experiments.weight_noise import draws
from tfdp.training.export import plain_copy, values_into

_NAME = "test_accuracy"


def test_accuracy(model, dataset, experiment) -> float:
    """Returns the accuracy on the test split of exactly the model that would be released.

    With weight noise it is the mean over several draws of the noise.
    """
    return accuracy_of(plain_copy(model), dataset.x_test, dataset.y_test, experiment)


def accuracy_of(released, x, y, experiment) -> float:
    """Returns the accuracy of a model that is released, with the draws of noise that it may have."""
    right = total = 0
    for _ in draws(released, experiment):
        # In parts, since the logits of every character of a large test split would fill the memory.
        for first in range(0, len(y), 5000):
            part = slice(first, first + 5000)
            rows = keras.tree.map_structure(operator.itemgetter(part), x)
            logits = released.predict(rows, batch_size=500, verbose=0)
            right += np.sum(np.argmax(logits, axis=-1) == y[part])
            total += y[part].size
    return float(right / total)


def release_into(copy, model, experiment):
    """Returns what would be released of a model now: `copy` with its values, or a new copy for None."""
    if copy is None:
        copy = plain_copy(model)
    else:
        values_into(copy, model)
    if experiment.private and experiment.release == "mu":
        model.optimizer.release_means(copy.trainable_variables)
    return copy


class TestCurve(keras.callbacks.Callback):
    """Puts the test accuracy of the model that would be released now into the logs of an epoch.

    Formal guarantee: what it shows is a function of weights between two steps, and the proven epsilon
    of every mechanism covers the weights after each step. Epochs in between have NaN.

    Args:
        dataset: the data, with a test split.
        experiment: the settings; `test_every` says after how many epochs it is measured.
    """

    __test__ = False  # for pytest, this is no test

    def __init__(self, dataset, experiment):
        super().__init__()
        self._dataset, self._experiment, self._released = dataset, experiment, None

    def on_epoch_end(self, epoch, logs=None):
        if logs is None:
            return
        # Keras keeps the values of a metric by their order, so that every epoch needs one.
        logs[_NAME] = math.nan
        if (epoch + 1) % self._experiment.test_every == 0:
            self._released = release_into(self._released, self.model, self._experiment)
            x, y = self._dataset.x_test, self._dataset.y_test
            logs[_NAME] = accuracy_of(self._released, x, y, self._experiment)


def curve_of(epochs: dict) -> tuple[tuple[int, float], ...]:
    """Returns ((number of epochs, accuracy), ...) of the logs of all epochs, by index."""
    values = ((epoch + 1, float(logs.get(_NAME, math.nan))) for epoch, logs in epochs.items())
    return tuple((number, value) for number, value in values if not math.isnan(value))
