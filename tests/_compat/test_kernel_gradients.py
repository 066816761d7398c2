"""Tests of patches: both layouts have what a convolution with an identity kernel sees."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import assert_close
from tfdp._compat.kernel_gradients import Window, patches


@pytest.mark.parametrize(
    ("window", "shape"),
    [
        (Window((4, 4), (2, 2), (1, 1), "same"), (9, 10, 1)),
        (Window((3, 5), (1, 3), (1, 1), "valid"), (9, 14, 2)),
        (Window((3,), (1,), (2,), "same"), (11, 3)),
        (Window((2, 3, 2), (1, 2, 3), (1, 1, 1), "same"), (5, 6, 7, 2)),
    ],
)
def test_both_layouts_are_what_a_convolution_sees(window, shape):
    images = tf.constant(np.random.default_rng(1).normal(size=(3, *shape)), tf.float32)
    width = math.prod(window.size) * shape[-1]
    kernel = np.eye(width, dtype=np.float32).reshape(*window.size, shape[-1], width)
    seen = tf.nn.convolution(
        images, kernel, window.strides, window.padding.upper(), dilations=window.dilation
    )
    seen = tf.reshape(seen, [3, -1, width])
    for jit_compile in (False, True):
        made = tf.function(patches, autograph=False, jit_compile=jit_compile)
        assert_close(made(images, window), seen, 1)
    columns = tf.concat([*window.columns(window.pad(images))], axis=1)
    assert_close(tf.linalg.matrix_transpose(columns), seen, 1)
