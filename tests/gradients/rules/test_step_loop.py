"""The hand-written gradient of a loop over steps equals TensorFlow's for the unrolled steps."""

import numpy as np
import pytest
import tensorflow as tf

from tfdp.gradients.rules.recurrent import FusedLSTMCell
from tfdp.gradients.rules.step_loop import Recurrence, TapedCell

STEPS, ROWS, UNITS = 5, 3, 4


def _step(gates, product, states):
    """A cell with two states and a gate that depends on the inputs only."""
    a, b = tf.split(gates, 2, axis=1)
    c, d = tf.split(product, 2, axis=1)
    carry = tf.tanh(a + c) * states[1] + tf.sigmoid(b) * d
    return [tf.sin(carry) * tf.sigmoid(b * d), carry]


def _unrolled(recurrence, gates, states):
    before, after = [], []
    for step in range(STEPS):
        before.append(states[0])
        kernels = tf.split(tf.stop_gradient(recurrence.kernel), len(recurrence.dropout), axis=1)
        pairs = zip(recurrence.dropout, kernels, strict=True)
        products = [tf.matmul(states[0] * mask, kernel) for mask, kernel in pairs]
        product = tf.concat(products, axis=1) + recurrence.bias
        new, _ = recurrence.cell.forward(gates[step], product, states)
        if recurrence.mask is not None:
            new = [tf.where(recurrence.mask[step], n, s) for n, s in zip(new, states, strict=True)]
        states = new
        after.append(states[0])
    return tf.stack(before), tf.stack(after), states


CELLS = {"taped": (TapedCell(_step, 2 * UNITS), 2), "lstm": (FusedLSTMCell(UNITS), 4)}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    ("masked", "shows_steps", "own_masks"),
    [(False, False, False), (True, True, False), (True, False, True), (False, True, True)],
)
def test_gradients_of_gates_and_initial_states(cell, graph, masked, shows_steps, own_masks):
    cell, parts = CELLS[cell]
    rng = np.random.default_rng(1)

    def normal(*shape):
        return tf.constant(rng.normal(size=shape), tf.float32)

    def dropped():
        return tf.constant(2.0 * (rng.random((ROWS, UNITS)) < 0.5), tf.float32)

    recurrence = Recurrence(
        cell,
        normal(UNITS, parts * UNITS),
        normal(parts * UNITS),
        tf.constant(rng.random((STEPS, ROWS, 1)) < 0.6) if masked else None,
        tuple(dropped() for _ in range(parts if own_masks else 1)),
        shows_steps,
    )
    gates, initial = normal(STEPS, ROWS, parts * UNITS), [normal(ROWS, UNITS), normal(ROWS, UNITS)]
    weights = [normal(STEPS, ROWS, UNITS), normal(ROWS, UNITS), normal(ROWS, UNITS)]

    def gradients(loop):
        with tf.GradientTape() as tape:
            tape.watch([gates, *initial])
            before, after, last = loop(gates, initial)
            target = tf.reduce_sum(weights[1] * last[0]) + tf.reduce_sum(weights[2] * last[1])
            if shows_steps:
                target += tf.reduce_sum(weights[0] * after)
        return before, last, tape.gradient(target, [gates, *initial])

    run = tf.function(gradients) if graph else gradients
    ours = run(recurrence.run)
    reference = gradients(lambda gates, states: _unrolled(recurrence, gates, states))
    for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(reference), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
