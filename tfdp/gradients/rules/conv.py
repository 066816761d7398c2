"""Rules for Conv1D, Conv2D, Conv3D and their transposes."""

import math

import keras
import tensorflow as tf

from tfdp._compat.keras import kernel_of
from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import ActivationRule
from tfdp.gradients.rules.patches import THIN_CHANNELS, Window, patches
from tfdp.gradients.rules.per_example_gradient import (
    Instantiated,
    OuterProducts,
    instantiates,
    on_plain_cpu,
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
        kernel = _kernel_gradient(inputs, outputs, Window.of(layer), layer.groups, layer.filters)
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
        kernel = _kernel_gradient(outputs, flat(inputs), Window.of(layer), 1, channels)
        found = [(layer.kernel, kernel)]
        if layer.bias is not None:
            found.append((layer.bias, Instantiated(tf.reduce_sum(flat(outputs), axis=1))))
        return found


def _kernel_gradient(inputs, outputs, window, groups, filters):
    channels = inputs.shape[-1]
    shape = (*window.size, channels // groups, filters)
    if groups > 1:
        return Instantiated(_grouped_kernel(patches(inputs, window), outputs, groups, shape))
    if _is_one_plane(inputs, outputs, window):
        return Instantiated(_plane_kernels(inputs, outputs, window, filters))
    offsets = math.prod(window.size)
    if (
        channels > THIN_CHANNELS
        and inputs.shape[1:-1].is_fully_defined()
        and instantiates(inputs.shape[0], outputs.shape[1], offsets * channels, filters)
    ):
        # One product for each row of the kernel, so that the patches are never copied into one tensor.
        rows = [flat(row) for row in window.rows(window.pad(inputs))]
        products = tf.stack([tf.matmul(outputs, row, transpose_a=True) for row in rows], axis=1)

        def from_rows(total):  # [offsets before the last axis, filters, last axis * channels]
            return tf.reshape(tf.transpose(total, [0, 2, 1]), shape)

        return Instantiated(products, from_rows)
    return OuterProducts(patches(inputs, window), outputs, lambda total: tf.reshape(total, shape))


def _is_one_plane(inputs, outputs, window):
    """Whether a depthwise gradient over the rows is the fastest method (measured: 1.4 times).

    This holds for images of one channel. TensorFlow's operation requires equal strides. The methods of
    XLA and of GPUs differ and were not measured.
    """
    if inputs.shape.rank != 4 or inputs.shape[-1] != 1 or not inputs.shape[1:].is_fully_defined():
        return False
    if window.strides[0] != window.strides[1] or max(window.dilation) > 1:
        return False
    if math.prod(window.positions(window.pad(inputs))) != outputs.shape[1]:
        return False
    return on_plain_cpu()


def _plane_kernels(inputs, outputs, window, filters):
    """Returns gradients [rows, *window.size, 1, filters]: the rows become the channels of one image."""
    rows = tf.shape(inputs)[0]
    height, width = window.positions(window.pad(inputs))
    outputs = tf.reshape(outputs, [rows, height, width, filters])
    kernels = tf.raw_ops.DepthwiseConv2dNativeBackpropFilter(
        input=tf.transpose(inputs, [3, 1, 2, 0]),
        filter_sizes=tf.stack([*window.size, rows, filters]),
        out_backprop=tf.reshape(
            tf.transpose(outputs, [1, 2, 0, 3]), [1, height, width, rows * filters]
        ),
        strides=[1, *window.strides, 1],
        padding=window.padding.upper(),
    )
    return tf.transpose(kernels, [2, 0, 1, 3])[:, :, :, tf.newaxis]


def channels_last(layer, tensor):
    """Moves the channels of a layer's tensor to the last axis."""
    if layer.data_format == "channels_last":
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [0, *range(2, rank), 1])


def flat(tensor):
    """Reshapes [rows, *spatial, channels] to [rows, positions, channels]."""
    positions = tensor.shape[1:-1].num_elements()
    if positions is None:
        positions = tf.reduce_prod(tf.shape(tensor)[1:-1])
    return tf.reshape(tensor, [tf.shape(tensor)[0], positions, tensor.shape[-1]])


def _grouped_kernel(seen, outputs, groups, shape):
    """Returns gradients [rows, *shape] where each group of filters sees only its group of channels."""
    rows, positions = tf.shape(seen)[0], tf.shape(seen)[1]
    width, filters = shape[-2:]
    offsets = seen.shape[2] // (groups * width)
    seen = tf.reshape(seen, [rows, positions, offsets, groups, width])
    outputs = tf.reshape(outputs, [rows, positions, groups, filters // groups])
    products = tf.einsum("ntkgc,ntgf->nkcgf", seen, outputs)
    return tf.reshape(products, [rows, *shape])
