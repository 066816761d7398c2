"""Finds the random state of a model: the only state that a private forward pass may write.

Random state is recognised by the object that owns it, never by its name, because a layer may call a
running statistic "seed_generator_state". `first_pass` checks that the values that are written to
random state do not depend on an example.
"""

import keras

from tfdp._compat.keras import layers_of, seed_generators, shared_seed_generator
from tfdp.layers.noisy import noisy_layers


def seed_states(model) -> list:
    """Returns the states of the `keras.random.SeedGenerator`s that Keras tracks for a model's layers.

    Dropout and similar layers draw fresh numbers for every example from these states.

    Args:
        model: a Keras model; its own generators and those of nested layers are included.
    """
    layers = layers_of(model, itself=True)
    generators = [g for layer in layers for g in seed_generators(layer)]
    states = [g.state for g in generators if isinstance(g, keras.random.SeedGenerator)]
    shared = shared_seed_state()
    return _once(states if shared is None else [*states, shared])


def shared_seed_state():
    """The state that `keras.random` uses where it is given no seed; None before its first use."""
    generator = shared_seed_generator()
    return None if generator is None else generator.state


def noise_states(model) -> list:
    """Returns the states of tfdp's noisy layers, which draw one noise for the whole lot."""
    return _once(layer.weight_noise_state for layer in noisy_layers(model) if layer.built)


def _once(variables):
    return [*{id(variable): variable for variable in variables}.values()]
