"""Per-example gradients of one variable, kept as factors for as long as that is cheaper.

The classes have all that the ghost engine needs of a gradient: squared norms of the rows, a weighted
sum of the rows, the tensors whose rows can be removed, and sums of consecutive rows. The engine says
*what* the gradient is (usually a sum of outer products over positions); these classes choose *how* it
is cheapest to compute.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat import float32_products
from tfdp.gradients.norms import (
    VANISHING,
    exceeding,
    gram,
    instantiates,
    row_squares,
    strict,
)


class PerExampleGradient(abc.ABC):
    """Gradients of one variable in float32, one per row, not necessarily written out."""

    @abc.abstractmethod
    def square_norms(self) -> tf.Tensor:
        """Returns float32 [rows]: squared L2 norms.

        They are not finite where a gradient is not, and where the square of its norm, or of the norms
        of its factors, is no number in float32 (from about 1e19). They understate no norm by more than
        the rounding of a sum of squares, or than what vanishes below 1e-19.
        """

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum over rows of `weights[row] * gradient[row]`, of the variable's shape."""

    @abc.abstractmethod
    def factors(self) -> list[tf.Tensor]:
        """Returns the tensors of which the gradients are made, or were computed already."""

    @abc.abstractmethod
    def kept_factors(self, keep: tf.Tensor) -> list[tf.Tensor]:
        """Returns `factors` with zeros for rows where `keep` (bool [rows]) is False.

        Multiplication by a weight of zero would not be enough: 0 * NaN is NaN.
        """

    @abc.abstractmethod
    def with_factors(self, factors: list[tf.Tensor]) -> "PerExampleGradient":
        """Returns the gradients that are made of other tensors, in the order of `factors`."""

    @abc.abstractmethod
    def grouped(self, size: int) -> "PerExampleGradient":
        """Returns sums over `size` consecutive rows; the number of rows is a multiple of `size`.

        Args:
            size: a number, or an int32 scalar.
        """

    @abc.abstractmethod
    def instantiated(self) -> "Instantiated":
        """Returns the same gradients written out, whatever that costs."""


class Instantiated(PerExampleGradient):
    """Gradients that are written out.

    Args:
        values: [rows, ...], any float dtype: the entries of the gradients in any order.
        finish: maps one sum [...] of rows to the variable's shape; identity if None.
    """

    def __init__(self, values: tf.Tensor, finish: Callable | None = None):
        self.values = tf.cast(values, tf.float32)
        self.finish = finish or identity

    def square_norms(self):
        return row_squares(self.flat())

    def weighted_sum(self, weights):
        total = float32_products.weighted_sum(weights, self.flat())
        return self.finish(tf.reshape(total, self.values.shape[1:]))

    def flat(self) -> tf.Tensor:
        """Returns the entries as float32 [rows, entries]."""
        if self.values.shape.rank == 2:
            return self.values
        entries = self.values.shape[1:].num_elements()
        return tf.reshape(self.values, [-1 if entries else tf.shape(self.values)[0], entries])

    def factors(self):
        return [self.values]

    def kept_factors(self, keep):
        return [zero_rows(self.values, keep)]

    def with_factors(self, factors):
        return Instantiated(*factors, self.finish)

    def grouped(self, size):
        merged = tf.reshape(self.values, [-1, size, *self.values.shape[1:]])
        return Instantiated(tf.reduce_sum(merged, axis=1), self.finish)

    def instantiated(self):
        return self


class OuterProducts(PerExampleGradient):
    """Gradients that are a sum over positions t of outer products `left[t] ⊗ right[t]`.

    Where there is one position, norm and sum need only the factors (Goodfellow 2015). Otherwise
    either the two Gram matrices over positions give the norm (Li et al. 2022, "ghost clipping"), or
    the gradient is instantiated once and serves norm and sum (Bu et al. 2023, "book-keeping"),
    whichever takes fewer operations and bytes.

    Args:
        left: [rows, positions, p], for instance a layer's inputs; [rows, p] for one position.
        right: [rows, positions, q], for instance the gradients at its outputs; [rows, q] for one
            position.
        finish: maps one sum [p, q] of rows to the variable's shape; identity if None.
    """

    def __init__(self, left: tf.Tensor, right: tf.Tensor, finish: Callable | None = None):
        left, right = tf.cast(left, tf.float32), tf.cast(right, tf.float32)
        self._flat = (left, right) if left.shape.rank == 2 else None
        self.left = left if self._flat is None else tf.expand_dims(left, 1)
        self.right = right if self._flat is None else tf.expand_dims(right, 1)
        self.finish = finish or identity
        self._products: Instantiated | None = None

    def instantiated(self):
        if self._products is None:
            # The product is twice as fast with the shorter factor first (measured).
            if self.left.shape[2] <= self.right.shape[2]:
                products = tf.matmul(self.left, self.right, transpose_a=True)
                self._products = Instantiated(products, self.finish)
            else:
                products = tf.matmul(self.right, self.left, transpose_a=True)
                self._products = Instantiated(
                    products, lambda total: self.finish(tf.transpose(total))
                )
        return self._products

    def square_norms(self):
        rows, positions, p = self.left.shape
        if instantiates(rows, positions, p, self.right.shape[2]):
            return self.instantiated().square_norms()
        # Products of squares overflow or vanish long before the products themselves. A factor that
        # overflows makes its row infinite; VANISHING makes up for squares that vanish.
        if self._flat is not None:
            left, right = map(row_squares, self._flat)
            return exceeding((left + VANISHING) * (right + VANISHING))
        left_squares = tf.reduce_sum(tf.square(self.left), axis=2) + VANISHING
        right_squares = tf.reduce_sum(tf.square(self.right), axis=2) + VANISHING
        if positions == 1:
            return exceeding(left_squares[:, 0] * right_squares[:, 0])
        square = tf.reduce_sum(gram(self.left) * gram(self.right), axis=[1, 2])
        largest = tf.square(tf.reduce_sum(tf.sqrt(left_squares * right_squares), axis=1))
        return strict(square, largest, p + self.right.shape[2], positions)

    def weighted_sum(self, weights):
        if self._products is not None:
            return self._products.weighted_sum(weights)
        if self._flat is not None:
            left, right = self._flat
            return self.finish(_transposed_product(left, right * tf.expand_dims(weights, 1)))
        left = tf.reshape(self.left, [-1, self.left.shape[2]])
        right = self.right * weights[:, tf.newaxis, tf.newaxis]
        right = tf.reshape(right, [-1, self.right.shape[2]])
        return self.finish(_transposed_product(left, right))

    def factors(self):
        if self._products is not None:
            return self._products.factors()
        return list(self._flat or (self.left, self.right))

    def kept_factors(self, keep):
        return [zero_rows(factor, keep) for factor in self.factors()]

    def with_factors(self, factors):
        if self._products is not None:
            return self._products.with_factors(factors)
        return OuterProducts(*factors, self.finish)

    def grouped(self, size):
        def merge(factor):
            positions = factor.shape[1]
            known = isinstance(size, int) and positions is not None
            merged = size * positions if known else None
            shape = tf.stack([-1, size * tf.shape(factor)[1], factor.shape[2]])
            return tf.ensure_shape(tf.reshape(factor, shape), [None, merged, factor.shape[2]])

        return OuterProducts(merge(self.left), merge(self.right), self.finish)


class Lookups(PerExampleGradient):
    """Gradients of a table whose rows were looked up: sums of vectors at the looked-up rows.

    Vectors of one row of data that belong to the same row of the table are added once, and norm and
    weighted sum are computed from the results. Huge vectors that cancel would otherwise have a norm
    near zero, and be added one by one to what the other rows of data have there.

    Args:
        indices: integers [rows, positions]. A row with an index outside [0, size) counts as not finite.
        vectors: [rows, positions, width]: the gradients at the looked-up vectors.
        size: number of rows of the table.
    """

    def __init__(self, indices: tf.Tensor, vectors: tf.Tensor, size: int):
        self.indices = tf.cast(indices, tf.int32)
        self.vectors = tf.cast(vectors, tf.float32)
        self.size = size
        self._sums: _SumsOfLookups | None = None

    def _added(self):
        if self._sums is None:
            self._sums = _SumsOfLookups.of(self.indices, self.vectors)
        return self._sums

    def square_norms(self):
        return tf.where(self._all_exist(), self._added().square_norms(), float("nan"))

    def _all_exist(self):
        """Returns bool [rows]: whether all indices of a row are rows of the table."""
        return tf.reduce_all((self.indices >= 0) & (self.indices < self.size), axis=1)

    def weighted_sum(self, weights):
        return self._added().weighted_sum(weights, self.size)

    def factors(self):
        return [self.indices, self.vectors, self._added().sums]

    def kept_factors(self, keep):
        sums = zero_rows(self._added().sums, tf.gather(keep, self._added().rows))
        return [zero_rows(self.indices, keep), zero_rows(self.vectors, keep), sums]

    def with_factors(self, factors):
        indices, vectors, sums = factors
        found = Lookups(indices, vectors, self.size)
        found._sums = dataclasses.replace(self._added(), sums=sums)
        return found

    def grouped(self, size):
        positions = tf.shape(self.indices)[1]
        return Lookups(
            tf.reshape(self.indices, [-1, size * positions]),
            tf.reshape(self.vectors, [-1, size * positions, self.vectors.shape[2]]),
            self.size,
        )

    def instantiated(self):
        rows = tf.shape(self.indices)[0]
        exist = self._all_exist()
        indices = self.indices + self.size * tf.range(rows)[:, tf.newaxis]
        indices = tf.where(exist[:, tf.newaxis], indices, -1)  # negative ones are left out
        width = self.vectors.shape[2]
        table = tf.math.unsorted_segment_sum(
            tf.reshape(self.vectors, [-1, width]), tf.reshape(indices, [-1]), rows * self.size
        )
        table = tf.reshape(table, [-1, self.size, width])
        return Instantiated(tf.where(exist[:, tf.newaxis, tf.newaxis], table, float("nan")))


@dataclasses.dataclass(frozen=True)
class _SumsOfLookups:
    """The sums of the vectors with the same index in the same row; there are n = rows * positions.

    Attributes:
        sums: float32 [n, width]; as many as there are different pairs (row, index), then zeros.
        rows: int32 [n]: the row of data of each sum; 0 for those at the end.
        indices: int32 [n]: the index of each sum; negative for those at the end.
        first: bool [rows, positions]: where the first vector of each sum is, after sorting.
        segments: int32 [n]: for each vector, after sorting, the number of its sum.
    """

    sums: tf.Tensor
    rows: tf.Tensor
    indices: tf.Tensor
    first: tf.Tensor
    segments: tf.Tensor

    @classmethod
    def of(cls, indices, vectors):
        # After sorting, equal indices are neighbours, so that each series of them gets a segment.
        order = tf.argsort(indices, axis=1)
        indices = tf.gather(indices, order, batch_dims=1)
        vectors = tf.gather(vectors, order, batch_dims=1)
        first = tf.not_equal(indices, tf.roll(indices, 1, axis=1))
        first = tf.concat([tf.ones_like(first[:, :1]), first[:, 1:]], axis=1)
        segments = tf.cumsum(tf.cast(tf.reshape(first, [-1]), tf.int32)) - 1
        n = tf.size(indices)
        rows = tf.broadcast_to(tf.range(tf.shape(indices)[0])[:, tf.newaxis], tf.shape(indices))
        rows = tf.math.unsorted_segment_max(tf.reshape(rows, [-1]), segments, n)
        return cls(
            tf.math.unsorted_segment_sum(tf.reshape(vectors, [-1, vectors.shape[2]]), segments, n),
            tf.maximum(rows, 0),
            tf.math.unsorted_segment_max(tf.reshape(indices, [-1]), segments, n),
            first,
            segments,
        )

    def square_norms(self):
        # Each segment lies inside one row; its square is added at the place of its first element.
        squares = tf.gather(tf.reduce_sum(tf.square(self.sums), axis=1), self.segments)
        squares = tf.where(self.first, tf.reshape(squares, tf.shape(self.first)), 0.0)
        return tf.reduce_sum(squares, axis=1)

    def weighted_sum(self, weights, size):
        weighted = self.sums * tf.gather(weights, self.rows)[:, tf.newaxis]
        indices = tf.where(self.indices < size, self.indices, -1)  # negative ones are left out
        return tf.math.unsorted_segment_sum(weighted, indices, size)


def _transposed_product(left, right):
    return float32_products.product(functools.partial(tf.matmul, transpose_a=True), left, right)


@dataclasses.dataclass(frozen=True)
class Arranged:
    """Puts the entries of a sum of rows in the order of a variable: a `finish` that compares by value.

    Attributes:
        shape: shape to which the sum is reshaped.
        order: axes of `shape` in the variable's order; None if it is that order.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...] | None = None

    def __call__(self, total: tf.Tensor) -> tf.Tensor:
        total = tf.reshape(total, self.shape)
        return total if self.order is None else tf.transpose(total, self.order)


def identity(total):
    """Returns its argument: the `finish` of gradients that are in the variable's shape already."""
    return total


def keeps_order(finish) -> bool:
    """Whether a `finish` leaves the entries of a matrix in their order."""
    return finish is identity or (isinstance(finish, Arranged) and finish.order is None)


def in_layout_of_variable(part):
    """Returns float32 [rows, *shape of the variable]."""
    part = part.instantiated()
    if part.finish is identity:
        return part.values
    return tf.vectorized_map(part.finish, part.values, fallback_to_while_loop=False)


def zero_rows(values: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """Returns `values` [rows, ...] with zeros in rows where `keep` (bool [rows]) is False."""
    keep = tf.reshape(keep, [-1] + [1] * (values.shape.rank - 1))
    return tf.where(keep, values, tf.zeros([], values.dtype))
