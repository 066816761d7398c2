"""Metrics write into their own variables, and into nothing else that could lead back to a weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = 2 * X[:, :1]
MODES = pytest.mark.parametrize("mode", [{}, {"run_eagerly": True}], ids=["graph", "eager"])


def trained(model, mode=None, metrics=None, **options):
    tfdp.make_private(model)
    options = {"l2_norm_clip": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1} | options
    model.compile(tfdp.DPKerasSGDOptimizer(**options), "mse", metrics=metrics, **(mode or {}))
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    return model


def network(cls=keras.Sequential):
    return cls([keras.Input((3,)), keras.layers.Dense(1, name="dense")])


@MODES
@pytest.mark.parametrize(
    "options",
    [{"momentum": 0.9}, {"use_ema": True}, {"clipping": "adaptive"}],
    ids=["momentum", "average", "clip norm"],
)
def test_what_the_optimizer_keeps(options, mode):
    class Writes(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            for variable in self.optimizer.variables[2:]:
                variable.assign(0 * variable + tf.reduce_sum(x))
            return super().compute_metrics(x, y, y_pred, sample_weight)

    with pytest.raises(ValueError, match=r"writes into .* Expected metrics"):
        trained(network(Writes), mode, **options)


@MODES
def test_the_learning_rate(mode):
    model = network()

    def steers(y, y_pred):
        error = tf.abs(y - y_pred)
        model.optimizer.learning_rate.assign(tf.reduce_mean(error))
        return error

    with pytest.raises(ValueError, match="learning_rate"):
        trained(model, mode, metrics=[steers])


@pytest.mark.parametrize("how", ["plain", "function", "cond"])
def test_variables_that_keras_does_not_track(how):
    class Averages(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)
            self.average = tf.Variable(0.0, trainable=False)

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return super().compute_loss(x, y, y_pred, sample_weight) * self.average

        def keep(self, x):
            return self.average.assign(tf.reduce_sum(x))

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            if how == "plain":
                self.keep(x)
            elif how == "function":
                tf.function(self.keep)(x)
            else:
                tf.cond(tf.reduce_sum(x) > 0, lambda: self.keep(x), lambda: tf.zeros([]))
            return super().compute_metrics(x, y, y_pred, sample_weight)

    model = Averages()
    model(X)
    with pytest.raises(ValueError, match="writes into"):
        trained(model)
    assert model.average.numpy() == 0


class Sum(keras.metrics.Metric):
    """A metric that updates itself in one of the ways in which people write that."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self._how = how
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        def add(y):
            return self.total.assign_add(tf.reduce_sum(y))

        if self._how == "function":
            tf.function(add)(y_true)
        elif self._how == "cond":
            tf.cond(tf.size(y_true) > 0, lambda: add(y_true), lambda: tf.zeros([]))
        else:
            add(y_true)

    def result(self):
        return self.total


@pytest.mark.parametrize("how", ["plain", "function", "cond"])
def test_metrics_write_into_themselves(how):
    model = trained(network(), metrics=[Sum(how, name="sum"), "mae", keras.metrics.AUC()])
    assert model.metrics[-1].result()["sum"].numpy() == pytest.approx(Y.sum(), abs=1e-5)


@pytest.mark.parametrize("leaks", [False, True])
def test_random_state_moves_on(leaks):
    class Draws(keras.Sequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self(x, training=True)
            if leaks:
                seed = self.layers[0].seed_generator.state
                seed.assign(seed + tf.cast(tf.reduce_sum(x), seed.dtype))
            return super().compute_metrics(x, y, y_pred, sample_weight)

    model = Draws([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    if not leaks:
        assert trained(model).privacy.steps_taken == 1
        return
    with pytest.raises(ValueError, match="seed_generator_state"):
        trained(model)
