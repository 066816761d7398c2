"""Patches of a padded image or sequence: convolution as a matrix product."""

import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf

# Up to this many input channels, slices are too thin to copy well, and a convolution with an
# identity kernel collects the patches faster (measured; see `patches`).
_THIN_CHANNELS = 4


@dataclasses.dataclass(frozen=True)
class Window:
    """How a convolution slides, all per spatial axis.

    Attributes:
        size: kernel size.
        strides, dilation: as in Keras' layers.
        padding: "valid", "same" or "causal".
    """

    size: tuple
    strides: tuple
    dilation: tuple
    padding: str

    @classmethod
    def of(cls, layer):
        """The window of a Keras convolution layer."""
        return cls(layer.kernel_size, layer.strides, layer.dilation_rate, layer.padding)

    @property
    def reach(self):
        """Extent of the dilated kernel."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))

    def pad(self, images):
        """Returns `images` [rows, *spatial, channels] with the zeros that the padding adds."""
        if self.padding == "valid":
            return images
        margins = []
        for length, stride, reach in zip(images.shape[1:-1], self.strides, self.reach, strict=True):
            if self.padding == "causal":
                margins.append((reach - 1, 0))
            else:
                total = max((math.ceil(length / stride) - 1) * stride + reach - length, 0)
                margins.append((total // 2, total - total // 2))
        if not any(map(any, margins)):
            return images
        return tf.pad(images, [(0, 0), *margins, (0, 0)])

    def positions(self, padded):
        """Output lengths for padded images."""
        lengths = zip(padded.shape[1:-1], self.reach, self.strides, strict=True)
        return tuple((length - reach) // stride + 1 for length, reach, stride in lengths)

    def shifted(self, padded):
        """Yields what each offset of the kernel sees, in order: [rows, *positions, channels]."""
        positions = self.positions(padded)
        for offset in itertools.product(*map(range, self.size)):
            starts = [o * d for o, d in zip(offset, self.dilation, strict=True)]
            axes = zip(starts, positions, self.strides, strict=True)
            index = tuple(slice(b, b + (p - 1) * s + 1, s) for b, p, s in axes)
            yield padded[(slice(None), *index)]


def patches(images: tf.Tensor, window: Window) -> tf.Tensor:
    """Returns [rows, positions, prod(window.size) * channels], kernel offsets before channels.

    Args:
        images: [rows, *spatial, channels].
        window: how the kernel slides.
    """
    channels = images.shape[-1]
    width = math.prod(window.size) * channels
    known = images.shape[1:-1].is_fully_defined()
    if channels <= _THIN_CHANNELS or not known:
        kernel = np.eye(width, dtype=images.dtype.as_numpy_dtype)
        kernel = kernel.reshape(*window.size, channels, width)
        padding = window.padding.upper()
        if window.padding == "causal":
            images, padding = tf.pad(images, [(0, 0), (window.reach[0] - 1, 0), (0, 0)]), "VALID"
        seen = tf.nn.convolution(
            images, kernel, strides=window.strides, dilations=window.dilation, padding=padding
        )
    else:
        seen = tf.concat([*window.shifted(window.pad(images))], axis=-1)
    if seen.shape[1:-1].is_fully_defined():
        return tf.reshape(seen, [-1, math.prod(seen.shape[1:-1]), width])
    rows = tf.shape(seen)[0]
    return tf.reshape(seen, [rows, tf.reduce_prod(tf.shape(seen)[1:-1]), width])
