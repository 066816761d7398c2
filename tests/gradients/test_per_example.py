"""Public per-example gradients equal those of a loop over batches of one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.gradients import per_example_gradient_norms, per_example_gradients

ROWS = 5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def dense():
    return keras.Sequential([keras.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(3)])


def conv():
    return keras.Sequential(
        [keras.Input((6, 6, 2)), layers.Conv2D(3, 3), layers.Flatten(), layers.Dense(3)]
    )


def regularized():
    kernel = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.5))
    return keras.Sequential([keras.Input((4,)), kernel])


class Ranked(layers.Layer):
    """Uses an operation that TensorFlow cannot vectorize."""

    def call(self, x):
        return x + tf.stop_gradient(tf.cast(tf.raw_ops.Unique(x=x[0]).idx, x.dtype))


def ranked():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3), Ranked(name="ranked")])


def conv3d():
    return keras.Sequential(
        [keras.Input((3, 3, 3, 1)), layers.Conv3D(2, 2), layers.Flatten(), layers.Dense(3)]
    )


def compiled(make):
    model = make()
    model.compile(loss=LOSS)
    return model


def data(model):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, *model.input_shape[1:])).astype("float32")
    return x, draw.integers(0, 3, ROWS)


def by_hand(model, x, y, weight=None):
    found = []
    for row in range(len(x)):
        with tf.GradientTape() as tape:
            loss = LOSS(y[row : row + 1], model(x[row : row + 1], training=True))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        scale = 1.0 if weight is None else weight[row]
        found.append([scale * tf.convert_to_tensor(g).numpy() for g in gradients])
    return [np.stack(each) for each in zip(*found, strict=True)]


@pytest.mark.parametrize("method", ["vectorized", "loop"])
@pytest.mark.parametrize("make", [dense, conv, conv3d, regularized])
@pytest.mark.parametrize("weight", [None, np.array([0.0, 1.0, 2.0, 0.5, 3.0], "float32")])
def test_they_are_those_of_batches_of_one(make, method, weight):
    model = compiled(make)
    x, y = data(model)
    found = per_example_gradients(model, x, y, weight, method=method)
    for ours, expected in zip(found, by_hand(model, x, y, weight), strict=True):
        assert ours.dtype == tf.float32
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_the_loop_takes_what_cannot_be_vectorized():
    model = compiled(ranked)
    x, y = data(model)
    for ours, expected in zip(
        per_example_gradients(model, x, y, method="loop"), by_hand(model, x, y), strict=True
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)


def test_norms():
    model = compiled(dense)
    x, y = data(model)
    gradients = by_hand(model, x, y)
    expected = [np.sqrt(sum((g[row] ** 2).sum() for g in gradients)) for row in range(ROWS)]
    np.testing.assert_allclose(per_example_gradient_norms(model, x, y), expected, rtol=1e-5)


def test_inside_a_function_and_for_a_private_model():
    model = tfdp.make_private(dense())
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.0), LOSS)
    x, y = data(model)
    compute = tf.function(lambda x, y: per_example_gradients(model, x, y))
    for ours, expected in zip(compute(x, y), by_hand(model, x, y), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
    norms = tf.function(lambda x, y: per_example_gradient_norms(model, x, y))
    np.testing.assert_allclose(norms(x, y), per_example_gradient_norms(model, x, y), rtol=1e-5)
    assert model.privacy.ledger.runs == []


def test_dropout_differs_from_example_to_example():
    model = keras.Sequential([keras.Input((50,)), layers.Dropout(0.5), layers.Dense(3)])
    model.compile(loss=LOSS)
    x, y = np.ones((2, 50), "float32"), np.zeros(2, int)
    for method in ("vectorized", "loop"):
        kernel = per_example_gradients(model, x, y, method=method)[0].numpy()
        assert np.any((kernel[0] == 0) != (kernel[1] == 0))


@pytest.mark.parametrize(
    ("model", "method", "message"),
    [
        (dense(), "vectorized", "built and compiled"),
        (compiled(lambda: keras.Sequential([layers.Dense(3)])), "vectorized", "built and compiled"),
        (compiled(dense), "fast", "Expected method"),
        (
            compiled(lambda: keras.Sequential([keras.Input((4,)), layers.BatchNormalization()])),
            "loop",
            "assigned during the forward pass",
        ),
    ],
)
def test_what_is_refused(model, method, message):
    with pytest.raises(ValueError, match=message):
        per_example_gradients(model, np.zeros((2, 4), "float32"), np.zeros(2, int), method=method)


def test_what_cannot_be_vectorized_is_named():
    model = compiled(ranked)
    with pytest.raises(NotImplementedError, match=r"'ranked' .* cannot vectorize: .* op Unique"):
        per_example_gradients(model, *data(model))
