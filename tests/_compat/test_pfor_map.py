"""Corrections of TensorFlow's vectorizer where its rules are wrong: they equal a loop over the rows."""

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import needs_every_convolution
from tests.rounding import assert_close
from tfdp._compat.pfor_map import batch_of_one, vectorized_map


def drawn(*shape):
    return tf.constant(np.random.default_rng(sum(shape)).normal(size=shape), tf.float32)


def equals_a_loop(one, rows, compiled=False):
    @tf.function(jit_compile=compiled)
    def vectorized():
        return vectorized_map(one, rows)

    several = isinstance(rows, tuple)
    singly = [tf.nest.flatten(one(row)) for row in (zip(*rows, strict=True) if several else rows)]
    terms = sum(np.size(leaf) for leaf in tf.nest.flatten([rows]))
    for ours, theirs in zip(tf.nest.flatten(vectorized()), zip(*singly, strict=True), strict=True):
        assert_close(ours, theirs, terms)


def filter_gradient(convolve, kernel, inputs, at_outputs):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(kernel)
        outputs = convolve(inputs, kernel)
    return tape.gradient(outputs, kernel, output_gradients=at_outputs)


@pytest.mark.parametrize("shares", ["inputs", "gradients", "neither"])
def test_depthwise_filter_gradients(shares):
    images, at_outputs = drawn(4, 3, 5, 5, 2), drawn(4, 3, 5, 5, 4)

    def convolve(inputs, kernel):
        return tf.nn.depthwise_conv2d(inputs, kernel, [1, 1, 1, 1], "SAME")

    def one(i):
        inputs = images[0] if shares == "inputs" else tf.gather(images, i)
        gradient = at_outputs[0] if shares == "gradients" else tf.gather(at_outputs, i)
        return filter_gradient(convolve, drawn(3, 3, 2, 2), inputs, gradient)

    equals_a_loop(one, tf.range(4))


@pytest.mark.parametrize("groups", [1, pytest.param(2, marks=needs_every_convolution)])
def test_filter_gradients_of_inputs_that_all_rows_share(groups):
    shared, kernel = drawn(3, 5, 5, 4), drawn(3, 3, 4 // groups, 2)

    def convolve(inputs, kernel):
        return tf.nn.conv2d(inputs, kernel, 1, "SAME")

    equals_a_loop(lambda row: filter_gradient(convolve, kernel, shared, row), drawn(4, 3, 5, 5, 2))


@pytest.mark.parametrize(
    ("channels", "groups", "strides", "dilations", "padding", "images", "compiled"),
    [
        (1, 1, 2, 1, "SAME", 1, False),
        (1, 1, 1, 1, "VALID", 2, False),
        pytest.param(1, 1, 1, 2, "VALID", 1, False, marks=needs_every_convolution),
        (3, 1, 2, 1, "VALID", 1, True),
        pytest.param(3, 1, 1, 2, "SAME", 2, False, marks=needs_every_convolution),
        (8, 1, 2, 1, "SAME", 1, False),
        pytest.param(8, 2, 2, 1, "SAME", 2, False, marks=needs_every_convolution),
        (3, 1, 1, 1, [[0, 0], [1, 0], [2, 1], [0, 0]], 1, False),
    ],
)
def test_filter_gradients_of_rows(channels, groups, strides, dilations, padding, images, compiled):
    kernel = drawn(3, 2, channels // groups, 4)
    inputs = drawn(3, images, 7, 9, channels)

    def convolve(row, kernel):
        return tf.nn.conv2d(row, kernel, strides, padding, dilations=dilations)

    def one(args):
        row, gradient = args
        if images == 1:  # as the engine gives it, with an unknown length
            row, gradient = batch_of_one((row[0], gradient[0]))
        return filter_gradient(convolve, kernel, row, gradient)

    equals_a_loop(one, (inputs, drawn(3, *convolve(inputs[0], kernel).shape)), compiled)


@pytest.mark.parametrize(("rank", "whose"), [(3, "values"), (4, "both"), (5, "bias")])
def test_a_bias_along_the_first_axis_after_the_batch(rank, whose):
    values, bias = drawn(4, 2, 3, *range(4, 2 + rank)), drawn(4, 3)

    def one(i):
        value = values[0] if whose == "bias" else tf.gather(values, i)
        added = bias[0] if whose == "values" else tf.gather(bias, i)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([value, added])
            total = tf.nn.bias_add(value, added, data_format="NCHW")
            squares = total * total
        return total, *tape.gradient(squares, [value, added])

    equals_a_loop(one, tf.range(4))


@pytest.mark.parametrize(("rows", "shape"), [(1, (1, 4)), (3, (2, 1, 3, 1)), (1, (2, 3))])
def test_a_squeeze_without_axes_keeps_the_rows(rows, shape):
    values = drawn(rows, *shape)
    found = tf.function(lambda x: vectorized_map(tf.squeeze, x))(values)
    assert found.shape == (rows, *(n for n in shape if n > 1))
    np.testing.assert_array_equal(tf.reshape(found, [-1]), tf.reshape(values, [-1]))


@pytest.mark.parametrize("operation", [tf.nn.softmax, tf.nn.log_softmax])
def test_a_softmax_of_many_axes(operation):
    equals_a_loop(operation, drawn(2, 1, 2, 2, 2, 3))


def test_products_with_a_matrix_that_all_rows_share():
    matrix = drawn(4, 5)
    equals_a_loop(lambda row: tf.matmul(row, matrix, transpose_b=True), drawn(3, 2, 6, 5))


def test_an_operation_that_no_test_vouches_for_runs_row_by_row(caplog):
    rows = tf.math.sigmoid(drawn(3, 4))

    def one(row):
        return tf.math.betainc(row + 1, row + 2, row)

    for _ in range(2):
        equals_a_loop(one, rows)
    assert caplog.text.count("operation Betainc") == 1
    # The maps of others have the rules of TensorFlow.
    with pytest.raises(ValueError, match="No pfor vectorization defined"):
        tf.function(lambda: tf.vectorized_map(one, rows, fallback_to_while_loop=False))()
    with pytest.raises(ValueError, match="keep examples apart"):
        # The results of rows have different shapes.
        vectorized_map(lambda row: tf.where(row > 0.5), rows)


@pytest.mark.parametrize("inside", ["function", "branch", "case", "loop", "loop in a branch"])
def test_no_operation_goes_past_the_rules_of_tfdp(inside):
    """TensorFlow has no rule for this operation, so it would raise an error."""

    def rare(row):
        return tf.math.betainc(row + 1, row + 2, row)

    def loop(row):
        return tf.while_loop(lambda i, _: i < 2, lambda i, x: (i + 1, rare(x)), (0, row))[1]

    around = {
        "function": tf.function(rare),
        "branch": lambda row: tf.cond(row[0] > 0.5, lambda: rare(row), lambda: row),
        "case": lambda row: tf.switch_case(tf.cast(2 * row[0], tf.int32), [lambda: rare(row)] * 2),
        "loop": loop,
        "loop in a branch": lambda row: tf.cond(row[0] > 0.5, lambda: loop(row), lambda: row),
    }
    equals_a_loop(around[inside], tf.math.sigmoid(drawn(3, 4)))


def test_known_shapes_are_not_computed():
    images, kernel = drawn(3, 1, 5, 5, 2), drawn(2, 2, 2, 4)

    def one(image):
        return tf.nn.conv2d(image, kernel, 1, "SAME")

    def asked(vectorize):
        traced = tf.function(lambda images: vectorize(one, images), autograph=False)
        graph = traced.get_concrete_function(tf.TensorSpec([None, 1, 5, 5, 2])).graph
        return sum(operation.type == "Shape" for operation in graph.get_operations())

    assert asked(vectorized_map) < asked(tf.vectorized_map)
    equals_a_loop(one, images)


def test_a_branch_that_shapes_decide_has_the_gradient_of_a_loop():
    def one(row):
        with tf.GradientTape() as tape:
            tape.watch(row)
            chosen = tf.cond(tf.shape(row)[0] > 2, lambda: tf.sin(row) * row, lambda: row)
        return tape.gradient(chosen, row)

    equals_a_loop(one, drawn(4, 3))
