"""Golden values and properties of strategies from the tests of jax_privacy.

They are at google-deepmind/jax_privacy, commit 8967688c (after version 1.0.0), below `tests/`. Each
test names the file and the test that it was read from. A strategy C is a Toeplitz matrix here, given
by its first column; jax_privacy's dense, column-normalized, buffered and banded-inverse strategies
have no counterpart (docs/migrating.md).
"""

import math

import numpy as np
import pytest

from tfdp.accounting import Strategy, best_bands, describe, noise_for
from tfdp.accounting.strategies import (
    inverse,
    losses,
    optimized,
    sqrt_coefficients,
)


def test_coefficients_of_the_inverse_square_root():
    """toeplitz_test.py, test_banded_inverse_square_root_noising_coefs."""
    expected = [1, -1 / 2, -1 / 8, -1 / 16, -5 / 128]
    assert inverse(sqrt_coefficients(5), 5) == pytest.approx(expected, abs=1e-12)


def test_error_of_independent_noise():
    """banded_test.py, test_implicit_error: the mean squared error of 9 steps is 5.0."""
    assert losses([1.0], 9)[0] ** 2 == pytest.approx(5.0)


@pytest.mark.parametrize("objective", ["mean", "max"])
def test_more_bands_are_better(objective):
    """toeplitz_test.py, test_toeplitz_more_bands_is_better, for 16 steps."""
    which = 0 if objective == "mean" else 1
    columns = [optimized(16, bands, objective) for bands in (1, 2, 5, 10, 15, 16)]
    errors = [np.linalg.norm(c) * losses(c, 16)[which] for c in columns]
    assert np.all(np.diff(errors) <= 1e-9)


@pytest.mark.parametrize(("epsilon", "bands"), [(20.0, 8), (0.1, 1)])
def test_bands_for_a_budget(epsilon, bands):
    """toeplitz_test.py, test_large_epsilon and test_small_epsilon: N = 1000, lots of 100, 100 steps.

    A large budget takes as many bands as there can be groups (the largest power of two below 10
    here), a small one takes one band.
    """
    run = describe(
        mechanism="dpsgd", sampling="poisson", num_examples=1000, lot_size=100, steps=100,
        noise_multiplier=1.0,
    )  # fmt: skip
    assert best_bands(epsilon, 1e-6, run).bands == bands


def test_as_many_bands_as_groups_of_whole_lots_are_not_amplified():
    """toeplitz_test.py, test_helper_stddev_at_max_bands: 10 bands, N = 100, lots of 10, 100 steps."""
    column = sqrt_coefficients(10)
    run = describe(
        mechanism="matrix", sampling="cyclic_poisson", groups=10, num_examples=100, lot_size=10,
        steps=100, noise_multiplier=1.0,
        strategy=Strategy(name="banded_toeplitz", coefficients=column),
    )  # fmt: skip
    gaussian = describe(
        mechanism="dpsgd", sampling="cyclic", num_examples=1, lot_size=1, steps=1,
        noise_multiplier=1.0,
    )  # fmt: skip
    expected = noise_for(2.0, 1e-6, gaussian) * math.sqrt(10) * np.linalg.norm(column)
    assert noise_for(2.0, 1e-6, run) == pytest.approx(expected, rel=1e-4)
