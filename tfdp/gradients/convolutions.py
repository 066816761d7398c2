"""Per-example gradients of the kernels of convolutions."""

import math

import tensorflow as tf

from tfdp._compat.kernel_gradients import (
    THIN_CHANNELS,
    kernel_gradients,
    patches,
    products_by_rows,
    products_of_columns,
)
from tfdp.gradients.factors import Arranged, Instantiated, OuterProducts, PerExampleGradient
from tfdp.gradients.norms import instantiates


def kernel_gradient(inputs, outputs, window, shape) -> PerExampleGradient:
    """Returns sums over positions of patch ⊗ output gradient (Bu et al. 2022).

    Args:
        inputs: float32 [images, *space, channels], what the convolution was given.
        outputs: float32 [images, positions, filters], the gradients at what it returned.
        window: the `Window` of the convolution.
        shape: the kernel's shape, [*window.size, channels // groups, filters].
    """
    channels, filters = inputs.shape[-1], shape[-1]
    if channels > shape[-2]:  # groups
        return Instantiated(kernel_gradients(inputs, outputs, window, shape))
    if inputs.shape[1:-1].is_fully_defined() and instantiates(
        inputs.shape[0], outputs.shape[1], math.prod(window.size) * channels, filters
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


def depthwise_kernel(inputs, outputs, window, shape) -> Instantiated:
    """Returns the gradients of a depthwise kernel.

    Args:
        inputs, outputs, window: as in `kernel_gradient`.
        shape: the kernel's shape, [*window.size, channels, multiplier].
    """
    channels, multiplier = shape[-2:]
    positions = outputs.shape[1]
    outputs = tf.reshape(outputs, [-1, positions, 1, channels, multiplier])
    products = []
    for row in window.rows(window.pad(inputs)):
        row = tf.reshape(row, [-1, positions, window.size[-1], channels, 1])
        products.append(tf.reduce_sum(row * outputs, axis=1))
    return Instantiated(tf.reshape(tf.stack(products, axis=1), [-1, *shape]))
