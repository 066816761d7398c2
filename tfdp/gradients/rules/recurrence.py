"""A loop over the steps of a sequence, with a gradient of its own.

TensorFlow's gradient of a loop keeps every intermediate of every step. Here only the states before
each step and their products with the recurrent kernel are kept; the way back computes again what is
elementwise. No gradient of the kernel is summed up: rules have every weight's from what is recorded.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """What happens at each step.

    Attributes:
        step: maps (gates [rows, g], product [rows, g], list of states [rows, units]) to new states.
        kernel: [units, g]: the product is of the first state and this. Gets no gradient.
        bias: [g], added to the product, or None.
        mask: bool [steps, rows, 1]: where False, the states stay; or None.
        dropout: [rows, units], what the first state is multiplied with for the product; or None.
        shows_steps: whether anybody needs a gradient through the states between the steps.
    """

    step: Callable
    kernel: tf.Tensor
    bias: tf.Tensor | None = None
    mask: tf.Tensor | None = None
    dropout: tf.Tensor | None = None
    shows_steps: bool = True

    def product(self, state):
        """The states' part of the gates; `state` is [..., units]."""
        product = tf.matmul(state, self.kernel)
        return product if self.bias is None else product + self.bias

    def run(self, gates: tf.Tensor, initial: list):
        """Goes through all steps.

        Args:
            gates: [steps, rows, g], the inputs' part.
            initial: list of [rows, units].

        Returns:
            (before, after, last): the first state before each step, without a gradient, and after it
            [steps, rows, units] (None unless `shows_steps`); the list of the last states.
        """
        count = len(initial)

        @tf.custom_gradient
        def loop(gates, *initial):
            products, before, last = self._forward(gates, initial)
            outputs = [before[0].stack()]
            if self.shows_steps:
                outputs.append(tf.concat([outputs[0][1:], last[0][tf.newaxis]], axis=0))

            def backward(_, *upstream):
                d_after = upstream[0] if self.shows_steps else None
                return self._backward(gates, products, before, d_after, upstream[-count:])

            return (*outputs, *last), backward

        before, *rest = loop(gates, *initial)
        after = rest[0] if self.shows_steps else None
        return tf.stop_gradient(before), after, list(rest[-count:])

    def _next(self, step, gates, product, states):
        new = self.step(gates, product, states)
        if self.mask is not None:
            now = self.mask[step]
            new = [tf.where(now, a, b) for a, b in zip(new, states, strict=True)]
        return new

    def _forward(self, gates, initial):
        steps = gates.shape[0] or tf.shape(gates)[0]

        def array(element):
            # Read on the way back, after some have been stacked.
            return tf.TensorArray(
                gates.dtype, size=steps, element_shape=element, clear_after_read=False
            )

        def body(step, products, before, states):
            seen = states[0] if self.dropout is None else states[0] * self.dropout
            product = self.product(seen)
            before = [b.write(step, state) for b, state in zip(before, states, strict=True)]
            states = self._next(step, gates[step], product, states)
            return step + 1, products.write(step, product), before, states

        loop = (
            tf.constant(0),
            array([initial[0].shape[0], gates.shape[2]]),
            [array(state.shape) for state in initial],
            list(initial),
        )
        _, products, before, last = tf.while_loop(
            lambda step, *_: step < steps, body, loop, maximum_iterations=steps
        )
        return products, before, last

    def _backward(self, gates, products, before, d_after, d_last):
        steps = gates.shape[0] or tf.shape(gates)[0]

        def body(step, d_gates, d_states):
            here = [gates[step], products.read(step), *(b.read(step) for b in before)]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(here)
                new = self._next(step, here[0], here[1], here[2:])
            if d_after is not None:
                d_states = [d_states[0] + d_after[step], *d_states[1:]]
            d_here, d_product, *d_states = tape.gradient(
                new, here, output_gradients=d_states, unconnected_gradients="zero"
            )
            d_seen = tf.matmul(d_product, self.kernel, transpose_b=True)
            if self.dropout is not None:
                d_seen *= self.dropout
            return step - 1, d_gates.write(step, d_here), [d_states[0] + d_seen, *d_states[1:]]

        array = tf.TensorArray(gates.dtype, size=steps, element_shape=gates.shape[1:])
        _, d_gates, d_states = tf.while_loop(
            lambda step, *_: step >= 0,
            body,
            (tf.constant(0) + steps - 1, array, list(d_last)),
            maximum_iterations=steps,
        )
        return (d_gates.stack(), *d_states)
