"""What a weight may go through before it meets the data: linear operations of weights alone.

A pullback maps the per-example gradients of what such an operation returned to those of the weight it
was given. Outer products and look-ups stay factors: a product with another weight (LoRA) multiplies
one of their factors, so that no gradient of the product's size is written out.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdp._compat.replaying import outside
from tfdp.gradients.factors import (
    Arranged,
    Instantiated,
    Lookups,
    OuterProducts,
    PerExampleGradient,
    identity,
    in_layout_of_variable,
    keeps_order,
)
from tfdp.gradients.meetings import PRODUCTS

Pullback = Callable[[PerExampleGradient], PerExampleGradient]


def pullbacks_of(operation: tf.Operation, place: int) -> list[Pullback] | None:
    """Returns the pullbacks of an operation of weights alone, one for each of its outputs.

    The result is None where the operation is not known to be linear.

    Args:
        operation: an operation none of whose inputs depends on the row.
        place: which of its inputs is, or is made of, the weight.
    """
    kind, tensor, output = operation.type, operation.inputs[place], operation.outputs[0]
    if not (tensor.shape.is_fully_defined() and output.dtype.is_floating):
        return None
    if kind in PARTS and place == PARTS[kind]:
        return _parts(operation, tuple(tensor.shape))
    pullback = _pullback(operation, place)
    return None if pullback is None else [pullback]


# Operations that take parts of a tensor, and which of their inputs that tensor is.
PARTS = {"StridedSlice": 0, "Slice": 0, "Split": 1, "Unpack": 0}


def _parts(operation, shape):
    """The pullbacks of an operation that takes parts of a weight."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    pullbacks = []
    for taken in _taken(operation, numbers):
        places = np.stack(np.unravel_index(taken.reshape(-1), shape), axis=1)
        begin, end = places.min(axis=0), places.max(axis=0) + 1
        box = numbers[tuple(slice(a, b) for a, b in zip(begin, end, strict=True))]
        if box.size != taken.size or (box.reshape(-1) != taken.reshape(-1)).any():
            return None
        margins = [*zip(begin.tolist(), (np.array(shape) - end).tolist(), strict=True)]
        pullbacks.append(_Placed(tuple(box.shape), tuple(margins)))
    return pullbacks or None


def _taken(operation, numbers):
    """What an operation takes of an array; nothing where that is not known."""
    kind = operation.type
    if kind == "Unpack":
        axis = operation.get_attr("axis")
        return [numbers.take(k, axis) for k in range(len(operation.outputs))]
    if kind == "Split":
        axis = tf.get_static_value(operation.inputs[0])
        return [] if axis is None else np.split(numbers, len(operation.outputs), int(axis))
    places = [tf.get_static_value(one) for one in operation.inputs[1:]]
    if any(place is None for place in places):
        return []
    return [_sliced(operation, numbers, *places)]


def _sliced(operation, numbers, begin, end, strides=None):
    if strides is None:  # Slice has lengths instead of ends; -1 is all that is left
        ends = [None if n < 0 else b + n for b, n in zip(begin, end, strict=True)]
        return numbers[tuple(slice(b, e) for b, e in zip(begin, ends, strict=True))]

    def marked(name, place):
        return bool(operation.get_attr(f"{name}_mask") >> place & 1)

    index = []
    for place, (b, e, stride) in enumerate(zip(begin, end, strides, strict=True)):
        if marked("ellipsis", place):
            index.append(Ellipsis)
        elif marked("new_axis", place):
            index.append(None)
        elif marked("shrink_axis", place):
            index.append(int(b))
        else:
            first = None if marked("begin", place) else int(b)
            index.append(slice(first, None if marked("end", place) else int(e), int(stride)))
    return numbers[tuple(index)]


def _pullback(operation, place):
    kind, tensor, output = operation.type, operation.inputs[place], operation.outputs[0]
    if kind in ("Identity", "Cast"):
        return identity
    if kind in ("Reshape", "ExpandDims", "Squeeze"):
        return _Rearranged(Arranged(tuple(tensor.shape)))
    if kind == "Transpose":
        order = tf.get_static_value(operation.inputs[1])
        if order is None:
            return None
        back = tuple(sorted(range(len(order)), key=lambda axis: order[axis]))
        return _Rearranged(Arranged(tuple(output.shape), back))
    if kind == "Neg":
        return _Scaled(-1.0)
    if kind == "ConcatV2":
        axis = tf.get_static_value(operation.inputs[-1])
        return None if axis is None else _joined(operation.inputs[:-1], place, int(axis))
    if output.shape != tensor.shape and kind not in PRODUCTS:
        return None  # the weight is broadcast
    if kind in ("AddV2", "Sub"):
        return _Scaled(-1.0) if kind == "Sub" and place == 1 else identity
    other = operation.inputs[1 - place] if len(operation.inputs) == 2 else None
    if kind == "Mul" and other.shape.num_elements() == 1:
        return _Scaled(other)
    if kind not in PRODUCTS or any(operation.get_attr(name) for name in PRODUCTS[kind]):
        return None
    return _Times(other, place == 0) if tensor.shape.rank == other.shape.rank == 2 else None


@dataclasses.dataclass(frozen=True)
class _Rearranged:
    """The weight's entries were put in another order, which `finish` undoes."""

    finish: Arranged

    def __call__(self, gradient):
        if isinstance(gradient, OuterProducts):
            # A matrix that was transposed: the two factors change places.
            if gradient.finish is identity and self.finish.order == (1, 0):
                return OuterProducts(gradient.right, gradient.left)
            return OuterProducts(gradient.left, gradient.right, self._after(gradient.finish))
        gradient = gradient.instantiated()
        return Instantiated(gradient.values, self._after(gradient.finish))

    def _after(self, finish):
        if keeps_order(finish) and self.finish.order is None:
            return self.finish
        return _Then(finish, self.finish)


@dataclasses.dataclass(frozen=True)
class _Then:
    """One `finish` after another; compares by value, as `sums.added` needs it."""

    first: Callable
    second: Callable

    def __call__(self, total):
        return self.second(self.first(total))


@dataclasses.dataclass(frozen=True)
class _Placed:
    """A part of the weight was taken: outside of it, the gradient is zero.

    Attributes:
        shape: the lengths of the part, with as many axes as the weight.
        margins: for each axis of the weight, how much of it lies before and behind the part.
    """

    shape: tuple
    margins: tuple

    def __call__(self, gradient):
        if len(self.shape) == 2 and getattr(gradient, "finish", identity) is identity:
            rows, columns = self.margins
            if isinstance(gradient, OuterProducts):
                return OuterProducts(_wider(gradient.left, rows), _wider(gradient.right, columns))
            if isinstance(gradient, Lookups) and not any(rows):
                vectors = _wider(gradient.vectors, columns)
                return Lookups(gradient.indices, vectors, gradient.size)
        values = tf.reshape(in_layout_of_variable(gradient), [-1, *self.shape])
        return Instantiated(tf.pad(values, [(0, 0), *self.margins]))


def _joined(parts, place, axis):
    """The pullback of a weight that was joined to others, as part number `place`."""
    shapes = [part.shape for part in parts]
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    axis %= len(shapes[0])
    begin = sum(shape[axis] for shape in shapes[:place])
    whole = list(shapes[place])
    whole[axis] = sum(shape[axis] for shape in shapes)
    return _Taken(tuple(whole), axis, begin, begin + shapes[place][axis])


@dataclasses.dataclass(frozen=True)
class _Taken:
    """The weight became a part of a larger tensor, along one axis: the others get none of its gradient.

    Attributes:
        shape: the shape of the larger tensor.
        axis, begin, end: where the weight is in it.
    """

    shape: tuple
    axis: int
    begin: int
    end: int

    def __call__(self, gradient):
        own = slice(self.begin, self.end)
        finish = getattr(gradient, "finish", identity)
        if isinstance(gradient, OuterProducts) and len(self.shape) == 2 and finish is identity:
            factors = [gradient.left, gradient.right]
            factors[self.axis] = factors[self.axis][..., own]
            return OuterProducts(*factors)
        if isinstance(gradient, Lookups) and self.axis == 1:
            return Lookups(gradient.indices, gradient.vectors[..., own], gradient.size)
        values = tf.reshape(in_layout_of_variable(gradient), [-1, *self.shape])
        return Instantiated(values[(slice(None),) * (1 + self.axis) + (own,)])


def _wider(values, margin):
    """Puts zeros before and behind the last axis."""
    if not any(margin):
        return values
    return tf.pad(values, [(0, 0)] * (values.shape.rank - 1) + [margin])


@dataclasses.dataclass(frozen=True, eq=False)
class _Scaled:
    """The weight was multiplied by one number."""

    by: tf.Tensor | float

    def __call__(self, gradient):
        by = self.by
        if tf.is_tensor(by):  # under XLA, rows pass in a graph of their own
            by = tf.reshape(tf.cast(outside(by), tf.float32), [])
        if isinstance(gradient, OuterProducts):
            return OuterProducts(gradient.left, gradient.right * by, gradient.finish)
        if isinstance(gradient, Lookups):
            return Lookups(gradient.indices, gradient.vectors * by, gradient.size)
        return Instantiated(gradient.values * by, gradient.finish)


@dataclasses.dataclass(frozen=True, eq=False)
class _Times:
    """The weight was multiplied by a matrix: `weight @ other` if `left`, else `other @ weight`."""

    other: tf.Tensor
    left: bool

    def __call__(self, gradient):
        other = tf.cast(outside(self.other), tf.float32)
        if isinstance(gradient, OuterProducts) and keeps_order(gradient.finish):
            found = self._of_products(gradient, other)
            if found is not None:
                return found
        if isinstance(gradient, Lookups):
            if self.left:
                vectors = _product(gradient.vectors, other, True)
                return Lookups(gradient.indices, vectors, gradient.size)
            return _of_looked_up(gradient, other)
        values = in_layout_of_variable(gradient)
        if self.left:
            return Instantiated(_product(values, other, True))
        return Instantiated(tf.einsum("pr,npq->nrq", other, values))

    def _of_products(self, gradient, other):
        """The factors for outer products [p] with [k, n] of a result with n columns, else None.

        In attention with adapters, k is the number of heads.
        """
        left, right = gradient.left, gradient.right
        p, q = left.shape[2], right.shape[2]
        n = other.shape[1] if self.left else p * q // other.shape[0]
        if q % n:
            return None
        k, rank = q // n, other.shape[0 if self.left else 1]
        if self.left:
            right = _rows_of(_product(_rows_of(right, n), other, True), k * rank)
            return OuterProducts(left, right, Arranged((p * k, rank)))
        left = _product(left, tf.reshape(other, [p, k * rank]))
        return OuterProducts(_rows_of(left, rank), _rows_of(right, n))


def _of_looked_up(lookups, other):
    """The gradients of a matrix by which a table, `other`, was multiplied before rows were looked up.

    An index that does not exist makes its row not finite, as in `Lookups`.
    """
    exists = (lookups.indices >= 0) & (lookups.indices < lookups.size)
    taken = tf.gather(other, tf.where(exists, lookups.indices, 0))
    return OuterProducts(tf.where(exists[..., tf.newaxis], taken, float("nan")), lookups.vectors)


def _rows_of(values, width):
    """Cuts, or joins, the last axis of [rows, positions, n] to [rows, positions', width]."""
    positions = values.shape[1]
    if positions is not None:
        positions = positions * values.shape[2] // width
    found = tf.reshape(values, tf.stack([tf.shape(values)[0], positions or -1, width]))
    return tf.ensure_shape(found, [values.shape[0], positions, width])


def _product(values, matrix, transposed=False):
    """[rows, positions, p] times a matrix [p, q], or its transpose, as one product of matrices."""
    shape = tf.shape(values)
    width = matrix.shape[0 if transposed else 1]
    product = tf.matmul(tf.reshape(values, [-1, shape[-1]]), matrix, transpose_b=transposed)
    product = tf.reshape(product, tf.concat([shape[:-1], [width]], axis=0))
    return tf.ensure_shape(product, [*values.shape[:-1], width])
