"""Rules of `tf.vectorized_map` for Keras' layers, where TensorFlow's are missing, wrong or slow.

Where the inputs have a batch axis, the examples are merged with it, so one operation serves them all.
`pfor_convolutions` has the gradients of convolutions, and `pfor_indices` look-ups and scatters.
"""

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.tensor_util import try_evaluate_constant

from tfdp._compat.pfor_conversion import (
    Loop,
    apart,
    called,
    created,
    is_apart,
    list_ops,
    merged,
    rows_inside,
    rule,
    transposed,
    wrap,
)

# -- operations on a batch ---------------------------------------------------------------------------

# For each operation the inputs with a batch axis. All other inputs are the same for all examples.
# TensorFlow has rules for some, which compute known shapes in the graph: a convolution has 18
# operations for them. For a depthwise convolution, it moves the examples to the channels.
_WITH_BATCH = {
    "AvgPool": [0],
    "AvgPool3D": [0],
    "Conv2D": [0],
    "DepthwiseConv2dNative": [0],
    "ExtractImagePatches": [0],
    "ImageProjectiveTransformV3": [0, 1],
    "MaxPool": [0],
    "MaxPool3D": [0],
    "MaxPool3DGrad": [0, 1, 2],
    "MaxPoolGrad": [0, 1, 2],
    "ResizeArea": [0],
    "ResizeBicubic": [0],
    "ResizeBicubicGrad": [0, 1],
    "ResizeBilinear": [0],
    "ResizeBilinearGrad": [0, 1],
    "ResizeNearestNeighbor": [0],
    "ResizeNearestNeighborGrad": [0],
    "ScaleAndTranslate": [0],
    "ScaleAndTranslateGrad": [0, 1],
    "SoftmaxCrossEntropyWithLogits": [0, 1],
}
# The same, where input 0 is the shape of the result, batch included.
_INTO_SHAPE = {
    "AvgPool3DGrad": [1],
    "AvgPoolGrad": [1],
    "DepthwiseConv2dNativeBackpropInput": [2],
}


@rule(*_WITH_BATCH, *_INTO_SHAPE)
def on_batch(own, pfor_input):
    into_shape = pfor_input.op_type in _INTO_SHAPE
    with_batch = (_INTO_SHAPE if into_shape else _WITH_BATCH)[pfor_input.op_type]
    others = {*range(pfor_input.num_inputs)} - {*with_batch}
    if own is not None and any(pfor_input.input(index).is_stacked for index in others):
        return own(pfor_input)
    return on_merged(pfor_input, with_batch, into_shape)


def on_merged(pfor_input, with_batch: list, into_shape: bool = False):
    """Converts an operation by merging the examples with its batch axis.

    Args:
        pfor_input: The operation, as a rule receives it.
        with_batch: The inputs with a batch axis. All others have to be the same for all examples.
        into_shape: Whether input 0 is the shape of the result, batch included.
    """
    pfor_input.stack_inputs(with_batch)
    rows, inputs = pfor_input.pfor.loop_len_vector, []
    for index in range(pfor_input.num_inputs):
        if index not in with_batch:
            inputs.append(pfor_input.unstacked_input(index))
            continue
        given, first = (pfor_input.stacked_input(i) for i in (index, with_batch[0]))
        if given.shape[1] == 1 != first.shape[1]:  # one transform for all images of a row
            given = tf.repeat(given, tf.shape(first)[1], axis=1)
        inputs.append(merged(given))
    if into_shape:
        inputs[0] = tf.concat([inputs[0][:1] * tf.cast(rows, inputs[0].dtype), inputs[0][1:]], 0)
    outputs = zip(created(pfor_input, inputs), pfor_input.op.outputs, strict=True)
    return [wrap(apart(found, rows, _first(of_row)), True) for found, of_row in outputs]


def _first(of_row):
    """The first length of a row's tensor, or None."""
    return of_row.shape[0] if of_row.shape.rank else None


# Operations that TensorFlow fuses with the convolution or product before, and gradients.
@rule("Elu", "EluGrad", "LeakyRelu", "LeakyReluGrad", "Relu", "Relu6", "Relu6Grad", "ReluGrad")
def activation(own, pfor_input):
    given = [pfor_input.input(index) for index in range(pfor_input.num_inputs)]
    known = pfor_input.op.outputs[0].shape.is_fully_defined()
    if known and all(x.is_stacked for x in given) and any(is_apart(x.t) for x in given):
        return on_merged(pfor_input, [*range(len(given))])
    return own(pfor_input)


# -- operations on the last axes ---------------------------------------------------------------------


@rule("Bitcast", "HSVToRGB", "MatrixDeterminant", "Qr", "RGBToHSV")
def on_last_axes(_, pfor_input):
    return [wrap(output, True) for output in created(pfor_input, [pfor_input.stacked_input(0)])]


@rule("PlaceholderWithDefault")
def identity(_, pfor_input):
    return wrap(*pfor_input.input(0)[:2])


@rule("Softmax", "LogSoftmax")
def softmax(_, pfor_input):
    # With oneDNN, a softmax of six axes fails with "could not create a primitive descriptor". Attention
    # over two axes of an example has six axes here, with that of the examples.
    values = pfor_input.stacked_input(0)
    flat = tf.reshape(values, tf.stack([-1, tf.shape(values)[-1]]))
    return wrap(tf.reshape(created(pfor_input, [flat])[0], tf.shape(values)), True)


# -- products and biases -----------------------------------------------------------------------------


@rule("BatchMatMulV2", "MatMul")
def product(own, pfor_input):
    """A product with a matrix that all rows share is one plain product, which is also faster.

    In TensorFlow 2.21 on a CPU with oneDNN, `tf.matmul` of [n, 1, t, p] with [p, q] writes out of
    bounds ("free(): invalid pointer", or wrong numbers). A batch of one under `tf.vectorized_map` is
    exactly that product; EinsumDense and MultiHeadAttention compute it.
    """
    stacked, shared = pfor_input.input(0), pfor_input.input(1)
    flips, transpose = ("adj_x", "adj_y"), tf.linalg.adjoint
    if pfor_input.op_type == "MatMul":
        flips, transpose = ("transpose_a", "transpose_b"), tf.linalg.matrix_transpose
    shape = shared.t.shape
    one_matrix = shape.rank is not None and shape[:-2].num_elements() == 1
    if shared.is_stacked or not stacked.is_stacked or not one_matrix:
        return own(pfor_input)
    # If the shared matrix has more axes (of length one) than a row, the product also begins with them.
    rows = stacked.t
    for _ in range(shape.rank - (rows.shape.rank - 1)):
        rows = tf.expand_dims(rows, 1)
    matrix = shared.t[(0,) * (shape.rank - 2)] if shape.rank > 2 else shared.t
    if pfor_input.get_attr(flips[0]):
        rows = transpose(rows)
    if pfor_input.get_attr(flips[1]):
        matrix = transpose(matrix)
    static = [*rows.shape[:-1], matrix.shape[1]]
    flat = merged(rows) if len(static) == 3 else tf.reshape(rows, [-1, _length(matrix, 0)])
    found = tf.matmul(flat, matrix)
    if len(static) == 3:
        return wrap(apart(found, pfor_input.pfor.loop_len_vector, static[1]), True)
    if static.count(None) < 2:
        return wrap(tf.reshape(found, [-1 if n is None else n for n in static]), True)
    whole = tf.concat([tf.shape(rows)[:-1], [_length(matrix, 1)]], axis=0)
    return wrap(tf.ensure_shape(tf.reshape(found, whole), static), True)


def _length(tensor, axis):
    return tensor.shape[axis] if tensor.shape[axis] is not None else tf.shape(tensor)[axis]


@rule("BatchMatMulV3")
def broadcast(_, pfor_input):
    """Axes before the last two are broadcast; quantized layers use this product."""
    pfor_input.expanddim_inputs_for_broadcast()
    given = [pfor_input.input(index).t for index in range(pfor_input.num_inputs)]
    return [wrap(output, True) for output in created(pfor_input, given)]


@rule("BiasAdd")
def bias(own, pfor_input):
    """A bias along the first axis after the batch (NCHW), where TensorFlow expects exactly four axes.

    Keras uses this operation to add any weight with a single axis longer than one to a tensor of any
    rank, such as the bias of an EinsumDense with `bias_axes`.
    """
    values, added = pfor_input.input(0), pfor_input.input(1)
    if values.is_stacked and not added.is_stacked and is_apart(values.t):
        # TensorFlow fuses the two, and ignores that the bias is along another axis than the channels.
        before = merged(values.t).op.node_def.attr["data_format"].s
        if before in (b"", pfor_input.get_attr("data_format")):
            return on_merged(pfor_input, [0])
    if pfor_input.get_attr("data_format") != b"NCHW" or not added.is_stacked:
        return own(pfor_input)
    ones = [1] * (pfor_input.op.inputs[0].shape.rank - 2)
    shape = tf.concat([tf.shape(added.t)[:1], [1], tf.shape(added.t)[1:], ones], axis=0)
    return wrap(values.t + tf.reshape(added.t, shape), True)


@rule("BiasAddGrad")
def bias_gradient(_, pfor_input):
    gradient = pfor_input.stacked_input(0)
    channels = 2 if pfor_input.get_attr("data_format") == b"NCHW" else gradient.shape.rank - 1
    summed = [axis for axis in range(1, gradient.shape.rank) if axis != channels]
    return wrap(tf.reduce_sum(gradient, axis=summed), True)


# -- other arrangements ------------------------------------------------------------------------------


@rule("MirrorPad", "MirrorPadGrad", "PadV2")
def padded(_, pfor_input):  # TensorFlow's rule for PadV2 ignores the padding value
    margins, *value = [pfor_input.unstacked_input(i) for i in range(1, pfor_input.num_inputs)]
    margins = tf.concat([tf.zeros([1, 2], margins.dtype), margins], 0)
    return wrap(created(pfor_input, [pfor_input.stacked_input(0), margins, *value])[0], True)


@rule("Squeeze")
def squeeze(own, pfor_input):
    # Without named axes, TensorFlow's rule would also remove the axis of the rows if there is one.
    shape = pfor_input.op.inputs[0].shape
    if pfor_input.get_attr("squeeze_dims") or not shape.is_fully_defined():
        return own(pfor_input)
    axes = [place + 1 for place, length in enumerate(shape) if length == 1]
    values = pfor_input.stacked_input(0)
    return wrap(tf.squeeze(values, axes) if axes else values, True)


@rule("Roll")
def roll(own, pfor_input):
    # TensorFlow's rule is off by one for a negative axis; for -1, it takes the axis of the examples.
    axis, rank = pfor_input.unstacked_input(2), tf.rank(pfor_input.stacked_input(0)) - 1
    axis = tf.where(axis < 0, axis + tf.cast(rank, axis.dtype), axis)
    pfor_input._inputs[2] = wrap(axis, False)
    return own(pfor_input)


# -- loops, branches and lists -----------------------------------------------------------------------


@rule("While", "StatelessWhile")
def loop(_, pfor_input):
    return Loop(pfor_input)()


@rule("If", "StatelessIf")
def branch(own, pfor_input):
    """Converts only the taken branch if known shapes decide, as in Keras' `Resizing`.

    TensorFlow's rule cannot stack tensors that only one branch keeps for the gradient.
    """
    condition = try_evaluate_constant(pfor_input.op.inputs[0])
    if condition is None:
        return own(pfor_input)
    name = pfor_input.get_attr("then_branch" if condition else "else_branch").name
    return called(pfor_input, name, pfor_input.inputs[1:])


@rule("Case", "StatelessCase")
def chosen(own, pfor_input):
    index, number = pfor_input.input(0), len(pfor_input.get_attr("branches"))
    if index.is_stacked:  # an invalid index selects the last branch; with XLA, the rule mixes rows
        good = (index.t >= 0) & (index.t < number)
        pfor_input._inputs[0] = wrap(tf.where(good, index.t, number - 1), True)
    return own(pfor_input)


@rule("ZerosLike")
def zeros(own, pfor_input):
    value = pfor_input.input(0)
    if value.t.dtype != tf.variant:
        return own(pfor_input)
    # A list of tensors has the rows inside of its elements.
    return [wrap(output, value.is_stacked) for output in created(pfor_input, [value.t])]


@rule("TensorListFromTensor", "TensorListReserve")
def new_list(own, pfor_input):
    is_empty = pfor_input.op_type == "TensorListReserve"
    shape = pfor_input.unstacked_input(0 if is_empty else 1)
    known = tf.get_static_value(shape)
    if known is None or not known.size or -1 in known:
        return own(pfor_input)
    # TensorFlow's rule loses the shape, and treats elements of unknown shape as single numbers.
    shape = tf.concat([pfor_input.pfor.loop_len_vector, tf.cast(shape, tf.int32)], 0)
    if is_empty:
        dtype = pfor_input.get_attr("element_dtype")
        found = list_ops.tensor_list_reserve(shape, pfor_input.unstacked_input(1), dtype)
    else:
        found = list_ops.tensor_list_from_tensor(transposed(pfor_input.stacked_input(0)), shape)
    return wrap(rows_inside(found, pfor_input), True)


@rule("TensorListGather", "TensorListGetItem")
def from_lists(own, pfor_input):
    if not pfor_input.input(0).is_stacked:
        return own(pfor_input)
    pfor_input.unstacked_input(1)  # or TensorFlow's rule takes the wrong rows inside of loops
    found = own(pfor_input)
    # It leaves the axis of rows inside of gathered elements.
    return wrap(transposed(found.t), True) if "Gather" in pfor_input.op_type else found


@rule("Shape", "ShapeN")
def shapes(own, pfor_input):
    known = [tensor.shape for tensor in pfor_input.op.inputs]
    if not all(shape.is_fully_defined() for shape in known):
        return own(pfor_input)
    return [wrap(tf.constant([*s], pfor_input.get_attr("out_type")), False) for s in known]


# -- operations with a constant: axes, a shape, an order of axes -------------------------------------

# TensorFlow's own rules adapt the constant to one more axis in the graph: five operations for each sum.
# These rules make a new constant. Those operations were a tenth of a network's step, and the time of a
# first step is proportional to their number.


def _axes(axes, _):
    return np.where(axes >= 0, axes + 1, axes)


def _order(order, _):
    return np.concatenate([[0], order + 1]) if np.all(order >= 0) else None


def _multiples(multiples, _):
    return np.concatenate([[1], multiples])


def _margins(margins, _):
    return np.concatenate([[[0, 0]], margins])


def _shape(shape, of_row):
    if -1 in shape:
        shape = of_row
    # The number of rows follows from the others only if none of them is zero.
    return np.concatenate([[-1], shape]) if np.all(shape > 0) else None


# For each operation, the function that converts its second input; its arguments are the value, and the
# shape of the operation's result for one row, with 0 where it is unknown.
_SECOND = dict.fromkeys(("Sum", "Prod", "Max", "Min", "Mean", "All", "Any", "ExpandDims"), _axes)
_SECOND |= {"Transpose": _order, "Tile": _multiples, "Reshape": _shape}
_SECOND |= dict.fromkeys(("Pad", "PadV2"), _margins)


@rule(*_SECOND)
def with_constant(own, pfor_input):
    values, *others = [pfor_input.input(index) for index in range(pfor_input.num_inputs)]
    if not values.is_stacked or any(other.is_stacked for other in others):
        return own(pfor_input)
    constant, *others = [other.t for other in others]
    known, of_row = tf.get_static_value(constant), pfor_input.op.outputs[0].shape
    found = None
    if known is not None and of_row.rank is not None:
        lengths = np.array([length or 0 for length in of_row], np.int64)
        found = _SECOND[pfor_input.op_type](known, lengths)
    if found is None:
        return own(pfor_input)
    found = tf.constant(found, constant.dtype)
    return wrap(created(pfor_input, [values.t, found, *others])[0], True)
