"""Keeps an index that does not exist inside its own example, in `tf.vectorized_map`.

For a token beyond the vocabulary or a label that is no class, TensorFlow ends the step with an error on
a CPU. Under XLA its rules for `tf.vectorized_map` are worse: the gradient of a table is one scatter for
all examples, with the tables side by side, and an index beyond one table is an entry of the next. Both
tell of one example what nobody may know, and the second changes what the others add.

With the rules of this module, such an index has a result that is not a number, as if the example had
held a NaN: its gradient counts zero, and the diagnostics count the example.
"""

import functools

import tensorflow as tf

from tfdp._compat.pfor_conversion import wrap

_INDICES = 1
_REDUCTIONS = ("Max", "Min", "Prod", "Sum")
_SPARSE = ("Mean", "SqrtN", "Sum")  # the second divides by the root of the number of entries


def add_rules(rules: dict) -> None:
    """Adds the rules of this module to `rules`, which has those of TensorFlow."""
    gather = rules["GatherV2"]
    crossentropy = rules["SparseSoftmaxCrossEntropyWithLogits"]
    reductions = {name: rules[f"UnsortedSegment{name}"] for name in _REDUCTIONS}

    def replace_indices(pfor_input, good):
        indices = pfor_input.stacked_input(_INDICES)
        safe = tf.where(good, indices, tf.zeros([], indices.dtype))
        pfor_input._inputs[_INDICES] = wrap(safe, True)

    def convert_gather(pfor_input):
        indices = pfor_input.input(_INDICES)
        axis = tf.get_static_value(pfor_input.op.inputs[2])
        # The row of each example itself is found with the number of the example.
        if not indices.is_stacked or indices.t is pfor_input.pfor.all_indices or axis is None:
            return gather(pfor_input)
        values = pfor_input.input(0)
        size = tf.shape(values.t, indices.t.dtype)[
            axis + 1 if values.is_stacked and axis >= 0 else axis
        ]
        good = (indices.t >= 0) & (indices.t < size)
        replace_indices(pfor_input, good)
        found = gather(pfor_input).t
        return wrap(poisoned(found, ~all_of_row(good)), True)

    def convert_gather_nd(pfor_input):
        pfor_input.stack_inputs([_INDICES])
        values, indices = pfor_input.input(0), pfor_input.stacked_input(_INDICES)
        sizes = tf.shape(values.t, indices.dtype)[int(values.is_stacked) :]
        good = (indices >= 0) & (indices < sizes[: tf.shape(indices)[-1]])
        safe = tf.where(good, indices, tf.zeros([], indices.dtype))
        found = tf.gather_nd(values.t, safe, batch_dims=int(values.is_stacked))
        return wrap(poisoned(found, ~all_of_row(good)), True)

    def convert_crossentropy(pfor_input):
        pfor_input.stack_inputs([0, _INDICES])
        logits, labels = pfor_input.stacked_input(0), pfor_input.stacked_input(_INDICES)
        good = (labels >= 0) & (labels < tf.shape(logits, labels.dtype)[-1])
        replace_indices(pfor_input, good)
        return [wrap(poisoned(found.t, ~good), True) for found in crossentropy(pfor_input)]

    def convert_reduction(name, pfor_input):
        pfor_input.stack_inputs([_INDICES])
        segments = pfor_input.stacked_input(_INDICES)
        number = tf.cast(pfor_input.unstacked_input(2), segments.dtype)
        # Negative numbers of segments are left out.
        segments = tf.where(segments < number, segments, -tf.ones([], segments.dtype))
        pfor_input._inputs[_INDICES] = wrap(segments, True)
        return reductions[name](pfor_input)

    for kind in _SPARSE:
        for name in (f"SparseSegment{kind}", f"SparseSegment{kind}WithNumSegments"):
            rules[name] = functools.partial(_sparse_segments, kind, False)
        rules[f"SparseSegment{kind}Grad"] = functools.partial(_sparse_segments, kind, True)
    rules["GatherV2"] = convert_gather
    rules["GatherNd"] = convert_gather_nd
    rules["SparseSoftmaxCrossEntropyWithLogits"] = convert_crossentropy
    for name in _REDUCTIONS:
        rules[f"UnsortedSegment{name}"] = functools.partial(convert_reduction, name)


def _sparse_segments(kind, is_gradient, pfor_input):
    """Sums or means, by segments, of the entries of `values` that `places` names; or the gradient."""
    last = pfor_input.unstacked_input(pfor_input.num_inputs - 1)
    # Without a number of segments, the last segment is that of all rows.
    number = last if pfor_input.num_inputs == 4 else tf.nn.relu(tf.reduce_max(last) + 1)
    pfor_input.stack_inputs([0, 1, 2] if is_gradient else [1, 2])
    values, places, segments = (pfor_input.input(index) for index in range(3))
    taken, put = (segments.t, places.t) if is_gradient else (places.t, segments.t)
    good = _exist(values, taken)
    entries = tf.gather(values.t, tf.where(good, taken, 0), batch_dims=int(values.is_stacked))
    if kind != "Sum":
        # Entries in the same segment.
        counts = tf.cast(segments.t[:, :, tf.newaxis] == segments.t[:, tf.newaxis], entries.dtype)
        counts = tf.reduce_sum(counts, 2)
        shares = 1 / counts if kind == "Mean" else tf.math.rsqrt(counts)
        ones = [1] * (entries.shape.rank - 2)
        entries *= tf.reshape(shares, tf.concat([tf.shape(shares), ones], 0))
    put, number = tf.cast(put, tf.int64), tf.cast(number, tf.int64)
    good &= (put >= 0) & (put < number)
    rows = tf.range(tf.shape(put, tf.int64)[0])[:, tf.newaxis]
    sums = tf.math.unsorted_segment_sum(
        entries, tf.where(good, put + rows * number, -1), tf.size(rows, tf.int64) * number
    )
    found = tf.reshape(sums, tf.concat([[-1, number], tf.shape(sums, tf.int64)[1:]], 0))
    return wrap(poisoned(found, ~all_of_row(good)), True)


def _exist(values, places):
    size = tf.shape(values.t, places.dtype)[int(values.is_stacked)]
    return (places >= 0) & (places < size)


def all_of_row(values):
    """Returns bool [rows]: whether all entries of a row are true."""
    return tf.reduce_all(values, axis=list(range(1, values.shape.rank)))


def poisoned(values, bad):
    """Returns `values` with NaN, or for integers the least number, where `bad` is true.

    Args:
        values: [rows, ...].
        bad: bool, with the first axes of `values`.
    """
    if values.dtype.is_floating:
        poison = float("nan")
    elif values.dtype.is_integer:
        poison = values.dtype.min  # no index either, unless the dtype has no negative numbers
    else:
        return values
    for _ in range(values.shape.rank - bad.shape.rank):
        bad = tf.expand_dims(bad, -1)
    return tf.where(bad, tf.constant(poison, values.dtype), values)
