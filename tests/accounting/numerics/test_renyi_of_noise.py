"""Rényi divergences of encoded gradients: golden values, closed forms and brute force."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from tfdp.accounting.encoding import normal_quantiles
from tfdp.accounting.numerics.noise_families import (
    FAMILIES,
    fisher_information,
    log_density,
    log_ratio,
)
from tfdp.accounting.numerics.renyi_of_noise import (
    ORDERS,
    corner,
    log_moments,
    subsampled,
    unit_norm,
)

CASES = [(f, None) for f in FAMILIES if f != "student_t"] + [("student_t", 3.0), ("student_t", 9.0)]
K = np.array(ORDERS, dtype=float)


def test_golden_student_t():
    found = corner("student_t", normal_quantiles(26010), degrees_of_freedom=9.0)
    assert found[0] == pytest.approx(0.83331637, rel=1e-7)
    known = np.isfinite(found)
    assert np.all(known[K <= 128])
    assert np.all(found[known] < (K * (K - 1) / 2 * 10 / 12)[known])
    assert np.all(found[K <= 64] > (K * (K - 1) / 2 * 10 / 12 * 0.96)[K <= 64])


@pytest.mark.parametrize(("family", "nu"), CASES)
@pytest.mark.parametrize(("shift", "orders"), [(0.7, (2, 7)), (0.1, (2, 72))])
def test_moments_against_adaptive_quadrature(family, nu, shift, orders):
    for k, found in zip(orders, log_moments(family, [shift], orders, nu)[0], strict=True):

        def integrand(x, k=k):
            return np.exp(log_density(family, x, nu) + k * log_ratio(family, x, shift, nu))

        pieces = [-np.inf, -20, 0, shift, 20, 60, np.inf]
        total = sum(
            integrate.quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(pieces)
        )
        assert found == pytest.approx(math.log(total), rel=1e-6)


def test_quadrature_beyond_the_range_of_exponentials():
    found = log_moments("student_t", [5.0], (2, 64), 1000.0)[0]
    assert found[1] > 710  # exp would overflow
    gaussian = log_moments("gaussian", [0.5], (64,))[0]
    near = log_moments("student_t", [0.5], (64,), 1e7)[0]
    assert near == pytest.approx(gaussian, rel=1e-3)


def test_quadrature_that_does_not_converge_is_infinite():
    assert log_moments("student_t", [21.0], (2,), 9.0)[0, 0] == np.inf
    assert log_moments("student_t", [10.0], (64,), 9.0)[0, 0] == np.inf


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_interpolation_agrees_with_direct_sums(family, nu):
    shifts = 3 * normal_quantiles(120)
    orders = (2, 3, 16)
    direct = log_moments(family, shifts, orders, nu).sum(axis=0)
    assert corner(family, shifts, orders, nu) == pytest.approx(direct, rel=1e-7)
    assert np.all(corner(family, shifts, orders, nu) >= direct)


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_moments_grow_with_the_shift(family, nu):
    values = log_moments(family, np.linspace(0.0, 6.0, 25), (2, 5, 20), nu)
    assert np.all(np.diff(values, axis=0) > 0)
    assert np.all(np.isfinite(values))


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_small_shifts_cost_their_fisher_information(family, nu):
    shift = 1e-4
    expected = K * (K - 1) / 2 * fisher_information(family, nu) * shift**2
    assert log_moments(family, [shift], ORDERS, nu)[0] == pytest.approx(expected, rel=1e-2)
    # A Gaussian of equal Fisher information is an upper bound in these cases, but it is not proven.
    assert np.all(log_moments(family, [0.3], ORDERS, nu)[0] <= expected * (0.3001 / shift) ** 2)


# TensorFlow makes its process flush denormal numbers to zero. The square of a smaller shift is one, and
# its bound is then 0 or infinite.
SHIFTS = st.one_of(st.just(0.0), st.floats(1e-100, 0.2))


@pytest.mark.parametrize(("family", "nu"), CASES)
@settings(max_examples=2, deadline=None)
@given(st.lists(SHIFTS, min_size=1, max_size=12))
def test_unit_norm_bounds_every_vector(family, nu, entries):
    vector = np.array(entries)
    bound = unit_norm(family, max(np.linalg.norm(vector), 1e-9), 0.2, (2, 8, 32), nu)
    assert np.all(corner(family, vector, (2, 8, 32), nu) <= bound * (1 + 1e-8) + 1e-300)


def divergences(log_p, log_q, weights, order):
    """Returns the Rényi divergence of P and Q by summation."""
    return math.log(np.sum(weights * np.exp(order * log_p + (1 - order) * log_q))) / (order - 1)


def mixture(log_a, log_b, q):
    return np.logaddexp(math.log1p(-q) + log_a, math.log(q) + log_b)


@pytest.mark.parametrize(("family", "nu"), CASES)
@pytest.mark.parametrize("q", [0.1])
def test_subsampled_round_by_brute_force(family, nu, q):
    """Two weights on a grid: one order equals the bound, and the other order is smaller."""
    x = np.linspace(-80, 80, 1201)
    shifts = np.array([0.8, 0.3])
    null = log_density(family, x, nu)
    moved = [null + log_ratio(family, x, s, nu) for s in shifts]
    log_p = null[:, None] + null
    log_q = moved[0][:, None] + moved[1]
    weights = (x[1] - x[0]) ** 2
    both = mixture(log_p, log_q, q)
    found = subsampled(corner(family, shifts, ORDERS, nu), q, (2, 5, 8))
    heavy = family == "cauchy" or nu == 3.0 or family == "laplace"
    for order, bound in zip((2, 5, 8), found, strict=True):
        forth, back = (
            divergences(both, log_p, weights, order),
            divergences(log_p, both, weights, order),
        )
        # The grid cuts off the tails and misses kinks.
        assert forth == pytest.approx(bound, rel=1e-6, abs=2e-2 if heavy else 1e-6)
        assert back <= bound + (2e-2 if heavy else 1e-6)


@pytest.mark.parametrize(("family", "nu"), [("student_t", 9.0), ("sech", None), ("gaussian", None)])
@settings(max_examples=8, deadline=None)
@given(st.floats(-1, 1), st.floats(-1, 1), st.sampled_from([0.05, 0.5]))
def test_the_corner_dominates_its_box(family, nu, a, b, q):
    """Theorem C for delta: every hockey-stick divergence, in both orders."""
    x = np.linspace(-30, 30, 241)
    corner_shifts = np.array([0.9, 0.4])

    def profile(shifts):
        null = log_density(family, x, nu)
        log_p = null[:, None] + null
        log_q = (
            log_density(family, x - shifts[0], nu)[:, None] + log_density(family, x - shifts[1], nu)
        )  # fmt: skip
        both, area = mixture(log_p, log_q, q), (x[1] - x[0]) ** 2
        return [
            area * np.maximum(np.exp(one) - math.exp(e) * np.exp(two), 0).sum()
            for one, two in ((both, log_p), (log_p, both))
            for e in (0.0, 0.1, 0.5)
        ]

    inside = profile(corner_shifts * [a, b])
    assert np.all(np.array(inside) <= np.array(profile(corner_shifts)) + 1e-6)


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_moments_between_known_orders_lie_below_their_chord(family, nu):
    moments = log_moments(family, [0.05], ORDERS, nu)[0]
    between = (68, 100, 300)
    exact = log_moments(family, [0.05], between, nu)[0]
    found = subsampled(moments, 1.0, between) * (np.array(between) - 1)
    assert np.all(exact <= found) and np.all(found <= 1.1 * exact)


@pytest.mark.parametrize("q", [0.004, 1.0])
def test_gaussian_rounds_are_dp_accountings(q):
    found = subsampled(corner("gaussian", np.full(25, 0.2 / 1.1)), q, ORDERS)
    accountant = dp_accounting.rdp.RdpAccountant(ORDERS)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(1.1)))
    exact = K <= 64  # beyond, moments between the known orders are rounded up
    assert found[exact] == pytest.approx(accountant.rdp[exact], rel=1e-7)
    assert np.all(found >= accountant.rdp * (1 - 1e-7)) and np.all(found <= 1.1 * accountant.rdp)


def test_two_thirds_of_the_noise_are_caught():
    """A bound for scale s does not hold for scale 2 s / 3."""
    x = np.linspace(-200, 200, 400_001)
    scale, q = 1.5, 0.2
    bound = subsampled(corner("student_t", [1 / scale], degrees_of_freedom=9.0), q, (4,))[0]
    for real, holds in ((scale, True), (2 * scale / 3, False), (3 * scale / 2, True)):
        null = log_density("student_t", x / real, 9.0) - math.log(real)
        moved = log_density("student_t", (x - 1) / real, 9.0) - math.log(real)
        spent = divergences(mixture(null, moved, q), null, x[1] - x[0], 4)
        assert bool(spent <= bound * (1 + 1e-6)) is holds
