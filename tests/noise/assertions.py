"""What noise is tested for."""

import numpy as np
import scipy.stats

# There are many tests, and most noise has a secret seed.
SIGNIFICANCE = 1e-9


def assert_normal(values, stddev):
    """Asserts N(0, stddev^2), and that two thirds or three halves of it would be noticed."""
    values = np.ravel(values).astype(float)
    for factor, right in ((1.0, True), (2 / 3, False), (3 / 2, False)):
        shape = scipy.stats.kstest(values / (factor * stddev), "norm").pvalue
        square, tail = (values**2).sum() / (factor * stddev) ** 2, scipy.stats.chi2(len(values))
        assert (min(shape, tail.cdf(square), tail.sf(square)) > SIGNIFICANCE) == right


def assert_unrelated(*draws):
    """Asserts that no two draws of equal size are correlated."""
    limit = scipy.stats.norm.isf(SIGNIFICANCE) / np.sqrt(np.size(draws[0]))
    related = np.corrcoef([np.ravel(draw) for draw in draws])
    assert np.abs(related - np.eye(len(draws))).max() < limit
