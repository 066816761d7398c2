"""Gradients through linear operations on weights, before a weight is combined with data.

A pullback maps the per-example gradients of the result of such an operation to those of the weight.
Outer products and look-ups stay factors: a product with another weight (LoRA) multiplies one of their
factors, so that no gradient of the product's size is written out.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdp._compat.graphs import outside
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
from tfdp.gradients.weight_ops import PRODUCTS

Pullback = Callable[[PerExampleGradient], PerExampleGradient]


def pullbacks_of(operation: tf.Operation, place: int) -> list[Pullback] | None:
    """Returns the pullbacks of an operation of weights alone, one for each of its outputs.

    The result is None if the operation is not known to be linear.

    Args:
        operation: An operation with no input that depends on the row.
        place: The index of the input that is, or is computed from, the weight.
    """
    tensor, output = operation.inputs[place], operation.outputs[0]
    if not (tensor.shape.is_fully_defined() and output.dtype.is_floating):
        return None
    if _PARTS.get(operation.type) == place:
        return _parts(operation, place)
    pullback = _pullback(operation, place)
    return None if pullback is None else [pullback]


# Operations that take parts of a tensor, with the index of that tensor among their inputs.
_PARTS = {"StridedSlice": 0, "Slice": 0, "Split": 1, "Unpack": 0}


def _parts(operation, place):
    """Returns the pullbacks of an operation that takes parts of a weight."""
    shape = tuple(operation.inputs[place].shape)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    pullbacks = []
    for taken in _taken(operation, place, numbers):
        if not taken.size:
            return None
        places = np.stack(np.unravel_index(taken.reshape(-1), shape), axis=1)
        begin, end = places.min(axis=0), places.max(axis=0) + 1
        box = numbers[tuple(slice(a, b) for a, b in zip(begin, end, strict=True))]
        if box.size != taken.size or (box.reshape(-1) != taken.reshape(-1)).any():
            return None
        margins = [*zip(begin.tolist(), (np.array(shape) - end).tolist(), strict=True)]
        pullbacks.append(_Resized(tuple(box.shape), tuple(margins)))
    return pullbacks or None


def _taken(operation, place, numbers):
    """Runs an operation on an array and returns its parts, none if an argument is unknown."""
    definition, run = operation.op_def, getattr(tf.raw_ops, operation.type)
    # In Python, `split_dim` is called `axis`.
    names = [argument.name.replace("split_dim", "axis") for argument in definition.input_arg]
    inputs = dict(zip(names, map(tf.get_static_value, operation.inputs), strict=True))
    inputs[names[place]] = numbers
    if any(value is None for value in inputs.values()):
        return []
    settings = [attribute.name for attribute in definition.attr if attribute.type == "int"]
    with tf.init_scope():
        taken = run(**inputs, **{name: operation.get_attr(name) for name in settings})
    return [part.numpy() for part in tf.nest.flatten(taken)]


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
    """Pullback for an operation that puts the weight's entries in another order."""

    finish: Arranged

    def __call__(self, gradient):
        if isinstance(gradient, OuterProducts):
            # A transposed matrix: the two factors are exchanged.
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
    """One `finish` after another. It compares by value, as `sums.add_gradients` requires."""

    first: Callable
    second: Callable

    def __call__(self, total):
        return self.second(self.first(total))


@dataclasses.dataclass(frozen=True)
class _Resized:
    """Pullback for an operation that takes a part of the weight, or makes it a part of a larger tensor.

    Attributes:
        shape: The shape of the result, with as many axes as the weight.
        margins: Numbers of zeros to add to the gradient before and after each axis. A negative number
            drops entries.
    """

    shape: tuple
    margins: tuple

    def __call__(self, gradient):
        if len(self.shape) == 2 and getattr(gradient, "finish", identity) is identity:
            rows, columns = self.margins
            if isinstance(gradient, OuterProducts):
                left, right = _resized(gradient.left, rows), _resized(gradient.right, columns)
                return OuterProducts(left, right)
            if isinstance(gradient, Lookups) and not any(rows):
                vectors = _resized(gradient.vectors, columns)
                return dataclasses.replace(gradient, vectors=vectors)
        values = tf.reshape(in_layout_of_variable(gradient), [-1, *self.shape])
        return Instantiated(_resized(values, *self.margins))


def _joined(parts, place, axis):
    """Returns the pullback for a weight that is concatenated with others, as part number `place`."""
    shapes = [part.shape for part in parts]
    if not all(shape.is_fully_defined() for shape in shapes):
        return None
    whole = list(shapes[place])
    lengths = [shape[axis] for shape in shapes]
    margins = [(0, 0)] * len(whole)
    whole[axis] = sum(lengths)
    margins[axis] = (-sum(lengths[:place]), -sum(lengths[place + 1 :]))
    return _Resized(tuple(whole), tuple(margins))


def _resized(values, *margins):
    """Pads the last axes with zeros, or crops them where margins are negative."""
    if any(before < 0 or behind < 0 for before, behind in margins):
        own = (slice(-before, behind or None) for before, behind in margins)
        return values[(..., *own)]
    if not any(map(any, margins)):
        return values
    return tf.pad(values, [(0, 0)] * (values.shape.rank - len(margins)) + [*margins])


@dataclasses.dataclass(frozen=True, eq=False)
class _Scaled:
    """Pullback for an operation that multiplies the weight by one number."""

    by: tf.Tensor | float

    def __call__(self, gradient):
        by = self.by
        if tf.is_tensor(by):  # under XLA, rows pass in a separate graph
            by = tf.reshape(tf.cast(outside(by), tf.float32), [])
        if isinstance(gradient, OuterProducts):
            return dataclasses.replace(gradient, right=gradient.right * by)
        if isinstance(gradient, Lookups):
            return dataclasses.replace(gradient, vectors=gradient.vectors * by)
        return dataclasses.replace(gradient, values=gradient.values * by)


@dataclasses.dataclass(frozen=True, eq=False)
class _Times:
    """Pullback for `weight @ other` if `left`, else for `other @ weight`."""

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
                return dataclasses.replace(gradient, vectors=vectors)
            return _of_looked_up(gradient, other)
        values = in_layout_of_variable(gradient)
        if self.left:
            return Instantiated(_product(values, other, True))
        return Instantiated(tf.einsum("pr,npq->nrq", other, values))

    def _of_products(self, gradient, other):
        """Returns the factors for outer products [p] with [k, n] of a result with n columns, else None.

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
    """Returns the gradients of a matrix in the product `other @ weight`, whose rows are looked up.

    An index that does not exist makes its row not finite, as in `Lookups`.
    """
    exists = lookups.indices >= 0
    taken = tf.gather(other, tf.where(exists, lookups.indices, 0))
    return OuterProducts(tf.where(exists[..., tf.newaxis], taken, float("nan")), lookups.vectors)


def _rows_of(values, width):
    """Splits, or merges, the last axis of [rows, positions, n] to [rows, positions', width]."""
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
