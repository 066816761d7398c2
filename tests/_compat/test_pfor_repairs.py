"""Corrections of TensorFlow's vectorizer where its rules are wrong."""

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import needs_every_convolution
from tfdp._compat import pfor_repairs


@pytest.mark.parametrize("shares", ["inputs", "gradients", "neither"])
def test_depthwise_filter_gradients(shares):
    pfor_repairs.register()
    draw = np.random.default_rng(0).normal
    images = tf.constant(draw(size=(7, 6, 5, 5, 2)), tf.float32)
    kernel = tf.constant(draw(size=(3, 3, 2, 2)), tf.float32)
    at_outputs = tf.constant(draw(size=(7, 6, 5, 5, 4)), tf.float32)

    def one(i):
        inputs = images[0] if shares == "inputs" else tf.gather(images, i)
        gradient = at_outputs[0] if shares == "gradients" else tf.gather(at_outputs, i)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernel)
            outputs = tf.nn.depthwise_conv2d(inputs, kernel, [1, 1, 1, 1], "SAME")
        return tape.gradient(outputs, kernel, output_gradients=gradient)

    rows = tf.range(7)
    vectorized = tf.vectorized_map(one, rows, fallback_to_while_loop=False)
    np.testing.assert_allclose(vectorized, [one(i) for i in rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=needs_every_convolution)])
def test_filter_gradients_of_inputs_that_all_rows_share(groups):
    pfor_repairs.register()
    draw = np.random.default_rng(0).normal
    shared = tf.constant(draw(size=(6, 5, 5, 4)), tf.float32)
    kernel = tf.constant(draw(size=(3, 3, 4 // groups, 2)), tf.float32)
    rows = tf.constant(draw(size=(7, 6, 5, 5, 2)), tf.float32)

    def one(row):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernel)
            outputs = tf.nn.conv2d(shared, kernel, 1, "SAME")
        return tape.gradient(outputs, kernel, output_gradients=row)

    vectorized = tf.vectorized_map(one, rows, fallback_to_while_loop=False)
    np.testing.assert_allclose(vectorized, [one(row) for row in rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [3, 4, 5])
@pytest.mark.parametrize("whose", ["values", "both", "bias"])
def test_a_bias_along_the_first_axis_after_the_batch(rank, whose):
    pfor_repairs.register()
    draw = np.random.default_rng(0).normal
    values = tf.constant(draw(size=(6, 2, 3, *range(4, 2 + rank))), tf.float32)
    bias = tf.constant(draw(size=(6, 3)), tf.float32)

    def one(i):
        value = values[0] if whose == "bias" else tf.gather(values, i)
        added = bias[0] if whose == "values" else tf.gather(bias, i)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([value, added])
            total = tf.nn.bias_add(value, added, data_format="NCHW")
            squares = total * total
        return total, *tape.gradient(squares, [value, added])

    vectorized = tf.vectorized_map(one, tf.range(6), fallback_to_while_loop=False)
    for ours, rows in zip(vectorized, zip(*map(one, range(6)), strict=True), strict=True):
        np.testing.assert_allclose(ours, rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("channels", "groups", "strides", "dilations", "padding"),
    [
        (1, 1, 2, 1, "SAME"),
        (1, 1, 1, 1, "VALID"),
        pytest.param(1, 1, 1, 2, "VALID", marks=needs_every_convolution),
        (3, 1, 2, 1, "VALID"),
        pytest.param(3, 1, 1, 2, "SAME", marks=needs_every_convolution),
        (8, 1, 2, 1, "SAME"),
        pytest.param(8, 1, 1, 2, "VALID", marks=needs_every_convolution),
        pytest.param(8, 2, 2, 1, "SAME", marks=needs_every_convolution),
        (3, 1, 1, 1, [[0, 0], [1, 0], [2, 1], [0, 0]]),
    ],
)
@pytest.mark.parametrize("images", [1, 2])
def test_filter_gradients_of_rows(images, channels, groups, strides, dilations, padding, compiled):
    pfor_repairs.register()
    draw = np.random.default_rng(0).normal
    inputs = tf.constant(draw(size=(5, images, 9, 11, channels)), tf.float32)
    kernel = tf.constant(draw(size=(3, 2, channels // groups, 4)), tf.float32)

    def convolved(row):
        return tf.nn.conv2d(row, kernel, strides, padding, dilations=dilations)

    gradients = tf.constant(draw(size=(5, *convolved(inputs[0]).shape)), tf.float32)

    def one(args):
        row, gradient = args
        if images == 1:  # as the engine gives it, with an unknown length
            row, gradient = pfor_repairs.batch_of_one((row[0], gradient[0]))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernel)
            outputs = convolved(row)
        return tape.gradient(outputs, kernel, output_gradients=gradient)

    @tf.function(jit_compile=compiled)
    def vectorized():
        return tf.vectorized_map(one, (inputs, gradients), fallback_to_while_loop=False)

    singly = [one((inputs[i], gradients[i])) for i in range(5)]
    np.testing.assert_allclose(vectorized(), singly, rtol=1e-4, atol=1e-4)


def test_filter_gradients_of_rows_are_no_loop():
    pfor_repairs.register()
    kernel = tf.ones([3, 3, 2, 4])

    def one(row):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernel)
            outputs = tf.nn.conv2d(row, kernel, 1, "SAME")
        return tape.gradient(outputs, kernel)

    images = tf.TensorSpec([None, 1, 5, 5, 2])
    graph = tf.function(lambda x: tf.vectorized_map(one, x)).get_concrete_function(images).graph
    assert not [op.type for op in graph.get_operations() if "While" in op.type]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shape", [(1, 4), (2, 1, 3, 1), (2, 3)])
def test_a_squeeze_without_axes_keeps_the_rows(rows, shape):
    pfor_repairs.register()
    values = tf.constant(np.random.default_rng(0).normal(size=(rows, *shape)), tf.float32)
    found = tf.function(lambda x: tf.vectorized_map(tf.squeeze, x))(values)
    assert found.shape == (rows, *(n for n in shape if n > 1))
    np.testing.assert_array_equal(tf.reshape(found, [-1]), tf.reshape(values, [-1]))
