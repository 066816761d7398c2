"""Products that norms and sums consist of have 20 binary digits on a device that rounds to 11."""

import numpy as np
import pytest
import tensorflow as tf

from tests.rounding import assert_close
from tfdp._compat import float32_products
from tfdp._compat.float32_products import product, weighted_sum


def rounded(values):
    """Float32 numbers as TensorFloat-32 takes them: 10 bits of a fraction."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x1000) & 0xFFFFE000).view(np.float32).astype("float64")


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(float32_products, "on_gpu", lambda: True)


def test_a_product_is_off_by_a_millionth_at_most(gpu):
    a, b = np.random.default_rng(0).normal(size=(2, 50, 50)).astype("float32")
    once = rounded(a) @ rounded(b)
    found = product(lambda a, b: rounded(a) @ rounded(b), tf.constant(a), tf.constant(b))
    exact, size = a.astype(float) @ b, np.abs(a).astype(float) @ np.abs(b)
    assert np.max(np.abs(once - exact) / size) > 2e-5
    assert np.max(np.abs(found - exact) / size) < float32_products.unit()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(gpu, bad):
    a = tf.constant([[1.0, bad], [1.0, 2.0]])
    found = product(tf.matmul, a, tf.ones([2, 1])).numpy()[:, 0]
    assert not np.isfinite(found[0])
    assert found[1] == 3.0


def test_weighted_sums(gpu):
    weights, rows = np.random.default_rng(0).normal(size=(2, 5, 5)).astype("float32")
    found = weighted_sum(tf.constant(weights[0]), tf.constant(rows))
    assert_close(found, weights[0] @ rows, 5)
