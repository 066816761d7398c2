"""Metrics write into their own variables, and into nothing else that could lead back to a weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.gradients.checking import normal
from tests.helpers import private, sgd

X = normal(8, 3)
Y = 2 * X[:, :1]


def network(cls=keras.Sequential):
    return cls([keras.Input((3,)), keras.layers.Dense(1)])


def trained(model, metrics=(), run_eagerly=False, **options):
    compiled = {"loss": "mse", "metrics": list(metrics), "run_eagerly": run_eagerly}
    model = private(sgd(**options), model, compiled)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    return model


class WritesIntoTheOptimizer(keras.Sequential):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        for variable in self.optimizer.variables[2:]:
            variable.assign(0 * variable + tf.reduce_sum(x))
        return super().compute_metrics(x, y, y_pred, sample_weight)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_metrics_that_write_into_the_momentum_are_refused(run_eagerly):
    with pytest.raises(ValueError, match="writes into"):
        trained(network(WritesIntoTheOptimizer), momentum=0.9, run_eagerly=run_eagerly)


def test_a_metric_that_sets_the_learning_rate_is_refused():
    model = network()

    def steers(y, y_pred):
        error = tf.abs(y - y_pred)
        model.optimizer.learning_rate.assign(tf.reduce_mean(error))
        return error

    with pytest.raises(ValueError, match="learning_rate"):
        trained(model, metrics=[steers])


class Averages(keras.Model):
    """Scales its loss by an average that Keras does not track."""

    def __init__(self):
        super().__init__()
        self.dense, self.average = keras.layers.Dense(1), tf.Variable(0.0, trainable=False)

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight) * self.average

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        tf.cond(tf.size(x) > 0, lambda: self.average.assign(tf.reduce_sum(x)), lambda: 0.0)
        return super().compute_metrics(x, y, y_pred, sample_weight)


def test_metrics_that_write_what_the_loss_reads_are_refused():
    model = Averages()
    model(X)
    with pytest.raises(ValueError, match="writes into"):
        trained(model)
    assert model.average.numpy() == 0


class Sum(keras.metrics.Metric):
    """A metric that updates itself in one of the ways in which people write that."""

    def __init__(self, how, **kwargs):
        super().__init__(name=how, **kwargs)
        self._how = how
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        add = lambda: self.total.assign_add(tf.reduce_sum(y_true))  # noqa: E731
        if self._how == "function":
            tf.function(add)()
        else:
            tf.cond(tf.size(y_true) > 0, add, lambda: tf.zeros([]))

    def result(self):
        return self.total


def test_metrics_may_write_into_themselves():
    kinds = ["function", "cond"]
    model = trained(network(), metrics=[*map(Sum, kinds), "mae", keras.metrics.AUC()])
    found = model.metrics[-1].result()
    np.testing.assert_allclose([found[how] for how in kinds], Y.sum(), atol=1e-5)
