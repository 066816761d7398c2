"""Batch normalization by private running statistics: equations 9 and 10, values, files."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tests.helpers import private, sgd
from tfdp.layers import PrivateBatchNormalization

EPSILON = 1e-5


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


@pytest.mark.parametrize("shape", [(5,), (6, 5), (4, 3, 5)], ids=len)
@pytest.mark.parametrize("is_private", [False, True], ids=["plain", "private"])
def test_a_step_is_equations_9_and_10(shape, is_private):
    model, layer = alone(shape, truncation=0.9, share=0.25, rate=0.8)
    mean, variance = draw(5, seed=1), 1 + np.square(draw(5, seed=2))
    set_statistics(layer, mean, variance)
    x, alpha = draw(8, *shape, seed=3), 0.5 * 0.25 * 0.8
    y = np.zeros((8, np.prod(shape)))
    if is_private:
        model = private(sgd(noise=0.0, clip=1e6), model, {"loss": "mse", "metrics": None})
    else:
        model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(x, y, batch_size=8, shuffle=False, epochs=1, verbose=0)
    firsts, seconds = moments(x, mean, 0.9)
    expected = (1 - alpha) * mean + alpha * firsts.mean(0)
    np.testing.assert_allclose(layer.running_mean, expected, rtol=1e-4, atol=1e-6)
    expected = (1 - alpha) * variance + alpha * seconds.mean(0)
    np.testing.assert_allclose(layer.running_variance, expected, rtol=1e-4, atol=1e-6)


def test_without_noise_the_statistics_approach_the_true_ones():
    model, layer = alone((7, 2), truncation=20.0, share=0.01, rate=10.0)
    x = np.float32([3.0, -1.0]) + np.float32([0.5, 2.0]) * draw(64, 7, 2)
    model = private(sgd(noise=0.0, clip=1e6, rate=1.0), model, {"loss": "mse", "metrics": None})
    model.fit(x, np.zeros((64, 14)), batch_size=64, epochs=150, shuffle=False, verbose=0)
    np.testing.assert_allclose(layer.running_mean, x.mean((0, 1)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(layer.running_variance, x.var((0, 1)), rtol=1e-3, atol=1e-3)


def test_the_noise_on_the_statistics_is_that_of_the_weights():
    features, noise, rate = 20_000, 1.5, 0.5
    model, layer = alone((features,), truncation=2.0, share=1e-6, rate=7.0)
    model = private(
        sgd(noise=noise, clip=3.0, rate=rate),
        model,
        {"loss": lambda y, p: 0.0 * p, "metrics": None},
    )
    model.fit(np.zeros((8, features), "float32"), np.zeros((8, 1)), batch_size=8, verbose=0)
    expected = rate * noise * 3.0 / 8
    for moved, unit in ((layer.running_mean, 14.0), (layer.running_variance - 1.0, 28.0)):
        measured = np.std(moved) / unit
        assert measured == pytest.approx(expected, rel=0.03)
        assert not any(measured == pytest.approx(f * expected, rel=0.1) for f in (2 / 3, 3 / 2))


@pytest.mark.parametrize("training", [False, True])
def test_outputs_are_those_of_batch_normalization_at_inference(training):
    layer = PrivateBatchNormalization(epsilon=EPSILON)
    x = draw(6, 4, 3)
    layer.build(x.shape)
    set_statistics(layer, [0.5, -1.0, 2.0], [4.0, 1.0, -3.0])  # the last is no variance
    layer.gamma.assign([2.0, 1.0, 0.5])
    layer.beta.assign([0.0, 1.0, -1.0])
    deviation = np.sqrt(np.float32([4.0, 1.0, layer.floor]) + EPSILON)
    expected = (x - np.float32([0.5, -1.0, 2.0])) / deviation * layer.gamma + layer.beta
    np.testing.assert_allclose(layer(x, training=training), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.frozen()(x), expected, rtol=1e-4, atol=1e-5)


def test_truncated_inputs_are_for_the_statistics_only():
    layer = PrivateBatchNormalization(truncation=1.0)
    np.testing.assert_allclose(layer(np.float32([[50.0]])), [[50.0]], rtol=1e-4)
    mean, variance = layer.pulls(np.float32([[50.0]]))
    assert (float(mean[0, 0]), float(variance[0, 0])) == pytest.approx((-0.2, 0.0))


def test_a_mean_that_noise_has_carried_away_bounds_squared_deviations():
    layer = PrivateBatchNormalization(truncation=1.0, share=1.0)
    layer.build((None, 1))
    set_statistics(layer, [100.0], [0.0])
    _, variance = layer.pulls(np.float32([[-5.0]]))
    assert float(variance[0, 0]) == pytest.approx(-4.0)


def test_the_gradient_of_the_inputs_takes_the_statistics_as_constants():
    layer, x = PrivateBatchNormalization(), tf.constant(draw(3, 4))
    layer.build(x.shape)
    set_statistics(layer, [0.1, 0.2, 0.3, 0.4], [4.0, 1.0, 0.25, 9.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x)
    expected = np.tile(1 / np.sqrt(np.float32([4.0, 1.0, 0.25, 9.0]) + EPSILON), (3, 1))
    np.testing.assert_allclose(tape.gradient(outputs, x), expected, rtol=1e-5)


def test_axis_one():
    x = draw(4, 3, 5)
    first, last = PrivateBatchNormalization(axis=1), PrivateBatchNormalization()
    moved = np.moveaxis(x, 1, 2)
    np.testing.assert_allclose(first(x), np.moveaxis(np.asarray(last(moved)), 2, 1), rtol=1e-6)
    for ours, theirs in zip(first.pulls(x), last.pulls(moved), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(first.frozen()(x), first(x), rtol=1e-5, atol=1e-6)


def test_mixed_precision_keeps_statistics_in_float32():
    layer, x = PrivateBatchNormalization(dtype="mixed_bfloat16"), draw(4, 3)
    assert layer(tf.cast(x, "bfloat16")).dtype == "bfloat16"
    assert layer.mean_weight.dtype == "float32"
    plain = PrivateBatchNormalization()
    np.testing.assert_allclose(tf.cast(layer(x), "float32"), plain(x), rtol=1e-2, atol=1e-2)


def trained():
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4), PrivateBatchNormalization(), layers.Dense(3)]
    )
    model = private(sgd(), model)
    model.fit(draw(16, 5), np.arange(16) % 3, batch_size=8, verbose=0)
    return model


def test_files_and_releases(tmp_path):
    model, x = trained(), draw(6, 5, seed=4)
    model.save(tmp_path / "model.keras")
    tfdp.export(model, tmp_path / "release.keras")
    for name in ("model", "release"):
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        for ours, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(loaded(x), model(x))


def test_a_release_with_stock_layers_loads_without_tfdp(tmp_path):
    model, x = trained(), draw(6, 5, seed=4)
    tfdp.export(model, tmp_path / "release.keras", stock_layers=True)
    np.save(tmp_path / "x.npy", x)
    code = (
        "import keras, numpy as np, sys; "
        f"m = keras.models.load_model({str(tmp_path / 'release.keras')!r}); "
        f"np.save({str(tmp_path / 'y.npy')!r}, m(np.load({str(tmp_path / 'x.npy')!r}))); "
        "print('tfdp' in sys.modules, [type(layer).__name__ for layer in m.layers])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "False ['Dense', 'BatchNormalization', 'Dense']" in done.stdout, done.stderr[-2000:]
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), model(x), rtol=1e-4, atol=1e-5)


def test_a_release_with_stock_layers_refuses_inner_models(tmp_path):
    inner = keras.Sequential([keras.Input((5,)), PrivateBatchNormalization()])
    model = keras.Sequential([keras.Input((5,)), inner])
    with pytest.raises(ValueError, match="stock_layers=False"):
        tfdp.export(model, tmp_path / "release.keras", stock_layers=True)


def test_weights_of_a_layer_with_other_units(tmp_path):
    model, layer = alone((2,))
    set_statistics(layer, [1.0, -2.0], [0.5, 3.0])
    model.save_weights(tmp_path / "one.weights.h5")
    other, theirs = alone((2,), truncation=5.0, rate=3.0)
    other.load_weights(tmp_path / "one.weights.h5")
    np.testing.assert_allclose(theirs.running_mean, [1.0, -2.0], rtol=1e-6)
    np.testing.assert_allclose(theirs.running_variance, [0.5, 3.0], rtol=1e-6)


def test_config_round_trip():
    arguments = dict(
        axis=1,
        truncation=2.0,
        share=0.5,
        rate=4.0,
        floor=0.1,
        epsilon=1e-3,
        center=False,
        scale=False,
    )
    config = PrivateBatchNormalization(**arguments).get_config()
    assert {name: config[name] for name in arguments} == arguments
    again = PrivateBatchNormalization.from_config(config)
    assert again.get_config() == config
    again.build((None, 3, 2))
    assert len(again.weights) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"axis": 0},
        {"axis": True},
        {"truncation": 0.0},
        {"share": float("nan")},
        {"rate": -1.0},
        {"floor": 0.0},
        {"epsilon": 0.0},
        {"center": 1},
        {"scale": "no"},
    ],
    ids=str,
)
def test_wrong_arguments(arguments):
    (name,) = arguments
    with pytest.raises((ValueError, TypeError), match=name):
        PrivateBatchNormalization(**arguments)


def test_the_axis_of_the_examples_is_refused():
    with pytest.raises(ValueError, match="that of the examples"):
        PrivateBatchNormalization(axis=-2)(draw(3, 4))


def test_masks_are_refused():
    inputs = keras.Input((5,), dtype="int32")
    embedded = layers.Embedding(7, 3, mask_zero=True)(inputs)
    with pytest.raises(ValueError, match="received a mask"):
        PrivateBatchNormalization()(embedded)
