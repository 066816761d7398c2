"""Attacks that a guarantee permits: rates of membership tests, and the chance of large losses.

Everything follows from a curve: the least delta for each epsilon of at least 0, in both orders of two
neighbours. For each of its points, a test with false positive rate f has a true positive rate of at
most e^epsilon f + delta and 1 - e^-epsilon (1 - delta - f) (Kairouz, Oh, Viswanath 2015).
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize

Curve = Callable[[float], float]

# Points of the curve at larger epsilons carry no information in float64.
_MOST = 36.0


def of_one_point(epsilon: float, delta: float) -> Curve:
    """The curve of a mechanism that is only known to be (epsilon, delta)-DP."""
    if math.isinf(epsilon):
        return lambda _: 1.0

    def curve(at: float) -> float:
        if at >= epsilon:
            return delta
        return 1.0 - (1.0 - delta) * math.exp(np.logaddexp(0, at) - np.logaddexp(0, epsilon))

    return curve


def largest_tpr(curve: Curve, fpr: float) -> float:
    """Largest true positive rate of a membership test at a false positive rate in (0, 1)."""
    found = _least(lambda e: math.exp(e) * fpr + curve(e), -math.log(fpr))
    other = _least(lambda e: 1.0 - math.exp(-e) * (1.0 - curve(e) - fpr), _MOST)
    return min(found, other, 1.0)


def largest_tprs(curve: Curve, fprs: np.ndarray) -> np.ndarray:
    """Upper bounds on the largest true positive rates at many false positive rates.

    They use a fixed set of points of the curve, so they are slightly above `largest_tpr`.
    """
    epsilons = np.concatenate([np.linspace(0.0, 10.0, 101), np.linspace(11.0, _MOST, 6)])[:, None]
    deltas = np.array([[curve(float(epsilon))] for epsilon in epsilons[:, 0]])
    found = np.minimum(
        np.exp(epsilons) * fprs + deltas, 1.0 - np.exp(-epsilons) * (1.0 - deltas - fprs)
    )
    return np.minimum(found.min(axis=0), 1.0)


def advantage(curve: Curve) -> float:
    """Largest difference of true and false positive rate: the total variation distance."""
    return min(curve(0.0), 1.0)


def chance_of_more(curve: Curve, epsilon: float) -> float:
    """Upper bound on the chance of a privacy loss above a positive epsilon.

    Such outcomes alone add at least 1 - e^(t - epsilon) of their chance to delta at any t < epsilon.
    """
    return _least(lambda t: min(curve(t) / -math.expm1(t - epsilon), 1.0), epsilon * (1 - 1e-6))


def _least(bound: Callable[[float], float], end: float) -> float:
    """Least value found of a function with one minimum on [0, end]; every value is a valid bound."""
    found = optimize.minimize_scalar(bound, bounds=(0.0, end), method="bounded")
    return min(float(found.fun), bound(0.0), bound(end))
