"""Gradient rules for operations that combine a weight with the data of a row.

All tensors here are [rows, *shape in the pass of one row]: the other inputs of the operation, and the
gradient at its output. A row is a batch of one, so the shape mostly begins with a one: the single
position of a Dense layer, the single image of a convolution.
"""

import math
import string
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.kernel_gradients import (
    THIN_CHANNELS,
    Window,
    flat,
    kernel_gradients,
    patches,
    products_by_rows,
    products_of_columns,
)
from tfdp._compat.pfor_conversion import merged
from tfdp.gradients.factors import (
    Arranged,
    Instantiated,
    Lookups,
    OuterProducts,
    PerExampleGradient,
)
from tfdp.gradients.norms import should_instantiate

# Products of matrices, with the attributes that transpose their inputs.
PRODUCTS = {"MatMul": ("transpose_a", "transpose_b")}
PRODUCTS |= dict.fromkeys(("BatchMatMulV2", "BatchMatMulV3"), ("adj_x", "adj_y"))
ENTRYWISE = ("AddV2", "BiasAdd", "BroadcastTo", "Mul", "Sub")
_DEPTHWISE = "DepthwiseConv2dNative"
_TRANSPOSED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
_CHANNELS_LAST = (b"NHWC", b"NDHWC")


def gradient_rule(operation: tf.Operation, place: int) -> tuple[list, Callable] | None:
    """Returns the rule for the per-example gradient of a weight in one operation with the data.

    Args:
        operation: The operation.
        place: The index of the weight among its inputs.

    Returns:
        (saved, gradient), as in `uses.Use`, or None for an unknown operation.
    """
    kind = operation.type
    if not operation.inputs[place].shape.is_fully_defined():
        return None
    if kind in PRODUCTS or (kind == "Einsum" and len(operation.inputs) == 2):
        return _product(operation, place)
    if kind in ENTRYWISE and operation.outputs[0].dtype.is_floating:
        return _entrywise(operation, place)
    if kind == "GatherV2" and place == 0:
        return _lookup(operation)
    if kind in ("Conv2D", "Conv3D", _DEPTHWISE, *_TRANSPOSED) and place == 1:
        return _convolution(operation)
    return None


def _entrywise(operation, place):
    """Sums and products entry by entry: biases, scales, position embeddings, tokens of a class."""
    kind, output = operation.type, operation.outputs[0]
    shape = list(operation.inputs[place].shape)
    if None in (tensor.shape.rank for tensor in (*operation.inputs, output)):
        return None
    if kind == "BiasAdd" and place == 1 and not _is_channels_last(operation):
        shape += [1] * (output.shape.rank - 2)
    sign = -1.0 if kind == "Sub" and place == 1 else 1.0
    saved = [operation.inputs[1 - place]] if kind == "Mul" else []
    shape = [1] * (output.shape.rank - len(shape)) + shape
    summed = [1 + axis for axis, length in enumerate(shape) if length == 1]
    finish = Arranged(tuple(operation.inputs[place].shape))

    def gradient(at_output, *saved):
        found = sign * tf.cast(at_output, tf.float32)
        for data in saved:
            # A row is broadcast from its last axis on; the axis of the rows stays the first.
            for _ in range(found.shape.rank - data.shape.rank):
                data = tf.expand_dims(data, 1)
            found *= tf.cast(data, tf.float32)
        found = tf.reduce_sum(found, axis=summed, keepdims=True) if summed else found
        return Instantiated(tf.ensure_shape(found, [None, *shape]), finish)

    return saved, gradient


def _product(operation, place):
    """Matrix products and einsums, by the labels of their axes."""
    labels = _labels(operation)
    data = operation.inputs[1 - place]
    if labels is None or data.shape.rank is None:
        return None
    shape = tuple(operation.inputs[place].shape)
    weight, seen, output = labels[place], labels[1 - place], labels[2]
    lengths = dict(zip(seen, data.shape, strict=True))
    # Along an axis of length one, the weight is broadcast.
    sizes = {a: n for a, n in zip(weight, shape, strict=True) if n > 1 or lengths.get(a) == 1}
    if any(len({*axes}) < len(axes) for axes in labels):
        return None  # a diagonal
    if any(a not in seen + output or lengths.get(a, n) not in (n, None) for a, n in sizes.items()):
        return None  # the weight is summed by itself, or the data are broadcast

    def gradient(at_output, data):
        return _sum_of_products(data, at_output, weight, seen, output, sizes, shape)

    return [data], gradient


def _labels(operation):
    """Returns a label for each axis of both inputs and of the output; None where ranks are unknown."""
    ranks = [tensor.shape.rank for tensor in (*operation.inputs, *operation.outputs)]
    if None in ranks:
        return None
    if operation.type == "Einsum":
        equation = operation.get_attr("equation").decode()
        terms = equation.replace("->", ",").split(",")
        spare = [c for c in string.ascii_letters if c not in equation]
        hidden = [
            rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)
        ]
        letters = "".join(spare[: max(hidden)])
        return [
            term.replace("...", letters[len(letters) - n :])
            for term, n in zip(terms, hidden, strict=True)
        ]
    flipped = [operation.get_attr(name) for name in PRODUCTS[operation.type]]
    batch = string.ascii_lowercase[: max(ranks) - 2]
    ends = ("yx" if flipped[0] else "xy", "zy" if flipped[1] else "yz", "xz")
    return [batch[len(batch) - (r - 2) :] + end for r, end in zip(ranks, ends, strict=True)]


def _sum_of_products(data, at_output, weight, seen, output, sizes, shape) -> PerExampleGradient:
    """Returns the gradient of a weight that is multiplied by data and summed.

    Args:
        data, at_output: The weight's factor, and the gradient at the result, [rows, ...].
        weight, seen, output: The labels of the axes of the weight, of `data` and of the result.
        sizes: The labels and lengths of the weight's axes, in order, without those of length one.
        shape: The weight's shape.
    """
    data, at_output = tf.cast(data, tf.float32), tf.cast(at_output, tf.float32)
    data, seen = _summed(data, seen, [*sizes, *output])
    at_output, output = _summed(at_output, output, [*sizes, *seen])
    into = [a for a in sizes if a not in output]
    out = [a for a in sizes if a not in seen]
    if len(into) + len(out) < len(sizes) or not (
        into and out
    ):  # no product of two sides: a stack of weights, or a vector
        rows = next(c for c in string.ascii_letters if c not in seen + output)
        equation = f"{rows}{seen},{rows}{output}->{rows}{''.join(sizes)}"
        found = tf.einsum(equation, data, at_output)
        return Instantiated(tf.ensure_shape(found, [None, *sizes.values()]), Arranged(shape))
    shared = [a for a in seen if a not in sizes]
    # A length may be known in only one of the two.
    known = dict(zip(seen, data.shape[1:], strict=True))
    known |= {a: n for a, n in zip(output, at_output.shape[1:], strict=True) if n is not None}
    count = tf.TensorShape([known[a] for a in shared]).num_elements()
    left = _arranged(data, seen, shared, into, sizes, count)
    right = _arranged(at_output, output, shared, out, sizes, count)
    if len(shape) == len(sizes) == 2:
        return OuterProducts(left, right) if [*sizes] == into + out else OuterProducts(right, left)
    # Axes of length one are appended, then moved to their places.
    ones = [a for a in weight if a not in sizes]
    order = tuple([*into, *out, *ones].index(a) for a in weight)
    lengths = tuple(sizes.get(a, 1) for a in [*into, *out, *ones])
    return OuterProducts(left, right, Arranged(lengths, order))


def _summed(tensor, labels, others):
    """Sums [rows, *labels] over the axes that are not in `others`; returns (tensor, labels left)."""
    alone = [place for place, a in enumerate(labels) if a not in others]
    if not alone:
        return tensor, labels
    kept = "".join(a for a in labels if a in others)
    return tf.reduce_sum(tensor, axis=[1 + place for place in alone]), kept


def _arranged(tensor, labels, positions, features, sizes, count):
    """Transposes and reshapes [rows, *labels] to [rows, positions, features].

    `count` is the number of positions, or None.
    """
    places = [1 + labels.index(a) for a in (*positions, *features)]
    if places != sorted(places):
        tensor = tf.transpose(tensor, [0, *places])
    width = math.prod(sizes[a] for a in features)
    known = tf.reduce_prod(tf.shape(tensor)[1 : 1 + len(positions)]) if count is None else count
    if isinstance(known, int):
        return tf.reshape(tensor, [-1, known, width])
    found = tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], known, width]))
    return tf.ensure_shape(found, [tensor.shape[0], count, width])


def _lookup(operation):
    """Rows of a table that are looked up."""
    table, indices, axis = operation.inputs
    if table.shape.rank != 2 or indices.shape.rank is None:
        return None
    if tf.get_static_value(axis) != 0 or operation.get_attr("batch_dims") != 0:
        return None
    size, width = table.shape

    def gradient(at_output, indices):
        count = indices.shape[1:].num_elements()
        rows = -1 if count else tf.shape(indices)[0]
        if count is None:
            count = tf.reduce_prod(tf.shape(indices)[1:])
        # An int64 index beyond the table must not become a valid one by the cast to int32.
        indices = tf.cast(tf.where((indices >= 0) & (indices < size), indices, -1), tf.int32)
        indices = tf.reshape(indices, [rows, count])
        vectors = tf.reshape(at_output, [rows, count, width])
        return Lookups(indices, tf.cast(vectors, tf.float32), size)

    return [indices], gradient


def _convolution(operation):
    """A convolution, or a transposed one, in which input and output are exchanged."""
    kernel = tuple(operation.inputs[1].shape)
    window = _window(operation, kernel[:-2])
    transposed, depthwise = operation.type in _TRANSPOSED, operation.type == _DEPTHWISE
    data = operation.inputs[2 if transposed else 0]
    wide = operation.outputs[0] if transposed else data
    if window is None or wide.shape[-1 if _is_channels_last(operation) else 1] is None:
        return None
    if depthwise and not data.shape[1:].is_fully_defined():
        return None

    def gradient(at_output, data):
        data, count = _by_images(operation, data)
        at_output, _ = _by_images(operation, at_output)
        images, other = (at_output, data) if transposed else (data, at_output)
        gradients_of = _depthwise_gradient if depthwise else _kernel_gradient
        found = gradients_of(images, flat(other), window, kernel)
        return found if isinstance(count, int) and count == 1 else found.grouped(count)

    return [data], gradient


def _is_channels_last(operation):
    return operation.get_attr("data_format") in _CHANNELS_LAST


def _window(operation, size):
    """Returns the window of a convolution, or None where its padding is explicit."""
    padding = operation.get_attr("padding").decode().lower()
    if padding == "explicit":
        return None
    first = 1 if _is_channels_last(operation) else 2
    space = slice(first, first + len(size))
    strides, dilations = (
        tuple(operation.get_attr(name)[space]) for name in ("strides", "dilations")
    )
    return Window(size, strides, dilations, padding)


def _by_images(operation, tensor):
    """Returns (float32 [rows * images, *spatial, channels], the number of images per row)."""
    tensor = tf.cast(tensor, tf.float32)
    count = tf.shape(tensor)[1] if tensor.shape[1] is None else tensor.shape[1]
    images = merged(tensor)
    if _is_channels_last(operation):
        return images, count
    return tf.transpose(images, [0, *range(2, images.shape.rank), 1]), count


def _kernel_gradient(inputs, outputs, window, shape) -> PerExampleGradient:
    """Returns sums over positions of patch ⊗ output gradient (Bu et al. 2022).

    Args:
        inputs: float32 [images, *space, channels], the inputs of the convolution.
        outputs: float32 [images, positions, filters], the gradients at its outputs.
        window: The `Window` of the convolution.
        shape: The kernel's shape, [*window.size, channels // groups, filters].
    """
    channels, filters = inputs.shape[-1], shape[-1]
    if channels > shape[-2]:  # groups
        return Instantiated(kernel_gradients(inputs, outputs, window, shape))
    if inputs.shape[1:-1].is_fully_defined() and should_instantiate(
        inputs.shape[0], outputs.shape[1], math.prod(window.size) * channels, filters
    ):
        if channels <= THIN_CHANNELS:
            return Instantiated(products_of_columns(inputs, outputs, window), Arranged(shape))
        # With fewer positions than filters, patches need less copying than products of rows.
        if outputs.shape[1] is None or outputs.shape[1] > filters:
            first, last = window.size[:-1], len(window.size) - 1
            order = (*range(last), last + 1, last + 2, last)
            arranged = Arranged((*first, filters, window.size[-1], channels), order)
            return Instantiated(products_by_rows(inputs, outputs, window), arranged)
    return OuterProducts(patches(inputs, window), outputs, Arranged(shape))


def _depthwise_gradient(inputs, outputs, window, shape) -> Instantiated:
    """Returns the gradients of a depthwise kernel.

    Args:
        inputs, outputs, window: As in `_kernel_gradient`.
        shape: The kernel's shape, [*window.size, channels, multiplier].
    """
    channels, multiplier = shape[-2:]
    positions = outputs.shape[1]
    outputs = tf.reshape(outputs, [-1, positions, 1, channels, multiplier])
    products = []
    for row in window.rows(window.pad(inputs)):
        row = tf.reshape(row, [-1, positions, window.size[-1], channels, 1])
        products.append(tf.reduce_sum(row * outputs, axis=1))
    return Instantiated(tf.reshape(tf.stack(products, axis=1), [-1, *shape]))
