"""The exact engine keeps the loops of recurrent layers, with the gradients of batches of one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfdp.gradients.engines import exact, steps
from tfdp.gradients.forward import Forward
from tfdp.gradients.testing import MedianClip, assert_equal_sums, loop_bounded_sum, run_engine

ROWS, STEPS = 3, 7


def bidirectional():
    return layers.Bidirectional(layers.LSTM(3, return_sequences=True))


def turned_round():
    return layers.GRU(3, go_backwards=True, return_sequences=True, reset_after=False)


def stacked():
    cells = layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2)])
    return layers.RNN(cells, return_sequences=True)


def frozen():
    layer = layers.LSTM(3)
    layer.trainable = False
    return layer


RECURRENT = {
    "lstm": lambda: layers.LSTM(3, return_state=False),
    "bidirectional": bidirectional,
    "backwards": turned_round,
    "zero where masked": lambda: layers.GRU(3, zero_output_for_mask=True, return_sequences=True),
    "no bias": lambda: layers.SimpleRNN(3, use_bias=False),
    "stacked cells": stacked,
    "frozen": frozen,
}


def model_of(*stack, shape=(STEPS, 4)):
    model = keras.Sequential([keras.Input(shape), *stack, layers.Flatten(), layers.Dense(2)])
    model.compile(loss="mse")
    return model


def arguments(model, shape=(STEPS, 4)):
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(0.0, 0.5, variable.shape))
    x = rng.normal(size=(ROWS, *shape)).astype("float32")
    x[0, 5:], x[1, :2], x[2, 3] = 0.0, 0.0, 0.0  # `Masking` hides these steps
    y = rng.normal(size=(ROWS, 2)).astype("float32")
    return Forward(model), MedianClip(1.0), tf.constant(x), tf.constant(y), tf.ones([ROWS])


@pytest.mark.parametrize("name", RECURRENT)
def test_masked_loops_have_the_gradients_of_batches_of_one(name):
    model = model_of(layers.Masking(), RECURRENT[name]())
    given = arguments(model)
    assert_equal_sums(run_engine(exact.bounded_sum, *given), run_engine(loop_bounded_sum, *given))


def test_convolutions_in_cells():
    model = model_of(layers.ConvLSTM2D(2, 2, return_sequences=True), shape=(4, 3, 3, 2))
    given = arguments(model, (4, 3, 3, 2))
    assert_equal_sums(run_engine(exact.bounded_sum, *given), run_engine(loop_bounded_sum, *given))


class Own(layers.SimpleRNNCell):
    """A cell that a loop with a gradient of its own would not know."""


@pytest.mark.parametrize(
    ("make", "known"),
    [
        (lambda: layers.LSTM(3), True),
        (lambda: layers.LSTM(3, activation=lambda x: x), False),
        (lambda: layers.RNN(Own(3)), False),
        (lambda: layers.RNN(layers.StackedRNNCells([layers.GRUCell(2), Own(3)])), False),
    ],
)
def test_a_loop_is_kept_only_where_the_gradient_sees_all_that_a_cell_uses(make, known):
    layer = make()
    layer.build((None, STEPS, 4))
    assert steps._is_known(layer) is known


def test_the_graph_is_not_longer_for_longer_sequences():
    def size(length):
        model = model_of(layers.LSTM(3), shape=(length, 4))
        forward, _, *rows = arguments(model, (length, 4))

        @tf.function(autograph=False)
        def run(x, y, weight):
            return exact.per_example_gradients(forward, x, y, weight, tf.constant(0))[0]

        return len(run.get_concrete_function(*rows).graph.get_operations())

    assert size(8) == size(40)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_recurrent_dropout_has_a_mask_for_each_row(jit_compile):
    model = model_of(layers.LSTM(40, recurrent_dropout=0.5), shape=(3, 4))
    forward, bound, *rows = arguments(model, (6, 4))
    x = tf.ones([ROWS, 3, 4])  # rows differ by their masks only

    @tf.function(autograph=False, jit_compile=jit_compile)
    def run():
        return exact.bounded_sum(forward, bound, x, rows[1] * 0, rows[2], tf.constant(0)).norms

    assert len({*run().numpy()}) == ROWS
