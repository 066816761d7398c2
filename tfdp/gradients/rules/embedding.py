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
        outputs = type(self.layer).call(self.layer, inputs)
        return record(outputs, indices=tf.cast(inputs, tf.int32))

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
    indices = tf.where(indices < 0, indices + size, indices)  # as in keras.ops.take
    return Lookups(indices, tf.reshape(gradient, [rows, positions, width]), size)
