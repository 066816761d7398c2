"""Makes `helpers` importable for tests in any folder, and seeds the weights of every test."""

import pathlib
import sys

import keras
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(autouse=True)
def seeded():
    """Seeds initial weights, so that tests that do not seed their models are repeatable."""
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """Forgets the weights of earlier tests: equal seeds make equal weights that are not trained."""
    monkeypatch.setattr("tfdp.account._TRAINED_HERE", {})


@pytest.fixture(autouse=True)
def no_caching_device():
    """Removes the caching device that TensorFlow's map_fn leaves if tracing its function raises.

    With this device in the global scope, entering a strategy would fail in a later test.
    """
    yield
    import tensorflow as tf

    tf.compat.v1.get_variable_scope()._caching_device = None
