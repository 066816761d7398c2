"""Attacks that a guarantee permits: rates of membership tests, and the chance of large losses.

Everything follows from a curve: the least delta for each epsilon of at least 0, in both orders of two
neighbours. For each point of the curve, a test with false positive rate f has a true positive rate of
at most e^epsilon f + delta and at most 1 - e^-epsilon (1 - delta - f) (Kairouz, Oh, Viswanath 2015).
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize

Curve = Callable[[float], float]

# Points of the curve at larger epsilons carry no information in float64.
_MOST = 36.0
# Lines below a trade-off. They end where the curve is small, or where e^epsilon would overflow.
_LINES, _SMALL, _FARTHEST = 300, 1e-9, 400.0


def of_one_point(epsilon: float, delta: float) -> Curve:
    """Returns the curve of a mechanism that is only known to be (epsilon, delta)-DP."""
    if math.isinf(epsilon):
        return lambda _: 1.0

    def curve(at: float) -> float:
        if at >= epsilon:
            return delta
        return 1.0 - (1.0 - delta) * math.exp(np.logaddexp(0, at) - np.logaddexp(0, epsilon))

    return curve


def largest_tpr(curve: Curve, fpr: float) -> float:
    """Returns the largest true positive rate of a test at a false positive rate in (0, 1)."""
    found = _least(lambda e: math.exp(e) * fpr + curve(e), -math.log(fpr))
    other = _least(lambda e: 1.0 - math.exp(-e) * (1.0 - curve(e) - fpr), _MOST)
    return min(found, other, 1.0)


def trade_off(curve: Curve, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the trade-off of a test: rising false positive rates, and least false negative rates.

    Every point of the curve is a line below the trade-off: no test has f + e^-epsilon n below
    e^-epsilon (1 - delta), nor with the two rates exchanged. The result has the corners of the largest
    of these lines, at many points of the curve. Straight lines between them are valid, too.

    Args:
        curve: The curve.
        epsilon: About where the curve becomes small; infinite if it never does.
    """
    if math.isinf(epsilon) or curve(0.0) >= 1.0:
        return np.array([0.0, 1.0]), np.zeros(2)
    end = min(max(epsilon, 1e-6), _FARTHEST)
    while end < _FARTHEST and _SMALL < curve(end) < 0.9 * curve(end / 2):
        end *= 1.5
    epsilons = np.linspace(0.0, end, _LINES)
    alphas, deltas = lower_hull(np.exp(epsilons), np.array([curve(float(e)) for e in epsilons]))
    fprs = np.append(np.diff(-deltas) / np.diff(alphas), 0.0)
    fnrs = 1.0 - deltas - alphas * fprs
    # The lines beyond the first one are the same with the two rates exchanged.
    fprs, fnrs = np.append(fprs[::-1], fnrs), np.append(fnrs[::-1], fprs)
    fprs = np.maximum.accumulate(np.append(fprs, 1.0))
    return fprs, np.minimum.accumulate(np.maximum(np.append(fnrs, 0.0), 0.0))


def lower_hull(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the corners of the largest convex function below points with rising x.

    Every convex function below the points is also below this one.
    """
    kept: list[int] = []
    for k in range(len(x)):
        while len(kept) > 1:
            i, j = kept[-2:]
            if (y[j] - y[i]) * (x[k] - x[j]) < (y[k] - y[j]) * (x[j] - x[i]):
                break
            kept.pop()
        kept.append(k)
    return x[kept], y[kept]


def chance_of_more(curve: Curve, epsilon: float) -> float:
    """Returns an upper bound on the chance of a privacy loss above a positive epsilon.

    Such outcomes alone add at least 1 - e^(t - epsilon) of their chance to delta at any t < epsilon.
    """
    return _least(lambda t: min(curve(t) / -math.expm1(t - epsilon), 1.0), epsilon * (1 - 1e-6))


def _least(bound: Callable[[float], float], end: float) -> float:
    """Least value found of a function with one minimum on [0, end]; every value is a valid bound."""
    found = optimize.minimize_scalar(bound, bounds=(0.0, end), method="bounded")
    return min(float(found.fun), bound(0.0), bound(end))
