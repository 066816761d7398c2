"""The bounding and summing that all engines share handles every row separately, in each variant."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import FUNCTION, assert_close
from tfdp.gradients.bounds import GlobalL2Clip, PerLayerL2Clip
from tfdp.gradients.engines.clip_and_sum import clip_and_sum
from tfdp.gradients.factors import Instantiated, Lookups, OuterProducts

ROWS = 8


class Variable:
    def __init__(self, *shape):
        self.shape = tf.TensorShape(shape)


VARIABLES = [Variable(30, 20), Variable(20), Variable(5)]
BOUNDS = [GlobalL2Clip(1.0), PerLayerL2Clip(1.0, (0, 0, 1))]


def gradients(bad=None):
    generator = np.random.default_rng(0)
    left, right = generator.normal(size=(ROWS, 30)), generator.normal(size=(ROWS, 20))
    if bad is not None:
        left[3], right[3] = bad
    left, right = tf.constant(left, tf.float32), tf.constant(right, tf.float32)
    return [OuterProducts(left[:, tf.newaxis], right[:, tf.newaxis]), Instantiated(right), None]


def run(weight, bound, bad=None, jit_compile=False):
    def sums_of(weight):
        lot = clip_and_sum(
            gradients(bad),
            VARIABLES,
            bound,
            weight,
            microbatch_size=1,
            views=1,
            losses=None,
            output_losses=None,
            outputs=0,
            state=[],
        )
        return lot.sums, lot.norms, lot.clipped, lot.non_finite, lot.present

    return tf.function(sums_of, jit_compile=jit_compile, autograph=False)(
        tf.constant(weight, tf.float32)
    )


def ones(*absent):
    return [0.0 if row in absent else 1.0 for row in range(ROWS)]


@pytest.mark.parametrize("bound", BOUNDS, ids=["global", "per_layer"])
@pytest.mark.parametrize("bad", [(np.nan, 1.0), (1.0, np.inf), (np.inf, 0.0), (3e38, 3e38)])
def test_a_bad_row_changes_no_bit_of_the_others(bound, bad):
    sums, norms, _, non_finite, _ = run(ones(), bound, bad)
    without = run(ones(3), bound)
    for a, b in zip(sums, without[0], strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(norms, without[1])
    assert int(non_finite) == 1
    assert int(without[3]) == 0


@pytest.mark.parametrize("bound", BOUNDS, ids=["global", "per_layer"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_row_whose_squares_overflow_counts_as_not_finite(bound, jit_compile):
    sums, norms, clipped, non_finite, _ = run(ones(), bound, (1e25, 1e-25), jit_compile)
    without = run(ones(3), bound, None, jit_compile)
    assert int(non_finite) == 1
    assert clipped[3] == 0.0
    # XLA sums the other rows in another order.
    assert_close(norms, without[1], 30 + 20 + FUNCTION, each=True)
    for a, b in zip(sums, without[0], strict=True):
        assert_close(a, b, ROWS + 30 + 20 + 2 * FUNCTION)


@pytest.mark.parametrize("microbatch_size", [2, 4])
def test_a_bad_index_removes_its_row_from_its_microbatch(microbatch_size):
    table, generator = Variable(6, 3), np.random.default_rng(0)
    vectors = tf.constant(generator.normal(size=(ROWS, 2, 3)), tf.float32)
    indices = np.arange(2 * ROWS).reshape(ROWS, 2) % 6

    def sums_of(indices, weight):
        parts = [Lookups(tf.constant(indices, tf.int32), vectors, 6)]
        rest = dict(losses=None, output_losses=None, outputs=0, state=[])
        sizes = (microbatch_size, 1)
        return clip_and_sum(parts, [table], BOUNDS[0], tf.constant(weight), *sizes, **rest)

    bad = indices.copy()
    bad[3, 1] = -1
    found, without = sums_of(bad, ones()), sums_of(indices, ones(3))
    assert (int(found.non_finite), int(without.non_finite)) == (1, 0)
    assert_close(found.norms, without.norms, 2 * 3 + FUNCTION)
    assert_close(found.sums[0], without.sums[0], ROWS + 2 * 3 + 2 * FUNCTION)
    assert np.all(np.isfinite(found.sums[0]))


def test_a_microbatch_whose_squares_overflow_counts_zero():
    large = np.ones((ROWS, 20), np.float32)
    large[2:4] = 5e18  # five such numbers have a square, their doubles have none
    parts = [Instantiated(tf.constant(large[:, :5])), None, None]
    rest = dict(losses=None, output_losses=None, outputs=0, state=[])
    variables, sizes = VARIABLES[2:] + VARIABLES[:2], (2, 1)
    found = clip_and_sum(parts, variables, BOUNDS[0], tf.ones(ROWS), *sizes, **rest)
    assert_close(found.norms, [np.sqrt(5), 0, np.sqrt(5), np.sqrt(5)], 5 + FUNCTION)
    assert int(found.non_finite) == 2
    np.testing.assert_array_equal(found.present, [True, False, True, True])
    assert_close(found.sums[0], 3 / np.sqrt(5) * np.ones(5), ROWS + 5 + 2 * FUNCTION)


def test_absent_rows_count_zero_whatever_their_gradients_are():
    # A gradient that an absent row should not have.
    sums, norms, clipped, _, present = run(ones(2, 3), BOUNDS[0])
    factors = tf.nest.flatten(gradients()[0])
    left, right = (np.delete(np.array(f)[:, 0], [2, 3], axis=0) for f in factors)
    scale = 1 / np.array(norms)[np.delete(np.arange(ROWS), [2, 3])]
    assert_close(sums[0], (left * scale[:, None]).T @ right, ROWS + 30 + 20 + 2 * FUNCTION)
    assert not np.any(np.array(norms)[[2, 3]])
    assert not np.any(np.array(clipped)[[2, 3]])
    assert np.array(present).sum() == ROWS - 2
