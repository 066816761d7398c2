"""Vectorized operations with a constant, such as an axis, equal a loop over the examples."""

import numpy as np
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp._compat.pfor_map import vectorized_map

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
    "padded by computed margins": lambda x: tf.pad(
        x, [[0, 1], [tf.size(x) - 46, 0], [0, 0]], constant_values=5.0
    ),
    "another shape": lambda x: tf.reshape(x, [8, 6]),
    "a length to be found": lambda x: tf.reshape(x, [4, -1]),
    "a length to be found of an unknown shape": lambda x: tf.reshape(
        tf.raw_ops.PlaceholderWithDefault(input=x, shape=[None, 4, 6]), [-1]
    ),
    "rolled along axes from the end": lambda x: tf.roll(x, [1, 2], [-1, 0]),
    "rolled by as much as the data say": lambda x: tf.roll(
        x, tf.cast(9 * x[0, 0, 0], tf.int32), -2
    ),
    "reversed from the end": lambda x: tf.reverse(x, [-2]),
    "sums so far from the end": lambda x: tf.cumsum(x, -3),
    "joined at the end": lambda x: tf.concat([x, 2.0 * x], -1),
    "taken apart from the end": lambda x: tf.unstack(x, axis=-2)[1] + tf.split(x, 4, -2)[0][:, 0],
    "stacked from the end": lambda x: tf.stack([x, 2.0 * x], -2),
    "looked up from the end": lambda x: tf.gather(x, [2, 0], axis=-1),
    "the place of the largest from the end": lambda x: tf.argmax(x, -2),
    "axes that are no constants": lambda x: tf.reduce_sum(x, tf.range(tf.size(x) - 47)),
}


def test_constants_get_one_more_axis():
    def of_row(row):
        return {name: function(row) for name, function in FUNCTIONS.items()}

    expected = [of_row(tf.constant(row)) for row in VALUES]
    found = tf.function(lambda rows: vectorized_map(of_row, rows))(VALUES)
    for name in FUNCTIONS:
        each = tf.stack([row[name] for row in expected])
        assert_close(found[name], each, 3 * FUNCTION, message=name)


def test_empty_rows_keep_their_number():
    found = tf.function(lambda rows: vectorized_map(lambda x: tf.reshape(x, [2, 6, 0]), rows))(
        EMPTY
    )
    assert found.shape == (3, 2, 6, 0)
