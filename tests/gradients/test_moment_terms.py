"""Gradients through shared moments: factored norms and sums equal the instantiated ones."""

import pytest
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp.gradients import moment_terms
from tfdp.gradients.factors import Instantiated, OuterProducts, zero_rows


def draw(*shape):
    return tf.random.stateless_normal(shape, seed=[2, sum(shape)])


def both(left, right, jacobian, coefficients, shape):
    """The factored gradients, and the same gradients instantiated."""
    flat = tf.reshape(jacobian, [2, -1, shape[-1]])
    base = OuterProducts(left, right, lambda total: tf.reshape(total, shape))
    rows = tf.matmul(left, right, transpose_a=True)
    rows += tf.einsum("nkc,kpc->npc", coefficients, flat)
    written = Instantiated(rows, lambda total: tf.reshape(total, shape))
    term = moment_terms.MomentTerm(jacobian, coefficients)
    factored = moment_terms.ThroughMoments(base, term.coefficients, term.jacobian, term.shape)
    return factored, written


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("finish", ["plain", "kept", "grouped"])
def test_factored_equals_written_out(positions, finish):
    parts = (draw(6, positions, 12), draw(6, positions, 5), draw(2, 3, 4, 5), draw(6, 2, 5))
    keep = tf.constant([True, False, True, True, False, True])
    pair = []
    for gradient in both(*parts, (3, 4, 5)):
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
def test_gradients_of_few_and_of_many_positions(positions):
    left, right = draw(4, positions, 6), draw(4, positions, 5)
    jacobian, coefficients = draw(2, 6, 5), draw(4, 2, 5)
    ours = moment_terms.MomentTerm(jacobian, coefficients).added_to(OuterProducts(left, right))
    written = both(left, right, jacobian, coefficients, (6, 5))[1]
    assert_close(
        ours.square_norms(),
        written.square_norms(),
        positions + 2 + 6 * 5,
        each=True,
    )


def test_cancellation_never_understates_a_norm():
    left, right, jacobian = draw(1, 1, 500), draw(1, 1, 40), draw(2, 500, 40)
    # The part through the first moment cancels the outer product up to 1e-5.
    jacobian = tf.concat([tf.tile(left[:, 0, :, tf.newaxis], [1, 1, 40]), jacobian[1:]], axis=0)
    coefficients = tf.stack([-right[:, 0] * (1 + 1e-5), tf.zeros([1, 40])], axis=1)
    ours, written = both(left, right, jacobian, coefficients, (500, 40))
    exact = tf.reduce_sum(tf.square(tf.cast(written.values, tf.float64)))
    assert float(ours.square_norms()[0]) >= float(exact)


def test_norms_survive_factors_of_extreme_size():
    # The square of a coefficient underflows. A norm of zero would not be clipped.
    jacobian, coefficients = tf.fill([2, 1, 1], 1e19), tf.constant([[[1e-20], [2e-20]]])
    nothing = tf.zeros([1, 1, 1])
    ours = moment_terms.MomentTerm(jacobian, coefficients).added_to(OuterProducts(nothing, nothing))
    assert_close(tf.sqrt(ours.square_norms()), [0.3], 2 + FUNCTION)


def test_rows_that_are_not_finite_show():
    jacobian, coefficients = draw(2, 6, 5), tf.fill([1, 2, 5], float("nan"))
    ours = both(draw(1, 1, 6), draw(1, 1, 5), jacobian, coefficients, (6, 5))[0]
    assert not bool(tf.math.is_finite(ours.square_norms())[0])
    absent = zero_rows(ours, tf.constant([False]))
    assert float(absent.square_norms()[0]) < 1e-20
