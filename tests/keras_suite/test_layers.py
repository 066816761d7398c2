"""Private gradients of Keras' layers are those of each example alone: a short form, and all cases.

`python -m pytest -m slow tests/keras_suite/test_layers.py -k rnn/` checks all cases of a folder.
"""

import contextlib
import gc

import keras
import pytest
from tensorflow.python.framework import ops

from tests.keras_suite import layers_cases, layers_expected, layers_gradients

# One case of every kind of outcome.
SHORT = [
    "core/embedding_test.py::EmbeddingTest::test_embedding_basics#0",
    "normalization/batch_normalization_test.py::BatchNormalizationTest::test_bn_basics#0",
    "regularization/dropout_test.py::DropoutTest::test_dropout_basics#0",
]


@pytest.mark.parametrize("name", SHORT)
def test_one_layer_of_every_kind(name):
    listed = layers_expected.load()
    found = [case for case in layers_cases.cases_of(name.partition("::")[0]) if case.name == name]
    if not found and keras.__version__ != listed.keras:
        pytest.skip(f"Keras {keras.__version__} has no case {name}")
    (case,) = found
    assert listed.complaint(case, layers_gradients.check(case)) is None


@contextlib.contextmanager
def no_graphs():
    """Frees the graphs of a case, which the gradient functions that it registered keep in memory."""
    registered = ops.gradient_registry._registry
    before = {*registered}
    yield
    for name in registered.keys() - before:
        del registered[name]
    keras.backend.clear_session()
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("file", layers_cases.files())
def test_all_cases(file):
    listed, cases = layers_expected.load(), layers_cases.cases_of(file)
    complaints = listed.stale(cases, file)
    for case in cases:
        with no_graphs():
            complaints.append(listed.complaint(case, layers_gradients.check(case)))
    assert not any(complaints), "\n".join(filter(None, complaints))
