"""Rules of `tf.vectorized_map` for 3-D convolutions, for which TensorFlow has none.

On a CPU, TensorFlow has neither groups nor channels first for these operations, so Keras compiles such
layers with XLA. The vectorizer takes the compiled function apart. Therefore these rules compute group
by group, with channels last. Convolutions and their input gradients merge the examples with the batch
axis. The filter gradient is a product with patches.
"""

import tensorflow as tf

from tfdp._compat.kernel_gradients import kernel_gradients
from tfdp._compat.patches import Window
from tfdp._compat.pfor_conversion import wrap


def add_rules(rules: dict) -> None:
    """Adds the rules of this module for operations that have none; `rules` has those of TensorFlow."""
    converted = {
        "Conv3D": _convolution,
        "Conv3DBackpropInputV2": _input_gradient,
        "Conv3DBackpropFilterV2": _filter_gradient,
    }
    for name, convert in converted.items():
        rules.setdefault(name, lambda pfor_input, convert=convert: wrap(convert(pfor_input), True))


def _convolution(pfor_input):
    images, kernel = pfor_input.stacked_input(0), pfor_input.unstacked_input(1)
    images = _channels_last(pfor_input, _merged(images))
    groups = images.shape[-1] // kernel.shape[-2]
    pairs = zip(tf.split(images, groups, -1), tf.split(kernel, groups, -1), strict=True)
    options = _options(pfor_input)
    parts = [tf.raw_ops.Conv3D(input=x, filter=k, **options) for x, k in pairs]
    return _separated(pfor_input, _as_before(pfor_input, tf.concat(parts, -1)))


def _input_gradient(pfor_input):
    sizes, kernel = pfor_input.unstacked_input(0), pfor_input.unstacked_input(1)
    upstream = _channels_last(pfor_input, _merged(pfor_input.stacked_input(2)))
    first = _is_channels_first(pfor_input)
    if first:
        sizes = tf.gather(sizes, [0, 2, 3, 4, 1])
    channels = pfor_input.op.outputs[0].shape[1 if first else 4]
    width = kernel.shape[-2]
    groups = channels // width
    rows = tf.cast(tf.shape(upstream)[:1], sizes.dtype)
    sizes = tf.concat([rows, sizes[1:4], tf.constant([width], sizes.dtype)], 0)
    pairs = zip(tf.split(kernel, groups, -1), tf.split(upstream, groups, -1), strict=True)
    options = _options(pfor_input)
    parts = [
        tf.raw_ops.Conv3DBackpropInputV2(input_sizes=sizes, filter=k, out_backprop=g, **options)
        for k, g in pairs
    ]
    return _separated(pfor_input, _as_before(pfor_input, tf.concat(parts, -1)))


def _filter_gradient(pfor_input):
    pfor_input.stack_inputs([0, 2])
    sizes = tf.get_static_value(pfor_input.unstacked_input(1))
    shape = (*(pfor_input.op.outputs[0].shape if sizes is None else sizes),)
    images, upstream = pfor_input.stacked_input(0), pfor_input.stacked_input(2)
    options = _options(pfor_input)
    window = Window(
        tuple(map(int, shape[:3])),
        tuple(options["strides"][1:4]),
        tuple(options["dilations"][1:4]),
        options["padding"].lower(),
    )
    upstream_rows = tf.shape(upstream)[0]
    images, upstream = (_channels_last(pfor_input, _merged(t)) for t in (images, upstream))
    upstream = tf.reshape(upstream, [upstream_rows, -1, upstream.shape[-1]])
    return kernel_gradients(images, upstream, window, tuple(map(int, shape)))


def _options(pfor_input):
    """The attributes of the operation, as they are with channels last."""
    strides, dilations = pfor_input.get_attr("strides"), pfor_input.get_attr("dilations")
    if _is_channels_first(pfor_input):
        strides, dilations = ([a[0], *a[2:], a[1]] for a in (strides, dilations))
    padding = pfor_input.get_attr("padding").decode()
    return {"strides": [*strides], "dilations": [*dilations], "padding": padding}


def _is_channels_first(pfor_input):
    return pfor_input.get_attr("data_format") == b"NCDHW"


def _channels_last(pfor_input, values):
    return tf.transpose(values, [0, 2, 3, 4, 1]) if _is_channels_first(pfor_input) else values


def _as_before(pfor_input, values):
    return tf.transpose(values, [0, 4, 1, 2, 3]) if _is_channels_first(pfor_input) else values


def _merged(values):
    """Reshapes [examples, batch, ...] to [examples * batch, ...], with static later axes."""
    merged = tf.reshape(values, tf.concat([[-1], tf.shape(values)[2:]], 0))
    return tf.ensure_shape(merged, [None, *values.shape[2:]])


def _separated(pfor_input, values):
    shape = tf.concat([pfor_input.pfor.loop_len_vector, [-1], tf.shape(values)[1:]], 0)
    return tf.reshape(values, shape)
