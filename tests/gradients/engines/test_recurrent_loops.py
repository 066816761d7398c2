"""The exact engine keeps the loops of recurrent layers, with the gradients of batches of one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.gradients.checking import check_engines, lot_for
from tests.gradients.reference import MedianClip, run_engine
from tfdp.gradients.engines import exact


class Own(layers.SimpleRNNCell):
    """A cell that a loop with a gradient of its own would not know, so that it is unrolled."""


def test_masked_loops_have_the_gradients_of_batches_of_one():
    x = keras.Input((4, 3))
    # Hides steps at the beginning, in the middle and at the end.
    gaps = layers.Lambda(lambda x: x * tf.cast(tf.reduce_sum(x, -1, keepdims=True) > 0.0, x.dtype))
    masked = layers.Masking()(gaps(x))
    cells = layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2)])
    options = {"go_backwards": True, "return_sequences": True, "zero_output_for_mask": True}
    stack = [
        layers.SimpleRNN(2, use_bias=False, **options),
        layers.RNN(cells, return_sequences=True),
        layers.RNN(Own(2)),
    ]
    frozen = layers.GRU(3, trainable=False, return_sequences=True)
    outputs = [layers.Flatten()(layer(masked)) for layer in stack]
    outputs.append(layers.SimpleRNN(2)(frozen(masked)))
    model = keras.Model(x, layers.Concatenate()(outputs))
    check_engines(model, engines=["vectorized"])


class UsedTwice(layers.Layer):
    """Uses the weights of a loop in another way, too."""

    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def build(self, shape):
        self.loop.build(shape)

    def call(self, x):
        return self.loop(x) * sum(tf.reduce_sum(tf.exp(w)) for w in self.loop.weights)


def test_weights_of_loops_that_are_used_elsewhere():
    model = keras.Sequential([keras.Input((4, 3)), UsedTwice(layers.SimpleRNN(2))])
    check_engines(model)


@pytest.mark.slow
def test_convolutions_in_cells():
    x = keras.Input((3, 3, 3, 2))
    outputs = layers.ConvLSTM2D(2, 2, return_sequences=True)(x)
    check_engines(keras.Model(x, layers.Flatten()(outputs)), engines=["vectorized"])


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_recurrent_dropout_has_a_mask_for_each_row(jit_compile):
    model = keras.Sequential([keras.Input((2, 4)), layers.SimpleRNN(40, recurrent_dropout=0.5)])
    forward, _, x, y, weight = lot_for(model)
    same = tf.ones_like(x), tf.zeros_like(y)  # rows differ by their masks only
    lot = (forward, MedianClip(1.0), *same, weight)
    norms = run_engine(exact.bounded_sum, *lot, jit_compile=jit_compile).norms
    assert len({*np.array(norms)}) == 3
