"""No private data stay in a model: a layer or loss that writes state in training is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients.forward import Forward
from tfdp.gradients.state_writes import refuse_hidden_state
from tfdp.layers import NoisyDense, PublicBatchNormalization, PublicExamples

X, Y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)


def compiled(*stack, shape=(3,), loss="mse", **kwargs):
    model = keras.Sequential([keras.Input(shape), *stack, layers.Flatten(), layers.Dense(2)])
    model.compile(loss=loss, **kwargs)
    return model


def check(model, x=X, y=Y):
    refuse_hidden_state(Forward(model), x, y)


class Writer(layers.Layer):
    """Keeps a sum of its inputs, written by `how(layer, sum)`."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how = how
        self.kept = tf.Variable(0.0, trainable=False)
        self.rows = tf.Variable(tf.zeros([5]), trainable=False)
        self.built = True

    def call(self, t):
        seen = self.how(self, tf.reduce_sum(t))
        if not isinstance(seen, tf.Tensor):
            return t
        return t + 0.0 * tf.reshape(tf.cast(seen, t.dtype), [])

    def compute_output_spec(self, t):
        return keras.KerasTensor(t.shape, t.dtype)


COUNTED = tf.Variable(0.0)


def in_nested_functions(layer, s):
    inner = tf.function(lambda t: layer.kept.assign_add(t))
    return tf.function(lambda t: tf.cond(t > 0, lambda: inner(t), lambda: t))(s)


WRITES = {
    "running sum": lambda layer, s: layer.kept.assign_add(s),
    "cache of one row": lambda layer, s: layer.rows[1].assign(s),
    "global": lambda layer, s: COUNTED.assign(s),
    "nested functions": in_nested_functions,
    "numpy": lambda layer, s: tf.numpy_function(np.square, [s], tf.float32),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_layer_that_writes_is_refused_with_its_name(how):
    layer = Writer(WRITES[how], name="secretive")
    with pytest.raises(ValueError, match="'secretive'"):
        check(compiled(layers.Dense(3), layer))
    assert layer.kept.numpy() == 0.0


def writes(value):
    COUNTED.assign_add(tf.reduce_sum(value))
    return 0.0 * tf.reduce_sum(value)


def losing(y_true, y_pred):
    return writes(y_pred) + tf.reduce_mean(tf.square(y_true - y_pred), -1)


class Losing(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        writes(x)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def losing_model():
    model = Losing([keras.Input((3,)), layers.Dense(2)])
    model.compile(loss="mse")
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: compiled(loss=losing),
        losing_model,
        lambda: compiled(layers.Dense(2, activity_regularizer=writes)),
    ],
    ids=["loss", "compute_loss", "regularizer"],
)
def test_state_that_is_written_elsewhere_is_refused(make):
    with pytest.raises(ValueError, match="assigns to a variable"):
        check(make())


class Statistic(layers.Layer):
    """Keeps a running statistic in a weight that may be named like a random state."""

    def __init__(self, called, **kwargs):
        super().__init__(**kwargs)
        self.called = called

    def build(self, shape):
        self.kept = self.add_weight(name=self.called, initializer="zeros", trainable=False)

    def call(self, t):
        self.kept.assign(self.kept + keras.ops.sum(t))
        return t


@pytest.mark.parametrize("called", ["statistic", "seed_generator_state"])
def test_a_weight_that_keeps_a_running_statistic_is_refused_by_name(called):
    with pytest.raises(ValueError, match=called):
        check(compiled(Statistic(called)))


def test_a_penalty_that_is_added_after_the_noise_must_not_depend_on_data():
    class Penalized(layers.Dense):
        def call(self, inputs):
            self.seen = inputs
            return super().call(inputs)

    layer = Penalized(3, kernel_regularizer=lambda w: tf.reduce_sum(w) * tf.reduce_sum(layer.seen))
    with pytest.raises(ValueError, match="regularizer"):
        check(compiled(layer))


# -- what must be accepted -----------------------------------------------------------------------


def public():
    stack = [keras.Input((3,)), layers.Dense(2), PublicBatchNormalization()]
    return PublicExamples(keras.Sequential(stack), np.random.default_rng(0).normal(size=(4, 3)))


@pytest.mark.parametrize(
    "stack",
    [
        lambda: [
            layers.Dropout(0.5),
            layers.AlphaDropout(0.5),
            layers.GaussianNoise(0.5),
            NoisyDense(3, noise_stddev=0.1),
            layers.Dense(3, kernel_regularizer="l2", activity_regularizer="l1"),
            public(),
        ],
        lambda: [
            layers.Reshape((3, 1)),
            layers.Bidirectional(layers.LSTM(3, recurrent_dropout=0.1, return_sequences=True)),
            layers.SpatialDropout1D(0.5),
            layers.GRU(3, dropout=0.1),
        ],
        lambda: [
            layers.Reshape((3, 1, 1)),
            layers.RandomFlip(),
            layers.RandomRotation(0.1),
            layers.RandomContrast(0.1),
            layers.Conv2D(2, 1),
        ],
    ],
    ids=["rows", "sequences", "images"],
)
def test_ordinary_layers_pass(stack):
    check(compiled(*stack()))
