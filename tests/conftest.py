"""Makes `helpers` importable for tests in any folder, and initial weights the same in every run."""

import pathlib
import sys

import keras
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.fixture(autouse=True)
def seeded():
    """Models that a test does not seed itself start from the same weights, so that it repeats."""
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    """Weights of one test that turn up in another, by equal seeds, are no trained weights there."""
    monkeypatch.setattr("tfdp.account._TRAINED_HERE", {})


@pytest.fixture(autouse=True)
def no_caching_device():
    """TensorFlow's map_fn leaves one in the global scope where tracing its function raises.

    Entering a strategy would fail in whatever test comes next in the process.
    """
    yield
    import tensorflow as tf

    tf.compat.v1.get_variable_scope()._caching_device = None
