"""Sums over the uses of a variable: equal to written-out gradients, and never measured too small."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import assert_close
from tfdp.gradients.factors import (
    Arranged,
    Instantiated,
    Lookups,
    OuterProducts,
    identity,
    zero_rows,
)
from tfdp.gradients.sums import LookupsAndProducts, added

ROWS, SIZE, WIDTH = 4, 7, 3


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


def lookups(positions=5, seed=0, scale=1.0):
    indices = np.random.default_rng(seed).integers(0, SIZE, (ROWS, positions))
    return Lookups(
        tf.constant(indices, tf.int32), scale * normal(ROWS, positions, WIDTH, seed=seed), SIZE
    )


def outer(positions=2, seed=1, finish=identity):
    left = normal(ROWS, positions, SIZE, seed=seed)
    return OuterProducts(left, normal(ROWS, positions, WIDTH, seed=seed + 9), finish)


def turned():
    return Arranged((WIDTH, SIZE), (1, 0))


def transposed():
    return OuterProducts(normal(ROWS, 2, WIDTH), normal(ROWS, 2, SIZE, seed=5), tf.transpose)


def written_out(part):
    values = part.instantiated()
    return tf.stack([values.finish(row) for row in values.values])


PARTS = {
    "products": lambda: [outer(2), outer(3, seed=4), outer(1, seed=7)],
    "equal order": lambda: [outer(2, finish=turned()), outer(3, finish=turned())],
    "other order": lambda: [outer(2, finish=turned()), outer(3)],
    "another order": lambda: [outer(2), transposed()],
    "look-ups": lambda: [lookups(5), lookups(2, seed=3)],
    "entries": lambda: [Instantiated(normal(ROWS, SIZE, WIDTH)), Instantiated(normal(ROWS, 7, 3))],
    "entries and products": lambda: [Instantiated(normal(ROWS, SIZE, WIDTH)), outer()],
    "both kinds": lambda: [lookups(5), outer(2), lookups(1, seed=8), outer(1, seed=6)],
    "all kinds": lambda: [lookups(5), outer(2), Instantiated(normal(ROWS, SIZE, WIDTH))],
    "tied": lambda: [lookups(5), outer(2)],
}


@pytest.mark.parametrize("kind", PARTS)
def test_equals_the_sum_of_what_is_written_out(kind):
    parts = PARTS[kind]()
    total = LookupsAndProducts(*parts) if kind == "tied" else added(parts)
    dense = tf.add_n([written_out(part) for part in parts])
    squares = tf.reduce_sum(tf.square(dense), axis=[1, 2])
    assert_close(total.square_norms(), squares, 10 + SIZE * WIDTH, each=True)
    assert_close(written_out(total), dense, 10)
    weights = tf.constant([1.0, 0.5, 0.0, -2.0])
    expected = tf.einsum("n,npq->pq", weights, dense)
    assert_close(total.weighted_sum(weights), expected, 10 + ROWS)
    halves = total.grouped(2)
    expected = tf.reduce_sum(tf.reshape(dense, [2, 2, SIZE, WIDTH]), axis=1)
    assert_close(written_out(halves), expected, 10 + 2)
    if kind == "tied":
        return  # the ghost engine writes such small gradients out before it keeps rows of them
    keep = tf.constant([True, False, True, False])
    kept = zero_rows(total, keep)
    expected = tf.where(keep[:, tf.newaxis, tf.newaxis], dense, 0.0)
    assert_close(written_out(kept), expected, 10)
    np.testing.assert_array_less(kept.square_norms()[1::2], 1e-20)


def tied(**scales):
    return LookupsAndProducts(lookups(5, **scales), outer(2))


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e12, 1e30])
def test_norms_of_tied_tables_are_never_understated(size):
    both = tied()
    large = LookupsAndProducts(
        Lookups(both.lookups.indices, size * both.lookups.vectors, SIZE),
        OuterProducts(size * both.products.left, both.products.right),
    )
    norms = np.sqrt(both.square_norms().numpy().astype(float)) * size
    found = np.sqrt(large.square_norms().numpy().astype(float))
    assert np.all(~np.isfinite(found) | (found >= 0.999 * norms))
    if 1e-10 < size < 1e15:
        assert_close(found, norms, 10 + SIZE * WIDTH, each=True)


def cancelling(kind):
    """Gradients of which row 0 consists of huge terms that cancel, but for what rounding leaves."""
    huge = np.zeros((ROWS, 2, WIDTH), np.float32)
    huge[0] = [[1e12] * WIDTH, [-1e12] * WIDTH]
    huge[1:] = np.random.default_rng(0).normal(size=(ROWS - 1, 2, WIDTH))
    unit = np.zeros((ROWS, 2, SIZE), np.float32)
    unit[:, :, 3] = 1.0
    first = OuterProducts(unit[:, :1], huge[:, :1])
    if kind == "products":
        return added([first, OuterProducts(unit[:, 1:], huge[:, 1:])])
    index = tf.fill([ROWS, 1], 3)
    if kind == "entries":
        return added([Instantiated(unit[:, 0, :, None] * huge[:, 0, None]), first])
    if kind == "written out":
        return added([first, Lookups(index, huge[:, 1:], SIZE)])
    return LookupsAndProducts(Lookups(index, huge[:, 1:], SIZE), first)


@pytest.mark.parametrize("kind", ["products", "entries", "written out", "tied"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_terms_that_cancel_between_uses_are_bounded_as_they_are_added(kind, jit_compile):
    gradients = cancelling(kind)

    @tf.function(jit_compile=jit_compile, autograph=False)
    def clipped_sum(present):
        scales = present * tf.minimum(1.0, tf.math.rsqrt(gradients.square_norms() + 1e-30))
        return gradients.weighted_sum(scales)

    without = clipped_sum(tf.constant([0.0, 1.0, 1.0, 1.0]))
    moved = tf.norm(clipped_sum(tf.ones([ROWS])) - without)
    assert moved <= 1.0001


def test_rows_that_are_not_finite_can_be_removed():
    both = tied()
    broken = LookupsAndProducts(
        Lookups(
            both.lookups.indices,
            tf.concat([[[[np.nan] * WIDTH] * 5], both.lookups.vectors[1:]], 0),
            SIZE,
        ),
        both.products,
    )
    finite = np.isfinite(broken.square_norms())
    np.testing.assert_array_equal(finite, [False, True, True, True])
    kept = zero_rows(broken, tf.constant(finite))
    expected = zero_rows(both, tf.constant(finite))
    expected = expected.weighted_sum(tf.ones([ROWS]))
    np.testing.assert_array_equal(kept.weighted_sum(tf.ones([ROWS])), expected)


def test_rows_with_indices_that_do_not_exist_are_not_finite():
    both = tied()
    indices = tf.tensor_scatter_nd_update(both.lookups.indices, [[0, 2]], [-1])
    bad = LookupsAndProducts(Lookups(indices, both.lookups.vectors, SIZE), both.products)
    finite = [False, True, True, True]
    np.testing.assert_array_equal(np.isfinite(bad.square_norms()), finite)
