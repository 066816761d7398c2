"""The train function: eager, in a graph, several steps in an execution, over replicas."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, fit, plain, private, sgd, steps, weights

import tfdp
from tests.rounding import assert_close, terms_of
from tests.training.small import GRAPH, linear, small, train


def test_every_way_takes_the_same_steps():
    found = []
    for compiled in ({}, GRAPH | {"steps_per_execution": 2}, GRAPH | {"jit_compile": True}):
        model = small(sgd(seed=3), compiled=compiled)
        loss = fit(model).history["loss"]
        assert steps(model) == 3
        found.append([*weights(model), *loss])
    for each in found[1:]:
        assert_close(each, found[0], terms_of(model, 8, steps=3))


def test_a_strategy_of_one_replica_trains():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = private(sgd(), linear(), {"steps_per_execution": 2})
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


def test_metrics_do_not_trace_the_first_batch_twice():
    def traces(metrics):
        traced = []

        class Counted(keras.layers.Layer):
            def call(self, x):
                traced.append(x.shape)
                return x

        network = keras.Sequential([keras.Input((4,)), *linear().layers, Counted()])
        model = private(model=network, compiled={"metrics": metrics})
        traced.clear()
        model.train_on_batch(*data(8))
        return len(traced)

    assert traces(["accuracy"]) == traces([])


RECURRENT = [keras.layers.Reshape((2, 2)), keras.layers.LSTM(2)]


@pytest.mark.parametrize("layers", [[], pytest.param(RECURRENT, marks=pytest.mark.slow)])
def test_a_training_that_is_over_leaves_no_graph_in_memory(layers):
    def graphs():
        gc.collect()
        return sum(isinstance(found, tf.Graph) for found in gc.get_objects())

    def one():
        inner = [keras.layers.deserialize(keras.layers.serialize(layer)) for layer in layers]
        train(private(model=keras.Sequential([keras.Input((4,)), *inner, keras.layers.Dense(3)])))

    one()  # what is made once stays
    before = graphs()
    one()
    assert graphs() <= before


def test_no_execution_goes_beyond_its_epoch():
    options = ({"steps_per_execution": 2}, {})
    model, expected = (small(sgd(seed=3), compiled=GRAPH | more) for more in options)
    for each in (model, expected):
        fit(each, epochs=3, initial_epoch=1, rows=20, batch_size=4)
    assert steps(model) == int(model.optimizer.iterations) == 10
    assert_close(weights(model), weights(expected), terms_of(model, 4, steps=10))


def test_steps_per_epoch_is_kept_whatever_an_execution_is():
    model = small(compiled={"steps_per_execution": 2})
    fit(model, rows=40, steps_per_epoch=3)
    fit(model, rows=40, steps_per_epoch=1)
    assert steps(model) == 4


def test_one_batch_is_one_step_whatever_an_execution_is():
    options = {"steps_per_execution": 4, "run_eagerly": False}
    model = small(compiled=options, budget=tfdp.PrivacyBudget(20.0, 1e-5))
    for _ in range(3):
        left = model.privacy.steps_left
        model.train_on_batch(*data(8))
    assert left - model.privacy.steps_left == 1 and steps(model) == 3


def test_data_of_unknown_length_leave_no_step_behind():
    """The data end after the step's other inputs are there."""
    compiled = {"run_eagerly": False, "steps_per_execution": 3}
    lots = tf.data.Dataset.from_tensor_slices(data(8)).batch(4).filter(lambda *_: True)
    model = small(compiled=compiled)
    model.fit(lots, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == steps(model) == 4
    assert model.privacy.spent(1e-5).epsilon < np.inf


def test_a_step_that_fails_counts_nothing():
    model = small(compiled={"run_eagerly": False})
    x, y = data(8)
    model.train_on_batch(x, y)
    before = weights(model)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        model.train_on_batch(x, y[:7])
    np.testing.assert_array_equal(weights(model), before)
    assert int(model.optimizer.iterations) == steps(model) == 1
    model.train_on_batch(x, y)


class Inverse(keras.layers.Layer):
    def build(self, shape):
        self.weight = self.add_weight(shape=shape[-1:])

    def call(self, x):
        return tf.linalg.matvec(tf.linalg.inv(x - tf.eye(2)), self.weight)


@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_an_example_that_ends_a_step_is_named_and_all_planned_steps_count(engine):
    model = keras.Sequential([keras.Input((2, 2)), Inverse(name="inverse")])
    model = tfdp.make_private(model, engine=engine)
    model.compile(sgd(), "mse", run_eagerly=False)
    x = np.zeros((8, 2, 2), "float32")
    model.fit(x, np.ones((8, 2)), batch_size=4, shuffle=False, verbose=0)
    x[:] = np.eye(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'inverse'.*value of an example"):
        model.fit(x, np.ones((8, 2)), batch_size=4, shuffle=False, epochs=3, verbose=0)
    assert steps(model) == 2 + 6
    assert int(model.optimizer.iterations) == 2
