"""Per-example gradients of the kernels of convolutions."""

import math

import tensorflow as tf

from tfdp._compat.kernel_gradients import (
    flat,
    kernel_gradients,
    products_by_rows,
    products_of_columns,
)
from tfdp._compat.patches import THIN_CHANNELS, patches
from tfdp.gradients.factors import Arranged, Instantiated, OuterProducts, PerExampleGradient
from tfdp.gradients.norms import instantiates


def kernel_gradient(inputs, outputs, window, groups, filters) -> PerExampleGradient:
    """The sum over positions of patch ⊗ output gradient (Bu et al. 2022).

    Args:
        inputs: float32 [rows, *space, channels].
        outputs: float32 [rows, positions, filters]: the gradients at the outputs.
        window: the `Window` of the convolution.
        groups, filters: those of the convolution.
    """
    channels = inputs.shape[-1]
    shape = (*window.size, channels // groups, filters)
    offsets = math.prod(window.size)
    if groups > 1:
        return Instantiated(kernel_gradients(inputs, outputs, window, shape))
    if inputs.shape[1:-1].is_fully_defined() and instantiates(
        inputs.shape[0], outputs.shape[1], offsets * channels, filters
    ):
        if channels <= THIN_CHANNELS:
            return Instantiated(products_of_columns(inputs, outputs, window), Arranged(shape))
        # With fewer positions than filters, patches take less copying than products of rows.
        if outputs.shape[1] is None or outputs.shape[1] > filters:
            first, last = window.size[:-1], len(window.size) - 1
            order = (*range(last), last + 1, last + 2, last)
            arranged = Arranged((*first, filters, window.size[-1], channels), order)
            return Instantiated(products_by_rows(inputs, outputs, window), arranged)
    return OuterProducts(patches(inputs, window), outputs, Arranged(shape))


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
