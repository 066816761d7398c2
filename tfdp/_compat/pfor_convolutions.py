"""Rules of `tf.vectorized_map` for gradients of convolutions, and for convolutions of volumes.

TensorFlow's rule for the filter gradient of a convolution is a loop over the examples, and fails if the
padding is explicit. These rules compute it from patches. They loop only if images have unknown sizes or
the padding is explicit.

If all rows share the inputs (public examples), TensorFlow 2.21 silently merges the rows into the
channels, which mixes up the groups of a grouped convolution. It has no rule for a depthwise
convolution. These rules repeat the inputs for each row instead.

On a CPU, TensorFlow has neither groups nor channels first for volumes, so Keras compiles such layers
with XLA. The vectorizer opens the compiled function. Therefore volumes are computed group by group,
with channels last.
"""

import tensorflow as tf

from tfdp._compat.kernel_gradients import Window, kernel_gradients
from tfdp._compat.pfor_conversion import apart, created, looped, merged, rule, wrap
from tfdp._compat.pfor_layers import on_merged
from tfdp._compat.tensorflow import on_plain_cpu


@rule("Conv2DBackpropFilter", "Conv3DBackpropFilterV2")
def filter_gradient(own, pfor_input):
    inputs, sizes = pfor_input.input(0), pfor_input.unstacked_input(1)
    shape, channels = (
        tf.get_static_value(sizes),
        inputs.t.shape[inputs.is_stacked + _axis(pfor_input)],
    )
    if own and not inputs.is_stacked and shape is not None and shape[-2] == channels:
        return own(pfor_input)
    pfor_input.stack_inputs([0, 2])
    images, upstream = (
        _channels_last(pfor_input, merged(pfor_input.stacked_input(index))) for index in (0, 2)
    )
    padding = pfor_input.get_attr("padding").decode().lower()
    unknown = (
        pfor_input.op_type == "Conv2DBackpropFilter" and not images.shape[1:].is_fully_defined()
    )
    if padding == "explicit" or shape is None or unknown:
        return looped(pfor_input)
    rows, shape = pfor_input.pfor.loop_len_vector[0], tuple(shape.tolist())
    strides, dilations = (tuple(_last(pfor_input, n)[1:-1]) for n in ("strides", "dilations"))
    window = Window(shape[:-2], strides, dilations, padding)
    upstream = tf.reshape(upstream, [rows, -1, upstream.shape[-1]])
    return wrap(kernel_gradients(images, upstream, window, shape), True)


@rule("DepthwiseConv2dNativeBackpropFilter")
def depthwise_filter_gradient(own, pfor_input):
    pfor_input.stack_inputs(stack_indices=[0, 2])
    return own(pfor_input)


@rule("Conv2DBackpropInput")
def image_gradient(_, pfor_input):
    kernel, axis = pfor_input.input(1), _axis(pfor_input) % 4
    channels, width = pfor_input.op.outputs[0].shape[axis], kernel.t.shape[-2]
    if kernel.is_stacked or channels in (None, width) or not on_plain_cpu():
        return on_merged(pfor_input, [2], into_shape=True)
    # TensorFlow's own operation has no groups on CPUs without oneDNN; Keras compiles it there.
    upstream, sizes = merged(pfor_input.stacked_input(2)), pfor_input.unstacked_input(0)
    sizes = tf.tensor_scatter_nd_update(sizes, [[0], [axis]], [tf.shape(upstream)[0], width])
    groups = channels // width
    pairs = zip(tf.split(kernel.t, groups, -1), tf.split(upstream, groups, axis), strict=True)
    found = tf.concat([created(pfor_input, [sizes, k, g])[0] for k, g in pairs], axis)
    shape = pfor_input.op.outputs[0].shape
    found = tf.reshape(found, tf.concat([[-1, shape[0]], tf.shape(found)[1:]], 0))
    return wrap(tf.ensure_shape(found, [None, *shape]), True)


@rule("Conv3D")
def volumes(_, pfor_input):
    kernel = pfor_input.unstacked_input(1)
    given = _channels_last(pfor_input, merged(pfor_input.stacked_input(0)))
    groups = given.shape[-1] // kernel.shape[-2]
    pairs = zip(tf.split(given, groups, -1), tf.split(kernel, groups, -1), strict=True)
    parts = [tf.raw_ops.Conv3D(input=x, filter=k, **_options(pfor_input)) for x, k in pairs]
    return _as_before(pfor_input, tf.concat(parts, -1))


@rule("Conv3DBackpropInputV2")
def volume_gradient(_, pfor_input):
    sizes, kernel = pfor_input.unstacked_input(0), pfor_input.unstacked_input(1)
    upstream = _channels_last(pfor_input, merged(pfor_input.stacked_input(2)))
    if _is_channels_first(pfor_input):
        sizes = tf.gather(sizes, [0, 2, 3, 4, 1])
    width = kernel.shape[-2]
    groups = pfor_input.op.outputs[0].shape[_axis(pfor_input)] // width
    rows = tf.cast(tf.shape(upstream)[:1], sizes.dtype)
    sizes = tf.concat([rows, sizes[1:4], tf.constant([width], sizes.dtype)], 0)
    pairs = zip(tf.split(kernel, groups, -1), tf.split(upstream, groups, -1), strict=True)
    parts = [
        tf.raw_ops.Conv3DBackpropInputV2(
            input_sizes=sizes, filter=k, out_backprop=g, **_options(pfor_input)
        )
        for k, g in pairs
    ]
    return _as_before(pfor_input, tf.concat(parts, -1))


def _is_channels_first(pfor_input):
    return pfor_input.get_attr("data_format").startswith(b"NC")


def _axis(pfor_input):
    """Returns the axis of the channels in one batch."""
    return 1 if _is_channels_first(pfor_input) else -1


def _last(pfor_input, name):
    """Returns an attribute with one number for each axis, in the order with channels last."""
    found = list(pfor_input.get_attr(name))
    return [found[0], *found[2:], found[1]] if _is_channels_first(pfor_input) else found


def _options(pfor_input):
    found = {name: _last(pfor_input, name) for name in ("strides", "dilations")}
    return found | {"padding": pfor_input.get_attr("padding").decode()}


def _channels_last(pfor_input, values):
    if not _is_channels_first(pfor_input):
        return values
    return tf.transpose(values, [0, *range(2, values.shape.rank), 1])


def _as_before(pfor_input, values):
    """Returns [examples * batch, ...] with channels last in the operation's format, by example."""
    if _is_channels_first(pfor_input):
        values = tf.transpose(values, [0, values.shape.rank - 1, *range(1, values.shape.rank - 1)])
    first = pfor_input.op.outputs[0].shape[0]
    return wrap(apart(values, pfor_input.pfor.loop_len_vector, first), True)
