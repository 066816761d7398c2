"""Trains and tests a model with noise on its weights, as the setting `weight_noise` asks for."""

from collections.abc import Iterator

import keras

from tfdp._compat.keras import layers_of
from tfdp.experiments.settings import Experiment
from tfdp.layers import NoisyWeights


def with_weight_noise(model: keras.Model, experiment: Experiment) -> keras.Model:
    """Returns a model that computes with noisy weights; `model` itself without `weight_noise`.

    The noise follows from the experiment's seed, which is public: the training is not private.
    """
    if not experiment.weight_noise:
        return model
    noisy = NoisyWeights(
        model,
        experiment.weight_noise,
        experiment.noisy_weights,
        seed=experiment.seed,
        name="noisy_weights",
    )
    (given,) = model.inputs
    inputs = keras.Input(given.shape[1:], dtype=given.dtype)
    return keras.Sequential([inputs, noisy], name=model.name)


def draws(model: keras.Model, experiment: Experiment) -> Iterator[int]:
    """Moves a model from draw to draw of its weights: `noise_draws` of them, or one without noise.

    The means over them are what a test of noisy weights states.
    """
    layers = [la for la in layers_of(model, itself=True) if isinstance(la, NoisyWeights)]
    for number in range(experiment.noise_draws if layers else 1):
        yield number
        for layer in layers:
            layer.advance_noise()
