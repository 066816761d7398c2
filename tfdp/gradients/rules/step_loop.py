"""A loop over the steps of a sequence, with a gradient of its own.

TensorFlow's gradient of a loop keeps every intermediate tensor of every step. This loop keeps only the
states before each step, and the tensors that the cell's `keeps` lists. It computes no gradient of the
kernel, because the rules compute the gradient of every weight from the recorded tensors. In this
module, a step is one step of a sequence.
"""

import abc
import dataclasses
from collections.abc import Callable

import tensorflow as tf


class Cell(abc.ABC):
    """One step of a recurrent layer, apart from the product of the state with the recurrent kernel.

    Attributes:
        keeps: widths of the tensors that the backward pass needs of each step.
    """

    keeps: list

    @abc.abstractmethod
    def forward(self, gates, product, states):
        """Computes one step.

        Args:
            gates: [rows, g], the part of the gates that comes from the inputs.
            product: [rows, g], the part of the gates that comes from the states.
            states: list of [rows, units].

        Returns:
            (list of new states; list of tensors [rows, width] to keep, with the widths of `keeps`).
        """

    @abc.abstractmethod
    def backward(self, gates, kept, states, upstream):
        """Computes the gradients of one step.

        Args:
            gates, states: the arguments of `forward`.
            kept: the tensors that `forward` returned to be kept.
            upstream: list of gradients at the new states.

        Returns:
            Gradients at gates, at product and at states. The last is a list, with None for zero.
        """


class TapedCell(Cell):
    """A cell whose gradient TensorFlow computes; it keeps the product and computes the step again.

    Args:
        step: maps (gates, product, states) to new states.
        width: g, the width of the gates.
    """

    def __init__(self, step: Callable, width: int):
        self.step = step
        self.keeps = [width]

    def forward(self, gates, product, states):
        return self.step(gates, product, states), [product]

    def backward(self, gates, kept, states, upstream):
        here = [gates, *kept, *states]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(here)
            new = self.step(here[0], here[1], here[2:])
        d_gates, d_product, *d_states = tape.gradient(
            new, here, output_gradients=upstream, unconnected_gradients="zero"
        )
        return d_gates, d_product, d_states


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """The loop over the steps of a sequence.

    Attributes:
        cell: computes each step.
        kernel: [units, g]: the recurrent kernel, which multiplies the first state. It gets no gradient.
        bias: [g], added to the product, or None.
        mask: bool [steps, rows, 1], or None: where it is False, the states stay.
        dropout: list of masks [rows, units]: one that multiplies the first state before the product, or
            one for each gate, which multiplies it before the product with this gate's part of the
            kernel. Without dropout the list is empty.
        shows_steps: whether a gradient through the states after each step is needed.
    """

    cell: Cell
    kernel: tf.Tensor
    bias: tf.Tensor | None = None
    mask: tf.Tensor | None = None
    dropout: tuple = ()
    shows_steps: bool = True

    def product(self, state):
        """Returns the part of the gates that comes from the first state, [..., units]."""
        if self.dropout:
            kernels = tf.split(self.kernel, len(self.dropout), axis=1)
            pairs = zip(self.dropout, kernels, strict=True)
            product = tf.concat([tf.matmul(state * m, kernel) for m, kernel in pairs], axis=-1)
        else:
            product = tf.matmul(state, self.kernel)
        return product if self.bias is None else product + self.bias

    def _at_state(self, d_product):
        """Returns the gradient at the first state that goes through `product`."""
        if not self.dropout:
            return tf.matmul(d_product, self.kernel, transpose_b=True)
        parts = tf.split(d_product, len(self.dropout), axis=1)
        kernels = tf.split(self.kernel, len(self.dropout), axis=1)
        return tf.add_n(
            [
                tf.matmul(part, kernel, transpose_b=True) * mask
                for part, kernel, mask in zip(parts, kernels, self.dropout, strict=True)
            ]
        )

    def run(self, gates: tf.Tensor, initial: list):
        """Goes through all steps.

        Args:
            gates: [steps, rows, g], the part of the gates that comes from the inputs.
            initial: list of [rows, units].

        Returns:
            (before, after, last): before is the first state before each step [steps, rows, units],
            without a gradient; after is the first state after each step, or None unless `shows_steps`;
            last is the list of the last states.
        """
        count = len(initial)

        @tf.custom_gradient
        def loop(gates, *initial):
            kept, before, last = self._forward(gates, initial)
            outputs = [before[0].stack()]
            if self.shows_steps:
                outputs.append(tf.concat([outputs[0][1:], last[0][tf.newaxis]], axis=0))

            def backward(_, *upstream):
                d_after = upstream[0] if self.shows_steps else None
                return self._backward(gates, kept, before, d_after, upstream[-count:])

            return (*outputs, *last), backward

        before, *rest = loop(gates, *initial)
        after = rest[0] if self.shows_steps else None
        return tf.stop_gradient(before), after, list(rest[-count:])

    def _forward(self, gates, initial):
        steps = gates.shape[0] or tf.shape(gates)[0]

        def array(width):
            # The backward pass reads the array, which may have been stacked before.
            return tf.TensorArray(
                gates.dtype,
                size=steps,
                element_shape=[initial[0].shape[0], width],
                clear_after_read=False,
            )

        def body(step, kept, before, states):
            before = [b.write(step, state) for b, state in zip(before, states, strict=True)]
            new, keep = self.cell.forward(gates[step], self.product(states[0]), states)
            kept = [k.write(step, value) for k, value in zip(kept, keep, strict=True)]
            if self.mask is not None:
                now = self.mask[step]
                new = [tf.where(now, a, b) for a, b in zip(new, states, strict=True)]
            return step + 1, kept, before, new

        loop = (
            tf.constant(0),
            [array(width) for width in self.cell.keeps],
            [array(state.shape[1]) for state in initial],
            list(initial),
        )
        _, kept, before, last = tf.while_loop(
            lambda step, *_: step < steps, body, loop, maximum_iterations=steps
        )
        return kept, before, last

    def _backward(self, gates, kept, before, d_after, d_last):
        steps = gates.shape[0] or tf.shape(gates)[0]
        if self.mask is not None:
            moves = tf.cast(self.mask, gates.dtype)
            stays = 1 - moves

        def body(step, d_gates, d_states):
            if d_after is not None:
                d_states = [d_states[0] + d_after[step], *d_states[1:]]
            upstream = d_states
            if self.mask is not None:
                upstream = [d * moves[step] for d in d_states]
            d_here, d_product, d_before = self.cell.backward(
                gates[step],
                [k.read(step) for k in kept],
                [b.read(step) for b in before],
                upstream,
            )
            parts = [[d] for d in d_before]
            parts[0].append(self._at_state(d_product))
            if self.mask is not None:
                parts = [[*p, d * stays[step]] for p, d in zip(parts, d_states, strict=True)]
            d_states = [sum(d for d in part if d is not None) for part in parts]
            return step - 1, d_gates.write(step, d_here), d_states

        array = tf.TensorArray(gates.dtype, size=steps, element_shape=gates.shape[1:])
        _, d_gates, d_states = tf.while_loop(
            lambda step, *_: step >= 0,
            body,
            (tf.constant(0) + steps - 1, array, list(d_last)),
            maximum_iterations=steps,
        )
        return (d_gates.stack(), *d_states)
