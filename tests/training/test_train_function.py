"""tfdp's own train function takes the same steps as that of Keras."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, fit, plain, private, sgd, weights

import tfdp
from tfdp.training import private_training, train_function


@pytest.fixture
def keras_calls(monkeypatch):
    """Counts the calls of Keras' own train function."""
    calls = []
    lean = train_function.lean

    def followed(model, keras_function):
        def counted(iterator):
            calls.append(iterator)
            return keras_function(iterator)

        return lean(model, counted)

    monkeypatch.setattr(private_training, "lean", followed)
    return calls


def trained(**compiled):
    model = private(sgd(seed=3), plain(), compiled)
    history = fit(model, epochs=2)
    return weights(model), history.history, model.privacy.ledger.runs[0].steps


@pytest.mark.parametrize(
    "compiled, by_keras",
    [
        ({}, 0),
        ({"jit_compile": True}, 0),
        ({"run_eagerly": True}, 6),
        ({"steps_per_execution": 3}, 2),
    ],
    ids=["plain", "xla", "eager", "several"],
)
def test_steps_are_those_of_keras_whoever_takes_them(keras_calls, monkeypatch, compiled, by_keras):
    values, history, steps = trained(**compiled)
    assert len(keras_calls) == by_keras
    monkeypatch.setattr(private_training, "lean", lambda model, keras_function: keras_function)
    expected, expected_history, expected_steps = trained(**compiled)
    assert steps == expected_steps == 6
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    for name, numbers in expected_history.items():
        np.testing.assert_allclose(history[name], numbers, rtol=1e-6)


def test_strategies_are_left_to_keras(keras_calls):
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = private(sgd(), plain())
    fit(model)
    assert len(keras_calls) == 3


def test_under_a_strategy_callbacks_feed_no_step():
    class Feeds(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            foreign = tf.data.Dataset.from_tensors((*data(8), np.ones(8, "float32"))).repeat()
            self.model.train_function(iter(strategy.experimental_distribute_dataset(foreign)))

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = private(sgd(), plain())
    with pytest.raises(RuntimeError, match=r"fit\(\) did not draw"):
        fit(model, callbacks=[Feeds()])
    assert model.privacy.steps_taken == 1


def test_functions_that_run_eagerly_are_left_to_keras(keras_calls):
    tf.config.run_functions_eagerly(True)
    try:
        fit(private())
    finally:
        tf.config.run_functions_eagerly(False)
    assert len(keras_calls) == 3


def test_a_single_batch_is_left_to_keras(keras_calls):
    model = private()
    model.train_on_batch(*data(8))
    assert len(keras_calls) == 1


def test_data_that_ends_early_ends_training(keras_calls):
    x, y = data(16)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
    dataset = dataset.filter(lambda *_: True)  # so that the length of the dataset is unknown
    model = private()
    model.fit(dataset, steps_per_epoch=5, verbose=0)
    assert not keras_calls
    assert int(model.optimizer.iterations.numpy()) == model.privacy.ledger.runs[0].steps == 2


def test_new_shapes_are_traced_once(keras_calls):
    traced = []

    class Counted(keras.layers.Layer):
        def call(self, x):
            traced.append(x.shape)
            return x

    base = plain()
    network = keras.Sequential([keras.Input((4,)), *base.layers, Counted()])
    model = private(sgd(), network)
    model.fit(*data(400), batch_size=32, epochs=4, verbose=0)
    first = len(traced)
    model.fit(*data(400), batch_size=32, epochs=4, verbose=0)
    assert not keras_calls
    assert len(traced) == first


def test_a_training_that_is_over_leaves_no_graph_in_memory():
    def graphs():
        gc.collect()
        return sum(isinstance(found, tf.Graph) for found in gc.get_objects())

    fit(private(sgd()))  # what is made once stays
    before = graphs()
    fit(private(sgd()))
    assert graphs() <= before


@pytest.mark.parametrize("several", [1, 2, 3, 7, 32])
@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_no_execution_goes_beyond_its_epoch(several, options):
    model = private(sgd(seed=3), plain(), {"steps_per_execution": several} | options)
    history = fit(model, epochs=4, initial_epoch=1, rows=56)
    expected = private(sgd(seed=3), plain())
    expected_history = fit(expected, epochs=4, initial_epoch=1, rows=56)
    assert int(model.optimizer.iterations) == 21
    assert [run.steps for run in model.privacy.ledger.runs] == [21]
    np.testing.assert_allclose(weights(model), weights(expected), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(history.history["loss"], expected_history.history["loss"], rtol=1e-5)


def test_steps_per_epoch_is_kept_whatever_an_execution_is():
    model = private(compiled={"steps_per_execution": 4})
    fit(model, epochs=2, rows=40, steps_per_epoch=5)
    fit(model, epochs=1, rows=40, steps_per_epoch=1)
    assert sum(run.steps for run in model.privacy.ledger.runs) == 11


def test_under_a_strategy_no_execution_goes_beyond_its_epoch_either():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = private(sgd(), plain(), {"steps_per_execution": 2})
    fit(model)
    assert model.privacy.steps_taken == 3


def test_one_batch_is_one_step_whatever_an_execution_is():
    model = private(compiled={"steps_per_execution": 4}, budget=tfdp.PrivacyBudget(20.0, 1e-5))
    for _ in range(3):
        left = model.privacy.steps_left
        model.train_on_batch(*data(8))
        assert model._session.authorized == model.privacy.steps_taken
    assert left - model.privacy.steps_left == 1
