"""Finds the random state of a model: the only state that a private forward pass may write.

It is recognised by its owner, never by its name: a layer can call a running statistic
"seed_generator_state", and its statistic stays what it is. That nothing of an example is in what is
written there is checked by `state_writes`.
"""

import keras

from tfdp._compat.keras import layers_of, seed_generators
from tfdp.layers.noisy import noisy_layers


def seed_states(model) -> list:
    """The states of the `keras.random.SeedGenerator`s that Keras tracks for a model's layers.

    Dropout and the like draw fresh numbers from them for every example.

    Args:
        model: a Keras model; its own generators and those of nested layers count too.
    """
    layers = layers_of(model, itself=True)
    generators = [g for layer in layers for g in seed_generators(layer)]
    return _once(g.state for g in generators if isinstance(g, keras.random.SeedGenerator))


def noise_states(model) -> list:
    """The states of the noisy layers of tfdp, which draw one noise for the whole lot."""
    return _once(layer.weight_noise_state for layer in noisy_layers(model) if layer.built)


def _once(variables):
    return [*{id(variable): variable for variable in variables}.values()]
