"""Per-example gradients of one variable, kept in factors for as long as that is cheaper.

Everything the ghost engine needs of a gradient is here: squared norms of the rows, a weighted sum of
the rows, taking rows out, adding consecutive rows up. A rule says *what* the gradient is (usually a
sum of outer products over positions); these classes know *how* it is cheapest to compute.
"""

import abc
from collections.abc import Callable

import tensorflow as tf

# Assumed where the number of rows is unknown while the graph is built.
_ROWS = 256
# Instantiated gradients above this many float32 numbers are not kept (128 MB).
_MOST_INSTANTIATED = 32 * 2**20
# Squared norms by Gram matrices are differences of large numbers where a gradient nearly cancels
# over its positions. Below this part of the triangle inequality's bound, float32 rounding could
# understate a norm, and an understated norm is a broken bound: it is rounded up to this part.
_CANCELLATION = 1e-4


class PerExampleGradient(abc.ABC):
    """Gradients of one variable, one per row, not necessarily written out. All in float32."""

    @abc.abstractmethod
    def square_norms(self) -> tf.Tensor:
        """Returns float32 [rows]: squared L2 norms; not finite where a gradient is not."""

    @abc.abstractmethod
    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the sum over rows of `weights[row] * gradient[row]`, of the variable's shape."""

    @abc.abstractmethod
    def kept(self, keep: tf.Tensor) -> "PerExampleGradient":
        """Returns the gradients with exact zeros in rows where `keep` (bool [rows]) is False.

        Multiplication with a weight of zero is not enough: 0 * NaN is NaN.
        """

    @abc.abstractmethod
    def grouped(self, size: int) -> "PerExampleGradient":
        """Returns sums over `size` consecutive rows; the number of rows is a multiple of `size`."""


class Instantiated(PerExampleGradient):
    """Gradients written out.

    Args:
        values: [rows, *variable shape], any float dtype.
    """

    def __init__(self, values: tf.Tensor):
        self.values = tf.cast(values, tf.float32)

    def square_norms(self):
        return tf.reduce_sum(tf.square(self.values), axis=[*range(1, self.values.shape.rank)])

    def weighted_sum(self, weights):
        return tf.tensordot(weights, self.values, axes=[[0], [0]])

    def kept(self, keep):
        return Instantiated(zero_rows(self.values, keep))

    def grouped(self, size):
        return Instantiated(
            tf.reduce_sum(tf.reshape(self.values, [-1, size, *self.values.shape[1:]]), axis=1)
        )


class OuterProducts(PerExampleGradient):
    """Gradients that are a sum over positions t of outer products `left[t] ⊗ right[t]`.

    Where there is one position, norm and sum need only the factors (Goodfellow 2015). Otherwise
    either the two Gram matrices over positions give the norm (Li et al. 2022, "ghost clipping"), or
    the gradient is instantiated once and serves norm and sum (Bu et al. 2023, "book-keeping"),
    whichever takes fewer operations and bytes.

    Args:
        left: [rows, positions, p], for instance a layer's inputs.
        right: [rows, positions, q], for instance the gradients at its outputs.
        finish: maps [..., p, q] to [..., *variable shape]; identity if None.
    """

    def __init__(self, left: tf.Tensor, right: tf.Tensor, finish: Callable | None = None):
        self.left = tf.cast(left, tf.float32)
        self.right = tf.cast(right, tf.float32)
        self.finish = finish or (lambda gradient: gradient)
        self._values = None

    @property
    def _positions(self):
        return self.left.shape[1]

    def _instantiates(self) -> bool:
        rows = self.left.shape[0] or _ROWS
        positions, p, q = self._positions, self.left.shape[2], self.right.shape[2]
        if positions is None:  # a sequence of unknown length
            return rows * p * q <= _MOST_INSTANTIATED
        if positions == 1 or rows * p * q > _MOST_INSTANTIATED:
            return False
        # Operations, and numbers moved to and from memory, per row.
        instantiated = positions * p * q + 3 * p * q
        gram = positions * positions * (p + q) + 4 * positions * positions + positions * p * q / 2
        return instantiated <= gram

    def _instantiated(self):
        if self._values is None:
            self._values = tf.matmul(self.left, self.right, transpose_a=True)
        return self._values

    def square_norms(self):
        if self._instantiates():
            return tf.reduce_sum(tf.square(self._instantiated()), axis=[1, 2])
        # Products of squares overflow or vanish long before the products themselves, and a norm
        # that vanished would not be clipped. With the largest entry of each row taken out first,
        # only what is negligible beside it can vanish.
        left, left_scale = _normalized(self.left)
        right, right_scale = _normalized(self.right)
        left_squares = tf.reduce_sum(tf.square(left), axis=2)
        right_squares = tf.reduce_sum(tf.square(right), axis=2)
        if self._positions == 1:
            square = left_squares[:, 0] * right_squares[:, 0]
        else:
            grams = tf.matmul(left, left, transpose_b=True) * tf.matmul(
                right, right, transpose_b=True
            )
            square = tf.reduce_sum(grams, axis=[1, 2])
            largest = tf.reduce_sum(tf.sqrt(left_squares * right_squares), axis=1)
            square = tf.maximum(square, _CANCELLATION * tf.square(largest))
        return square * tf.square(left_scale * right_scale)

    def weighted_sum(self, weights):
        if self._values is not None:
            return self.finish(tf.tensordot(weights, self._values, axes=[[0], [0]]))
        left = tf.reshape(self.left, [-1, self.left.shape[2]])
        right = self.right * weights[:, tf.newaxis, tf.newaxis]
        right = tf.reshape(right, [-1, self.right.shape[2]])
        return self.finish(tf.matmul(left, right, transpose_a=True))

    def kept(self, keep):
        kept = OuterProducts(zero_rows(self.left, keep), zero_rows(self.right, keep), self.finish)
        if self._values is not None:
            kept._values = zero_rows(self._values, keep)
        return kept

    def grouped(self, size):
        def merge(factor):
            positions = factor.shape[1]
            merged = None if positions is None else size * positions
            shape = tf.concat([[-1], [size * tf.shape(factor)[1]], [factor.shape[2]]], axis=0)
            return tf.ensure_shape(tf.reshape(factor, shape), [None, merged, factor.shape[2]])

        return OuterProducts(merge(self.left), merge(self.right), self.finish)


class Lookups(PerExampleGradient):
    """Gradients of a table whose rows were looked up: sums of vectors at positions of the table.

    Args:
        indices: integers [rows, positions], each in [0, size).
        vectors: [rows, positions, width]: the gradients at what was looked up.
        size: number of rows of the table.
    """

    def __init__(self, indices: tf.Tensor, vectors: tf.Tensor, size: int):
        self.indices = tf.cast(indices, tf.int32)
        self.vectors = tf.cast(vectors, tf.float32)
        self.size = size

    def square_norms(self):
        # An index that occurs twice in a row of data adds its vectors up before they are squared.
        # Sorted, equal indices are neighbours, so that every run of them gets a segment of its own.
        order = tf.argsort(self.indices, axis=1)
        indices = tf.gather(self.indices, order, batch_dims=1)
        vectors = tf.gather(self.vectors, order, batch_dims=1)
        starts = tf.not_equal(indices, tf.roll(indices, 1, axis=1))
        starts = tf.concat([tf.ones_like(starts[:, :1]), starts[:, 1:]], axis=1)
        segments = tf.cumsum(tf.cast(tf.reshape(starts, [-1]), tf.int32)) - 1
        width = self.vectors.shape[2]
        sums = tf.math.unsorted_segment_sum(
            tf.reshape(vectors, [-1, width]), segments, tf.size(indices)
        )
        # Each segment lies inside one row; add its square at the place of its first element.
        squares = tf.gather(tf.reduce_sum(tf.square(sums), axis=1), segments)
        squares = tf.where(starts, tf.reshape(squares, tf.shape(starts)), 0.0)
        return tf.reduce_sum(squares, axis=1)

    def weighted_sum(self, weights):
        vectors = self.vectors * weights[:, tf.newaxis, tf.newaxis]
        vectors = tf.reshape(vectors, [-1, self.vectors.shape[2]])
        return tf.math.unsorted_segment_sum(vectors, tf.reshape(self.indices, [-1]), self.size)

    def kept(self, keep):
        return Lookups(self.indices, zero_rows(self.vectors, keep), self.size)

    def grouped(self, size):
        positions = tf.shape(self.indices)[1]
        return Lookups(
            tf.reshape(self.indices, [-1, size * positions]),
            tf.reshape(self.vectors, [-1, size * positions, self.vectors.shape[2]]),
            self.size,
        )


def zero_rows(values: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """Returns `values` [rows, ...] with zeros in rows where `keep` (bool [rows]) is False."""
    keep = tf.reshape(keep, [-1] + [1] * (values.shape.rank - 1))
    return tf.where(keep, values, tf.zeros([], values.dtype))


def _normalized(factor):
    """Divides each row by its largest absolute value; returns (quotient, float32 [rows])."""
    scale = tf.reduce_max(tf.abs(factor), axis=[1, 2])
    inverse = 1.0 / tf.maximum(scale, 1e-37)
    return factor * inverse[:, tf.newaxis, tf.newaxis], scale
