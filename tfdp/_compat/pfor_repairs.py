"""Corrects layers inside `tf.vectorized_map` for which rules of TensorFlow or Keras are wrong.

In TensorFlow 2.21 on a CPU with oneDNN, `tf.matmul` of shapes [n, 1, t, p] and [p, q] writes out of
bounds ("free(): invalid pointer", or wrong numbers). A batch of one under `tf.vectorized_map`, with
a weight that all rows share, is exactly that product; EinsumDense and MultiHeadAttention compute it.
This module computes such products as one plain matrix product, which is also faster.

TensorFlow's rule for the filter gradient of a convolution is a loop over the examples, and fails where
the padding is explicit. This module computes it from patches; it loops only over images of unknown
size and under explicit padding.

For the filter gradient of a convolution in groups, where all rows share the inputs (public examples),
TensorFlow 2.21 silently merges the rows into the channels and mixes the groups up; for that of a
depthwise convolution, it has no rule then. This module repeats the inputs for each row instead.

For a bias that is added along the first axis after the batch (NCHW), TensorFlow's rules expect exactly
four axes. Keras makes such an operation of any weight with a single axis longer than one that is added
to something of whatever rank, such as the bias of an EinsumDense with `bias_axes`.

For a roll along an axis that is counted from the end, TensorFlow's rule takes the next axis instead,
and for the last one the axis of the examples. This module counts such axes from the front.

With oneDNN, a softmax of six axes ends with "could not create a primitive descriptor"; attention over
two axes of an example has as many, with that of the examples. This module merges all axes but the last.
"""

import contextlib
import functools
from collections.abc import Iterator

import tensorflow as tf

from tfdp._compat import (
    addition,
    pfor_calls,
    pfor_constants,
    pfor_conv3d,
    pfor_indices,
    pfor_ops,
    pfor_random,
)
from tfdp._compat.kernel_gradients import kernel_gradients
from tfdp._compat.patches import Window
from tfdp._compat.pfor_conversion import (
    RULES,
    created,
    known_shapes,
    looped,
    merged,
    only_rules,
    wrap,
)
from tfdp._compat.pfor_table import TRUSTED
from tfdp._compat.tensorflow import on_plain_cpu
from tfdp._compat.versions import borrowing


@contextlib.contextmanager
def repaired() -> Iterator[list]:
    """Context for tracing rows alone: tfdp's rules of `tf.vectorized_map`, and the corrected addition.

    Outside of it, TensorFlow and Keras are as they are. It yields the list of `only_rules`.
    """
    with addition.corrected(), known_shapes(), only_rules(_rules()) as failed:
        yield failed


@functools.cache
def _rules() -> dict:
    """The rules by operation, TensorFlow's and tfdp's, of which some replace TensorFlow's."""
    rules = dict(RULES)
    with borrowing("the rules of tf.vectorized_map"):
        for add_rules in (
            pfor_ops.add_rules,
            pfor_constants.add_rules,
            pfor_calls.add_rules,
            pfor_random.add_rules,
            pfor_conv3d.add_rules,
            pfor_indices.add_rules,
            _add_rules,
        ):
            add_rules(rules)
    return {name: rule for name, rule in rules.items() if name in TRUSTED}


def _channels_of(pfor_input):
    return 1 if pfor_input.get_attr("data_format") == b"NCHW" else 3


def _add_rules(rules):
    product_rule = rules["BatchMatMulV2"]
    plain_rule = rules["MatMul"]
    filter_rule = rules["Conv2DBackpropFilter"]
    image_rule = rules["Conv2DBackpropInput"]
    depthwise_rule = rules["DepthwiseConv2dNativeBackpropFilter"]
    bias_rule = rules["BiasAdd"]
    squeeze_rule = rules["Squeeze"]
    roll_rule = rules["Roll"]

    def convert_product(pfor_input):
        stacked, shared = pfor_input.input(0), pfor_input.input(1)
        shape = shared.t.shape
        one_matrix = shape.rank is not None and shape[:-2].num_elements() == 1
        if shared.is_stacked or not stacked.is_stacked or not one_matrix:
            return product_rule(pfor_input)
        # If the shared matrix has more axes (of length one) than a row, the product also begins
        # with them.
        extra = max(shape.rank - (stacked.t.shape.rank - 1), 0)
        stacked = stacked.t
        for _ in range(extra):
            stacked = tf.expand_dims(stacked, 1)
        matrix = shared.t[(0,) * (shape.rank - 2)] if shape.rank > 2 else shared.t
        if pfor_input.get_attr("adj_x"):
            stacked = tf.linalg.adjoint(stacked)
        if pfor_input.get_attr("adj_y"):
            matrix = tf.linalg.adjoint(matrix)
        return wrap(tf.ensure_shape(*_product(stacked, matrix)), True)

    def convert_plain_product(pfor_input):
        stacked, shared = pfor_input.input(0), pfor_input.input(1)
        if shared.is_stacked or not stacked.is_stacked or pfor_input.get_attr("transpose_a"):
            return plain_rule(pfor_input)
        matrix = tf.transpose(shared.t) if pfor_input.get_attr("transpose_b") else shared.t
        return wrap(tf.ensure_shape(*_product(stacked.t, matrix)), True)

    def convert_filter_gradient(pfor_input):
        inputs = pfor_input.input(0)
        if not inputs.is_stacked:
            axis = _channels_of(pfor_input)
            sizes = tf.get_static_value(pfor_input.unstacked_input(1))
            if sizes is not None and sizes[2] == inputs.t.shape[axis]:
                return filter_rule(pfor_input)
        pfor_input.stack_inputs([0, 2])
        found = _filter_gradients(pfor_input)
        return looped(pfor_input) if found is None else wrap(found, True)

    def convert_image_gradient(pfor_input):
        kernel, axis = pfor_input.input(1), _channels_of(pfor_input)
        channels, width = pfor_input.op.outputs[0].shape[axis], kernel.t.shape[-2]
        if kernel.is_stacked or channels in (None, width) or not on_plain_cpu():
            return image_rule(pfor_input)
        # TensorFlow's own operation has no groups on CPUs without oneDNN; Keras compiles it there.
        upstream, sizes = pfor_input.stacked_input(2), pfor_input.unstacked_input(0)
        upstream = merged(upstream)
        sizes = tf.tensor_scatter_nd_update(sizes, [[0], [axis]], [tf.shape(upstream)[0], width])
        groups = channels // width
        pairs = zip(tf.split(kernel.t, groups, -1), tf.split(upstream, groups, axis), strict=True)
        found = tf.concat([created(pfor_input, [sizes, k, g])[0] for k, g in pairs], axis)
        shape = pfor_input.op.outputs[0].shape
        found = tf.reshape(found, tf.concat([[-1, shape[0]], tf.shape(found)[1:]], 0))
        return wrap(tf.ensure_shape(found, [None, *shape]), True)

    def convert_depthwise_gradient(pfor_input):
        pfor_input.stack_inputs(stack_indices=[0, 2])
        return depthwise_rule(pfor_input)

    def convert_bias(pfor_input):
        values, bias = pfor_input.input(0), pfor_input.input(1)
        if pfor_input.get_attr("data_format") != b"NCHW" or not bias.is_stacked:
            return bias_rule(pfor_input)
        rank = pfor_input.op.inputs[0].shape.rank
        ones = [1] * (rank - 2)
        shape = tf.concat([tf.shape(bias.t)[:1], [1], tf.shape(bias.t)[1:], ones], axis=0)
        return wrap(values.t + tf.reshape(bias.t, shape), True)

    def convert_bias_gradient(pfor_input):
        gradient = pfor_input.stacked_input(0)
        channels = 2 if pfor_input.get_attr("data_format") == b"NCHW" else gradient.shape.rank - 1
        summed = [axis for axis in range(1, gradient.shape.rank) if axis != channels]
        return wrap(tf.reduce_sum(gradient, axis=summed), True)

    def convert_softmax(op, pfor_input):
        values = pfor_input.stacked_input(0)
        flat = tf.reshape(values, tf.stack([-1, tf.shape(values)[-1]]))
        return wrap(tf.reshape(op(flat), tf.shape(values)), True)

    def convert_squeeze(pfor_input):
        # Without named axes, TensorFlow's rule would also remove the axis of the rows if there is one.
        shape = pfor_input.op.inputs[0].shape
        if pfor_input.get_attr("squeeze_dims") or not shape.is_fully_defined():
            return squeeze_rule(pfor_input)
        axes = [place + 1 for place, length in enumerate(shape) if length == 1]
        values = pfor_input.stacked_input(0)
        return wrap(tf.squeeze(values, axes) if axes else values, True)

    def convert_roll(pfor_input):
        axis, rank = pfor_input.unstacked_input(2), tf.rank(pfor_input.stacked_input(0)) - 1
        pfor_input._inputs[2] = wrap(
            tf.where(axis < 0, axis + tf.cast(rank, axis.dtype), axis), False
        )
        return roll_rule(pfor_input)

    def convert_identity(pfor_input):
        value = pfor_input.input(0)
        return wrap(value.t, value.is_stacked)

    rules["BatchMatMulV2"] = convert_product
    rules["MatMul"] = convert_plain_product
    rules["Conv2DBackpropFilter"] = convert_filter_gradient
    rules["Conv2DBackpropInput"] = convert_image_gradient
    rules["DepthwiseConv2dNativeBackpropFilter"] = convert_depthwise_gradient
    rules["Squeeze"] = convert_squeeze
    rules["Roll"] = convert_roll
    rules["BiasAdd"] = convert_bias
    rules["BiasAddGrad"] = convert_bias_gradient
    rules["Softmax"] = functools.partial(convert_softmax, tf.nn.softmax)
    rules["LogSoftmax"] = functools.partial(convert_softmax, tf.nn.log_softmax)
    rules.setdefault("PlaceholderWithDefault", convert_identity)


def _product(stacked, matrix):
    """Multiplies [..., p] with [p, q] as one matrix product; returns (product, its static shape)."""
    static = [*stacked.shape[:-1], matrix.shape[1]]
    product = tf.matmul(tf.reshape(stacked, [-1, _length(matrix, 0)]), matrix)
    if static.count(None) < 2:
        return tf.reshape(product, [-1 if n is None else n for n in static]), static
    whole = tf.concat([tf.shape(stacked)[:-1], [_length(matrix, 1)]], axis=0)
    return tf.reshape(product, whole), static


def _length(tensor, axis):
    return tensor.shape[axis] if tensor.shape[axis] is not None else tf.shape(tensor)[axis]


def _filter_gradients(pfor_input):
    """The filter gradient of each example; None where it has to be computed one by one."""
    padding = pfor_input.get_attr("padding").decode().lower()
    shape = tf.get_static_value(pfor_input.unstacked_input(1))
    images, upstream = pfor_input.stacked_input(0), pfor_input.stacked_input(2)
    space = slice(1, 3)
    if pfor_input.get_attr("data_format") == b"NCHW":
        images, upstream = (tf.transpose(t, [0, 1, 3, 4, 2]) for t in (images, upstream))
        space = slice(2, 4)
    if padding == "explicit" or shape is None or not images.shape[2:].is_fully_defined():
        return None
    strides, dilations = (tuple(pfor_input.get_attr(n)[space]) for n in ("strides", "dilations"))
    return kernel_gradients(
        tf.reshape(images, [-1, *images.shape[2:]]),
        tf.reshape(upstream, [tf.shape(upstream)[0], -1, upstream.shape[-1]]),
        Window(tuple(shape[:2].tolist()), strides, dilations, padding),
        tuple(shape.tolist()),
    )


def batch_of_one(tree):
    """Gives every leaf [...], which is one example, a leading axis of length one.

    Where shapes are known, the vectorized graph has far fewer operations. But the length of a tensor
    with no other axis stays unknown, because layers of Keras would take an axis of length one for one
    of features.
    """

    def grown(leaf):
        if leaf.shape.rank:
            return leaf[tf.newaxis]
        return tf.raw_ops.PlaceholderWithDefault(input=leaf[tf.newaxis], shape=[None])

    return tf.nest.map_structure(grown, tree)
