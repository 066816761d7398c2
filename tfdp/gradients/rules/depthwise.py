"""Rules for DepthwiseConv1D/2D and SeparableConv1D/2D."""

import keras
import tensorflow as tf

from tfdp._compat.kernel_gradients import flat
from tfdp._compat.patches import Window
from tfdp.gradients.rules import register
from tfdp.gradients.rules.base import ActivationRule
from tfdp.gradients.rules.conv import channels_last
from tfdp.gradients.rules.per_example_gradient import Arranged, Instantiated, OuterProducts


class _DepthwiseRule(ActivationRule):
    def refusal(self):
        if self.layer.padding == "causal":
            return "uses causal padding"
        return super().refusal()


@register(keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
class DepthwiseConvRule(_DepthwiseRule):
    """Each channel is convolved by itself, with its own kernel."""

    def variables(self):
        kernel = self.layer.kernel
        return [kernel] if self.layer.bias is None else [kernel, self.layer.bias]

    def gradients(self, calls):
        (call,) = calls
        layer = self.layer
        inputs = channels_last(layer, call["inputs"])
        outputs = channels_last(layer, call.gradient)
        kernel = depthwise_kernel(inputs, outputs, Window.of(layer), tuple(layer.kernel.shape))
        found = [(layer.kernel, Instantiated(kernel))]
        if layer.bias is not None:
            bias = tf.reduce_sum(flat(tf.cast(outputs, tf.float32)), axis=1)
            found.append((layer.bias, Instantiated(bias)))
        return found


@register(keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
class SeparableConvRule(_DepthwiseRule):
    """A depthwise and a pointwise convolution, recorded one after the other."""

    def variables(self):
        layer = self.layer
        variables = [layer.depthwise_kernel, layer.pointwise_kernel]
        return variables if layer.bias is None else [*variables, layer.bias]

    def call(self, record, inputs):
        layer = self.layer
        form = {"data_format": layer.data_format}
        depthwise = keras.ops.depthwise_conv(
            inputs,
            layer.depthwise_kernel,
            strides=layer.strides,
            padding=layer.padding,
            dilation_rate=layer.dilation_rate,
            **form,
        )
        depthwise = record(depthwise, inputs=inputs)
        outputs = keras.ops.conv(depthwise, layer.pointwise_kernel, padding="valid", **form)
        self.check_bias(outputs)
        if layer.bias is not None:
            shape = [1] * outputs.shape.rank
            shape[1 if layer.data_format == "channels_first" else -1] = layer.filters
            outputs += tf.reshape(tf.convert_to_tensor(layer.bias), shape)
        outputs = record(outputs, inputs=depthwise)
        return outputs if layer.activation is None else layer.activation(outputs)

    def gradients(self, calls):
        layer = self.layer
        inputs, between, outputs, pointwise = (
            channels_last(layer, tensor)
            for tensor in (
                calls[0]["inputs"],
                calls[0].gradient,
                calls[1].gradient,
                calls[1]["inputs"],
            )
        )
        shape = tuple(layer.depthwise_kernel.shape)
        depthwise = depthwise_kernel(inputs, between, Window.of(layer), shape)
        outputs = flat(tf.cast(outputs, tf.float32))
        kernel = OuterProducts(
            flat(pointwise),
            outputs,
            Arranged(tuple(layer.pointwise_kernel.shape)),
        )
        found = [
            (layer.depthwise_kernel, Instantiated(depthwise)),
            (layer.pointwise_kernel, kernel),
        ]
        if layer.bias is not None:
            found.append((layer.bias, Instantiated(tf.reduce_sum(outputs, axis=1))))
        return found


def depthwise_kernel(inputs, outputs, window, shape):
    """Returns a depthwise kernel's gradients [rows, *window.size, channels, multiplier]."""
    channels, multiplier = shape[-2:]
    width = window.size[-1]
    outputs = flat(tf.cast(outputs, tf.float32))
    positions = outputs.shape[1]
    outputs = tf.reshape(outputs, [-1, positions, 1, channels, multiplier])
    products = []
    for row in window.rows(window.pad(tf.cast(inputs, tf.float32))):
        row = tf.reshape(row, [-1, positions, width, channels, 1])
        products.append(tf.reduce_sum(row * outputs, axis=1))
    return tf.reshape(tf.stack(products, axis=1), [-1, *shape])
