"""Corrections of TensorFlow's vectorizer where its rules are wrong."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp._compat import pfor_repairs


@pytest.mark.parametrize("groups", [1, 2])
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
