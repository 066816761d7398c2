"""Keeps an index that does not exist inside its own example, where an example passes alone.

TensorFlow ends the whole step with an error of its own for a token beyond the vocabulary, on a CPU, and
takes another index, or none, on a GPU or under XLA. Which of these happens tells of one example what
nobody may know. With `checked`, the operation takes index 0 instead, and its result is not a number
(for whole numbers: the least one, which is no index either), so that the example counts zero, and the
diagnostics count it.

`pfor_indices` does this for `tf.vectorized_map` where TensorFlow's rules can be wrapped, entry by
entry. Here the functions are wrapped that make the operations, which also serves the loop engine and
operations that have no such rule. The whole result is replaced, so this is for single examples only.
"""

import contextlib
import contextvars
import functools
from types import MappingProxyType

import tensorflow as tf

from tfdp._compat.pfor_indices import poisoned
from tfdp._compat.versions import borrowing

# The checks of the functions at the moment, by name.
_CHECKED = contextvars.ContextVar("checked", default=MappingProxyType({}))


@contextlib.contextmanager
def checked(*, vectorized: bool):
    """Context in which operations are traced that check their indices.

    Args:
        vectorized: whether the operations go through `tf.vectorized_map`, where `pfor_indices` has
            checks for some of them.
    """
    _wrap()
    token = _CHECKED.set(_WITHOUT_RULE if vectorized else _CHECKS)
    try:
        yield
    finally:
        _CHECKED.reset(token)


def _safe(indices, good):
    return tf.where(good, indices, tf.zeros([], indices.dtype))


def _unless(good, result):
    if result.dtype.is_floating:
        # A factor makes the gradient not finite, too, also where the result is the loss itself.
        factor = tf.where(tf.reduce_all(good), 1.0, float("nan"))
        return result * tf.cast(factor, result.dtype)
    return poisoned(result, tf.broadcast_to(~tf.reduce_all(good), tf.shape(result)))


def _gather(function, params, indices, axis, **options):
    params, indices = tf.convert_to_tensor(params), tf.convert_to_tensor(indices)
    if tf.get_static_value(indices) is not None:
        return function(params, indices, axis, **options)
    axis = tf.cast(axis, tf.int32)
    size = tf.shape(params, indices.dtype)[tf.math.floormod(axis, tf.rank(params))]
    good = (indices >= 0) & (indices < size)
    return _unless(good, function(params, _safe(indices, good), axis, **options))


def _gather_along_unknown_axis(function, params, indices, axis, **options):
    check = _gather if tf.get_static_value(axis) is None else _unchecked
    return check(function, params, indices, axis, **options)


def _unchecked(function, *args, **kwargs):
    return function(*args, **kwargs)


def _within(indices, shape):
    return (indices >= 0) & (indices < tf.cast(shape, indices.dtype)[: indices.shape[-1]])


def _gather_nd(function, params, indices, **options):
    params, indices = tf.convert_to_tensor(params), tf.convert_to_tensor(indices)
    good = _within(indices, tf.shape(params))
    return _unless(good, function(params, _safe(indices, good), **options))


def _update(function, tensor, indices, updates, **options):
    tensor, indices = tf.convert_to_tensor(tensor), tf.convert_to_tensor(indices)
    good = _within(indices, tf.shape(tensor))
    return _unless(good, function(tensor, _safe(indices, good), updates, **options))


def _scatter(function, indices, updates, shape, **options):
    indices = tf.convert_to_tensor(indices)
    good = _within(indices, shape)
    return _unless(good, function(_safe(indices, good), updates, shape, **options))


def _crossentropy(function, features, labels, **options):
    features, labels = tf.convert_to_tensor(features), tf.convert_to_tensor(labels)
    good = (labels >= 0) & (labels < tf.shape(features, labels.dtype)[-1])
    found = function(features, _safe(labels, good), **options)
    return found._replace(loss=_unless(good, found.loss))


def _bincount(function, input, size, weights, **options):
    numbers = tf.convert_to_tensor(input)
    good = numbers >= 0  # numbers from `size` on are left out
    return _unless(good, function(_safe(numbers, good), size, weights, **options))


def _reduction(function, data, segment_ids, num_segments, **options):
    """Leaves segments out that do not exist, as TensorFlow does on a GPU and with negative ones."""
    segments = tf.convert_to_tensor(segment_ids)
    exist = segments < tf.cast(num_segments, segments.dtype)
    segments = tf.where(exist, segments, -tf.ones([], segments.dtype))
    return function(data, segments, num_segments, **options)


def _slice(function, input, begin, end, strides, **options):
    """Checks `x[:, index]`, where an index that is not a number takes a single entry of an axis."""
    begin, input = tf.convert_to_tensor(begin), tf.convert_to_tensor(input)
    single = _single_entries(begin.shape[0], input.shape.rank, options)
    if not single or tf.get_static_value(begin) is not None:
        return function(input, begin, end, strides, **options)
    sizes = tf.shape(input, begin.dtype)
    good = []
    for position in range(begin.shape[0]):
        axis, index = single.get(position), begin[position]
        good.append(tf.constant(True))
        if axis is not None:
            good[-1] = (index >= -sizes[axis]) & (index < sizes[axis])
    good = tf.stack(good)
    # Where a single entry is taken, the operation does not read `end`.
    return _unless(good, function(input, _safe(begin, good), end, strides, **options))


def _single_entries(count, rank, masks) -> dict:
    """Returns {position among the indices: axis} for the indices that take a single entry."""

    def has(name, position):
        return bool((masks.get(name) or 0) >> position & 1)

    found, axis = {}, 0
    new = [has("new_axis_mask", k) for k in range(count)]
    dots = [has("ellipsis_mask", k) for k in range(count)]
    for position in range(count):
        if dots[position]:
            if rank is None:
                return {}
            axis += rank - sum(not (n or d) for n, d in zip(new, dots, strict=True))
        elif not new[position]:
            if has("shrink_axis_mask", position):
                found[position] = axis
            axis += 1
    return found


_CHECKS = MappingProxyType(
    {
        "gather_v2": _gather,
        "gather_nd": _gather_nd,
        "tensor_scatter_update": _update,
        "scatter_nd": _scatter,
        "strided_slice": _slice,
        "sparse_softmax_cross_entropy_with_logits": _crossentropy,
        "dense_bincount": _bincount,
        "unsorted_segment_max": _reduction,
        "unsorted_segment_min": _reduction,
        "unsorted_segment_prod": _reduction,
        "unsorted_segment_sum": _reduction,
    }
)
_WITHOUT_RULE = MappingProxyType(
    {
        "gather_v2": _gather_along_unknown_axis,
        "tensor_scatter_update": _update,
        "scatter_nd": _scatter,
        "strided_slice": _slice,
        "dense_bincount": _bincount,
    }
)


@functools.cache
def _wrap() -> None:
    """Wraps the functions of TensorFlow that make these operations, once per process.

    TensorFlow itself calls those in modules of its own; some are public functions as well.
    """
    with borrowing("the functions that make operations with indices"):
        from tensorflow.python.ops import gen_array_ops, gen_math_ops, gen_nn_ops

        owners = (gen_array_ops, gen_math_ops, gen_nn_ops, tf, tf.math)
        for name in _CHECKS:
            functions = [(owner, vars(owner).get(name)) for owner in owners[:3]]
            ((_, function),) = [(o, f) for o, f in functions if f is not None]
            wrapped = _checking(name, function)
            for owner in owners:
                if getattr(owner, name, None) is function:
                    setattr(owner, name, wrapped)


def _checking(name, function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        check = _CHECKED.get().get(name)
        if check is None or tf.executing_eagerly():
            return function(*args, **kwargs)
        # The checks themselves slice and gather.
        token = _CHECKED.set(MappingProxyType({}))
        try:
            return check(function, *args, **kwargs)
        finally:
            _CHECKED.reset(token)

    return call
