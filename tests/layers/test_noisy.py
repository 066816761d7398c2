"""Noisy layers draw noise once per lot and with the right scale."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import fit, needs_every_convolution, private, sgd

from tests.noise.assertions import assert_normal, assert_unrelated
from tests.rounding import FUNCTION, assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.layers import NoisyConv1D, NoisyConv2D, NoisyConv3D, NoisyDense


def dense(**options):
    layer = NoisyDense(3, **{"noise_stddev": 0.5, **options})
    layer.build((None, 4))
    return layer


def conv_1d(**options):
    layer = NoisyConv1D(2, 3, **{"noise_stddev": 0.5, "padding": "causal", **options})
    layer.build((None, 7, 2))
    return layer


# Dense layers and causal convolutions have a call of their own; other convolutions share one.
EVERY = pytest.mark.parametrize(
    ("make", "shape"), [(dense, (5, 4)), (conv_1d, (5, 7, 2))], ids=["dense", "conv_1d"]
)


def inputs_of(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def counter(layer):
    return int(layer.weight_noise_state.numpy()[1])


def test_the_noise_has_the_stated_standard_deviation():
    layer = NoisyDense(200, noise_stddev=0.7, use_bias=False)
    layer.build((None, 100))
    drawn = layer(np.eye(100, dtype=np.float32))  # the drawn kernel itself
    assert_normal(drawn - layer.kernel, 0.7)


def test_draws_are_independent():
    layer = NoisyDense(100, noise_stddev=1.0)
    layer.build((None, 100))
    first = layer.draw_noise((100, 100))
    layer.advance_noise()
    assert_unrelated(first, layer.draw_noise((100, 100)))


def test_a_seed_of_the_layer_fixes_the_noise_and_a_global_one_does_not():
    def drawn(**seed):
        seed_keras(0)
        return dense(**seed).draw_noise((4, 3)).numpy()

    assert not np.allclose(drawn(), drawn())
    np.testing.assert_array_equal(drawn(seed=5), drawn(seed=5))
    assert not np.allclose(drawn(seed=5), drawn(seed=6))


# -- one draw for a lot --------------------------------------------------------------------------


@EVERY
def test_training_calls_draw_anew_and_inference_does_not(make, shape):
    layer, x = make(), inputs_of(shape)
    assert not np.allclose(layer(x, training=True), layer(x, training=True))
    together = layer(x)
    np.testing.assert_array_equal(together, layer(x, training=False))
    assert counter(layer) == 2
    # All examples meet the same draw.
    one_by_one = [layer(x[i : i + 1])[0] for i in range(len(x))]
    assert_close(together, one_by_one, terms_of(layer, length=x[0].size))


@EVERY
def test_inference_may_use_the_mean(make, shape):
    layer, x = make(noise_at_inference=False), inputs_of(shape)
    mean = make(noise_stddev=0.0)
    mean.kernel.assign(layer.kernel)
    assert_close(layer(x), mean(x), terms_of(layer, length=x[0].size))
    assert not np.allclose(layer(x, training=True), mean(x))


def test_a_compiled_call_draws_what_an_eager_one_draws():
    layer, x = dense(), inputs_of((5, 4))
    eager = layer(x)
    compiled = tf.function(lambda x: layer(x, training=True), jit_compile=True)
    assert_close(compiled(x), eager, terms_of(layer, length=x[0].size) + 4 * FUNCTION)
    assert_close(layer(x), compiled(x), terms_of(layer, length=x[0].size) + 4 * FUNCTION)


def test_a_private_fit_draws_once_for_each_lot():
    network = keras.Sequential(
        [keras.Input((4,)), NoisyDense(5, noise_stddev=0.1), keras.layers.Dense(3)]
    )
    model = private(sgd(noise=0.0), network, physical_batch_size=4)
    fit(model, epochs=2)
    assert counter(model.layers[0]) == 6


# -- the layers of Keras -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shape", "options"),
    [
        (NoisyConv1D, (9, 4), {"padding": "causal", "dilation_rate": 2}),
        pytest.param(
            NoisyConv1D,
            (4, 9),
            {"padding": "causal", "data_format": "channels_first"},
            marks=needs_every_convolution,
        ),
        (NoisyConv2D, (6, 7, 4), {"padding": "same", "strides": 2, "use_bias": False}),
        (NoisyConv3D, (5, 4, 6, 2), {"padding": "same", "strides": 2}),
    ],
    ids=str,
)
def test_is_the_layer_of_keras_at_the_drawn_kernel(kind, shape, options):
    options = {"filters": 4, "kernel_size": 3, "activation": "tanh", **options}
    noisy = kind(**options, noise_stddev=0.5)
    stock = getattr(keras.layers, kind.__name__.removeprefix("Noisy"))(**options)
    x = inputs_of((3, *shape))
    for layer in (noisy, stock):
        layer.build(x.shape)
        if layer.use_bias:
            layer.bias.assign(np.arange(4) / 4)
    stock.kernel.assign(noisy.kernel + noisy.draw_noise(noisy.kernel.shape))
    outputs = noisy(x, training=True)
    assert_close(outputs, stock(x), terms_of(noisy, length=x[0].size))
    assert noisy.compute_output_shape(x.shape) == outputs.shape


@pytest.mark.parametrize(("name", "value"), [("noise_stddev", float("nan")), ("seed", 2**32)])
def test_bad_arguments(name, value):
    with pytest.raises(ValueError, match=name):
        dense(**{name: value})
