"""Rules for Dense and EinsumDense."""

import math
import string

import keras
import tensorflow as tf

from tfdp._compat.keras import kernel_of
from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import ActivationRule
from tfdp.gradients.rules.per_example_gradient import Arranged, Instantiated, OuterProducts


@register(keras.layers.Dense)
class DenseRule(ActivationRule):
    """The kernel's gradient is the sum over positions of input ⊗ output gradient (Goodfellow 2015)."""

    def gradients(self, calls):
        (call,) = calls
        outputs = tf.cast(call.gradient, tf.float32)
        found = [(kernel_of(self.layer), products(call["inputs"], outputs))]
        if self.layer.bias is not None:
            bias = (
                tf.reduce_sum(by_positions(outputs), axis=1) if outputs.shape.rank > 2 else outputs
            )
            found.append((self.layer.bias, Instantiated(bias)))
        return found


def products(inputs, outputs) -> OuterProducts:
    """Returns the gradients of a kernel [p, q] between inputs [rows, ..., p] and outputs.

    Args:
        inputs: [rows, ..., p].
        outputs: [rows, ..., q], the gradients at the outputs.
    """
    if outputs.shape.rank > 2:
        inputs, outputs = by_positions(inputs), by_positions(outputs)
    return OuterProducts(inputs, outputs)


@register(keras.layers.EinsumDense)
class EinsumDenseRule(ActivationRule):
    """The kernel's gradient is a sum over positions of outer products of inputs and output gradients.

    The kernel's axes from the inputs are the left factor, its axes to the outputs are the right
    factor. Where inputs and outputs share an axis of the kernel, the gradient is written out.
    MultiHeadAttention consists of these layers.
    """

    def refusal(self):
        return self.refused_equation() or super().refusal()

    def refused_equation(self) -> str | None:
        """Returns why the rule does not cover the layer's equation, or None if it does."""
        inputs, kernel, outputs = labels(self.layer.equation, None)
        batch = inputs[0]
        if not outputs or outputs[0] != batch or batch in kernel:
            return f"has the equation '{self.layer.equation}', which moves the batch axis"
        if any(kernel.count(a) > 1 or a not in inputs + outputs for a in kernel):
            return f"has the equation '{self.layer.equation}', which sums over its kernel alone"
        return None

    def gradients(self, calls):
        (call,) = calls
        x, g = call["inputs"], tf.cast(call.gradient, tf.float32)
        kernel = kernel_of(self.layer)
        found = [(kernel, einsum_gradient(self.layer.equation, kernel.shape, x, g))]
        if self.layer.bias is not None:
            # The bias has the last axes of the outputs, with length one along which it is shared.
            shape = self.layer.bias.shape
            skipped = g.shape.rank - shape.rank
            shared = [i for i in range(1, g.shape.rank) if i < skipped or shape[i - skipped] == 1]
            total = tf.reduce_sum(g, axis=shared, keepdims=True)
            total = tf.reshape(total, [-1, *shape])
            found.append((self.layer.bias, Instantiated(total)))
        return found


def einsum_gradient(equation, shape, x, g):
    """Returns the per-example gradients of the kernel of `einsum(equation, x, kernel)`.

    Args:
        equation: as `EinsumDenseRule` covers it.
        shape: the kernel's shape.
        x: inputs, [rows, ...].
        g: gradients at the outputs, [rows, ...].
    """
    inputs, kernel, outputs = labels(equation, x.shape.rank)
    x, g = tf.cast(x, tf.float32), tf.cast(g, tf.float32)
    summed = [i for i, a in enumerate(inputs) if a not in kernel + outputs]
    if summed:
        x = tf.reduce_sum(x, axis=summed)
        inputs = "".join(a for a in inputs if a in kernel + outputs)
    if any(a in inputs and a in outputs for a in kernel):  # a stack of separate kernels
        return Instantiated(tf.einsum(f"{inputs},{outputs}->{inputs[0]}{kernel}", x, g))
    shared = [a for a in inputs[1:] if a in outputs]
    into = [a for a in kernel if a in inputs]
    out = [a for a in kernel if a in outputs]
    sizes = dict(zip(kernel, shape, strict=True))
    order = tuple([*into, *out].index(a) for a in kernel)
    finish = Arranged(tuple(sizes[a] for a in [*into, *out]), order)
    left = _arranged(x, inputs, shared, into, sizes)
    return OuterProducts(left, _arranged(g, outputs, shared, out, sizes), finish)


def labels(equation, rank):
    """Splits an einsum equation into its three terms, with letters for an ellipsis.

    Args:
        equation: of a Keras EinsumDense layer.
        rank: rank of the inputs; None if an ellipsis stands for the batch axis alone.
    """
    inputs, kernel, outputs = equation.replace(" ", "").replace("->", ",").split(",")
    if "..." in inputs:
        count = 1 if rank is None else rank - len(inputs.replace("...", ""))
        letters = "".join(c for c in string.ascii_letters if c not in equation)[:count]
        inputs, outputs = inputs.replace("...", letters), outputs.replace("...", letters)
    return inputs, kernel, outputs


def _arranged(tensor, labels, positions, features, sizes):
    """Transposes and reshapes `tensor` to [rows, positions, features], by the labels of its axes."""
    places = [labels.index(a) for a in [*positions, *features]]
    tensor = tf.transpose(tensor, [0, *places])
    lengths = tensor.shape[1 : 1 + len(positions)]
    count = lengths.num_elements()
    rows, width = tf.shape(tensor)[0], math.prod(sizes[a] for a in features)
    if count is None:
        count = tf.reduce_prod(tf.shape(tensor)[1 : 1 + len(positions)])
        return tf.ensure_shape(tf.reshape(tensor, [rows, count, width]), [None, None, width])
    return tf.reshape(tensor, [-1, count, width])


def by_positions(tensor):
    """Reshapes [rows, ..., features] to [rows, positions, features]."""
    shape = tensor.shape
    positions = shape[1:-1].num_elements()
    if positions is None:
        dynamic = tf.reduce_prod(tf.shape(tensor)[1:-1])
        merged = tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], dynamic, shape[-1]]))
        return tf.ensure_shape(merged, [shape[0], None, shape[-1]])
    return tf.reshape(tensor, [-1, positions, shape[-1]])
