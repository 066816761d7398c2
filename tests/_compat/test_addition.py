"""`keras.ops.add` adds as NumPy does, in batches of one too."""

import itertools

import keras
import numpy as np
import tensorflow as tf

from tests.rounding import assert_close
from tfdp._compat import addition

SHAPES = [
    *itertools.product((1, 5), repeat=3),
    (5,),
    (1,),
    (1, 5, 5, 1),
    (1, 1, 1, 5),
    (1, 5, 1, 1),
]


def test_adds_as_numpy_does():
    draw = np.random.default_rng(0).normal
    for a, b in itertools.product(SHAPES, SHAPES):
        x, y = draw(size=a).astype("float32"), draw(size=b).astype("float32")
        with addition.corrected():
            ours = keras.ops.add(tf.constant(x), tf.constant(y))
        assert_close(ours, x + y, 1)


def test_promotes_types_as_keras_does():
    x, y = tf.ones([1, 5, 5], "bfloat16"), tf.ones([1, 5, 1], "float32")
    with addition.corrected():
        assert keras.ops.add(x, y).dtype == "float32"
        whole = keras.ops.add(tf.ones([1, 5, 5], "int32"), tf.ones([1, 5, 1], "int8"))
    assert whole.dtype == "int32"
