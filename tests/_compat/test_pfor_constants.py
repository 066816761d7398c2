"""Vectorized operations with a constant equal a loop over the examples."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp._compat import pfor_repairs

VALUES = np.random.default_rng(0).normal(size=(3, 2, 4, 6)).astype("float32")
EMPTY = np.zeros((3, 2, 0, 6), "float32")
FUNCTIONS = {
    "sum over axes from both ends": lambda x: tf.reduce_sum(x, [0, -1]),
    "mean that keeps its axis": lambda x: tf.reduce_mean(x, 1, keepdims=True),
    "largest of all": tf.reduce_max,
    "any": lambda x: tf.reduce_any(x > 2.0, -1),
    "new axis in front": lambda x: tf.expand_dims(x, 0),
    "new axis at the end": lambda x: tf.expand_dims(x, -1),
    "transposed": lambda x: tf.transpose(x, [2, 0, 1]),
    "repeated": lambda x: tf.tile(x, [1, 2, 3]),
    "padded": lambda x: tf.pad(x, [[0, 1], [2, 0], [0, 0]], constant_values=5.0),
    "another shape": lambda x: tf.reshape(x, [8, 6]),
    "a length to be found": lambda x: tf.reshape(x, [4, -1]),
    "a length to be found of an unknown shape": lambda x: tf.reshape(
        tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None, 4, 6]), [-1]
    ),
    "axes that are no constants": lambda x: tf.reduce_sum(x, tf.range(tf.size(x) - 47)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_constants_get_one_more_axis(name):
    function = FUNCTIONS[name]
    expected = [function(tf.constant(row)) for row in VALUES]
    with pfor_repairs.repaired():
        found = tf.function(
            lambda rows: tf.vectorized_map(function, rows, fallback_to_while_loop=False)
        )(VALUES)
    np.testing.assert_allclose(found, tf.stack(expected), rtol=1e-6)


def test_empty_rows_keep_their_number():
    with pfor_repairs.repaired():
        found = tf.function(
            lambda rows: tf.vectorized_map(
                lambda x: tf.reshape(x, [2, 6, 0]), rows, fallback_to_while_loop=False
            )
        )(EMPTY)
    assert found.shape == (3, 2, 6, 0)
