"""Rule for Embedding."""

import keras
import tensorflow as tf

from tfdp._compat.keras import table_of
from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import Rule
from tfdp.gradients.rules.per_example_gradient import Lookups


@register(keras.layers.Embedding)
class EmbeddingRule(Rule):
    """The table's gradient is the sum of output gradients at their indices, and zero elsewhere."""

    def refusal(self):
        return "uses LoRA" if self.layer.lora_enabled else None

    def variables(self):
        return [table_of(self.layer)]

    def call(self, record, inputs):
        indices, exist = existing_indices(self.layer, inputs)
        outputs = type(self.layer).call(self.layer, tf.where(exist, indices, 0))
        return record(outputs, indices=tf.cast(tf.where(exist, indices, -1), tf.int32))

    def gradients(self, calls):
        (call,) = calls
        table = table_of(self.layer)
        return [(table, lookups(call["indices"], call.gradient, table.shape))]


def lookups(indices, gradient, shape) -> Lookups:
    """Returns the gradients of a table of the given shape, from those at the looked-up vectors."""
    size, width = shape
    rows = tf.shape(gradient)[0]
    positions = gradient.shape[1:-1].num_elements()
    if positions is None:
        positions = tf.reduce_prod(tf.shape(gradient)[1:-1])
    indices = tf.reshape(indices, [rows, positions])
    return Lookups(indices, tf.reshape(gradient, [rows, positions, width]), size)


def frozen_call(layer):
    """Returns a `call` for an Embedding that does not train, which marks rows with bad indices.

    TensorFlow ends the step with an error on a CPU, or silently takes another index. What follows the
    layer gets NaN instead, so that the gradient of the row counts zero.

    Args:
        layer: a `keras.layers.Embedding`.
    """

    def call(inputs):
        indices, exist = existing_indices(layer, inputs)
        outputs = type(layer).call(layer, tf.where(exist, indices, 0))
        nan = tf.constant(float("nan"), outputs.dtype)
        return tf.where(exist[..., tf.newaxis], outputs, nan)

    return call


def existing_indices(layer, inputs):
    """Returns (rows of the table, bool: whether they exist), as `keras.ops.take` finds them."""
    indices = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    indices = tf.where(indices < 0, indices + layer.input_dim, indices)
    return indices, (indices >= 0) & (indices < layer.input_dim)
