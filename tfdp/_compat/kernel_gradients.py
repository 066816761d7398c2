"""Patches of images, and the gradients of a convolution's kernel for each of many images.

A convolution is a matrix product with the patches. TensorFlow has the gradient for one image only.
"""

import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf

from tfdp._compat.tensorflow import inside_xla

# With up to this many input channels, a look-up copies too few numbers at once. Then patches have the
# positions as the last axis (64 images of 28x28x1, kernels of 8: 2.6 ms, and 3.3 by look-ups).
THIN_CHANNELS = 4


@dataclasses.dataclass(frozen=True)
class Window:
    """How the kernel of a convolution slides. The tuples have one entry for every spatial axis.

    Attributes:
        size: Size of the kernel.
        strides, dilation: Steps between positions, and between the offsets of the kernel, as in
            Keras' layers.
        padding: "valid" or "same".
    """

    size: tuple
    strides: tuple
    dilation: tuple
    padding: str

    @property
    def reach(self):
        """Extent of the dilated kernel along every spatial axis."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.size, self.dilation, strict=True))

    def pad(self, images):
        """Returns `images` [rows, *spatial, channels] with the zeros that the padding adds."""
        if self.padding == "valid":
            return images
        margins = []
        for length, stride, reach in zip(images.shape[1:-1], self.strides, self.reach, strict=True):
            total = max((math.ceil(length / stride) - 1) * stride + reach - length, 0)
            margins.append((total // 2, total - total // 2))
        if not any(map(any, margins)):
            return images
        # With few channels, longer rows are copied faster (256 images of 32x32x3: 1.7 ms -> .6).
        *others, last, channels = images.shape[1:]
        rows = tf.reshape(images, [-1, *others, last * channels])
        margins[-1] = tuple(channels * margin for margin in margins[-1])
        padded = tf.pad(rows, [(0, 0), *margins])
        return tf.reshape(padded, [-1, *padded.shape[1:-1], padded.shape[-1] // channels, channels])

    def positions(self, padded):
        """Returns the lengths of the output's spatial axes for padded images."""
        lengths = zip(padded.shape[1:-1], self.reach, self.strides, strict=True)
        return tuple((length - reach) // stride + 1 for length, reach, stride in lengths)

    def rows(self, padded):
        """Yields the patches by rows of the kernel: [rows, positions, its last length * channels].

        There is one tensor for each offset along the kernel's other axes, in order.
        """
        for offsets in itertools.product(*map(range, self.size[:-1])):
            yield self._seen(padded, [(*offsets, last) for last in range(self.size[-1])])

    def patches(self, padded):
        """Returns the patches: [rows, positions, offsets * channels]."""
        return self._seen(padded, [*itertools.product(*map(range, self.size))])

    def _seen(self, padded, offsets):
        """Returns the inputs of all positions at some offsets: [rows, positions, offsets * channels].

        One look-up copies less than concatenated slices (64 rows of 13x13x16, kernels of 4: 1.1 ms for
        1.9). XLA copies slices faster (64 rows of 16x16x32, kernels of 3: 2.9 ms for 8.6).
        """
        space, positions = padded.shape[1:-1], self.positions(padded)
        axes = [*zip(positions, self.strides, self.dilation, strict=True)]

        def at(offset):
            starts = [o * d for o, (_, _, d) in zip(offset, axes, strict=True)]
            ends = [start + (n - 1) * s + 1 for start, (n, s, _) in zip(starts, axes, strict=True)]
            return tuple(map(slice, starts, ends, self.strides))

        if inside_xla():
            seen = tf.concat([padded[(slice(None), *at(offset))] for offset in offsets], axis=-1)
        else:
            grid = np.arange(math.prod(space), dtype=np.int32).reshape(space)
            places = np.stack([grid[at(offset)] for offset in offsets], axis=-1)
            seen = tf.gather(flat(padded), places.reshape(-1), axis=1)
        return tf.reshape(seen, [-1, math.prod(positions), len(offsets) * padded.shape[-1]])

    def columns(self, padded):
        """Yields the same patches with positions last: [rows, last length * channels, positions].

        TensorFlow copies slices with a stride number by number. So the images are first cut into blocks
        as long as the stride, whose remainders become axes before the channels. The last axis comes
        first, since slices along the others are then longer and are copied faster.
        """
        rank, counts = len(self.size), self.positions(padded)
        space, remainders, place = [], [], 1
        for stride in self.strides:
            space.append(place)
            remainders += [place + 1] if stride > 1 else []
            place += 2 if stride > 1 else 1
        seen = tf.transpose(self._blocks(padded), [0, *remainders, place, *space])

        def at(axis, offset):
            """The blocks and the remainder (none if there is one only) of the inputs at an offset."""
            start, stride = offset * self.dilation[axis], self.strides[axis]
            first = start // stride
            return slice(first, first + counts[axis]), [start % stride] if stride > 1 else []

        last, taken = rank - 1, []
        for offset in range(self.size[last]):
            blocks, remainder = at(last, offset)
            index = [*remainder, slice(None), *[slice(None)] * (rank - 1), blocks]
            taken.append(seen[(..., *index)])
        seen = tf.stack(taken, axis=1)
        width = self.size[last] * padded.shape[-1]
        for offsets in itertools.product(*map(range, self.size[:-1])):
            found = [at(axis, offset) for axis, offset in enumerate(offsets)]
            remainders = [place for _, own in found for place in own]
            index = [slice(None), slice(None), *remainders, slice(None), *[own for own, _ in found]]
            yield tf.reshape(seen[tuple(index)], [-1, width, math.prod(counts)])

    def _blocks(self, padded):
        """Reshapes each spatial axis of stride s > 1 to [blocks, s]."""
        margins, begin, shape = [(0, 0)], [slice(None)], [tf.shape(padded)[0]]
        positions = self.positions(padded)
        axes = zip(padded.shape[1:-1], positions, self.strides, self.reach, strict=True)
        for length, count, stride, reach in axes:
            blocks = (reach - 1) // stride + count
            margins.append((0, max(blocks * stride - length, 0)))
            begin.append(slice(0, blocks * stride))
            shape += [blocks] if stride == 1 else [blocks, stride]
        if any(end for _, end in margins):
            padded = tf.pad(padded, [*margins, (0, 0)])
        if max(self.strides) == 1:
            return padded
        return tf.reshape(padded[tuple(begin)], [*shape, padded.shape[-1]])


def unfused(volumes: tf.Tensor) -> tf.Tensor:
    """Returns the same volumes, to prevent TensorFlow from fusing an operation with a convolution.

    TensorFlow 2.21 with oneDNN fuses a Pad (a layer ZeroPadding3D) with the Conv3D after it, and
    ignores the convolution's own padding. The result has a wrong shape.
    """
    return tf.raw_ops.PlaceholderWithDefault(input=volumes, shape=volumes.shape)


def patches(images: tf.Tensor, window: Window) -> tf.Tensor:
    """Returns patches [rows, positions, prod(window.size) * channels], kernel offsets before channels.

    Args:
        images: [rows, *spatial, channels].
        window: How the kernel slides.
    """
    if images.shape[1:-1].is_fully_defined():
        return window.patches(window.pad(images))
    # A convolution whose kernel is an identity collects them, whatever the lengths are.
    channels = images.shape[-1]
    width = math.prod(window.size) * channels
    kernel = np.eye(width, dtype=images.dtype.as_numpy_dtype)
    kernel = kernel.reshape(*window.size, channels, width)
    seen = tf.nn.convolution(
        unfused(images) if images.shape.rank == 5 else images,
        kernel,
        strides=window.strides,
        dilations=window.dilation,
        padding=window.padding.upper(),
    )
    rows = tf.shape(seen)[0]
    return tf.reshape(seen, [rows, tf.reduce_prod(tf.shape(seen)[1:-1]), width])


def kernel_gradients(
    inputs: tf.Tensor, outputs: tf.Tensor, window: Window, shape: tuple[int, ...]
) -> tf.Tensor:
    """Returns the gradient of the kernel for each row.

    Args:
        inputs: [images, *spatial, channels], the inputs of the convolution: the same number of
            images for each row, one or more.
        outputs: [rows, positions, filters], the gradient at its outputs, at the positions of all
            images of a row.
        window: How the kernel slides.
        shape: The shape of the kernel, [*window.size, channels // groups, filters].

    Returns:
        A tensor [rows, *shape] of the same dtype.
    """
    groups = inputs.shape[-1] // shape[-2]
    if groups > 1:
        return _of_groups(_of_rows(patches(inputs, window), outputs), outputs, groups, shape)
    if inputs.shape[1:-1].is_fully_defined():
        if inputs.shape[-1] <= THIN_CHANNELS:
            return tf.reshape(products_of_columns(inputs, outputs, window), [-1, *shape])
        products = products_by_rows(inputs, outputs, window)
        return tf.reshape(tf.linalg.matrix_transpose(products), [-1, *shape])
    seen = _of_rows(patches(inputs, window), outputs)
    return tf.reshape(tf.matmul(seen, outputs, transpose_a=True), [-1, *shape])


def products_by_rows(inputs, outputs, window):
    """The same gradients before their axes are reordered, which is cheaper after a sum.

    There is one product for each row of the kernel, so that the patches are never copied into one
    tensor.

    Args:
        inputs, outputs, window: As in `kernel_gradients`, for a convolution without groups.

    Returns:
        A tensor [rows, offsets before the last axis, filters, last axis * channels].
    """
    rows = [_of_rows(row, outputs) for row in window.rows(window.pad(inputs))]
    return tf.stack([tf.matmul(outputs, row, transpose_a=True) for row in rows], axis=1)


def products_of_columns(inputs, outputs, window):
    """The same gradients, for images of few channels and known lengths.

    There is one product for each offset along the kernel's other axes, as in `products_by_rows` (256
    images of 28x28x1, kernels of 8: 3.6 ms, and 5.7 with one product of all patches).

    Returns:
        A tensor [rows, offsets * channels, filters].
    """
    rows, positions, filters = tf.shape(outputs)[0], outputs.shape[1], outputs.shape[2]
    padded = window.pad(inputs)
    count = math.prod(window.positions(padded))
    of_images = outputs if positions == count else tf.reshape(outputs, [-1, count, filters])
    found = tf.concat([tf.matmul(c, of_images) for c in window.columns(padded)], axis=1)
    if of_images is outputs:
        return found
    return tf.reduce_sum(tf.reshape(found, [rows, -1, found.shape[1], filters]), axis=1)


def _of_rows(seen, outputs):
    """Reshapes [images, positions, width] to [rows, positions of all images of a row, width]."""
    if seen.shape[1] is not None and seen.shape[1] == outputs.shape[1]:
        return seen
    return tf.reshape(seen, [*tf.unstack(tf.shape(outputs)[:2]), seen.shape[2]])


def _of_groups(seen, outputs, groups, shape):
    """Each group of filters sees only its group of channels."""
    rows, positions = tf.shape(seen)[0], tf.shape(seen)[1]
    width, filters = shape[-2:]
    offsets = seen.shape[2] // (groups * width)
    seen = tf.reshape(seen, [rows, positions, offsets, groups, width])
    outputs = tf.reshape(outputs, [rows, positions, groups, filters // groups])
    products = tf.einsum("ntkgc,ntgf->nkcgf", seen, outputs)
    return tf.reshape(products, [rows, *shape])


def flat(tensor: tf.Tensor) -> tf.Tensor:
    """Reshapes [rows, *spatial, channels] to [rows, positions, channels]."""
    positions = tensor.shape[1:-1].num_elements()
    if positions is not None:
        return tf.reshape(tensor, [-1, positions, tensor.shape[-1]])
    shape = tf.shape(tensor)
    return tf.reshape(tensor, [shape[0], tf.reduce_prod(shape[1:-1]), tensor.shape[-1]])
