"""Conv1D, Conv2D, Conv3D."""

import keras
import tensorflow as tf

from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import ActivationRule
from tfdp.gradients.rules.contributions import Instantiated, OuterProducts
from tfdp.gradients.rules.patches import Window, patches


@register(keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
class ConvRule(ActivationRule):
    """Kernel gradient: sum over positions of patch ⊗ output gradient (Bu et al. 2022)."""

    def gradients(self, calls):
        (call,) = calls
        layer = self.layer
        inputs = channels_last(layer, call["inputs"])
        outputs = channels_last(layer, call.gradient)
        outputs = _flat(tf.cast(outputs, tf.float32))
        seen = patches(tf.cast(inputs, tf.float32), Window.of(layer))
        shape = tuple(layer._kernel.shape)
        if layer.groups == 1:

            def finish(gradient):
                return tf.reshape(gradient, shape)

            kernel = OuterProducts(seen, outputs, finish)
        else:
            kernel = Instantiated(_grouped_kernel(seen, outputs, layer.groups, shape))
        found = [(layer._kernel, kernel)]
        if layer.bias is not None:
            found.append((layer.bias, Instantiated(tf.reduce_sum(outputs, axis=1))))
        return found


def channels_last(layer, tensor):
    """Moves the channels of a layer's tensor to the last axis."""
    if layer.data_format == "channels_last":
        return tensor
    rank = tensor.shape.rank
    return tf.transpose(tensor, [0, *range(2, rank), 1])


def _flat(tensor):
    """Reshapes [rows, *spatial, channels] to [rows, positions, channels]."""
    positions = tensor.shape[1:-1].num_elements()
    if positions is None:
        positions = tf.reduce_prod(tf.shape(tensor)[1:-1])
    return tf.reshape(tensor, [tf.shape(tensor)[0], positions, tensor.shape[-1]])


def _grouped_kernel(seen, outputs, groups, shape):
    """Each group of filters sees its own group of channels only."""
    rows, positions = tf.shape(seen)[0], tf.shape(seen)[1]
    width, filters = shape[-2:]
    offsets = seen.shape[2] // (groups * width)
    seen = tf.reshape(seen, [rows, positions, offsets, groups, width])
    outputs = tf.reshape(outputs, [rows, positions, groups, filters // groups])
    products = tf.einsum("ntkgc,ntgf->nkcgf", seen, outputs)
    return tf.reshape(products, [rows, *shape])
