"""Batch normalization by private running statistics: equations 9 and 10, values, files."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import private, sgd
from keras import layers

import tfdp
from tests.accounting.varying import vary
from tests.rounding import FUNCTION, OF_EPSILON, assert_close, rounding, terms_of
from tests.seeds import seed_keras
from tfdp.accounting import claimed, describe, proven
from tfdp.data import make_lots
from tfdp.layers import PrivateBatchNormalization

EPSILON, L = 1e-5, 6


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def alone(shape, **arguments):
    """A model of this layer only, whose loss is the sum of squares of its outputs."""
    layer = PrivateBatchNormalization(**arguments)
    return keras.Sequential([keras.Input(shape), layer, layers.Flatten()]), layer


def moments(x, mean, limit):
    """What one example shows of the two moments of each feature, for the last axis."""
    x = np.clip(x, -limit, limit).reshape(len(x), -1, x.shape[-1])
    return x.mean(1), np.square(x - np.clip(mean, -limit, limit)).mean(1)


def set_statistics(layer, mean, variance):
    layer.mean_weight.assign(np.float32(mean) / layer.units[0])
    layer.variance_weight.assign(np.float32(variance) / layer.units[1])


# -- running statistics --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "is_private"), [((4, 3, 5), False), ((5,), True), ((6, 5), True)], ids=str
)
def test_a_step_is_equations_9_and_10(shape, is_private):
    model, layer = alone(shape, truncation=0.9, share=0.25, rate=0.8)
    mean, variance = draw(5, seed=1), 1 + np.square(draw(5, seed=2))
    set_statistics(layer, mean, variance)
    x, alpha = draw(8, *shape, seed=3), 0.5 * 0.25 * 0.8
    y = np.zeros((8, np.prod(shape)))
    if is_private:
        model = private(sgd(noise=0.0, clip=1e6), model, {"loss": "mse", "metrics": None})
    else:
        model.compile(keras.optimizers.SGD(0.5), "mse", run_eagerly=True)
    model.fit(x, y, batch_size=8, shuffle=False, epochs=1, verbose=0)
    firsts, seconds = moments(x, mean, 0.9)
    expected = (1 - alpha) * mean + alpha * firsts.mean(0)
    assert_close(layer.running_mean, expected, 8 * 6 + 4)
    expected = (1 - alpha) * variance + alpha * seconds.mean(0)
    assert_close(layer.running_variance, expected, 8 * 6 + 4)


@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_those_of_batch_normalization_at_inference(training):
    layer = PrivateBatchNormalization(epsilon=EPSILON)
    x = tf.constant(draw(6, 4, 3))
    layer.build(x.shape)
    set_statistics(layer, [0.5, -1.0, 2.0], [4.0, 1.0, -3.0])  # the last is no variance
    layer.gamma.assign([2.0, 1.0, 0.5])
    layer.beta.assign([0.0, 1.0, -1.0])
    factor = layer.gamma / np.sqrt(np.float32([4.0, 1.0, layer.floor]) + EPSILON)
    expected = (x - np.float32([0.5, -1.0, 2.0])) * factor + layer.beta
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, training=training)
    assert_close(outputs, expected, 3 + 2 * FUNCTION)
    assert_close(layer.frozen()(x), expected, 3 + 2 * FUNCTION)
    # The gradient takes the statistics as constants.
    gradient = tape.gradient(outputs, x)
    assert_close(gradient, np.broadcast_to(factor, x.shape), 1 + 2 * FUNCTION)


def pulls(layer, x):
    return layer.pulls(tf.constant(x), layer.running_mean, layer.running_variance)


def test_inputs_are_truncated_for_the_statistics_only():
    layer = PrivateBatchNormalization(truncation=1.0)
    shown = 50.0 / np.sqrt(1 + layer.epsilon)
    assert_close(layer(np.float32([[50.0]])), [[shown]], 3 + 2 * FUNCTION)
    mean, variance = pulls(layer, np.float32([[50.0]]))
    assert_close([float(mean[0, 0]), float(variance[0, 0])], [-0.2, 0.0], 2)
    # A mean that noise has carried away does not make squared deviations unbounded.
    set_statistics(layer, [100.0], [0.0])
    _, variance = pulls(layer, np.float32([[-5.0]]))
    assert_close(float(variance[0, 0]), 0.2 * -4.0, 2)


def test_axis_one():
    x = draw(4, 3, 5)
    first, last = PrivateBatchNormalization(axis=1), PrivateBatchNormalization()
    moved = np.moveaxis(x, 1, 2)
    assert_close(first(x), np.moveaxis(np.asarray(last(moved)), 2, 1), 3 + 2 * FUNCTION)
    for ours, theirs in zip(pulls(first, x), pulls(last, moved), strict=True):
        assert_close(ours, theirs, 5 + 3)


# -- statistics of the lot -----------------------------------------------------------------------


def network():
    seed_keras(2)
    layer = PrivateBatchNormalization(statistics="batch", truncation=0.9, share=0.25, rate=0.8)
    stack = [keras.Input((3, 4)), layers.Dense(5), layer, layers.ReLU(), layers.Flatten()]
    return keras.Sequential([*stack, layers.Dense(2)]), layer


def lot():
    return draw(L, 3, 4), draw(L, 2, seed=1)


def test_training_normalizes_by_the_lot_and_testing_by_the_running_statistics():
    layer = PrivateBatchNormalization(statistics="batch", epsilon=1e-5)
    x = draw(7, 3, 4)
    mean, variance = x.mean((0, 1)), x.var((0, 1))
    expected = (x - mean) / np.sqrt(variance + 1e-5)
    assert_close(layer(x, training=True), expected, 2 * 7 * 3 + 2 * FUNCTION)
    assert_close(layer(x), x / np.sqrt(1 + 1e-5), 3 + 2 * FUNCTION)  # mean 0, variance 1


def test_a_step_by_the_lot_is_equations_9_and_10_in_private_training_too():
    (model, layer), (x, y) = network(), lot()
    inputs = model.layers[0](x).numpy()
    model.compile(keras.optimizers.SGD(0.5), "mse", run_eagerly=True)
    model.fit(x, y, batch_size=L, shuffle=False, verbose=0)
    alpha, shown = 0.5 * 0.25 * 0.8, np.clip(inputs, -0.9, 0.9)
    assert_close(layer.running_mean, alpha * shown.mean((0, 1)), L * 3 + 4, alpha)
    expected = (1 - alpha) + alpha * np.square(shown).mean((0, 1))
    assert_close(layer.running_variance, expected, L * 3 + 5)
    unclipped = private(sgd(noise=0.0, clip=1e6), network()[0], {"loss": "mse", "metrics": None})
    unclipped.fit(x, y, batch_size=L, shuffle=False, verbose=0)
    # The gradient of the bias before the normalization is zero.
    largest = max(np.max(np.abs(w)) for w in model.get_weights())
    for ours, theirs in zip(unclipped.get_weights(), model.get_weights(), strict=True):
        assert_close(ours, theirs, terms_of(model, L), largest)


def test_one_example_moves_all_others_and_is_accounted_for_it():
    clip, noise = 0.1, 40.0
    compiled = {"loss": "mse", "metrics": None}
    model = private(sgd(noise=0.0, clip=clip, rate=1.0), network()[0], compiled)
    start, (x, y) = model.get_weights(), lot()
    x[0] *= 1e3

    def total(present):
        model.set_weights(start)
        model.train_on_batch(x, y, sample_weight=present)
        moved = zip(start, model.get_weights(), strict=True)
        return np.concatenate([L * (old - new).ravel() for old, new in moved])

    moved = np.linalg.norm(total(np.ones(L)) - total(np.array([0.0] + [1.0] * (L - 1))))
    # More than its own gradient.
    assert clip < moved <= (2 * L - 1) * clip * (1 + rounding(terms_of(model, L)))
    model.compile(sgd(noise=noise, clip=clip), **compiled)
    model.fit(make_lots("cyclic", x, y, lot_size=L), verbose=0)
    run = model.privacy.current_run
    assert run.contribution.batch_statistics
    alone = describe(
        mechanism="dpsgd", sampling="cyclic", num_examples=L, lot_size=L, steps=1,
        noise_multiplier=noise / (2 * L - 1),
    )  # fmt: skip
    assert proven(run, 1e-5).epsilon == pytest.approx(proven(alone, 1e-5).epsilon, rel=OF_EPSILON)
    # The paper counts every example as if it moved its own gradient only.
    assert claimed(run, 1e-5).epsilon < proven(run, 1e-5).epsilon / 4
    assert proven(vary(run, sampling="poisson"), 1e-5).epsilon == np.inf


# -- files ---------------------------------------------------------------------------------------


def test_files_and_releases(tmp_path):
    inner, layer = alone((5,))
    set_statistics(layer, draw(5), 1 + np.square(draw(5, seed=1)))
    model = keras.Sequential([keras.Input((5,)), layers.Dense(5), layer, layers.Dense(3)])
    x = draw(6, 5, seed=4)
    model.save(tmp_path / "model.keras")
    tfdp.export(model, tmp_path / "release.keras")
    tfdp.export(model, tmp_path / "stock.keras", stock_layers=True)
    for name in ("model", "release", "stock"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        assert_close(loaded(x), model(x), terms_of(model))
    assert isinstance(loaded.layers[1], keras.layers.BatchNormalization)
    nested = keras.Sequential([keras.Input((5,)), inner])
    tfdp.export(nested, tmp_path / "nested.keras", stock_layers=True)
    loaded = keras.models.load_model(tmp_path / "nested.keras")
    assert_close(loaded(x), nested(x), terms_of(nested))


def test_a_configuration_comes_back():
    numbers = {"truncation": 2.0, "share": 0.5, "rate": 4.0, "floor": 0.1, "epsilon": 1e-3}
    given = numbers | {"axis": 1, "statistics": "batch", "center": False, "scale": False}
    again = PrivateBatchNormalization.from_config(PrivateBatchNormalization(**given).get_config())
    assert given.items() <= again.get_config().items()
    again.build((None, 3, 2))
    assert len(again.weights) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"share": float("nan")},
        {"center": 1},
    ],
    ids=str,
)
def test_wrong_arguments(arguments):
    (name,) = arguments
    with pytest.raises((ValueError, TypeError), match=name):
        PrivateBatchNormalization(**arguments)


def test_the_axis_of_the_examples_is_refused():
    with pytest.raises(ValueError, match="axis"):
        PrivateBatchNormalization(axis=-2)(draw(3, 4))
