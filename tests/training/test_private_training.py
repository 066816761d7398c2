"""Private training: which models train, in which modes, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, private, sgd, steps, weights
from keras import layers

import tfdp
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tests.training.small import linear, small, train
from tfdp.layers import PublicExamples


def test_a_plain_model_does_not_train_with_a_private_optimizer():
    model = linear()
    model.compile(sgd(), loss=LOSS)
    before = weights(model)
    with pytest.raises(RuntimeError, match="make_private"):
        model.fit(*data(8), verbose=0)
    np.testing.assert_array_equal(weights(model), before)


def test_a_private_model_does_not_train_with_a_plain_optimizer():
    for optimizer, remedy in (
        ("sgd", r"private optimizer: tfdp\.DPKerasSGDOptimizer in"),
        (keras.optimizers.Lion(), r"tfdp\.DPKerasLionOptimizer in"),
        (keras.optimizers.LossScaleOptimizer(sgd()), "without loss scaling"),
        (type("Own", (keras.optimizers.SGD,), {})(), r"make_dp_optimizer_class\(Own\)"),
    ):
        with pytest.raises(ValueError, match=remedy):
            small(optimizer)
    model = small(tfdp.DPKerasLionOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0))
    train(model)
    model.optimizer = keras.optimizers.SGD()
    with pytest.raises(ValueError, match="private optimizer"):
        train(model)


def test_batch_normalization_is_refused_by_name():
    norm = layers.BatchNormalization(name="bn")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), norm])
    with pytest.raises(ValueError, match="'bn'"):
        tfdp.make_private(model)
    unbuilt = small(model=keras.Sequential([layers.Dense(3), norm]))
    with pytest.raises(ValueError, match="'bn'"):
        train(unbuilt)


def test_bad_arguments():
    with pytest.raises(ValueError, match="0 to 2"):
        small().fit(data(8)[0], np.full(8, 3), batch_size=8, verbose=0)
    for name, value in (("engine", "fast"), ("physical_batch_size", 0), ("seed", -1)):
        with pytest.raises(ValueError, match=name):
            small(**{name: value})
    with pytest.raises(ValueError, match="microbatch size 2"):
        train(small(sgd(num_microbatches=2), physical_batch_size=3))
    with pytest.raises(TypeError, match=r"keras.Model"):
        tfdp.make_private(layers.Dense(3))


def test_float16_is_refused():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        with pytest.raises(ValueError, match="float16"):
            small()
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("model", [None, lambda: keras.Sequential([layers.Dense(3)])])
def test_a_strategy_with_one_replica(model):
    optimizer = sgd()  # made outside, as often
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = small(optimizer, None if model is None else model(), {"run_eagerly": False})
    train(model)
    assert steps(model) == 2


def test_layers_that_build_left_without_weights_are_built_with_the_data():
    class Inner(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    model = small(model=Inner())
    model.build((None, 4))
    train(model)
    assert steps(model) == 2


def test_a_train_step_of_its_own_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data):
            return {}

    with pytest.raises(ValueError, match="train_step"):
        tfdp.make_private(Own([keras.Input((4,)), layers.Dense(3)]))
    model = small()
    model.train_step = lambda data: {}
    with pytest.raises(ValueError, match="train_step"):
        train(model)


def test_an_optimizer_with_noise_of_its_own_needs_a_mechanism_of_its_own():
    class Quiet(tfdp.DPKerasSGDOptimizer):
        def add_noise(self, bounded, session):
            return bounded.sums, 0.0

    model = small(Quiet(l2_norm_clip=1.0, noise_multiplier=1.0))
    for train_on in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match="add_noise"):
            train_on(*data(8))
    assert steps(model) == 0


def test_a_layer_that_keeps_what_it_sees_does_not_train():
    class Keeps(layers.Layer):
        def build(self, shape):
            self.kept = tf.Variable(0.0, trainable=False)

        def call(self, x):
            self.kept.assign_add(tf.reduce_sum(x))
            return x

    keeps = Keeps()
    model = small(model=keras.Sequential([keras.Input((4,)), layers.Dense(3), keeps]))
    before = keeps.kept.numpy()
    with pytest.raises(ValueError, match="assigns"):
        train(model)
    assert keeps.kept.numpy() == before and steps(model) == 0


def test_a_model_that_was_compiled_with_a_private_optimizer_is_compiled_again():
    model = linear()
    model.compile(sgd(), loss=LOSS, metrics=["accuracy"], run_eagerly=True)
    optimizer = model.optimizer
    history = train(tfdp.make_private(model, engine="loop")).history
    assert model.optimizer is optimizer and 0 <= history["accuracy"][0] <= 1


ACCURACY = {"metrics": ["accuracy"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiled", "settings"),
    [
        ({}, {"physical_batch_size": 3}),
        ({"jit_compile": True}, {}),
    ],
)
def test_all_ways_of_running_give_the_same(compiled, settings, in_a_graph):
    model = private(sgd(noise=0.0), compiled=compiled | ACCURACY, **settings)
    history = fit(model, epochs=2).history
    found = np.append(weights(model), [history["loss"], history["accuracy"]])
    assert_close(found, in_a_graph, terms_of(model, 8, steps=6))
    assert steps(model) == 6


@pytest.fixture(scope="module")
def in_a_graph():
    model = private(sgd(noise=0.0), compiled=ACCURACY)
    history = fit(model, epochs=2).history
    return np.append(weights(model), [history["loss"], history["accuracy"]])


def test_a_change_of_trainable_layers_is_traced_again():
    model = private(sgd(noise=0.0))
    fit(model)
    model.layers[0].trainable = False
    kernel, last = model.layers[0].kernel.numpy(), model.layers[1].kernel.numpy()
    fit(model)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), kernel)
    assert not np.array_equal(model.layers[1].kernel.numpy(), last)


def test_private_examples_among_the_public_ones_are_refused():
    x, y = data(12)
    network = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model = small(model=keras.Sequential([keras.Input((4,)), PublicExamples(network, x[:3])]))
    for train_on in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match="also public"):
            train_on(x, y)
    assert model.privacy.steps_taken == 0


def test_a_loss_without_a_mean_is_trained_with_activity_penalties_as_its_sum():
    """In which Keras cannot add them."""
    found = []
    for reduction in ("none", "sum"):
        seed_keras(0)
        stack = [layers.Dense(4, activity_regularizer="l2"), layers.Dense(2)]
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        network = keras.Sequential([keras.Input((3,)), *stack])
        model = small(sgd(noise=0.0), network, {"loss": loss})
        model.fit(np.ones((8, 3)), np.ones((8, 2)), batch_size=4, shuffle=False, verbose=0)
        assert loss.reduction == reduction and model.privacy.steps_taken == 2
        found.append(weights(model))
    np.testing.assert_array_equal(*found)
