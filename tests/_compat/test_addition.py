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


def traced(function, values, rows):
    specs = tf.nest.map_structure(lambda x: tf.TensorSpec([rows, *x.shape[1:]], x.dtype), values)
    return tf.function(function).get_concrete_function(specs)


def in_a_batch(function, values):
    return traced(function, values, None)(values)


def alone(function, values):
    with as_in_a_larger_batch():
        of_row = traced(function, values, 1)
    rows = [of_row(tf.nest.map_structure(lambda x, i=i: x[i : i + 1], values)) for i in range(ROWS)]
    return tf.nest.map_structure(lambda *found: tf.concat(found, 0), *rows)


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
    values, functions = [], []
    for x, y in itertools.product(SHAPES, SHAPES):
        if whose == "row" and len(x) != len(y):
            continue  # that mixes rows
        weight = draw(size=(1, *y) if whose == "weight, one axis more" else y)
        added = (ROWS, *y) if whose == "row" else weight.shape
        try:
            rows, *_ = np.broadcast_shapes((ROWS, *x), added)
        except ValueError:
            continue
        if rows == ROWS and len(added) <= 1 + len(x):
            values.append(tf.constant(draw(size=(ROWS, *x)), tf.float32))
            functions.append(adding(tf.constant(weight, tf.float32), whose == "row"))

    def added(rows):
        return [function(row) for function, row in zip(functions, rows, strict=True)]

    expected, found = (how(added, values) for how in (in_a_batch, alone))
    assert len(expected) > 10
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, 1)


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
