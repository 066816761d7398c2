"""The hypotheses that an audit tests: what a guarantee allows an attacker.

An attack that flags an included record with probability `tpr` and an absent one with probability `fpr`
is possible under a guarantee if `tpr <= largest_tpr(fpr)`. The functions are those of

* (epsilon, delta)-DP: Kairouz, Oh, Viswanath 2015, for zero_out neighbours;
* mu-GDP, a shift of a Gaussian by mu of its standard deviations: Dong, Roth, Su 2022.

Everything here is NumPy and SciPy.
"""

import dataclasses
import math
from typing import Protocol

import numpy as np
from scipy import special

from tfdp.accounting.numerics.gaussian import mu_of_epsilon

# Larger epsilons are neither told apart nor of use: no audit of fewer than e^40 canaries shows one.
_MOST = 40.0


class Tradeoff(Protocol):
    """What one guarantee allows; both functions do not decrease and are inverses of each other."""

    def largest_tpr(self, fpr: np.ndarray) -> np.ndarray:
        """Largest true positive rate for false positive rates in [0, 1], of the same shape."""

    def least_fpr(self, tpr: np.ndarray) -> np.ndarray:
        """Least false positive rate for true positive rates in [0, 1], of the same shape."""


@dataclasses.dataclass(frozen=True)
class ApproximateDP:
    """What (epsilon, delta)-DP allows.

    Attributes:
        epsilon: number of at least 0; may be infinite.
        delta: probability in [0, 1).

    Example:
        >>> from tfdp.auditing import ApproximateDP
        >>> print(f"{ApproximateDP(epsilon=2.0, delta=1e-5).largest_tpr(0.01):.4f}")
        0.0739
    """

    epsilon: float
    delta: float

    @property
    def _factor(self):
        return math.exp(min(self.epsilon, 700.0))  # beyond, nothing is forbidden in float64

    def largest_tpr(self, fpr):
        fpr = np.asarray(fpr, float)
        if math.isinf(self.epsilon):
            return np.ones_like(fpr)
        above = self._factor * fpr + self.delta
        below = 1.0 - math.exp(-self.epsilon) * (1.0 - self.delta - fpr)
        return np.clip(np.minimum(above, below), 0.0, 1.0)

    def least_fpr(self, tpr):
        tpr = np.asarray(tpr, float)
        if math.isinf(self.epsilon):
            return np.zeros_like(tpr)
        above = math.exp(-self.epsilon) * (tpr - self.delta)
        below = 1.0 - self.delta - self._factor * (1.0 - tpr)
        return np.clip(np.maximum(above, below), 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class GaussianDP:
    """What mu-GDP allows.

    Attributes:
        mu: number of at least 0; may be infinite.

    Example:
        >>> from tfdp.auditing import GaussianDP
        >>> print(f"{GaussianDP(mu=1.0).largest_tpr(0.01):.4f}")
        0.0924
    """

    mu: float

    def largest_tpr(self, fpr):
        fpr = np.asarray(fpr, float)
        if math.isinf(self.mu):
            return np.ones_like(fpr)
        return special.ndtr(special.ndtri(fpr) + self.mu)

    def least_fpr(self, tpr):
        tpr = np.asarray(tpr, float)
        if math.isinf(self.mu):
            return np.zeros_like(tpr)
        return special.ndtr(special.ndtri(tpr) - self.mu)


@dataclasses.dataclass(frozen=True)
class AllOf:
    """What several guarantees of one training allow together: what none of them forbids.

    Attributes:
        curves: the trade-off curves, at least one.

    Example:
        >>> from tfdp.auditing import AllOf, ApproximateDP
        >>> both = AllOf((ApproximateDP(1.0, 1e-2), ApproximateDP(3.0, 1e-6)))
        >>> print(f"{both.largest_tpr(1e-4):.4f} {both.largest_tpr(0.1):.4f}")
        0.0020 0.2818
    """

    curves: tuple[Tradeoff, ...]

    def largest_tpr(self, fpr):
        return np.min([curve.largest_tpr(fpr) for curve in self.curves], axis=0)

    def least_fpr(self, tpr):
        return np.max([curve.least_fpr(tpr) for curve in self.curves], axis=0)


def of_guarantees(stated, delta: float) -> AllOf:
    """The trade-off curve of what a training states at many deltas.

    Args:
        stated: a function of delta that returns the `Guarantee`.
        delta: the delta of the report, which is one of the many.
    """
    found = [stated(d) for d in (*np.geomspace(0.3, 1e-9, 30), delta)]
    curves = [ApproximateDP(guarantee.epsilon, guarantee.delta) for guarantee in found]
    return AllOf(tuple(curves))


HYPOTHESES = ("approximate", "gaussian")


def of_epsilon(hypothesis: str, epsilon: float, delta: float) -> Tradeoff:
    """The trade-off curve of a family that has a given epsilon at delta.

    Args:
        hypothesis: "approximate", all that (epsilon, delta)-DP allows; or "gaussian", the curve of
            mu-GDP with this epsilon at delta.
        epsilon: number of at least 0.
        delta: probability in (0, 1).
    """
    if hypothesis == "approximate":
        return ApproximateDP(epsilon, delta)
    return GaussianDP(mu_of_epsilon(epsilon, delta) if epsilon > 0 else _mu_at_zero(delta))


def _mu_at_zero(delta):
    """The largest mu whose epsilon at delta is 0: its total variation distance is delta."""
    return 2.0 * float(special.ndtri((1.0 + delta) / 2.0))


def largest_refuted(refutes, most: float = _MOST) -> float:
    """The largest epsilon that a test refutes, rounded down; 0 if it refutes none.

    Args:
        refutes: a function of epsilon; true below some epsilon, and false above it.
        most: larger epsilons are not looked at.
    """
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < most and refutes(high):
        low, high = high, 2.0 * high
    for _ in range(60):
        if high - low < 1e-7 * max(1.0, low):
            break
        middle = (low + high) / 2.0
        low, high = (middle, high) if refutes(middle) else (low, middle)
    return low
