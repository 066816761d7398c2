"""A private model of one layer: for tests of what is counted."""

import keras
from helpers import fit, private

from tests.seeds import seed_keras

# Tracing a graph takes as long as three eager steps, and its steps next to nothing.
GRAPH = {"run_eagerly": False}


def linear(seed=0):
    seed_keras(seed)
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def small(optimizer=None, model=None, compiled=None, **settings):
    """Returns a private model whose steps run eagerly; the arguments are those of `helpers.private`.

    Eagerly, the loop engine is the cheapest: the others trace a graph in every step.
    """
    compiled = {"run_eagerly": True, "metrics": None} | (compiled or {})
    if compiled["run_eagerly"]:
        settings = {"engine": "loop"} | settings
    return private(optimizer, linear() if model is None else model, compiled, **settings)


def train(model, epochs=1, **options):
    """Trains with lots of 4 in fixed order, two in an epoch."""
    return fit(model, epochs, rows=8, **{"batch_size": 4} | options)
