"""Rules of `tf.vectorized_map` by which an invalid index affects only its own example.

For a token beyond the vocabulary or a label that is not a class, TensorFlow raises an error on a CPU.
Under XLA its rules for `tf.vectorized_map` are worse: the gradient of a table is one scatter for all
examples, with the tables side by side, and an index beyond one table is an entry of the next. Both
reveal information about one example, and the second changes the gradients of others.

With the rules of this module, such an index results in NaN, as if the example contained a NaN: its
gradient counts as zero, and the diagnostics count the example.
"""

import tensorflow as tf

from tfdp._compat.pfor_conversion import rule, wrap
from tfdp._compat.pfor_layers import on_merged

_INDICES = 1


@rule("GatherV2")
def gather(own, pfor_input):
    indices, values = pfor_input.input(_INDICES), pfor_input.input(0)
    axis = tf.get_static_value(pfor_input.op.inputs[2])
    # This look-up finds the row of each example by the example's number.
    if not indices.is_stacked or indices.t is pfor_input.pfor.all_indices or axis is None:
        return own(pfor_input)
    size = tf.shape(values.t, indices.t.dtype)[
        axis + 1 if values.is_stacked and axis >= 0 else axis
    ]
    good = (indices.t >= 0) & (indices.t < size)
    _replace_indices(pfor_input, _safe(indices.t, good))
    return wrap(_poisoned(own(pfor_input).t, ~_all_of_row(good)), True)


@rule("GatherNd")
def gather_nd(_, pfor_input):
    pfor_input.stack_inputs([_INDICES])
    values, indices = pfor_input.input(0), pfor_input.stacked_input(_INDICES)
    sizes = tf.shape(values.t, indices.dtype)[int(values.is_stacked) :]
    good = (indices >= 0) & (indices < sizes[: tf.shape(indices)[-1]])
    found = tf.gather_nd(values.t, _safe(indices, good), batch_dims=int(values.is_stacked))
    return wrap(_poisoned(found, ~_all_of_row(good)), True)


@rule("ScatterNd")
def scatter_nd(_, pfor_input):
    # Each row's entries go to a separate row: the row's number is one more index.
    pfor_input.stack_inputs([0, 1])
    indices, updates = pfor_input.stacked_input(0), pfor_input.stacked_input(1)
    shape, rows = pfor_input.unstacked_input(2), pfor_input.pfor.loop_len_vector
    sizes = tf.cast(shape[: tf.shape(indices)[-1]], indices.dtype)
    good = tf.reduce_all((indices >= 0) & (indices < sizes), axis=-1)
    indices = _safe(indices, good[..., tf.newaxis])
    numbers = tf.range(tf.cast(rows[0], indices.dtype))
    numbers = tf.reshape(numbers, [-1] + [1] * (indices.shape.rank - 1))
    numbers = tf.broadcast_to(numbers, tf.concat([tf.shape(indices)[:-1], [1]], 0))
    shape = tf.concat([tf.cast(rows, shape.dtype), shape], 0)
    found = tf.scatter_nd(tf.concat([numbers, indices], -1), updates, shape)
    return wrap(_poisoned(found, ~_all_of_row(good)), True)


@rule("SparseSoftmaxCrossEntropyWithLogits")
def crossentropy(_, pfor_input):
    pfor_input.stack_inputs([0, _INDICES])
    logits, labels = pfor_input.stacked_input(0), pfor_input.stacked_input(_INDICES)
    good = (labels >= 0) & (labels < tf.shape(logits, labels.dtype)[-1])
    _replace_indices(pfor_input, _safe(labels, good))
    return [wrap(_poisoned(found.t, ~good), True) for found in on_merged(pfor_input, [0, 1])]


@rule(*(f"UnsortedSegment{name}" for name in ("Max", "Min", "Prod", "Sum")))
def reduction(own, pfor_input):
    pfor_input.stack_inputs([_INDICES])
    segments = pfor_input.stacked_input(_INDICES)
    number = tf.cast(pfor_input.unstacked_input(2), segments.dtype)
    # Negative segment numbers are dropped.
    _replace_indices(pfor_input, tf.where(segments < number, segments, -tf.ones_like(number)))
    return own(pfor_input)


def _replace_indices(pfor_input, indices):
    pfor_input._inputs[_INDICES] = wrap(indices, True)


def _safe(indices, good):
    return tf.where(good, indices, tf.zeros([], indices.dtype))


def _all_of_row(values):
    """Returns whether all entries of a row are true, bool [rows]."""
    return tf.reduce_all(values, axis=list(range(1, values.shape.rank)))


def _poisoned(values, bad):
    """Returns `values` with NaN, or for integers the least number, where `bad` is true.

    Args:
        values: Numbers, [rows, ...].
        bad: Bool, with the first axes of `values`.
    """
    if values.dtype.is_floating:
        poison = float("nan")
    elif values.dtype.is_integer:
        poison = values.dtype.min  # an invalid index, too, unless the dtype is unsigned
    else:
        return values
    for _ in range(values.shape.rank - bad.shape.rank):
        bad = tf.expand_dims(bad, -1)
    return tf.where(bad, tf.constant(poison, values.dtype), values)
