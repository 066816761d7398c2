"""Sums over the uses of a variable: equal to written-out gradients, and never measured too small."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp.gradients.factors import (
    Arranged,
    Instantiated,
    Lookups,
    OuterProducts,
    identity,
    zero_rows,
)
from tfdp.gradients.sums import LookupsAndProducts, MomentTerm, ThroughMoments, add_gradients

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
    total = LookupsAndProducts(*parts) if kind == "tied" else add_gradients(parts)
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
        return add_gradients([first, OuterProducts(unit[:, 1:], huge[:, 1:])])
    index = tf.fill([ROWS, 1], 3)
    if kind == "entries":
        return add_gradients([Instantiated(unit[:, 0, :, None] * huge[:, 0, None]), first])
    if kind == "written out":
        return add_gradients([first, Lookups(index, huge[:, 1:], SIZE)])
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


def draw(*shape):
    return tf.random.stateless_normal(shape, seed=[2, sum(shape)])


def through_moments(left, right, jacobian, coefficients, shape):
    """The factored gradients, and the same gradients instantiated."""
    flat = tf.reshape(jacobian, [2, -1, shape[-1]])
    base = OuterProducts(left, right, lambda total: tf.reshape(total, shape))
    rows = tf.matmul(left, right, transpose_a=True)
    rows += tf.einsum("nkc,kpc->npc", coefficients, flat)
    written = Instantiated(rows, lambda total: tf.reshape(total, shape))
    term = MomentTerm(jacobian, coefficients)
    factored = ThroughMoments(base, term.coefficients, term.jacobian, term.shape)
    return factored, written


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("finish", ["plain", "kept", "grouped"])
def test_gradients_through_moments_equal_written_out_ones(positions, finish):
    parts = (draw(6, positions, 12), draw(6, positions, 5), draw(2, 3, 4, 5), draw(6, 2, 5))
    keep = tf.constant([True, False, True, True, False, True])
    pair = []
    for gradient in through_moments(*parts, (3, 4, 5)):
        if finish == "kept":
            gradient = zero_rows(gradient, keep)
        elif finish == "grouped":
            gradient = gradient.grouped(2)
        pair.append(gradient)
    ours, written = pair
    assert_close(
        ours.square_norms(),
        written.square_norms(),
        positions + 62,
        each=True,
    )
    assert_close(ours.instantiated().values, written.values, positions + 2 + 2)
    weights = draw(ours.square_norms().shape[0])
    assert_close(ours.weighted_sum(weights), written.weighted_sum(weights), positions + 2 + 6)
    assert ours.weighted_sum(weights).shape == (3, 4, 5)


@pytest.mark.parametrize("positions", [2, 400])
def test_moments_of_few_and_of_many_positions(positions):
    left, right = draw(4, positions, 6), draw(4, positions, 5)
    jacobian, coefficients = draw(2, 6, 5), draw(4, 2, 5)
    ours = MomentTerm(jacobian, coefficients).added_to(OuterProducts(left, right))
    written = through_moments(left, right, jacobian, coefficients, (6, 5))[1]
    assert_close(
        ours.square_norms(),
        written.square_norms(),
        positions + 2 + 6 * 5,
        each=True,
    )


def test_moments_that_cancel_never_understate_a_norm():
    left, right, jacobian = draw(1, 1, 500), draw(1, 1, 40), draw(2, 500, 40)
    # The part through the first moment cancels the outer product up to 1e-5.
    jacobian = tf.concat([tf.tile(left[:, 0, :, tf.newaxis], [1, 1, 40]), jacobian[1:]], axis=0)
    coefficients = tf.stack([-right[:, 0] * (1 + 1e-5), tf.zeros([1, 40])], axis=1)
    ours, written = through_moments(left, right, jacobian, coefficients, (500, 40))
    exact = tf.reduce_sum(tf.square(tf.cast(written.values, tf.float64)))
    assert float(ours.square_norms()[0]) >= float(exact)


def test_norms_survive_moments_of_extreme_size():
    # The square of a coefficient underflows. A norm of zero would not be clipped.
    jacobian, coefficients = tf.fill([2, 1, 1], 1e19), tf.constant([[[1e-20], [2e-20]]])
    nothing = tf.zeros([1, 1, 1])
    ours = MomentTerm(jacobian, coefficients).added_to(OuterProducts(nothing, nothing))
    assert_close(tf.sqrt(ours.square_norms()), [0.3], 2 + FUNCTION)


def test_moments_that_are_not_finite_show():
    jacobian, coefficients = draw(2, 6, 5), tf.fill([1, 2, 5], float("nan"))
    ours = through_moments(draw(1, 1, 6), draw(1, 1, 5), jacobian, coefficients, (6, 5))[0]
    assert not bool(tf.math.is_finite(ours.square_norms())[0])
    absent = zero_rows(ours, tf.constant([False]))
    assert float(absent.square_norms()[0]) < 1e-20
