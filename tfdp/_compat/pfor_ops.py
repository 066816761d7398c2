"""Rules of `tf.vectorized_map` for operations of Keras' layers for which TensorFlow has none.

Where the inputs have a batch axis, the examples are merged with it, so one operation serves them all.
`pfor_conv3d` has the rules for 3-D convolutions.
"""

import functools

import tensorflow as tf

from tfdp._compat.pfor_conversion import Loop, apart, created, merged, transposed, wrap
from tfdp._compat.pfor_indices import all_of_row, poisoned

# For each operation the inputs with a batch axis. All other inputs are the same for all examples.
_MERGED = {
    "ExtractImagePatches": [0],
    "ImageProjectiveTransformV3": [0, 1],
    "ResizeArea": [0],
    "ResizeBicubic": [0],
    "ResizeBicubicGrad": [0, 1],
    "ResizeBilinear": [0],
    "ResizeBilinearGrad": [0, 1],
    "ResizeNearestNeighbor": [0],
    "ResizeNearestNeighborGrad": [0],
    "ScaleAndTranslate": [0],
    "ScaleAndTranslateGrad": [0, 1],
}
# The same where only a filter that is shared by all examples lacks a rule.
_MERGED_IF_SHARED = {"DepthwiseConv2dNative": [0]}
# Here input 0 is the shape of the result, batch included.
_MERGED_INTO_SHAPE_IF_SHARED = {"DepthwiseConv2dNativeBackpropInput": [2]}
_FILTER = 1
# Operations on the last axis, or the last two, for any number of axes.
_LAST_AXES = ("Bitcast", "HSVToRGB", "MatrixDeterminant", "Qr", "RGBToHSV")
# Operations whose axes before the last two are broadcast; quantized layers use this one.
_BROADCAST = ("BatchMatMulV3",)


def add_rules(rules: dict) -> None:
    """Adds the rules of this module to `rules`, which has those of TensorFlow."""
    replaced = (*_MERGED_IF_SHARED, *_MERGED_INTO_SHAPE_IF_SHARED)
    own = {name: rules[name] for name in replaced}

    def on_merged(with_batch, pfor_input, into_shape=False):
        pfor_input.stack_inputs(with_batch)
        rows = pfor_input.pfor.loop_len_vector
        inputs = []
        for index in range(pfor_input.num_inputs):
            if index in with_batch:
                given, first = (pfor_input.stacked_input(i) for i in (index, with_batch[0]))
                if given.shape[1] == 1 != first.shape[1]:  # one transform for all images of a row
                    given = tf.repeat(given, tf.shape(first)[1], axis=1)
                inputs.append(merged(given))
            else:
                inputs.append(pfor_input.unstacked_input(index))
        if into_shape:
            inputs[0] = tf.concat(
                [inputs[0][:1] * tf.cast(rows, inputs[0].dtype), inputs[0][1:]], 0
            )
        return [wrap(apart(output, rows), True) for output in created(pfor_input, inputs)]

    def merged_if_shared(name, with_batch, into_shape, pfor_input):
        if pfor_input.input(_FILTER).is_stacked:
            return own[name](pfor_input)
        return on_merged(with_batch, pfor_input, into_shape)

    def on_last_axes(pfor_input):
        return [wrap(output, True) for output in created(pfor_input, [pfor_input.stacked_input(0)])]

    def padded(pfor_input):  # TensorFlow's rule for PadV2 forgets the value that it pads with
        margins, *value = [pfor_input.unstacked_input(i) for i in range(1, pfor_input.num_inputs)]
        margins = tf.concat([tf.zeros([1, 2], margins.dtype), margins], 0)
        return wrap(created(pfor_input, [pfor_input.stacked_input(0), margins, *value])[0], True)

    def half_of_squares(pfor_input):
        values = pfor_input.stacked_input(0)
        axes = tf.range(1, tf.rank(values))
        return wrap(tf.reduce_sum(values * values, axes) / tf.constant(2, values.dtype), True)

    def broadcast(pfor_input):
        pfor_input.expanddim_inputs_for_broadcast()
        given = [pfor_input.input(index).t for index in range(pfor_input.num_inputs)]
        return [wrap(output, True) for output in created(pfor_input, given)]

    def scattered(pfor_input):
        # Each row's entries go to a row of their own: the row's number is one more index.
        pfor_input.stack_inputs([0, 1])
        indices, updates = pfor_input.stacked_input(0), pfor_input.stacked_input(1)
        shape, rows = pfor_input.unstacked_input(2), pfor_input.pfor.loop_len_vector
        # A place that does not exist would end the step with an error on a CPU.
        sizes = tf.cast(shape[: tf.shape(indices)[-1]], indices.dtype)
        good = tf.reduce_all((indices >= 0) & (indices < sizes), axis=-1)
        indices = tf.where(good[..., tf.newaxis], indices, tf.zeros([], indices.dtype))
        numbers = tf.range(tf.cast(rows[0], indices.dtype))
        numbers = tf.reshape(numbers, [-1] + [1] * (indices.shape.rank - 1))
        numbers = tf.broadcast_to(numbers, tf.concat([tf.shape(indices)[:-1], [1]], 0))
        indices = tf.concat([numbers, indices], -1)
        shape = tf.concat([tf.cast(rows, shape.dtype), shape], 0)
        found = tf.scatter_nd(indices, updates, shape)
        return wrap(poisoned(found, ~all_of_row(good)), True)

    def from_lists(own, pfor_input):
        if not pfor_input.input(0).is_stacked:
            return own(pfor_input)
        pfor_input.unstacked_input(1)  # or TensorFlow's rule takes the wrong rows inside of loops
        found = own(pfor_input)
        # It leaves the rows of gathered elements, which are inside of them, there.
        return wrap(transposed(found.t), True) if "Gather" in pfor_input.op_type else found

    def printed(pfor_input):
        text = pfor_input.input(0)
        joined = tf.strings.reduce_join(text.t, separator="\n") if text.is_stacked else text.t
        attributes = {name: pfor_input.get_attr(name) for name in ("output_stream", "end")}
        return tf.raw_ops.PrintV2(input=joined, **attributes)

    def chosen(own, pfor_input):
        index, number = pfor_input.input(0), len(pfor_input.get_attr("branches"))
        if (
            index.is_stacked
        ):  # what does not exist is the last branch; with XLA, the rule mixes rows
            good = (index.t >= 0) & (index.t < number)
            pfor_input._inputs[0] = wrap(tf.where(good, index.t, number - 1), True)
        return own(pfor_input)

    zeros_rule = rules["ZerosLike"]

    def zeros(pfor_input):
        value = pfor_input.input(0)
        if value.t.dtype != tf.variant:
            return zeros_rule(pfor_input)
        # A list of tensors has the rows inside of its elements.
        return [wrap(output, value.is_stacked) for output in created(pfor_input, [value.t])]

    rules["ZerosLike"] = zeros
    partial = functools.partial
    for name, with_batch in _MERGED.items():
        rules.setdefault(name, partial(on_merged, with_batch))
    for name, with_batch in _MERGED_IF_SHARED.items():
        rules[name] = partial(merged_if_shared, name, with_batch, False)
    for name, with_batch in _MERGED_INTO_SHAPE_IF_SHARED.items():
        rules[name] = partial(merged_if_shared, name, with_batch, True)
    for name in _LAST_AXES:
        rules.setdefault(name, on_last_axes)
    rules.setdefault("ScatterNd", scattered)
    for name in ("MirrorPad", "MirrorPadGrad", "PadV2"):
        rules[name] = padded
    for name in ("TensorListGather", "TensorListGetItem"):
        rules[name] = partial(from_lists, rules[name])
    for name in ("While", "StatelessWhile"):
        rules[name] = lambda pfor_input: Loop(pfor_input)()
    for name in ("Case", "StatelessCase"):
        rules[name] = partial(chosen, rules[name])
    rules["PrintV2"] = printed
    rules.setdefault("L2Loss", half_of_squares)
    for name in _BROADCAST:
        rules.setdefault(name, broadcast)
