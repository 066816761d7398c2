"""Per-example gradients of one variable, kept as factors for as long as that is cheaper.

There is a class for each form: `Instantiated` (written out), `OuterProducts` (products and
convolutions) and `Lookups` (embeddings). Each computes what engines need: squared norms of the rows, a
weighted sum of the rows, and sums of consecutive rows.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat import float32_products
from tfdp.gradients.norms import (
    VANISHING,
    gram,
    row_squares,
    should_instantiate,
    with_gpu_rounding,
    with_rounding,
)


def identity(total):
    """Returns its argument: the `finish` of gradients that already have the variable's shape."""
    return total


@dataclasses.dataclass(frozen=True, eq=False)
class PerExampleGradient(abc.ABC):
    """Gradients of one variable in float32, one for each row, not necessarily written out.

    `tf.nest` treats them as structures of their `rows`, the tensors [rows, ...] that they consist of.
    """

    @abc.abstractmethod
    def __tf_flatten__(self) -> tuple[tuple, tuple]:
        """Returns (the other fields, `rows`). The fields of the class begin with `rows`."""

    @classmethod
    def __tf_unflatten__(cls, others, rows):
        return cls(*rows, *others)

    @abc.abstractmethod
    def square_norms(self) -> tf.Tensor:
        """Returns the squared L2 norms, float32 [rows].

        They are not finite where a gradient is not, or where the square of its norm, or of a norm of
        its factors, overflows float32 (from about 1e19). They understate no norm by more than the
        rounding of a sum of squares and the underflow of numbers below 1e-19.
        """

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum over rows of `weights[row] * gradient[row]`, of the variable's shape."""

    @abc.abstractmethod
    def grouped(self, size: int) -> "PerExampleGradient":
        """Returns sums over `size` consecutive rows.

        Args:
            size: An integer or an int32 scalar, which divides the number of rows.
        """

    @abc.abstractmethod
    def instantiated(self) -> "Instantiated":
        """Returns the same gradients written out, whatever that costs."""

    def in_cheapest_form(self) -> "PerExampleGradient":
        """Returns the same gradients in the form in which norms and a sum together are cheapest."""
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class Instantiated(PerExampleGradient):
    """Gradients that are written out.

    Args:
        values: The entries of the gradients in any order, float32 [rows, ...].
        finish: A function that maps a sum [...] of rows to the variable's shape.
    """

    values: tf.Tensor
    finish: Callable = identity

    def __tf_flatten__(self):
        return (self.finish,), (self.values,)

    def square_norms(self):
        return row_squares(self.values)

    def weighted_sum(self, weights):
        total = float32_products.weighted_sum(weights, self.flat())
        return self.finish(tf.reshape(total, self.values.shape[1:]))

    def flat(self) -> tf.Tensor:
        """Returns the entries as float32 [rows, entries]."""
        if self.values.shape.rank == 2:
            return self.values
        entries = self.values.shape[1:].num_elements()
        return tf.reshape(self.values, [-1 if entries else tf.shape(self.values)[0], entries])

    def grouped(self, size):
        merged = tf.reshape(self.values, [-1, size, *self.values.shape[1:]])
        return Instantiated(tf.reduce_sum(merged, axis=1), self.finish)

    def instantiated(self):
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class OuterProducts(PerExampleGradient):
    """Gradients that are a sum over positions t of outer products `left[t] ⊗ right[t]`.

    With one position, norm and sum need only the factors (Goodfellow 2015). Otherwise the two Gram
    matrices over positions give the norm (Li et al. 2022, "ghost clipping"), or the gradient is
    instantiated once and serves norm and sum (Bu et al. 2023, "book-keeping"), whichever takes fewer
    operations and bytes.

    Args:
        left: The left factors, float32 [rows, positions, p], for instance a layer's inputs.
        right: The right factors, float32 [rows, positions, q], for instance the gradients at a layer's
            outputs.
        finish: A function that maps a sum [p, q] of rows to the variable's shape.
    """

    left: tf.Tensor
    right: tf.Tensor
    finish: Callable = identity

    def __tf_flatten__(self):
        return (self.finish,), (self.left, self.right)

    def in_cheapest_form(self):
        writes_out = should_instantiate(*self.left.shape, self.right.shape[2])
        return self.instantiated() if writes_out else self

    def instantiated(self):
        # The product is twice as fast with the shorter factor first (measured).
        if self.left.shape[2] <= self.right.shape[2]:
            products = tf.matmul(self.left, self.right, transpose_a=True)
            return Instantiated(products, self.finish)
        products = tf.matmul(self.right, self.left, transpose_a=True)
        return Instantiated(products, lambda total: self.finish(tf.transpose(total)))

    def square_norms(self):
        _, positions, p = self.left.shape
        # Products of squares overflow or underflow long before the products themselves. A factor that
        # overflows makes its row infinite; VANISHING makes up for squares that underflow.
        if positions == 1:
            left_squares, right_squares = row_squares(self.left), row_squares(self.right)
            return with_gpu_rounding((left_squares + VANISHING) * (right_squares + VANISHING))
        left_squares = tf.reduce_sum(tf.square(self.left), axis=2) + VANISHING
        right_squares = tf.reduce_sum(tf.square(self.right), axis=2) + VANISHING
        square = tf.reduce_sum(gram(self.left) * gram(self.right), axis=[1, 2])
        largest = tf.square(tf.reduce_sum(tf.sqrt(left_squares * right_squares), axis=1))
        return with_rounding(square, largest, p + self.right.shape[2], positions)

    def weighted_sum(self, weights):
        left = tf.reshape(self.left, [-1, self.left.shape[2]])
        right = self.right * weights[:, tf.newaxis, tf.newaxis]
        right = tf.reshape(right, [-1, self.right.shape[2]])
        multiply = functools.partial(tf.matmul, transpose_a=True)
        return self.finish(float32_products.product(multiply, left, right))

    def grouped(self, size):
        def merge(factor):
            positions = factor.shape[1]
            known = isinstance(size, int) and positions is not None
            merged = size * positions if known else None
            shape = tf.stack([-1, size * tf.shape(factor)[1], factor.shape[2]])
            return tf.ensure_shape(tf.reshape(factor, shape), [None, merged, factor.shape[2]])

        return OuterProducts(merge(self.left), merge(self.right), self.finish)


@dataclasses.dataclass(frozen=True, eq=False)
class Lookups(PerExampleGradient):
    """Gradients of a table whose rows were looked up: sums of vectors at the looked-up rows.

    Vectors of one row of data that belong to the same row of the table are added first, and norm and
    weighted sum are computed from the results. Otherwise huge vectors that cancel would have a norm
    near zero, but would be added one by one to the gradients of other rows of data.

    Args:
        indices: Rows of the table, int32 [rows, positions]. -1 stands for a row that the table lacks,
            which makes the row of data count as not finite. Below -1 there is no look-up.
        vectors: The gradients at the looked-up vectors, float32 [rows, positions, width], zero where
            there is no look-up.
        size: Number of rows of the table.
        distinct: Whether no index occurs twice in a row of data.
    """

    indices: tf.Tensor
    vectors: tf.Tensor
    size: int
    distinct: bool = False

    def __tf_flatten__(self):
        return (self.size, self.distinct), (self.indices, self.vectors)

    def in_cheapest_form(self):
        if self.distinct or self.indices.shape[1] == 1:
            return self
        # After sorting, equal indices are neighbours, so that each series of them gets a segment.
        order = tf.argsort(self.indices, axis=1)
        indices = tf.gather(self.indices, order, batch_dims=1)
        vectors = tf.gather(self.vectors, order, batch_dims=1)
        is_new = tf.not_equal(indices, tf.roll(indices, 1, axis=1))
        is_new = tf.concat([tf.zeros_like(is_new[:, :1]), is_new[:, 1:]], axis=1)
        rows, positions = tf.unstack(tf.shape(indices))
        segments = tf.cumsum(tf.cast(is_new, tf.int32), axis=1)
        segments += positions * tf.range(rows)[:, tf.newaxis]
        # An empty segment has the sum zero, and a maximum far below -1.
        sums = tf.math.unsorted_segment_sum(vectors, segments, rows * positions)
        indices = tf.math.unsorted_segment_max(indices, segments, rows * positions)
        indices = tf.reshape(indices, tf.shape(segments))
        return Lookups(indices, tf.reshape(sums, tf.shape(vectors)), self.size, distinct=True)

    def square_norms(self):
        squares = tf.reduce_sum(tf.square(self.in_cheapest_form().vectors), axis=[1, 2])
        return tf.where(self.misses(), float("nan"), squares)

    def misses(self) -> tf.Tensor:
        """Returns whether the table lacks a row that was looked up, bool [rows]."""
        return tf.reduce_any(tf.equal(self.indices, -1), axis=1)

    def weighted_sum(self, weights):
        own = self.in_cheapest_form()
        weighted = own.vectors * weights[:, tf.newaxis, tf.newaxis]
        return tf.math.unsorted_segment_sum(weighted, own.indices, self.size)

    def grouped(self, size):
        positions = size * tf.shape(self.indices)[1]
        vectors = tf.reshape(self.vectors, [-1, positions, self.vectors.shape[2]])
        return Lookups(tf.reshape(self.indices, [-1, positions]), vectors, self.size)

    def instantiated(self):
        rows = tf.shape(self.indices)[0]
        indices = self.indices + self.size * tf.range(rows)[:, tf.newaxis]
        indices = tf.where(self.indices >= 0, indices, -1)
        table = tf.math.unsorted_segment_sum(self.vectors, indices, rows * self.size)
        table = tf.reshape(table, [-1, self.size, self.vectors.shape[2]])
        misses = self.misses()[:, tf.newaxis, tf.newaxis]
        return Instantiated(tf.where(misses, float("nan"), table))


@dataclasses.dataclass(frozen=True)
class Arranged:
    """A `finish`, compared by value, which puts the entries of a sum of rows in the variable's order.

    Attributes:
        shape: Shape to which the sum is reshaped.
        order: Axes of `shape` in the variable's order. None if `shape` has that order.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None

    def __call__(self, total: tf.Tensor) -> tf.Tensor:
        total = tf.reshape(total, self.shape)
        return total if self.order is None else tf.transpose(total, self.order)


def keeps_order(finish) -> bool:
    """Whether a `finish` leaves the entries of a matrix in their order."""
    return finish is identity or (isinstance(finish, Arranged) and finish.order is None)


def in_layout_of_variable(part):
    """Returns the gradients written out, float32 [rows, *shape of the variable]."""
    part = part.instantiated()
    if part.finish is identity:
        return part.values
    return tf.vectorized_map(part.finish, part.values, fallback_to_while_loop=False)


def zero_rows(tensors, keep: tf.Tensor):
    """Returns tensors [rows, ...] with zeros in rows where `keep` (bool [rows]) is False.

    Multiplication by a weight of zero would not be enough: 0 * NaN is NaN.

    Args:
        tensors: A structure of tensors, such as a `PerExampleGradient`.
        keep: Bool [rows].
    """

    def zeroed(values):
        wide = tf.reshape(keep, [-1] + [1] * (values.shape.rank - 1))
        return tf.where(wide, values, tf.zeros([], values.dtype))

    return tf.nest.map_structure(zeroed, tensors)
