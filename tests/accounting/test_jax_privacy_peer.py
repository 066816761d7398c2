"""Golden values and properties of strategies from the tests of jax_privacy.

They are at google-deepmind/jax_privacy, commit 8967688c (after version 1.0.0), below `tests/`. Each
test names the file and the test that it was read from. A strategy C is a Toeplitz matrix here, given
by its first column; jax_privacy's dense, column-normalized, buffered and banded-inverse strategies
have no counterpart (docs/peers.md).
"""

import math

import numpy as np
import pytest

from tfdp.accounting import Strategy, best_bands, describe, noise_for
from tfdp.accounting.strategies import (
    inverse,
    losses,
    optimized,
    sensitivity,
    sqrt_coefficients,
)

# matrix_factorization/sensitivity_test.py, test_minsep_true_max_participations:
# steps, separation, largest number of participations, how many are possible.
PARTICIPATIONS = [
    (1, 10, 5, 1),
    (5, 1, 5, 5),
    (5, 2, 5, 3),
    (5, 4, 5, 2),
    (5, 6, 5, 1),
    (5, 2, 2, 2),
    (4, 2, 4, 2),
]


@pytest.mark.parametrize(("steps", "separation", "most", "possible"), PARTICIPATIONS)
def test_participations_that_fit(steps, separation, most, possible):
    """The squared sensitivity of the identity is the number of participations."""
    assert sensitivity([1.0], steps, most, separation) ** 2 == pytest.approx(possible)


def test_sensitivity_of_bands_that_do_not_overlap():
    """banded_test.py, test_minsep_sensitivity_squared: 8.0 and 6.0 for columns of norm 1."""
    column = optimized(32, 4)
    for most, expected in ((32, 8.0), (6, 6.0)):
        found = sensitivity(column / np.linalg.norm(column), 32, most, 4) ** 2
        assert found == pytest.approx(expected)
    assert sensitivity([1.0, 1.0], 100, 1, 10) == pytest.approx(math.sqrt(2))  # test_helper


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
    errors = [sensitivity(c, 16) * losses(c, 16)[which] for c in columns]
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
    expected = noise_for(2.0, 1e-6, gaussian) * sensitivity(column, 100, 10, 10)
    assert noise_for(2.0, 1e-6, run) == pytest.approx(expected, rel=1e-6)
