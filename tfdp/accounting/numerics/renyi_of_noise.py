"""Rényi divergences of additive noise on a vector whose entries are bounded one by one.

Let I_k(t) be the k-th moment of the likelihood ratio of one coordinate that is shifted by t,

    I_k(t) = E[(z(x - t) / z(x))^k],   x drawn from z.

For a vector of shifts t_i let K_k = sum_i log I_k(t_i). Then one Poisson-subsampled round has at
integer order a the divergence log(sum_k binom(a, k) (1-q)^(a-k) q^k exp(K_k)) / (a - 1) (Mironov,
Talwar, Zhang 2019, for any product density that is symmetric, in both directions).

All computations use logarithms, because exp(K_k) can overflow. Since the likelihood ratio r has mean
1, I_k - 1 = E[r^k - 1 - k (r - 1)]. The integrand scales with the square of the shift, so even
a million coordinates of size 1e-6 keep their digits. If the quadrature or the interpolation of an order
does not converge, its divergence is infinite, which never understates the loss.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike
from scipy import special

from tfdp.accounting.numerics.noise_families import fisher_information, log_density, log_ratio

# Orders of the moments. K_k is a convex function of k, so between two of these its chord lies above it.
ORDERS = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)
_CONSECUTIVE = 64
# Trapezoid rule in u with x = sinh(u). Even the tails of a Cauchy density are negligible at the
# ends, and the error is exponentially small in 1 / step for analytic densities.
_U = np.linspace(-18.0, 18.0, 7201)
_X = np.sinh(_U)
_WEIGHT = np.cosh(_U) * (_U[1] - _U[0])
# Largest order times log-ratio for which the integrand is computed without logarithms.
_EXPONENT_LIMIT = 600.0
# Largest relative difference between the quadratures with one step and with twice the step.
_QUADRATURE_TOLERANCE = 1e-6
# For larger values the grid could miss a peak of width 1 or less although the quadrature converges.
_LARGEST_SHIFT, _LARGEST_SHIFT_TIMES_ORDER = 20.0, 400.0
# Numbers of Chebyshev nodes: few for shifts of up to 1/16, for which all orders of all families
# converge. The interpolation counts as converged if the last coefficients have this relative size.
_FEW_NODES, _NODES, _SMALL = 24, 96, 1 / 16
# Where a larger order times the shift exceeds this, interpolation hardly ever converges.
_LARGEST_INTERPOLATED = 32.0
_INTERPOLATION_TOLERANCE = 1e-10
# Intervals of the grid on which the maximum of an interpolant is computed.
_POINTS = 4000
# Relative margin for errors of quadrature, interpolation and rounding, which stay well below it.
_HAIR = 1e-9


def log_moments(
    family: str,
    shifts: ArrayLike,
    orders: ArrayLike = ORDERS,
    degrees_of_freedom: float | None = None,
) -> np.ndarray:
    """Returns log I_k(t) at scale 1, shape (shifts, orders), for shifts t >= 0, whole orders k >= 2.

    An entry is infinite if its quadrature did not converge, or its shift is too large for the grid.
    """
    k = np.asarray(orders, dtype=float)
    t = np.asarray(shifts, dtype=float)[:, None]
    if family == "gaussian":
        return k * (k - 1) / 2 * t * t
    if family == "laplace":
        # The kinks of this density would spoil the quadrature, but there is a closed form,
        # (k e^((k-1)t) + (k-1) e^(-kt)) / (2k - 1). For small shifts its two first-order terms
        # cancel, so only the remainders are added there.
        up, down = (k - 1) * t, -k * t
        small = k * _expm1_minus(np.minimum(up, 1.0)) + (k - 1) * _expm1_minus(down)
        exact = up + np.log((k + (k - 1) * np.exp(down - up)) / (2 * k - 1))
        return np.where(up < 1.0, np.log1p(small / (2 * k - 1)), exact)
    weight = _WEIGHT * np.exp(log_density(family, _X, degrees_of_freedom))
    found = np.array(
        [_quadrature(log_ratio(family, _X, s, degrees_of_freedom), weight, k) for s in t[:, 0]]
    )
    return np.where((t > _LARGEST_SHIFT) | (t * k > _LARGEST_SHIFT_TIMES_ORDER), np.inf, found)


def _expm1_minus(x: np.ndarray) -> np.ndarray:
    """exp(x) - 1 - x without cancellation."""
    # The series is used for small x only, for which the subtraction would cancel.
    series = x * x / 2 * (1 + x / 3 * (1 + x / 4 * (1 + x / 5 * (1 + x / 6))))
    return np.where(np.abs(x) < 1e-2, series, np.expm1(x) - x)


def _quadrature(ratio: np.ndarray, weight: np.ndarray, orders: np.ndarray) -> np.ndarray:
    result = np.full(len(orders), np.inf)
    linear = orders * ratio.max() < _EXPONENT_LIMIT
    few = orders <= _CONSECUTIVE
    places = {int(orders[i]): i for i in np.flatnonzero(linear & few)}
    # e^(kr) - 1 - k (e^r - 1) is a sum of (e^r - 1) (e^(jr) - 1) over j < k, none of them negative.
    once = np.expm1(np.minimum(ratio, _EXPONENT_LIMIT))
    power, total = once.copy(), np.zeros_like(once)
    for k in range(2, max(places, default=1) + 1):
        product = once * power
        total += product
        power += once
        power += product
        if k in places:
            result[places[k]] = _log_moment(weight, total)
    for i in np.flatnonzero(linear & ~few):
        result[i] = _log_moment(
            weight, _expm1_minus(orders[i] * ratio) - orders[i] * _expm1_minus(ratio)
        )
    for i in np.flatnonzero(~linear):
        with np.errstate(divide="ignore"):
            terms = orders[i] * ratio + np.log(weight)
        fine = special.logsumexp(terms)
        coarse = special.logsumexp(terms[::2]) + np.log(2)
        if abs(fine - coarse) <= _QUADRATURE_TOLERANCE:
            result[i] = fine
    return result


def _log_moment(weight: np.ndarray, excess: np.ndarray) -> float:
    """log of 1 + the integral of `excess`, or infinity if it did not converge."""
    terms = weight * excess
    fine, coarse = terms.sum(), 2 * terms[::2].sum()
    converged = abs(fine - coarse) <= _QUADRATURE_TOLERANCE * abs(fine)
    return float(np.log1p(fine)) if converged else math.inf


def corner(
    family: str,
    magnitudes: np.ndarray,
    orders: Sequence[int] = ORDERS,
    degrees_of_freedom: float | None = None,
) -> np.ndarray:
    """Returns K_k of the corner of a box, the sum of log I_k over its coordinates; inf if unknown.

    Args:
        family: Name of the family.
        magnitudes: Shifts of all coordinates in units of the scale, at least 0.
        orders: The orders k.
        degrees_of_freedom: Degrees of freedom of student_t.
    """
    magnitudes = np.asarray(magnitudes, dtype=float)
    values, counts = np.unique(magnitudes[magnitudes > 0], return_counts=True)
    if not len(values):
        return np.zeros(len(orders))
    if family == "gaussian":  # K_k depends on the norm of the shifts only
        return log_moments(family, [np.linalg.norm(magnitudes)], orders)[0] * (1 + _HAIR)
    if len(values) <= 2 * _FEW_NODES:
        return counts @ log_moments(family, values, orders, degrees_of_freedom) * (1 + _HAIR)
    # The closed form of Laplace is summed directly: it contains odd powers of the shift, which a
    # polynomial in t^2 approximates badly.
    if family == "laplace":
        parts = np.array_split(np.arange(len(values)), -(-len(values) // 10_000))
        sums = (counts[i] @ log_moments(family, values[i], orders) for i in parts)
        return (1 + _HAIR) * sum(sums, np.zeros(len(orders)))
    reach = _reach(float(values[-1]))
    coefficients = _interpolant(family, reach, tuple(orders), degrees_of_freedom)
    squares = magnitudes**2
    x = 2 * squares / reach**2 - 1
    # The recurrence of the Chebyshev polynomials T_j gives sum_i t_i^2 T_j(x_i) for every j.
    moments = np.empty(coefficients.shape[0])
    before, now = np.ones_like(x), x
    for j in range(len(moments)):
        # Not @, whose threads took forty times as long on a busy machine.
        moments[j] = (squares * before).sum()
        before, now = now, 2 * x * now - before
    with np.errstate(invalid="ignore"):
        total = moments @ np.where(np.isfinite(coefficients), coefficients, 0.0)
    return np.where(np.isfinite(coefficients[0]), total * (1 + _HAIR), np.inf)


def unit_norm(
    family: str,
    norm: float,
    largest: float,
    orders: Sequence[int] = ORDERS,
    degrees_of_freedom: float | None = None,
) -> np.ndarray:
    """Returns an upper bound on K_k of all vectors of shifts with a norm and no entry above `largest`.

    log I_k(t) <= t^2 sup_(0, largest] log I_k / t^2, and the squares of the entries sum to norm^2. Both
    are in units of the scale; the bound is infinite where it could not be computed.
    """
    k = np.asarray(orders, dtype=float)
    at_zero = k * (k - 1) / 2 * fisher_information(family, degrees_of_freedom)
    if family in ("gaussian", "laplace"):
        # For Laplace, I_k is the moment generating function of a two-point variable of mean 0 and
        # variance k (k - 1) t^2 whose likelier value is the positive one, so log I_k is at most half
        # that variance (Boucheron, Lugosi, Massart 2013, exercise 2.17).
        return norm * norm * at_zero * (1 + _HAIR)
    reach = _reach(float(largest))
    coefficients = _interpolant(family, reach, tuple(orders), degrees_of_freedom)
    known = np.where(np.isfinite(coefficients), coefficients, 0.0)
    place = (largest / reach) ** 2
    before = _running(family, reach, tuple(orders), degrees_of_freedom)[:, int(place * _POINTS)]
    top = np.maximum.reduce([before, chebyshev.chebval(2 * place - 1, known), at_zero])
    return np.where(np.isfinite(coefficients[0]), norm * norm * top * (1 + 1e-6), np.inf)


@functools.lru_cache(maxsize=8)
def _running(family: str, reach: float, orders: tuple, degrees_of_freedom: float | None):
    """Largest value of the interpolant on [0, t^2] for each t^2 of an even grid up to reach^2."""
    coefficients = _interpolant(family, reach, orders, degrees_of_freedom)
    known = np.where(np.isfinite(coefficients), coefficients, 0.0)
    values = chebyshev.chebval(np.linspace(-1, 1, _POINTS + 1), known)
    return np.maximum.accumulate(values, axis=-1)


def _reach(largest: float) -> float:
    """The next power of two, so that the many scales that calibration tries share interpolants."""
    return 2.0 ** math.ceil(math.log2(largest))


@functools.lru_cache(maxsize=64)
def _interpolant(family: str, largest: float, orders: tuple, degrees_of_freedom: float | None):
    """Chebyshev coefficients of log I_k(t) / t^2 in t^2 on [0, largest^2]; inf if not converged."""
    nodes = _FEW_NODES if largest <= _SMALL else _NODES
    k = np.asarray(orders)
    most = np.where(k > _CONSECUTIVE, _LARGEST_INTERPOLATED, _LARGEST_SHIFT_TIMES_ORDER)
    known = k * largest <= most

    def values(x: np.ndarray) -> np.ndarray:
        squares = np.maximum((x + 1) / 2 * largest**2, 1e-16)
        found = log_moments(family, np.sqrt(squares), k[known], degrees_of_freedom)
        return found / squares[:, None]

    with np.errstate(invalid="ignore"):  # an infinite value makes its order's coefficients NaN
        coefficients = chebyshev.chebinterpolate(values, nodes - 1)  # type: ignore[type-var]
        tail = np.abs(coefficients[-3:]).max(axis=0)
        converged = tail <= _INTERPOLATION_TOLERANCE * np.abs(coefficients[0])
    result = np.full((nodes, len(orders)), np.inf)
    result[:, known] = np.where(converged, coefficients, np.inf)
    return result


def subsampled(moments: np.ndarray, probability: float, orders: Sequence[float]) -> np.ndarray:
    """Returns the divergences of one round in which a record takes part secretly with probability q.

    Args:
        moments: K_k for the first of `ORDERS`.
        probability: The probability q in (0, 1].
        orders: Orders of the result.

    Returns:
        The divergences, infinite except at whole orders up to the last finite moment.
    """
    finite = np.isfinite(moments)
    at = np.concatenate([[0, 1], np.asarray(ORDERS)[: len(moments)][finite]])
    known = np.interp(np.arange(at[-1] + 1), at, np.concatenate([[0.0, 0.0], moments[finite]]))
    result = np.full(len(orders), np.inf)
    for i, order in enumerate(orders):
        if order != int(order) or not 2 <= order < len(known):
            continue
        order = int(order)
        if probability == 1:
            result[i] = known[order] / (order - 1)
            continue
        k = np.arange(order + 1)
        log_binomial = -np.log(order + 1) - special.betaln(k + 1, order - k + 1)
        # The binomial weights sum to 1, so the moment exceeds 1 by the weighted sum of
        # exp(K_k) - 1. log1p of this sum keeps small divergences accurate.
        log_weight = log_binomial + k * np.log(probability) + (order - k) * np.log1p(-probability)
        excess = known[: order + 1]
        if excess.max() < 500:
            result[i] = np.log1p(np.exp(log_weight) @ np.expm1(excess)) / (order - 1)
        else:
            result[i] = np.logaddexp.reduce(log_weight + excess) / (order - 1)
    return result
