"""Rules for Conv1D, Conv2D, Conv3D and their transposes."""

import math

import keras
import tensorflow as tf

from tfdp._compat.keras import kernel_of
from tfdp._compat.kernel_gradients import flat, is_one_plane, kernel_gradients, products_by_rows
from tfdp._compat.patches import THIN_CHANNELS, Window, patches
from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import ActivationRule
from tfdp.gradients.rules.per_example_gradient import (
    Arranged,
    Instantiated,
    OuterProducts,
    instantiates,
)


@register(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
class ConvRule(ActivationRule):
    """The kernel's gradient is the sum over positions of patch ⊗ output gradient (Bu et al. 2022)."""

    def gradients(self, calls):
        (call,) = calls
        layer = self.layer
        inputs = channels_last(layer, call["inputs"])
        outputs = channels_last(layer, call.gradient)
        inputs = tf.cast(inputs, tf.float32)
        outputs = flat(tf.cast(outputs, tf.float32))
        kernel = kernel_gradient(inputs, outputs, Window.of(layer), layer.groups, layer.filters)
        found = [(kernel_of(layer), kernel)]
        if layer.bias is not None:
            found.append((layer.bias, Instantiated(tf.reduce_sum(outputs, axis=1))))
        return found


def _transposes():
    names = (f"Conv{rank}DTranspose" for rank in (1, 2, 3))
    return [getattr(keras.layers, name) for name in names]


@register(*_transposes())
class ConvTransposeRule(ActivationRule):
    """A transposed convolution: `ConvRule` with inputs and output gradients exchanged."""

    def variables(self):
        kernel = self.layer.kernel
        return [kernel] if self.layer.bias is None else [kernel, self.layer.bias]

    def gradients(self, calls):
        (call,) = calls
        layer = self.layer
        inputs = tf.cast(channels_last(layer, call["inputs"]), tf.float32)
        outputs = tf.cast(channels_last(layer, call.gradient), tf.float32)
        channels = inputs.shape[-1]
        kernel = kernel_gradient(outputs, flat(inputs), Window.of(layer), 1, channels)
        found = [(layer.kernel, kernel)]
        if layer.bias is not None:
            found.append((layer.bias, Instantiated(tf.reduce_sum(flat(outputs), axis=1))))
        return found


def kernel_gradient(inputs, outputs, window, groups, filters):
    channels = inputs.shape[-1]
    shape = (*window.size, channels // groups, filters)
    offsets = math.prod(window.size)
    if groups > 1 or is_one_plane(inputs, outputs, window):
        return Instantiated(kernel_gradients(inputs, outputs, window, shape))
    if (
        channels > THIN_CHANNELS
        and inputs.shape[1:-1].is_fully_defined()
        and instantiates(inputs.shape[0], outputs.shape[1], offsets * channels, filters)
    ):
        first, last = window.size[:-1], len(window.size) - 1
        order = (*range(last), last + 1, last + 2, last)
        arranged = Arranged((*first, filters, window.size[-1], channels), order)
        return Instantiated(products_by_rows(inputs, outputs, window), arranged)
    return OuterProducts(patches(inputs, window), outputs, Arranged(shape))


def channels_last(layer, tensor):
    """Moves the channels of a layer's tensor to the last axis."""
    if layer.data_format == "channels_last":
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [0, *range(2, rank), 1])
