"""Rule for ReversibleEmbedding, whose table also makes logits of hidden states (a tied embedding)."""

import keras

from tfdp._compat.keras import set_keras_mask, table_of
from tfdp.gradients.rules import register
from tfdp.gradients.rules.dense import products
from tfdp.gradients.rules.embedding import EmbeddingRule


@register(keras.layers.ReversibleEmbedding)
class ReversibleEmbeddingRule(EmbeddingRule):
    """A look-up is covered as in Embedding; the way back is a product with the transposed table."""

    def variables(self):
        own = [] if self.layer.tie_weights else [self.layer.reverse_embeddings]
        return [*super().variables(), *own]

    def call(self, record, inputs, reverse=False):
        if reverse:
            return self.soft_cap(self.logits(record, inputs))
        return with_mask(self.layer, super().call(record, inputs), inputs)

    def logits(self, record, inputs):
        """Returns the logits without their soft cap, as Keras computes them."""
        layer, ops = self.layer, keras.ops
        kernel = ops.transpose(table_of(layer)) if layer.tie_weights else layer.reverse_embeddings
        inputs, kernel = self.in_reverse_dtype(inputs), self.in_reverse_dtype(kernel)
        return record(ops.matmul(inputs, kernel), states=inputs)

    def in_reverse_dtype(self, tensor):
        dtype = self.layer.reverse_dtype
        return tensor if dtype is None else keras.ops.cast(tensor, dtype)

    def soft_cap(self, logits):
        cap = self.layer.logit_soft_cap
        return logits if cap is None else keras.ops.tanh(logits / cap) * cap

    def gradients(self, calls):
        call = calls[-1]
        if "states" not in call.saved:
            return super().gradients(calls)
        if self.layer.tie_weights:
            return [(table_of(self.layer), products(call.gradient, call["states"]))]
        return [(self.layer.reverse_embeddings, products(call["states"], call.gradient))]


def with_mask(layer, outputs, inputs):
    """Gives looked-up vectors the mask of an Embedding with `mask_zero`, as Keras' `call` does."""
    mask = keras.layers.Embedding.compute_mask(layer, inputs)
    if mask is not None:
        set_keras_mask(outputs, mask)
    return outputs
