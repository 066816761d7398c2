"""What only a GPU can show. Each test skips without one; `python -m tfdp.selftest` has the rest."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp import selftest
from tfdp.gradients.factors import OuterProducts

pytestmark = pytest.mark.skipif(
    not tf.config.get_visible_devices("GPU"), reason="TensorFlow sees no GPU"
)


def private(layers, *, jit_compile=False, engine="auto", **options):
    keras.utils.set_random_seed(0)
    model = tfdp.make_private(keras.Sequential(layers), engine=engine, **options)
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit_compile)
    return model


def images(count, size=32, channels=3):
    x = np.random.default_rng(0).normal(size=(count, size, size, channels)).astype("float32")
    return x, np.arange(count, dtype="int32") % 10


def convolutional():
    return [
        keras.Input((32, 32, 3)),
        keras.layers.Conv2D(64, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(64, 5, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]


@pytest.mark.parametrize("mode", selftest.MODES)
def test_sums_bounds_noise_and_counting(mode):
    wrong = [check for check in selftest.checks([mode]) if not check.passed]
    assert not wrong


@pytest.fixture
def tensor_float_32():
    """What TensorFlow has by default, and the other tests have not."""
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(False)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("positions", [1, 8])
def test_a_norm_is_at_least_that_of_what_enters_a_sum(tensor_float_32, positions, jit_compile):
    generator = np.random.default_rng(0)
    left, right = generator.normal(size=(2, 4, positions, 256)).astype("float32")
    if positions > 1:  # terms that cancel but for a tenth
        right[:] = right[:, :1]
        left[:, ::2] = -left[:, 1::2] * (1 + 0.1 * generator.normal(size=(4, 4, 256)))

    @tf.function(jit_compile=jit_compile, autograph=False)
    def norms_and_sums(left, right):
        gradients = OuterProducts(left, right).in_cheapest_form()
        norms = tf.sqrt(gradients.square_norms())
        return norms, [gradients.weighted_sum(row / norms) for row in tf.unstack(tf.eye(4))]

    norms, sums = norms_and_sums(left, right)
    exact = np.linalg.norm(np.einsum("ntp,ntq->npq", left.astype(float), right), axis=(1, 2))
    np.testing.assert_allclose(norms, exact, rtol=0.03)
    assert max(np.linalg.norm(np.float64(total)) for total in sums) <= 1.0 + 1e-7


# Without TensorFloat-32, XLA in TensorFlow 2.21 has no convolution with a bias.
@pytest.mark.usefixtures("tensor_float_32")
@pytest.mark.parametrize("jit_compile", [False, True, "auto"])
@pytest.mark.parametrize("engine", ["ghost", "vectorized"])
def test_a_step_is_computed_on_the_gpu(engine, jit_compile):
    tf.config.experimental.reset_memory_stats("GPU:0")
    before = tf.config.experimental.get_memory_info("GPU:0")["current"]
    model = private(convolutional(), engine=engine, jit_compile=jit_compile)
    model.fit(*images(64), batch_size=64, epochs=1, verbose=0)
    assert all("GPU" in weight.value.device for weight in model.trainable_variables)
    # The activations of the first layer alone: 64 rows of 28 x 28 x 64 numbers.
    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    assert peak - before > 4 * 64 * 28 * 28 * 64


@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
@pytest.mark.parametrize("masked", [False, True])
def test_recurrent_layers_that_have_kernels_of_cudnn(layer, masked):
    model = private(
        [
            keras.Input((7,), dtype="int32"),
            keras.layers.Embedding(11, 6, mask_zero=masked),
            getattr(keras.layers, layer)(5),
            keras.layers.Dense(10),
        ]
    )
    tokens = np.random.default_rng(0).integers(1, 11, (32, 7)).astype("int32")
    if masked:
        tokens[:, 4:] = 0
    before = model.get_weights()
    model.fit(tokens, np.arange(32) % 10, batch_size=16, verbose=0)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert any(np.any(a != b) for a, b in zip(before, model.get_weights(), strict=True))


def test_physical_batches_bound_the_memory():
    peaks = []
    for lot in (512, 2048):
        keras.utils.clear_session()
        tf.config.experimental.reset_memory_stats("GPU:0")
        model = private(convolutional(), physical_batch_size=128)
        model.fit(*images(lot), batch_size=lot, epochs=1, verbose=0)
        peaks.append(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    inputs = 4 * 32 * 32 * 3 * (2048 - 512)
    # Two copies of the larger lot's inputs, and a tenth for the allocator.
    assert peaks[1] <= 1.1 * (peaks[0] + 2 * inputs)


def test_a_private_step_is_no_loop_over_examples():
    """A rule that falls back to a loop is right, and would show here only."""
    plain = keras.Sequential(convolutional())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain.compile("sgd", loss, jit_compile=False)

    def seconds(model):
        data = images(256)
        model.fit(*data, batch_size=128, epochs=2, verbose=0)
        begin = time.perf_counter()
        model.fit(*data, batch_size=128, epochs=10, verbose=0)
        return time.perf_counter() - begin

    assert seconds(private(convolutional())) < 20 * seconds(plain)
