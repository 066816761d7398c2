"""Noisy layers draw noise once per lot and with the right scale, and their files are complete."""

import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import tfdp
from tfdp.layers import NoisyConv, NoisyConv1D, NoisyConv2D, NoisyConv3D, NoisyDense

SIGNIFICANCE = 1e-9


def dense(**options):
    layer = NoisyDense(3, **{"noise_stddev": 0.5, **options})
    layer.build((None, 4))
    return layer


def conv(**options):
    layer = NoisyConv2D(2, 3, **{"noise_stddev": 0.5, **options})
    layer.build((None, 6, 6, 1))
    return layer


def conv_1d(**options):
    layer = NoisyConv1D(2, 3, **{"noise_stddev": 0.5, "padding": "causal", **options})
    layer.build((None, 7, 2))
    return layer


def conv_3d(**options):
    layer = NoisyConv3D(2, 2, **{"noise_stddev": 0.5, **options})
    layer.build((None, 4, 3, 4, 2))
    return layer


MAKERS = {
    "dense": (dense, (5, 4)),
    "conv_1d": (conv_1d, (5, 7, 2)),
    "conv": (conv, (5, 6, 6, 1)),
    "conv_3d": (conv_3d, (5, 4, 3, 4, 2)),
}
EVERY = pytest.mark.parametrize(("make", "shape"), MAKERS.values(), ids=MAKERS)


def inputs_of(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def counter(layer):
    return int(layer.weight_noise_state.numpy()[1])


def spread_p_value(values, stddev):
    """Two-sided chi-square test of the variance of centred Gaussian values."""
    statistic = np.sum(np.square(values, dtype=np.float64)) / stddev**2
    chi2 = scipy.stats.chi2(np.size(values))
    return 2 * min(chi2.cdf(statistic), chi2.sf(statistic))


def noise_of_dense(stddev):
    layer = NoisyDense(200, noise_stddev=stddev, use_bias=False)
    layer.build((None, 100))
    drawn = layer(np.eye(100, dtype=np.float32)).numpy()  # the drawn kernel itself
    return drawn - layer.kernel.numpy()


def noise_of_conv(kind, size, channels=40, filters=100):
    """Reads the noise of a convolution off its outputs for unit images as large as its kernel."""

    def found(stddev):
        layer = kind(
            filters, size, noise_stddev=stddev, use_bias=False, data_format="channels_last"
        )
        layer.build((None, *size, channels))
        entries = math.prod(size) * channels
        drawn = layer(np.eye(entries, dtype=np.float32).reshape(entries, *size, channels)).numpy()
        return drawn.reshape(layer.kernel.shape) - layer.kernel.numpy()

    return found


NOISES = {
    "dense": noise_of_dense,
    "conv_1d": noise_of_conv(NoisyConv1D, (5,)),
    "conv": noise_of_conv(NoisyConv2D, (2, 3)),
    "conv_3d": noise_of_conv(NoisyConv3D, (2, 1, 3)),
}


@pytest.mark.parametrize("noise_of", NOISES.values(), ids=NOISES)
class TestScale:
    def test_is_the_stated_standard_deviation(self, noise_of):
        noise = noise_of(0.7)
        assert noise.size in (20_000, 24_000)
        assert spread_p_value(noise, 0.7) > SIGNIFICANCE
        assert scipy.stats.kstest(noise.ravel() / 0.7, "norm").pvalue > SIGNIFICANCE

    @pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
    def test_other_standard_deviations_are_rejected(self, noise_of, factor):
        noise = noise_of(0.7)
        assert spread_p_value(noise, 0.7 * factor) < SIGNIFICANCE
        assert scipy.stats.kstest(noise.ravel() / (0.7 * factor), "norm").pvalue < SIGNIFICANCE


class TestNoise:
    def test_zero_is_the_plain_layer(self):
        layer = dense(noise_stddev=0.0)
        x = inputs_of((5, 4))
        np.testing.assert_allclose(layer(x), x @ layer.kernel.numpy() + layer.bias.numpy(), 1e-5)

    def test_draws_are_independent(self):
        layer = NoisyDense(100, noise_stddev=1.0)
        layer.build((None, 100))
        first = layer.draw_noise((100, 100)).numpy().ravel()
        layer.advance_noise()
        second = layer.draw_noise((100, 100)).numpy().ravel()
        assert abs(np.corrcoef(first, second)[0, 1]) < scipy.stats.norm.isf(SIGNIFICANCE) / 100

    def test_layers_do_not_share_their_noise_under_a_global_seed(self):
        noises = []
        for _ in range(2):
            keras.utils.set_random_seed(0)
            noises.append(dense().draw_noise((4, 3)).numpy())
        assert not np.allclose(*noises)

    def test_a_seed_fixes_the_noise(self):
        np.testing.assert_array_equal(
            dense(seed=5).draw_noise((4, 3)), dense(seed=5).draw_noise((4, 3))
        )
        assert not np.allclose(dense(seed=5).draw_noise((4, 3)), dense(seed=6).draw_noise((4, 3)))


@EVERY
class TestOneDrawPerLot:
    def test_every_training_call_draws_anew(self, make, shape):
        layer, x = make(), inputs_of(shape)
        assert layer.weight_noise_state.path.endswith("weight_noise_state")
        first, second = layer(x, training=True), layer(x, training=True)
        assert counter(layer) == 2
        assert not np.allclose(first, second)

    def test_only_the_method_draws_where_it_is_manual(self, make, shape):
        layer, x = make(resample="manual"), inputs_of(shape)
        first, second = layer(x, training=True), layer(x, training=True)
        np.testing.assert_array_equal(first, second)
        layer.advance_noise()
        assert counter(layer) == 1
        assert not np.allclose(first, layer(x, training=True))

    def test_inference_is_frozen(self, make, shape):
        layer, x = make(), inputs_of(shape)
        layer(x, training=True)
        np.testing.assert_array_equal(layer(x), layer(x, training=False))
        assert counter(layer) == 1

    def test_inference_may_use_the_mean(self, make, shape):
        layer, x = make(noise_at_inference=False), inputs_of(shape)
        plain = make(noise_stddev=0.0)
        plain.kernel.assign(layer.kernel)
        np.testing.assert_allclose(layer(x), plain(x), rtol=1e-5, atol=1e-6)
        assert not np.allclose(layer(x, training=True), plain(x))

    def test_all_examples_meet_the_same_draw(self, make, shape):
        layer, x = make(), inputs_of(shape)
        together = layer(x, training=False)
        one_by_one = [layer(x[i : i + 1], training=False)[0] for i in range(len(x))]
        np.testing.assert_allclose(together, one_by_one, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_compiled(self, make, shape, jit_compile):
        layer, x = make(), inputs_of(shape)
        eager = layer(x, training=False)
        compiled = tf.function(lambda x: layer(x, training=True), jit_compile=jit_compile)
        np.testing.assert_allclose(compiled(x), eager, rtol=1e-4, atol=1e-5)
        assert counter(layer) == 1
        np.testing.assert_allclose(layer(x, training=False), compiled(x), rtol=1e-4, atol=1e-5)

    def test_the_gradient_of_the_mean_is_that_of_the_drawn_weights(self, make, shape):
        layer, x = make(resample="manual"), inputs_of(shape)
        plain = make(noise_stddev=0.0)
        plain.kernel.assign(layer.kernel + layer.draw_noise(layer.kernel.shape))
        gradients = []
        for each in (layer, plain):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(each(x, training=True) ** 2)
            gradients.append(tape.gradient(loss, [each.kernel.value, each.bias.value]))
        for noisy, at_draw in zip(*gradients, strict=True):
            np.testing.assert_allclose(noisy, at_draw, rtol=1e-4, atol=1e-4)

    def test_saved_and_loaded(self, make, shape, tmp_path):
        x = inputs_of(shape)
        model = keras.Sequential([keras.Input(shape[1:]), make(activation="tanh")])
        model(x, training=True)
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(loaded(x), model(x), rtol=1e-6)
        assert counter(loaded.layers[0]) == 1
        assert loaded.layers[0].get_config() == model.layers[0].get_config()
        np.testing.assert_allclose(loaded(x, training=True), model(x, training=True), rtol=1e-6)

    def test_mixed_precision(self, make, shape):
        layer, x = make(dtype="mixed_bfloat16", seed=1), inputs_of(shape)
        reference = make(seed=1)
        reference.kernel.assign(layer.kernel)
        assert layer.draw_noise((2, 2)).dtype == tf.float32
        assert layer.kernel.dtype == "float32"
        outputs = layer(x)
        assert outputs.dtype == tf.bfloat16
        np.testing.assert_allclose(tf.cast(outputs, tf.float32), reference(x), rtol=0.1, atol=0.1)


# TensorFlow cannot vectorize 3-D convolutions, which the ghost engine's rule covers.
@pytest.mark.parametrize(
    ("make", "shape"),
    [MAKERS[name] for name in MAKERS if name != "conv_3d"],
    ids=[name for name in MAKERS if name != "conv_3d"],
)
class TestVectorized:
    def test_vectorized_map(self, make, shape):
        layer, x = make(resample="manual"), inputs_of(shape)

        @tf.function
        def mapped(x):
            return tf.vectorized_map(
                lambda row: layer(row[None], training=True)[0], x, fallback_to_while_loop=False
            )

        np.testing.assert_allclose(mapped(x), layer(x, training=True), rtol=1e-4, atol=1e-5)

    def test_vectorized_map_of_stateless_calls(self, make, shape):
        layer, x = make(), inputs_of(shape)
        expected = layer(x, training=False)

        @tf.function
        def mapped(x):
            def one(row):
                outputs, _ = layer.stateless_call(
                    [v.value for v in layer.trainable_variables],
                    [v.value for v in layer.non_trainable_variables],
                    row[None],
                    training=True,
                )
                return outputs[0]

            return tf.vectorized_map(one, x, fallback_to_while_loop=False)

        np.testing.assert_allclose(mapped(x), expected, rtol=1e-4, atol=1e-5)
        assert counter(layer) == 0  # only the trainer advances the counter, once per lot


CONVOLUTIONS = [
    (NoisyConv1D, (9, 4), {"padding": "causal", "dilation_rate": 2}),
    (NoisyConv1D, (9, 4), {"padding": "same", "strides": 2, "groups": 2}),
    (NoisyConv1D, (4, 9), {"padding": "causal", "data_format": "channels_first"}),
    (NoisyConv2D, (6, 7, 4), {"padding": "same", "strides": 2, "use_bias": False}),
    (NoisyConv2D, (7, 6, 2), {"dilation_rate": 2}),
    (NoisyConv3D, (5, 4, 6, 2), {"padding": "same", "strides": 2}),
    (NoisyConv3D, (5, 4, 6, 2), {"use_bias": False, "activation": None}),
]


@pytest.mark.parametrize(("kind", "shape", "options"), CONVOLUTIONS, ids=str)
def test_is_the_layer_of_keras_at_the_drawn_kernel(kind, shape, options):
    options = {"filters": 4, "kernel_size": 3, "activation": "tanh", **options}
    noisy = kind(**options, noise_stddev=0.5)
    plain = getattr(keras.layers, kind.__name__.removeprefix("Noisy"))(**options)
    x = inputs_of((3, *shape))
    for layer in (noisy, plain):
        layer.build(x.shape)
        if layer.use_bias:
            layer.bias.assign(np.arange(4) / 4)
    plain.kernel.assign(noisy.kernel + noisy.draw_noise(noisy.kernel.shape))
    outputs = noisy(x, training=True)
    np.testing.assert_allclose(outputs, plain(x), rtol=1e-4, atol=1e-5)
    assert noisy.compute_output_shape(x.shape) == outputs.shape


def test_a_noisy_convolution_is_one_of_images():
    assert NoisyConv is NoisyConv2D


@pytest.mark.parametrize("jit_compile", [False, True])
def test_keras_fit(jit_compile):
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            NoisyConv2D(2, 3, noise_stddev=0.1, data_format="channels_last"),
            keras.layers.Flatten(),
            NoisyDense(1, noise_stddev=0.1, use_bias=False),
        ]
    )
    model.compile("sgd", "mse", jit_compile=jit_compile)
    model.fit(inputs_of((8, 6, 6, 1)), np.zeros((8, 1)), batch_size=4, epochs=2, verbose=0)
    assert [counter(layer) for layer in (model.layers[0], model.layers[2])] == [4, 4]


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"run_eagerly": True}], ids=str)
@pytest.mark.parametrize("name", ["conv_1d", "conv_3d"])
def test_private_fit(name, options):
    make, shape = MAKERS[name]
    model = tfdp.make_private(
        keras.Sequential(
            [
                keras.Input(shape[1:]),
                make(noise_stddev=0.1),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
    )
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.0)
    model.compile(optimizer, "mse", **options)
    before = model.layers[0].kernel.numpy()
    model.fit(inputs_of((8, *shape[1:])), np.ones((8, 1)), batch_size=4, epochs=2, verbose=0)
    assert counter(model.layers[0]) == 4  # one draw for each lot
    assert not np.allclose(model.layers[0].kernel, before)


_LOADS = """
import sys
import keras, numpy as np
import tfdp.layers

model = keras.saving.load_model(sys.argv[1])
given = np.load(sys.argv[2])
np.testing.assert_allclose(model(given["x"]), given["now"], rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(model(given["x"], training=True), given["now"], rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(model(given["x"]), given["next"], rtol=1e-5, atol=1e-6)
"""


def test_a_fresh_process_loads_every_layer(tmp_path):
    x = keras.Input((6,))
    y = NoisyDense(36, noise_stddev=0.1)(x)
    y = NoisyConv1D(3, 3, noise_stddev=0.1, padding="causal")(keras.layers.Reshape((12, 3))(y))
    y = NoisyConv2D(4, 2, noise_stddev=0.1)(keras.layers.Reshape((6, 6, 1))(y))
    y = NoisyConv3D(2, 2, noise_stddev=0.1, seed=3)(keras.layers.Reshape((5, 5, 2, 2))(y))
    model = keras.Model(x, y)
    inputs = inputs_of((3, 6))
    model(inputs, training=True)
    model.save(tmp_path / "model.keras")
    now = model(inputs, training=True)
    np.savez(tmp_path / "given.npz", x=inputs, now=now, next=model(inputs))
    command = [sys.executable, "-c", _LOADS, tmp_path / "model.keras", tmp_path / "given.npz"]
    subprocess.run(command, check=True)


class TestRefusals:
    @pytest.mark.parametrize("noise_stddev", [-0.1, float("nan"), float("inf")])
    def test_noise_stddev(self, noise_stddev):
        with pytest.raises(ValueError, match="Expected noise_stddev"):
            dense(noise_stddev=noise_stddev)

    def test_resample(self):
        with pytest.raises(ValueError, match=r"Expected resample .*'call'.*'never'"):
            dense(resample="never")

    @pytest.mark.parametrize("seed", [-1, 2**32, 0.5])
    def test_seed(self, seed):
        with pytest.raises(ValueError, match="Expected seed"):
            conv(seed=seed)
