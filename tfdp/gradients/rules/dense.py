"""Dense and EinsumDense."""

import keras
import tensorflow as tf

from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import ActivationRule
from tfdp.gradients.rules.contributions import Instantiated, OuterProducts


@register(keras.layers.Dense)
class DenseRule(ActivationRule):
    """Kernel gradient: sum over positions of input ⊗ output gradient (Goodfellow 2015)."""

    def gradients(self, calls):
        (call,) = calls
        inputs, outputs = _positions(call["inputs"]), _positions(call.gradient)
        found = [(self.layer._kernel, OuterProducts(inputs, outputs))]
        if self.layer.bias is not None:
            bias = tf.reduce_sum(tf.cast(outputs, tf.float32), axis=1)
            found.append((self.layer.bias, Instantiated(bias)))
        return found


def _positions(tensor):
    """Reshapes [rows, ..., features] to [rows, positions, features]."""
    shape = tensor.shape
    if shape.rank == 2:
        return tensor[:, tf.newaxis]
    positions = shape[1:-1].num_elements()
    if positions is None:
        dynamic = tf.reduce_prod(tf.shape(tensor)[1:-1])
        merged = tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], dynamic, shape[-1]]))
        return tf.ensure_shape(merged, [shape[0], None, shape[-1]])
    return tf.reshape(tensor, [-1, positions, shape[-1]])
