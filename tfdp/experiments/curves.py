"""Test accuracy of the release, at the end of a training and during it."""

import math
import operator
from collections.abc import Mapping

import keras
import numpy as np

from tfdp._compat.keras import layers_of
from tfdp.experiments.settings import Experiment
from tfdp.layers import NoisyWeights
from tfdp.training.export import plain_copy, values_into

TEST = "test_accuracy"


def accuracy_of(released: keras.Model, x, y: np.ndarray, experiment: Experiment) -> float:
    """Returns the accuracy of a released model; with weight noise, the mean over several draws."""
    right = total = 0
    noisy = [la for la in layers_of(released, itself=True) if isinstance(la, NoisyWeights)]
    for _ in range(experiment.noise_draws if noisy else 1):
        # In parts, since the logits of every character of a large test split would fill the memory.
        for first in range(0, len(y), 5000):
            part = slice(first, first + 5000)
            rows = keras.tree.map_structure(operator.itemgetter(part), x)
            logits = released.predict(rows, batch_size=500, verbose=0)
            right += np.sum(np.argmax(logits, axis=-1) == y[part])
            total += y[part].size
        for layer in noisy:
            layer.advance_noise()
    return float(right / total)


class Curve(keras.callbacks.Callback):
    """Adds the test accuracy of the current release to the logs of an epoch.

    Formal guarantee: the accuracy is a function of weights between two steps, and the proven epsilon of
    every mechanism covers the weights after each step. Epochs in between have NaN.

    Args:
        x, y: the test examples.
        experiment: the settings; its `test_every` is the number of epochs between two measurements.
    """

    def __init__(self, x, y: np.ndarray, experiment: Experiment):
        super().__init__()
        self._x, self._y, self._experiment, self._released = x, y, experiment, None

    def on_epoch_end(self, epoch, logs=None):
        # Keras keeps the values of a metric by their order, so that every epoch needs one.
        logs[TEST] = math.nan
        if (epoch + 1) % self._experiment.test_every == 0:
            logs[TEST] = accuracy_of(self._release(), self._x, self._y, self._experiment)

    def _release(self):
        """The current release."""
        if self._released is None:
            self._released = plain_copy(self.model)
        else:
            values_into(self._released, self.model)
        if self._experiment.private and self._experiment.release == "mu":
            self.model.optimizer.release_means(self._released.trainable_variables)
        return self._released


def curve_of(epochs: Mapping[int, Mapping]) -> tuple[tuple[int, float], ...]:
    """Returns ((number of epochs, test accuracy), ...) of the logs of all epochs, by index."""
    values = ((epoch + 1, float(logs.get(TEST, math.nan))) for epoch, logs in epochs.items())
    return tuple((number, value) for number, value in values if not math.isnan(value))
