"""Hand-written steps of the standard LSTM and GRU; see `recurrent_steps.RecurrentStep`.

They keep activations instead of recomputing them, and their gradients have fewer operations.
"""

import keras
import tensorflow as tf

from tfdp._compat.pfor_conversion import merged
from tfdp._compat.tensorflow import on_plain_cpu, with_gradient
from tfdp.gradients.engines.recurrent_steps import RecurrentStep, by_steps, value_in_pass
from tfdp.gradients.factors import Instantiated, OuterProducts


def gated_step(cell, values: dict, sequences, training):
    """Returns an `LSTMStep` or a `GRUStep`, or None if the cell is not standard.

    Args:
        cell, values, sequences, training: As for `TracedStep`.
    """
    if type(cell) not in (keras.layers.LSTMCell, keras.layers.GRUCell):
        return None
    usual = cell.activation is keras.activations.tanh
    usual &= cell.recurrent_activation is keras.activations.sigmoid
    usual &= not (training and (cell.dropout or cell.recurrent_dropout))
    weights = (cell.kernel, cell.recurrent_kernel, cell.bias)
    # A wrapper may replace a weight by a tensor that it computes from the weight.
    usual &= all(isinstance(weight, keras.Variable) for weight in weights if weight is not None)
    if not usual or sequences.dtype != cell.compute_dtype:
        return None
    if type(cell) is keras.layers.GRUCell:
        return GRUStep(cell, values, sequences) if cell.reset_after else None
    is_float32 = cell.compute_dtype == "float32"
    return LSTMStep(cell, values, sequences) if is_float32 and on_plain_cpu() else None


def _weight(cell, variable):
    return tf.cast(value_in_pass(variable), cell.compute_dtype)


def _gates(cell, sequences, bias):
    """Returns the part of the gates that comes from the inputs, [rows, steps, gates * units]."""
    gates = tf.matmul(merged(sequences), _weight(cell, cell.kernel))
    return by_steps([gates if bias is None else tf.nn.bias_add(gates, bias)], sequences)


def _of_products(at_product, states):
    return OuterProducts(*(tf.cast(t, tf.float32) for t in (states, at_product)))


class LSTMStep(RecurrentStep):
    """A step of an LSTM, whose elementwise gradient is one TensorFlow operation, for float32 on CPUs.

    The operation returns the gradients at the gates in another order than that of Keras.
    """

    def __init__(self, cell, values, sequences):
        bias = None if cell.bias is None else _weight(cell, cell.bias)
        self.outside = _gates(cell, sequences, bias)
        self.prepared = with_gradient(self.outside, self.outside, lambda d: [_exchanged(d)])
        self.shared = [_weight(cell, cell.recurrent_kernel)]
        self._units = cell.units
        state = tf.TensorSpec([None, cell.units], tf.float32)
        self.kept = [state] * 5
        self.uses = []
        if id(cell.recurrent_kernel) in values:
            self.uses.append((self.shared[0], self.outside, [state], _of_products))

    def fixed(self, shared):
        return [*shared, *map(_exchanged, shared)]

    def forward(self, now, same, states, fixed):
        del same
        gates = now[0] + tf.matmul(states[0], fixed[0])
        i, f, candidate, o = tf.split(gates, 4, axis=1)
        i, f, o, candidate = tf.sigmoid(i), tf.sigmoid(f), tf.sigmoid(o), tf.tanh(candidate)
        carry = f * states[1] + i * candidate
        shown = tf.tanh(carry)
        return [o * shown, carry], [i, f, o, candidate, shown]

    def backward(self, now, same, states, kept, fixed, d_new):
        del now, same
        i, f, o, candidate, shown = kept
        # Without peepholes the operation uses only the shapes of inputs, weights and `cs`.
        unused = tf.zeros([self._units])
        d_carry, at_gates, *_ = tf.raw_ops.LSTMBlockCellGrad(
            x=states[0][:, :1], cs_prev=states[1], h_prev=states[0],
            w=tf.zeros([1 + self._units, 4 * self._units]), b=tf.zeros([4 * self._units]),
            wci=unused, wcf=unused, wco=unused,
            i=i, cs=shown, f=f, o=o, ci=candidate, co=shown,
            cs_grad=d_new[1], h_grad=d_new[0], use_peephole=False,
        )  # fmt: skip
        d_state = tf.matmul(at_gates, fixed[1], transpose_b=True)
        return [at_gates], [d_state, d_carry], states[: len(self.uses)]


def _exchanged(gates):
    """Exchanges the second and the third of four gates."""
    i, f, candidate, o = tf.split(gates, 4, axis=-1)
    return tf.concat([i, candidate, f, o], axis=-1)


class GRUStep(RecurrentStep):
    """A step of a GRU whose reset gate is applied after the product with the states (`reset_after`)."""

    def __init__(self, cell, values, sequences):
        bias = [None] if cell.bias is None else tf.unstack(_weight(cell, cell.bias))
        self.prepared = _gates(cell, sequences, bias[0])
        self.shared = [_weight(cell, cell.recurrent_kernel), *bias[1:]]
        dtype = sequences.dtype
        state = tf.TensorSpec([None, cell.units], dtype)
        product = tf.TensorSpec([None, 3 * cell.units], dtype)
        self.kept = [state] * 4
        self.uses = []
        self._is_kernel_used = id(cell.recurrent_kernel) in values
        if self._is_kernel_used:
            self.uses.append((self.shared[0], [product], [state], _of_products))
        if id(cell.bias) in values:
            self.uses.append((bias[1], [product], [], _of_bias))

    def fixed(self, shared):
        return shared

    def forward(self, now, same, states, fixed):
        del same
        (state,), (kernel, *bias) = states, fixed
        product = tf.matmul(state, kernel)
        if bias:
            product = tf.nn.bias_add(product, *bias)
        update, reset, candidate = tf.split(now[0], 3, axis=1)
        of_update, of_reset, of_state = tf.split(product, 3, axis=1)
        update, reset = tf.sigmoid(update + of_update), tf.sigmoid(reset + of_reset)
        candidate = tf.tanh(candidate + reset * of_state)
        new = update * (state - candidate) + candidate
        return [new], [update, reset, candidate, of_state]

    def backward(self, now, same, states, kept, fixed, d_new):
        del now, same
        (state,), (d_new,) = states, d_new
        update, reset, candidate, of_state = kept
        at_update = d_new * (state - candidate) * update * (1 - update)
        at_candidate = d_new * (1 - update) * (1 - candidate * candidate)
        at_reset = at_candidate * of_state * reset * (1 - reset)
        at_gates = tf.concat([at_update, at_reset, at_candidate], axis=1)
        at_product = tf.concat([at_update, at_reset, at_candidate * reset], axis=1)
        d_state = d_new * update + tf.matmul(at_product, fixed[0], transpose_b=True)
        passed = [at_product] if self.uses else []
        if self._is_kernel_used:
            passed.append(state)
        return [at_gates], [d_state], passed


def _of_bias(at_product):
    return Instantiated(tf.cast(at_product, tf.float32))
