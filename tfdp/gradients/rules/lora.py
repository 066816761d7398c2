"""Rules for layers with low-rank adapters (`layer.enable_lora`; Hu et al. 2022).

Such a layer computes with `kernel + scale * a @ b`, where usually a and b are trained and the kernel is
frozen. The rules never form that sum. They apply a and b one after the other and record both products,
so that each per-example gradient is a sum of outer products (or look-ups) with one short factor, and no
gradient of the kernel's size occurs. If the kernel is made trainable again, it has its usual gradient.
"""

import functools
import string

import keras
import tensorflow as tf

from tfdp._compat.keras import kernel_of, table_of
from tfdp.gradients.rules import register
from tfdp.gradients.rules.dense import (
    DenseRule,
    EinsumDenseRule,
    einsum_gradient,
    labels,
    products,
)
from tfdp.gradients.rules.embedding import EmbeddingRule, existing_indices, lookups
from tfdp.gradients.rules.reversible_embedding import ReversibleEmbeddingRule, with_mask


def _scale(layer):
    return layer.lora_alpha / layer.lora_rank


class _LoraKernelRule:
    """What Dense and EinsumDense with adapters have in common.

    Two operations are recorded: the first adapter's product with the inputs, and all that goes into the
    activation.
    """

    def refusal(self):
        return None

    def variables(self):
        return [*super().variables(), *self.adapters()]

    def adapters(self):
        """Returns the two adapters in the order in which they are applied."""
        return [self.layer.lora_kernel_a, self.layer.lora_kernel_b]

    def call(self, record, inputs, **kwargs):
        del kwargs  # `training` makes no difference
        layer = self.layer
        first, second, kernel = (
            keras.ops.cast(variable, layer.compute_dtype)
            for variable in (*self.adapters(), kernel_of(layer))
        )
        whole, to_low, from_low = self.products(inputs.shape.rank)
        low = record(to_low(inputs, first), inputs=inputs) * _scale(layer)
        outputs = whole(inputs, kernel) + from_low(low, second)
        self.check_bias(outputs)
        if layer.bias is not None:
            outputs = keras.ops.add(outputs, layer.bias)
        outputs = record(outputs, inputs=inputs, low=low)
        return outputs if layer.activation is None else layer.activation(outputs)


@register(keras.layers.Dense, lora=True)
class LoraDenseRule(_LoraKernelRule, DenseRule):
    """Both adapters are kernels of Dense layers, one after the other."""

    def products(self, rank):
        del rank
        return [keras.ops.matmul] * 3

    def gradients(self, calls):
        to_low, whole = calls
        first, second = self.adapters()
        return [
            *super().gradients([whole]),
            (first, products(to_low["inputs"], to_low.gradient)),
            (second, products(whole["low"], whole.gradient)),
        ]


@register(keras.layers.EinsumDense, lora=True)
class LoraEinsumDenseRule(_LoraKernelRule, EinsumDenseRule):
    """Both adapters are kernels of EinsumDense layers, one after the other.

    Keras multiplies a [..., R] by b [R, z], where z is the last axis of the kernel. If z is an axis of
    the outputs, a comes first and makes outputs with R in the place of z. If it is an axis of the
    inputs, b comes first and makes inputs with R in the place of z.
    """

    def refusal(self):
        inputs, kernel, outputs = labels(self.layer.equation, None)
        if kernel[-1] in inputs and kernel[-1] in outputs:
            return f"uses LoRA with the equation '{self.layer.equation}', a stack of kernels"
        return self.refused_equation()

    def _last_axis_in_outputs(self):
        _, kernel, outputs = labels(self.layer.equation, None)
        return kernel[-1] in outputs

    def adapters(self):
        both = super().adapters()
        return both if self._last_axis_in_outputs() else both[::-1]

    def equations(self, rank):
        """Returns the equations of both adapters, in their order, for inputs of the given rank."""
        inputs, kernel, outputs = labels(self.layer.equation, rank)
        z = kernel[-1]
        short = next(c for c in string.ascii_letters if c not in inputs + kernel + outputs)
        a, b = kernel[:-1] + short, short + z
        if self._last_axis_in_outputs():
            between = outputs.replace(z, short)
            return f"{inputs},{a}->{between}", f"{between},{b}->{outputs}"
        between = inputs.replace(z, short)
        return f"{inputs},{b}->{between}", f"{between},{a}->{outputs}"

    def products(self, rank):
        equations = (self.layer.equation, *self.equations(rank))
        return [functools.partial(keras.ops.einsum, equation) for equation in equations]

    def gradients(self, calls):
        to_low, whole = calls
        equations = self.equations(to_low["inputs"].shape.rank)
        inputs = to_low["inputs"], whole["low"]
        outputs = to_low.gradient, whole.gradient
        found = super().gradients([whole])
        for variable, *term in zip(self.adapters(), equations, inputs, outputs, strict=True):
            equation, x, g = term
            found.append((variable, einsum_gradient(equation, variable.shape, x, g)))
        return found


class _LoraTableRule:
    """A look-up in a table with adapters: of vectors of length r in a, which b makes long."""

    def refusal(self):
        return None

    def variables(self):
        return [*super().variables(), self.layer.lora_embeddings_a, self.layer.lora_embeddings_b]

    def looked_up(self, record, inputs):
        layer = self.layer
        found, exist = existing_indices(layer, inputs)
        found = tf.where(exist, found, 0)
        # As in Embedding, a row of data with an index that does not exist counts as not finite.
        indices = tf.cast(tf.where(exist, found, -1), tf.int32)
        low = keras.ops.take(layer.lora_embeddings_a, found, axis=0)
        low = record(low, indices=indices) * _scale(layer)
        outputs = keras.ops.take(table_of(layer), found, axis=0)
        outputs += keras.ops.matmul(low, layer.lora_embeddings_b)
        outputs = keras.ops.cast(outputs, layer.compute_dtype)
        return record(outputs, indices=indices, low=low)

    def gradients_of_look_up(self, calls):
        to_low, whole = calls
        layer = self.layer
        a, b, table = layer.lora_embeddings_a, layer.lora_embeddings_b, table_of(layer)
        indices = to_low["indices"]
        return [
            (table, lookups(indices, whole.gradient, table.shape)),
            (a, lookups(indices, to_low.gradient, a.shape)),
            (b, products(whole["low"], whole.gradient)),
        ]


@register(keras.layers.Embedding, lora=True)
class LoraEmbeddingRule(_LoraTableRule, EmbeddingRule):
    """The gradient of a is a look-up as in Embedding; b is the kernel of a Dense layer after it."""

    def call(self, record, inputs):
        return self.looked_up(record, inputs)

    def gradients(self, calls):
        return self.gradients_of_look_up(calls)


@register(keras.layers.ReversibleEmbedding, lora=True)
class LoraReversibleEmbeddingRule(_LoraTableRule, ReversibleEmbeddingRule):
    """The way back applies b first, which makes the states short, and then a."""

    def call(self, record, inputs, reverse=False):
        if reverse:
            return self.soft_cap(self.logits(record, inputs))
        return with_mask(self.layer, self.looked_up(record, inputs), inputs)

    def logits(self, record, inputs):
        layer, ops = self.layer, keras.ops
        if not layer.tie_weights:
            return super().logits(record, inputs)
        states = self.in_reverse_dtype(inputs)
        table, a, b = (
            self.in_reverse_dtype(ops.cast(variable, layer.compute_dtype))
            for variable in (table_of(layer), layer.lora_embeddings_a, layer.lora_embeddings_b)
        )
        low = record(ops.matmul(states, ops.transpose(b)), states=states) * _scale(layer)
        outputs = ops.matmul(states, ops.transpose(table)) + ops.matmul(low, ops.transpose(a))
        return record(outputs, states=states, low=low)

    def gradients(self, calls):
        first, whole = calls[0], calls[-1]
        if "states" not in whole.saved:
            return self.gradients_of_look_up(calls)
        found = super().gradients([whole])
        if "low" in whole.saved:
            a, b = self.layer.lora_embeddings_a, self.layer.lora_embeddings_b
            found += [
                (a, products(whole.gradient, whole["low"])),
                (b, products(first.gradient, first["states"])),
            ]
        return found
