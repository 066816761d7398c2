"""Norms of factored gradients that rounding does not understate, and when to use factors."""

import contextlib
import contextvars
import functools
import math

import tensorflow as tf

from tfdp._compat import float32_products
from tfdp._compat.tensorflow import inside_xla, on_gpu

# Number of rows to expect if it is not static.
_ROWS = contextvars.ContextVar("rows", default=256)
# Outer products are not instantiated if that takes more than this many float32 numbers (128 MB).
_MOST_INSTANTIATED = 32 * 2**20
# Where a gradient nearly cancels over its positions, its squared norm from Gram matrices is a
# difference of large numbers. Below this fraction of the square of the triangle inequality's bound,
# float32 rounding could understate a norm, and the gradient would exceed the clip norm. So a squared
# norm below this fraction is raised to it.
CANCELLATION = 1e-4
# Added to the squared norm of every factor. It is more than float32 arithmetic loses where squares
# underflow, and negligible beside other squared norms.
VANISHING = 1e-24


@contextlib.contextmanager
def expecting_rows(rows: int | None):
    """Context that sets the number of rows to expect if it is not static."""
    token = _ROWS.set(rows or _ROWS.get())
    try:
        yield
    finally:
        _ROWS.reset(token)


def rows_or_expected(rows: int | None) -> int:
    """Returns `rows`, or the number of rows to expect if `rows` is None."""
    return rows or _ROWS.get()


def should_instantiate(rows, positions, p, q) -> bool:
    """Whether writing out sums of outer products is cheaper than their Gram matrices.

    Args:
        rows, positions: Numbers of rows and positions. None if unknown.
        p, q: Lengths of the factors.
    """
    rows = rows_or_expected(rows)
    if rows * p * q > _MOST_INSTANTIATED or positions == 1:
        return False
    if positions is None:
        return True
    # Costs per row: operations, and numbers moved to and from memory.
    instantiated = positions * p * q + 3 * p * q
    gram = positions * positions * (p + q + 4) + positions * p * q / 2
    return instantiated <= gram


def rounding_error(terms: int, positions: int | None) -> float:
    """Returns how much a squared norm from Gram matrices may be too small, with a margin.

    Rounding errors of a sum of n products grow like the square root of n, and those of the entries of
    a Gram matrix average out. Measured on a CPU with and without XLA, over 2 to 512 positions and
    factors of 4 to 2,048 entries that cancel or do not, the largest error was a quarter of this value.

    Args:
        terms: Number of entries of both factors at one position.
        positions: Number of positions. None if unknown.

    Returns:
        A fraction of the square of the triangle inequality's bound.
    """
    unit = float32_products.unit()
    return unit * (2.0 + math.sqrt(terms)) / math.sqrt((positions or 2) / 2)


def gram(factor: tf.Tensor) -> tf.Tensor:
    """Returns the Gram matrices of a factor over its positions: [rows, t, p] to [rows, t, t]."""
    return float32_products.product(functools.partial(tf.matmul, transpose_b=True), factor, factor)


def with_gpu_rounding(square, largest=None):
    """Increases squared norms by the rounding error that products on a GPU may add to a sum.

    Args:
        square: float32 [rows]: squared norms.
        largest: float32 [rows]: the squares of the triangle inequality's bounds; `square` if None.
    """
    if not on_gpu():
        return square  # not more than any float32 sum rounds
    longer = 3.0 * float32_products.unit() * tf.sqrt(square if largest is None else largest)
    return tf.square(tf.sqrt(square) + longer)


def with_rounding(square, largest, terms: int, positions: int | None):
    """Increases squared norms that rounding may have understated because terms cancel.

    Args:
        square: float32 [rows]: squared norms, from Gram matrices.
        largest: float32 [rows]: the squares of the triangle inequality's bounds.
        terms, positions: As in `rounding_error`.
    """
    square = square + rounding_error(terms, positions) * largest
    return with_gpu_rounding(tf.maximum(square, CANCELLATION * largest), largest)


def row_squares(values):
    """Returns float32 [rows]: sums of squares of `values` [rows, ...]."""
    axes = [*range(1, values.shape.rank)]
    if inside_xla():
        return tf.reduce_sum(tf.square(values), axes)  # XLA lacks the operation below
    # This operation reads the values once and does not write squares (measured: half the time).
    return tf.square(tf.math.reduce_euclidean_norm(values, axes))
