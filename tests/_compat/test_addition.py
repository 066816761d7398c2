"""`keras.ops.add` and `squeeze` of a row alone are what they are in a batch."""

import concurrent.futures
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import assert_close
from tfdp._compat.keras import as_in_a_larger_batch

ROWS = 3
SHAPES = [(5, 5), (1, 5), (5, 1), (5, 5, 5), (1, 5, 1), (5,), (1,)]


def in_a_batch(function, values):
    return tf.function(function).get_concrete_function(tf.TensorSpec([None, *values.shape[1:]]))(
        values
    )


def alone(function, values):
    with as_in_a_larger_batch():
        of_row = tf.function(function).get_concrete_function(tf.TensorSpec([1, *values.shape[1:]]))
    return tf.concat([of_row(values[row : row + 1]) for row in range(ROWS)], 0)


def adding(weight, to_row):
    def function(x):
        if not to_row:
            return keras.ops.add(x, weight)
        of_row = tf.reshape(
            tf.reshape(x, [tf.shape(x)[0], -1])[:, 0], [-1] + [1] * weight.shape.rank
        )
        return keras.ops.add(x, tf.ensure_shape(of_row * weight, [x.shape[0], *weight.shape]))

    return function


@pytest.mark.parametrize("whose", ["row", "weight", "weight, one axis more"])
def test_a_row_is_added_to_as_in_a_batch(whose):
    draw = np.random.default_rng(0).normal
    compared = 0
    for x, y in itertools.product(SHAPES, SHAPES):
        if whose == "row" and len(x) != len(y):
            continue  # that mixes rows
        values = tf.constant(draw(size=(ROWS, *x)), tf.float32)
        weight = draw(size=(1, *y) if whose == "weight, one axis more" else y)
        function = adding(tf.constant(weight, tf.float32), whose == "row")
        try:
            expected = in_a_batch(function, values)
        except (ValueError, tf.errors.InvalidArgumentError):
            continue
        if expected.shape[0] == ROWS:
            assert_close(alone(function, values), expected, 1)
            compared += 1
    assert compared > 10


def test_promotes_types_as_keras_does():
    def added(x):
        return keras.ops.add(tf.ones([1, 5, 5], "bfloat16"), x)

    with as_in_a_larger_batch():
        assert tf.function(added)(tf.ones([1, 5, 1])).dtype == "float32"


def test_other_threads_add_as_keras_does():
    def kinds():
        graph = tf.function(keras.ops.add).get_concrete_function(
            tf.TensorSpec([1, 5, 5]), tf.TensorSpec([1, 5, 1])
        )
        return {operation.type for operation in graph.graph.get_operations()}

    with concurrent.futures.ThreadPoolExecutor(1) as threads, as_in_a_larger_batch():
        assert "BiasAdd" not in kinds()
        assert "BiasAdd" in threads.submit(kinds).result()
    assert "BiasAdd" in kinds()


@pytest.mark.parametrize("shape", [(3, 1, 2), (3, 4), (3, 1)])
def test_a_squeeze_without_axes_keeps_the_axis_of_rows(shape):
    values = tf.ones(shape)
    np.testing.assert_array_equal(alone(keras.ops.squeeze, values), tf.squeeze(values))
