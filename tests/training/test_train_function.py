"""tfdp's own train function takes the same steps as that of Keras."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, fit, plain, private, sgd, steps, weights

import tfdp
from tests.training.small import linear, small, train
from tfdp.training import private_training


def trained(**compiled):
    model = private(sgd(seed=3), compiled=compiled)
    history = fit(model, epochs=2)
    return weights(model), history.history["loss"], steps(model)


@pytest.mark.parametrize("compiled", [{}, {"steps_per_execution": 2}], ids=["lean", "several"])
def test_steps_are_those_of_keras(monkeypatch, compiled):
    values, losses, count = trained(**compiled)
    monkeypatch.setattr(private_training, "lean", lambda model, keras_function: keras_function)
    expected, expected_losses, expected_count = trained(**compiled)
    assert count == expected_count == 6
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)


@pytest.mark.parametrize("several", [1, 2])
def test_a_strategy_of_one_replica_trains(several):
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = private(sgd(), linear(), {"steps_per_execution": several})
    fit(model)
    assert steps(model) == 3


def test_poisson_lots_of_another_fit_are_not_traced_again():
    traced = []

    class Counted(keras.layers.Layer):
        def call(self, x):
            traced.append(x.shape)
            return x

    model = private(model=keras.Sequential([keras.Input((4,)), *plain().layers, Counted()]))
    model.fit(*data(400), batch_size=32, epochs=4, verbose=0)
    first = len(traced)
    model.fit(*data(400), batch_size=32, epochs=4, verbose=0)
    assert len(traced) == first


def test_a_training_that_is_over_leaves_no_graph_in_memory():
    def graphs():
        gc.collect()
        return sum(isinstance(found, tf.Graph) for found in gc.get_objects())

    def one():
        model = private(model=linear())
        train(model)

    one()  # what is made once stays
    before = graphs()
    one()
    assert graphs() <= before


@pytest.mark.parametrize("several", [2, 7])
@pytest.mark.parametrize("eagerly", [False, True])
def test_no_execution_goes_beyond_its_epoch(several, eagerly):
    options = {"steps_per_execution": several, "run_eagerly": eagerly}
    model, expected = small(sgd(seed=3), compiled=options), small(sgd(seed=3))
    for each in (model, expected):
        fit(each, epochs=3, initial_epoch=1, rows=20, batch_size=4)
    assert steps(model) == int(model.optimizer.iterations) == 10
    np.testing.assert_allclose(weights(model), weights(expected), rtol=1e-5, atol=1e-7)


def test_steps_per_epoch_is_kept_whatever_an_execution_is():
    model = small(compiled={"steps_per_execution": 4})
    fit(model, rows=40, steps_per_epoch=5)
    fit(model, rows=40, steps_per_epoch=1)
    assert steps(model) == 6


def test_one_batch_is_one_step_whatever_an_execution_is():
    options = {"steps_per_execution": 4, "run_eagerly": False}
    model = small(compiled=options, budget=tfdp.PrivacyBudget(20.0, 1e-5))
    for _ in range(3):
        left = model.privacy.steps_left
        model.train_on_batch(*data(8))
    assert left - model.privacy.steps_left == 1 and steps(model) == 3
