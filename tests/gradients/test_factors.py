"""Norms and sums of factored gradients: those of what they stand for, and never too small."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import assert_close, rounding
from tfdp.gradients.factors import Instantiated, Lookups, OuterProducts

ROUNDED_UP = 3e-4  # norms from products are, on a GPU


def draw(*shape):
    return tf.random.stateless_normal(shape, seed=[1, shape[-1]])


@pytest.mark.parametrize("positions", [1, 3, 50])
def test_outer_products_equal_what_they_stand_for(positions):
    left, right = draw(6, positions, 4), draw(6, positions, 5)
    products, whole = (
        OuterProducts(left, right),
        Instantiated(tf.matmul(left, right, transpose_a=True)),
    )
    for ours, theirs in ((products, whole), (products.grouped(2), whole.grouped(2))):
        assert_close(
            ours.square_norms(),
            theirs.square_norms(),
            positions + 4 * 5,
            each=True,
        )
        weights = draw(6)[: ours.square_norms().shape[0]]
        sums = ours.weighted_sum(weights), theirs.weighted_sum(weights)
        assert_close(*sums, terms=positions + 6)


def squares(left, right):
    left, right = (np.array(f, float).reshape(4, -1, f.shape[-1]) for f in (left, right))
    return np.square(np.einsum("ntp,ntq->npq", left, right)).sum(axis=(1, 2))


@pytest.mark.parametrize("positions", [1, 5])
@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1.0, 1e12, 1e19, 1e30])
def test_norms_of_factors_of_extreme_size_are_never_too_small(positions, scale):
    # Squared separately, one factor overflows and the other underflows. With five positions of 300
    # and 200 numbers, the norms are computed by Gram matrices.
    left, right = scale * draw(4, positions, 300), draw(4, positions, 200) / scale
    found = np.array(OuterProducts(left, right).square_norms(), float)
    exact = squares(left, right)
    assert np.all(~np.isfinite(found) | (found >= exact * (1 - rounding(positions * (300 + 200)))))
    if scale == 1.0:
        assert_close(found, exact, positions**2 + 300 + 200, each=True)


@pytest.mark.parametrize("positions", [2, 16])
@pytest.mark.parametrize("cancelling", [0.0, 0.01, 0.1])
def test_norms_of_terms_that_cancel_are_never_too_small(positions, cancelling):
    generator = np.random.default_rng(positions)
    left = generator.normal(size=(4, positions, 512)).astype("float32")
    right = generator.normal(size=(4, positions, 512)).astype("float32")
    if cancelling:
        left = np.abs(left[:, :1]) + np.float32(cancelling) * left
        right -= right.mean(axis=1, keepdims=True)
    found = np.array(OuterProducts(tf.constant(left), tf.constant(right)).square_norms(), float)
    assert np.all(found >= squares(left, right) * (1 - 1e-7))


def test_a_norm_of_products_that_cancel_up_to_rounding_is_never_too_small():
    # Gram matrices compute their difference from numbers that are 1e8 times larger.
    left, right = tf.tile(draw(1, 1, 500), [1, 2, 1]), draw(1, 1, 400)
    right = tf.concat([right, -right * (1 + 1e-4)], axis=1)
    exact = Instantiated(tf.matmul(left, right, transpose_a=True)).square_norms()[0]
    assert OuterProducts(left, right).square_norms()[0] >= exact


def test_lookups_add_up_before_they_are_squared():
    vectors = draw(4, 6, 3)
    indices = tf.constant([[0, 1, 2, 1, 1, 4], [3, 3, 3, 3, 3, 3], [0, 1, 2, 3, 4, 0], [2] * 6])
    table = Instantiated(tf.einsum("ntv,ntd->nvd", tf.one_hot(indices, 5), vectors))
    lookups = Lookups(indices, vectors, 5)
    for ours, theirs in ((lookups, table), (lookups.grouped(2), table.grouped(2))):
        assert_close(ours.square_norms(), theirs.square_norms(), 6 + 5 * 3, each=True)
    ours, theirs = lookups.weighted_sum(draw(4)), table.weighted_sum(draw(4))
    assert_close(ours, theirs, 6 + 4)
