"""The gradients of a convolution's kernel for each of many images; TensorFlow has them for one."""

import tensorflow as tf

from tfdp._compat.patches import THIN_CHANNELS, Window, patches


def kernel_gradients(
    inputs: tf.Tensor, outputs: tf.Tensor, window: Window, shape: tuple[int, ...]
) -> tf.Tensor:
    """Returns the gradient of the kernel for each row.

    Args:
        inputs: [images, *spatial, channels], what the convolution was given: the same number of images
            for each row, one or more.
        outputs: [rows, positions, filters], the gradient with respect to what it returned, at the
            positions of all images of a row.
        window: how the kernel slides.
        shape: the shape of the kernel, [*window.size, channels // groups, filters].

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
    """The same gradients before their axes are put in order, which is cheaper after a sum.

    There is one product for each row of the kernel, so that the patches are never copied into one
    tensor.

    Args:
        inputs, outputs, window: as in `kernel_gradients`, for a convolution without groups.

    Returns:
        A tensor [rows, offsets before the last axis, filters, last axis * channels].
    """
    rows = [_of_rows(flat(row), outputs) for row in window.rows(window.pad(inputs))]
    return tf.stack([tf.matmul(outputs, row, transpose_a=True) for row in rows], axis=1)


def products_of_columns(inputs, outputs, window):
    """The same gradients, for images of few channels and known lengths.

    Returns:
        A tensor [rows, offsets * channels, filters].
    """
    columns = window.columns(window.pad(inputs))
    if outputs.shape[1] == columns.shape[2]:
        return tf.matmul(columns, outputs)
    rows, filters = tf.shape(outputs)[0], outputs.shape[2]
    of_images = tf.matmul(columns, tf.reshape(outputs, [-1, columns.shape[2], filters]))
    return tf.reduce_sum(tf.reshape(of_images, [rows, -1, columns.shape[1], filters]), axis=1)


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
