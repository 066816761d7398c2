"""Rules for SimpleRNN, LSTM and GRU over whole sequences; Bidirectional follows from its two layers.

The part of every gate that comes from the inputs is one product over the whole sequence, outside the
loop. This product is recorded. Its gradient is the gradient of the gates at all steps of the sequence.
Together with the states before each step, it gives the gradient of every weight. The loop itself
computes no gradient of a weight.
"""

import functools

import keras
import tensorflow as tf

from tfdp._compat.tensorflow import on_plain_cpu
from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import Rule, UnsupportedModelError, replaced
from tfdp.gradients.rules.per_example_gradient import Instantiated, OuterProducts
from tfdp.gradients.rules.step_loop import Cell, Recurrence, TapedCell


class RecurrentRule(Rule):
    """Replaces the layer's `inner_loop`.

    States have the order of Keras' cells. So have gates, unless `reorder` gives them another order.
    The loop has the steps as its first axis, and so has what is recorded.
    """

    def variables(self):
        cell = self.layer.cell
        variables = [cell.kernel, cell.recurrent_kernel]
        return variables if cell.bias is None else [*variables, cell.bias]

    def refusal(self):
        cell = self.layer.cell
        if self.layer.stateful:
            return "is stateful"
        if cell.recurrent_dropout and not getattr(cell, "reset_after", True):
            return "uses recurrent_dropout with reset_after=False"
        return None

    def call(self, record, *args, **kwargs):
        def inner_loop(sequences, initial_state, mask, training=False):
            return self._run(record, sequences, initial_state, mask, training)

        with replaced(self.layer, inner_loop=inner_loop):
            return type(self.layer).call(self.layer, *args, **kwargs)

    def biases(self, bias):
        """Returns the biases of the inputs' and of the states' part of the gates, each or None."""
        return bias, None

    def step(self, gates, recurrent, states, kernel):
        """Computes one step of the cell.

        Args:
            gates: [rows, gates * units], the part of the gates that comes from the inputs.
            recurrent: [rows, gates * units], the part that comes from the states.
            states: list of [rows, units]; the first is the output of the step before.
            kernel: the recurrent kernel.

        Returns:
            List of the new states.
        """
        raise NotImplementedError

    def prepared(self, gates, history):
        """Returns what becomes of `gates` [steps, rows, gates * units] before they are recorded.

        `history` is a dictionary in which later methods find what this one leaves for them.
        """
        del history
        return gates

    def cell(self, gates, kernel, history):
        """Returns the `Cell` that runs `step` on `gates` [steps, rows, gates * units]."""
        del history
        return TapedCell(functools.partial(self.step, kernel=kernel), gates.shape[2])

    def reorder(self, weights):
        """Puts the gates of a weight or a gradient in the order of `step`; a second call undoes it."""
        return weights

    def factors(self, gates, recurrent, history):
        """Returns the factors by which the gradient at `gates` becomes the gradient at `recurrent()`.

        Args:
            gates: [steps, rows, gates * units], the part of the gates that comes from the inputs.
            recurrent: function that returns the part that comes from the states.
            history: as in `prepared`.

        Returns:
            [steps, rows, gates * units], or None if the two gradients are the same.
        """
        del gates, recurrent, history

    def _run(self, record, sequences, initial_state, mask, training):
        layer, cell = self.layer, self.layer.cell
        dropout = []
        if training and cell.recurrent_dropout:
            masks = cell.get_recurrent_dropout_mask(initial_state[0])
            dropout = self._masks(masks)
        mask = None if mask is None else keras.tree.flatten(mask)[0]
        if mask is not None:
            mask = tf.transpose(tf.cast(mask, tf.bool))[..., tf.newaxis]
        if layer.go_backwards:
            sequences = tf.reverse(sequences, [1])
            mask = None if mask is None else tf.reverse(mask, [0])
        inputs = [sequences]
        if training and cell.dropout:
            masks = self._masks(cell.get_dropout_mask(sequences[:, 0]))
            inputs = [sequences * m[:, tf.newaxis] for m in masks]

        if sequences.shape[1] is None and max(len(dropout), len(inputs)) > 1:
            raise UnsupportedModelError("drops for each gate in sequences of unknown length")
        weights = map(tf.convert_to_tensor, self.variables())
        kernel, recurrent_kernel, *bias = map(self.reorder, weights)
        input_bias, state_bias = self.biases(bias[0]) if bias else (None, None)
        kernels = tf.split(kernel, len(inputs), axis=1)
        biases = [None] if input_bias is None else tf.split(input_bias, len(inputs))
        parts = zip(inputs, kernels, biases * (len(inputs) // len(biases)), strict=True)
        gates = [_affine(tf.transpose(x, [1, 0, 2]), k, b) for x, k, b in parts]
        gates = gates[0] if len(gates) == 1 else tf.concat(gates, axis=2)
        history = {}
        gates = self._recorded(record, self.prepared(gates, history), inputs, history)

        recurrence = Recurrence(
            self.cell(gates, recurrent_kernel, history),
            recurrent_kernel,
            state_bias,
            mask,
            tuple(dropout),
            shows_steps=layer.return_sequences,
        )
        before, outputs, states = recurrence.run(gates, initial_state)
        seen = [before * m for m in dropout] if dropout else [before]
        history["before"] = tf.concat(seen, axis=0) if len(seen) > 1 else seen[0]
        history["factors"] = self.factors(
            tf.stop_gradient(gates), lambda: recurrence.product(before), history
        )

        # A masked step keeps the states. Its output is that of the step before, or zero.
        if not layer.return_sequences:
            last = states[0]
            if mask is not None:
                last_step = mask[-1] if layer.zero_output_for_mask else tf.reduce_any(mask, 0)
                last = tf.where(last_step, last, tf.zeros_like(last))
            return last, last[:, tf.newaxis], states
        if mask is not None:
            shown = (
                mask if layer.zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32), 0) > 0
            )
            outputs = tf.where(shown, outputs, tf.zeros_like(outputs))
        return outputs[-1], tf.transpose(outputs, [1, 0, 2]), states

    def _masks(self, masks):
        """Returns the masks of a cell: one, or one for each gate in the order of `step`."""
        masks = list(masks) if isinstance(masks, (list, tuple)) else [masks]
        if len(masks) == 1:
            return masks
        return tf.split(self.reorder(tf.concat(masks, axis=-1)), len(masks), axis=-1)

    def _recorded(self, record, gates, inputs, history):
        """Records the gates, [steps, rows, gates * units], and returns them."""
        inputs = inputs[0] if len(inputs) == 1 else tf.concat(inputs, axis=1)
        return record(gates, inputs=inputs, **self._saved(history))

    def _saved(self, history):
        return {"states": lambda: history["before"]}

    def _by_rows(self, values):
        """Returns what was recorded of the steps as float32 [rows, steps, ...]."""
        return _exchanged(tf.cast(values, tf.float32))

    def _products(self, kernel, left, right):
        """The gradient of a kernel from the states or inputs and the gradient at the gates.

        Args:
            kernel: the variable.
            left: [rows, steps, ...]; if every gate has a mask of its own, what the gates multiply
                stands one gate after the other along the second axis.
            right: [rows, steps, gates * units].
        """
        gates = left.shape[1] // right.shape[1] if right.shape[1] else 1
        if gates > 1:
            parts = tf.split(right, gates, axis=2)
            zero = tf.zeros_like(parts[0])
            right = tf.concat(
                [
                    tf.concat([part if i == j else zero for j in range(gates)], axis=2)
                    for i, part in enumerate(parts)
                ],
                axis=1,
            )
        return kernel, OuterProducts(left, right, self.reorder)

    def gradients(self, calls):
        (call,) = calls
        cell = self.layer.cell
        gates = self._by_rows(call.gradient)
        recurrent = gates
        if "factors" in call.saved:
            recurrent *= self._by_rows(call["factors"])
        found = [
            self._products(cell.kernel, call["inputs"], gates),
            self._products(cell.recurrent_kernel, self._by_rows(call["states"]), recurrent),
        ]
        if cell.bias is not None:
            bias = self.bias_gradient(tf.reduce_sum(gates, 1), tf.reduce_sum(recurrent, 1))
            found.append((cell.bias, Instantiated(bias, self.reorder)))
        return found

    def bias_gradient(self, gates, recurrent):
        """Returns the bias' gradients [rows, *shape of the bias] from sums over the steps."""
        del recurrent
        return gates


@register(keras.layers.SimpleRNN)
class SimpleRNNRule(RecurrentRule):
    """The rule of SimpleRNN, which has one gate."""

    def step(self, gates, recurrent, states, kernel):
        activation = self.layer.cell.activation
        output = gates + recurrent
        return [output if activation is None else activation(output)]


@register(keras.layers.LSTM)
class LSTMRule(RecurrentRule):
    """The gates are input, candidate, forget, output; Keras' cells exchange the second and third."""

    def reorder(self, weights):
        i, second, third, o = tf.split(weights, 4, axis=-1)
        return tf.concat([i, third, second, o], axis=-1)

    def cell(self, gates, kernel, history):
        cell = self.layer.cell
        usual = cell.activation is keras.activations.tanh
        usual &= cell.recurrent_activation is keras.activations.sigmoid
        if usual and gates.dtype == tf.float32 and on_plain_cpu():
            return FusedLSTMCell(cell.units)
        return super().cell(gates, kernel, history)

    def step(self, gates, recurrent, states, kernel):
        cell = self.layer.cell
        i, candidate, f, o = tf.split(gates + recurrent, 4, axis=1)
        carry = cell.recurrent_activation(f) * states[1]
        carry += cell.recurrent_activation(i) * cell.activation(candidate)
        return [cell.recurrent_activation(o) * cell.activation(carry), carry]


class FusedLSTMCell(Cell):
    """An LSTM's step, with a single TensorFlow operation for the elementwise part of its gradient.

    Activations are kept instead of being computed again. Forward and backward pass together take 0.8
    times the processor time of `TapedCell` (measured on a CPU).
    """

    def __init__(self, units):
        self.units = units
        self.keeps = [units] * 5

    def forward(self, gates, product, states):
        i, candidate, f, o = tf.split(gates + product, 4, axis=1)
        i, f, o, candidate = tf.sigmoid(i), tf.sigmoid(f), tf.sigmoid(o), tf.tanh(candidate)
        carry = f * states[1] + i * candidate
        shown = tf.tanh(carry)
        return [o * shown, carry], [i, f, o, candidate, shown]

    def backward(self, gates, kept, states, upstream):
        i, f, o, candidate, shown = kept
        # Without peepholes the operation uses only the shapes of inputs, weights and `cs`.
        unused = tf.zeros([self.units])
        d_carry, d_gates, *_ = tf.raw_ops.LSTMBlockCellGrad(
            x=states[0][:, :1], cs_prev=states[1], h_prev=states[0],
            w=tf.zeros([1 + self.units, 4 * self.units]), b=tf.zeros([4 * self.units]),
            wci=unused, wcf=unused, wco=unused,
            i=i, cs=shown, f=f, o=o, ci=candidate, co=shown,
            cs_grad=upstream[1], h_grad=upstream[0], use_peephole=False,
        )  # fmt: skip
        return d_gates, d_gates, [None, d_carry]


@register(keras.layers.GRU)
class GRURule(RecurrentRule):
    """The gates are update, reset, candidate.

    With reset_after=True, Keras' default, the reset gate multiplies the candidate's part from the
    states. With reset_after=False it multiplies the states before their product with the kernel.
    """

    def biases(self, bias):
        return (bias[0], bias[1]) if self.layer.cell.reset_after else (bias, None)

    def step(self, gates, recurrent, states, kernel):
        cell = self.layer.cell
        update, reset, candidate = tf.split(gates, 3, axis=1)
        update_state, reset_state, candidate_state = tf.split(recurrent, 3, axis=1)
        update = cell.recurrent_activation(update + update_state)
        reset = cell.recurrent_activation(reset + reset_state)
        if cell.reset_after:
            candidate += reset * candidate_state
        else:
            candidate += _product(reset * states[0], kernel[:, 2 * cell.units :])
        return [update * states[0] + (1 - update) * cell.activation(candidate)]

    def factors(self, gates, recurrent, history):
        del history
        reset = tf.split(gates, 3, axis=2)[1] + tf.split(recurrent(), 3, axis=2)[1]
        reset = self.layer.cell.recurrent_activation(reset)
        one = tf.ones_like(reset)
        return tf.stop_gradient(tf.concat([one, one, reset], axis=2))

    def _saved(self, history):
        return {**super()._saved(history), "factors": lambda: history["factors"]}

    def gradients(self, calls):
        cell = self.layer.cell
        if cell.reset_after:
            return super().gradients(calls)
        (call,) = calls
        gates, states = self._by_rows(call.gradient), self._by_rows(call["states"])
        reset = self._by_rows(call["factors"])[:, :, 2 * cell.units :]
        # Two parts of the recurrent kernel multiply different states, so the outer products have
        # twice as many positions.
        is_candidate = tf.cast(tf.range(3 * cell.units) >= 2 * cell.units, tf.float32)
        left = tf.concat([states, reset * states], axis=1)
        right = tf.concat([gates * (1 - is_candidate), gates * is_candidate], axis=1)
        found = [
            self._products(cell.kernel, call["inputs"], gates),
            (cell.recurrent_kernel, OuterProducts(left, right)),
        ]
        if cell.bias is not None:
            found.append((cell.bias, Instantiated(tf.reduce_sum(gates, axis=1))))
        return found

    def bias_gradient(self, gates, recurrent):
        return tf.stack([gates, recurrent], axis=1)


def _exchanged(values):
    """Exchanges the axes of steps and rows."""
    return tf.transpose(values, [1, 0, 2])


def _affine(values, kernel, bias):
    """Returns `values @ kernel + bias` for any number of axes, as one product of matrices."""
    products = tf.matmul(tf.reshape(values, [-1, kernel.shape[0]]), kernel)
    if bias is not None:
        products = tf.nn.bias_add(products, bias)
    shape = tf.concat([tf.shape(values)[:-1], [kernel.shape[1]]], axis=0)
    return tf.ensure_shape(tf.reshape(products, shape), [*values.shape[:-1], kernel.shape[1]])


def _product(state, kernel):
    """Returns `state @ kernel` with a gradient for `state` only.

    With the usual gradient, the gradient of a loop would also sum up that of the kernel.
    """

    @tf.custom_gradient
    def product(state):
        def backward(upstream):
            return tf.matmul(upstream, kernel, transpose_b=True)

        return tf.matmul(state, kernel), backward

    return product(state)
