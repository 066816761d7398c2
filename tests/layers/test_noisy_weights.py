"""NoisyWeights: the noise has the stated scale, is one draw for a lot, and reaches every network."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.noise.assertions import assert_normal, assert_unrelated
from tests.rounding import FUNCTION, assert_close, terms_of
from tfdp import models
from tfdp.layers import NoisyWeights


def wrapped(network, stddev=0.1, **options):
    layer = NoisyWeights(network, stddev, **options)
    (given,) = network.inputs
    model = keras.Sequential([keras.Input(given.shape[1:], dtype=given.dtype), layer])
    return model, layer


def dense(units=3, **options):
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    return wrapped(network, **options)


def inputs(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def counter(layer):
    return int(layer.weight_noise_state.numpy()[1])


def noises(layer):
    plain = layer.network.trainable_variables
    return [(d - v).numpy() for d, v in zip(layer.drawn_weights(), plain, strict=True)]


def test_the_noise_is_independent_with_the_stated_standard_deviation():
    _, layer = dense(5000, stddev=0.7)
    kernel, bias = noises(layer)
    assert_normal(kernel, 0.7)
    assert_normal(bias, 0.7)
    layer.advance_noise()
    again, _ = noises(layer)
    assert_unrelated(kernel, again)
    assert_unrelated(*kernel, bias)


def test_a_seed_fixes_it():
    one, same, other = (noises(dense(seed=seed)[1])[0] for seed in (1, 1, 2))
    assert_close(one, same, 4 * FUNCTION)
    assert not np.allclose(one, other)
    assert not np.allclose(noises(dense()[1])[0], noises(dense()[1])[0])


def test_kernels_alone_may_have_it():
    network = models.build("lenet5", (12, 12, 1), 10, "layer_affine")
    _, layer = wrapped(network, which="kernels")
    pairs = zip(network.trainable_variables, noises(layer), strict=True)
    noisy = [v.path.split("/")[-2:] for v, noise in pairs if np.any(noise)]
    layers = ("conv_1", "conv_2", "dense_1", "dense_2", "logits")
    assert noisy == [[name, "kernel"] for name in layers]


def test_training_moves_on_and_inference_does_not():
    model, layer = dense()
    x = inputs(5, 4)
    outputs = model(x)
    kernel, bias = layer.drawn_weights()
    assert_close(outputs, x @ kernel + bias, 4 + 1)
    np.testing.assert_array_equal(outputs, model(x))
    first, second = model(x, training=True), model(x, training=True)
    assert counter(layer) == 2
    assert not np.allclose(first, second)


def test_the_gradient_of_the_mean_is_that_of_the_drawn_weights():
    model, layer = dense()
    x = inputs(5, 4)
    at_mean = layer.network.trainable_variables
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x) ** 2)
    ours = tape.gradient(loss, [v.value for v in at_mean])
    for variable, drawn in zip(at_mean, layer.drawn_weights(), strict=True):
        variable.assign(drawn)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer.network(x) ** 2)
    expected = tape.gradient(loss, [v.value for v in at_mean])
    for a, b in zip(ours, expected, strict=True):
        assert_close(a, b, terms_of(model, 5))


def test_all_time_steps_meet_the_same_weights():
    network = keras.Sequential([keras.Input((None, 3)), keras.layers.SimpleRNN(2, name="rnn")])
    model, layer = wrapped(network, stddev=1.0)
    x = inputs(4, 6, 3)
    kernel, recurrent_kernel, bias = (np.asarray(v) for v in layer.drawn_weights())
    state = np.zeros((4, 2))
    for step in range(6):
        state = np.tanh(x[:, step] @ kernel + state @ recurrent_kernel + bias)
    assert_close(model(x), state, terms_of(model, length=6))


def test_moving_statistics_are_those_of_the_lot():
    """Batch normalization moves its statistics once, from what went through the drawn weights."""
    norm = keras.layers.BatchNormalization(momentum=0.0)
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), norm])
    model, layer = wrapped(network, stddev=1.0, which="kernels")
    kernel, bias, *_ = layer.drawn_weights()
    model(inputs(50, 4), training=True)
    mean = np.mean(inputs(50, 4) @ kernel + bias, axis=0)
    assert_close(norm.moving_mean, mean, 4 + 50)


@pytest.mark.parametrize("name", ["dense", pytest.param("bilstm_dl", marks=pytest.mark.slow)])
def test_all_of_a_network_is_trained(name):
    if name == "dense":
        stack = [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dense(4)]
        network, x = keras.Sequential([keras.Input((4,)), *stack]), inputs(8, 4)
    else:
        network = models.build("bilstm_dl", (3,), 4, "layer_affine")
        x = np.random.default_rng(0).integers(1, 99, (8, 3))
    before = [v.numpy() for v in network.variables]
    model, layer = wrapped(network, stddev=0.01)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, np.arange(8) % 4, batch_size=4, epochs=1, verbose=0)
    assert counter(layer) == 2
    for variable, old in zip(network.variables, before, strict=True):
        frozen = variable.path.startswith("embedding")
        assert np.any(variable.numpy() != old) != frozen, variable.path  # moving statistics, too


@pytest.mark.parametrize(
    ("options", "name"),
    [({"stddev": float("nan")}, "noise_stddev"), ({"which": "biases"}, "which")],
    ids=str,
)
def test_bad_arguments_are_refused(options, name):
    with pytest.raises(ValueError, match=name):
        dense(**options)
