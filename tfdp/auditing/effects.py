"""Effect over noise: an estimate of mu from canaries that have a direction of their own.

Where the noise on the released values is Gaussian and the same for every canary, and an included canary
moves its values by one fixed vector d, the run is mu-GDP against this canary with mu^2 = d' S^-1 d, S
the covariance of the noise. Hotelling's T^2 of the included against the absent canaries then has a
noncentral F distribution, which gives an exact confidence interval for mu, however the mechanism
correlates its noise over the steps.
"""

import dataclasses
import math

import numpy as np
from scipy import optimize, special, stats

from tfdp._validate import fraction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Effect:
    """An estimate of mu with its confidence interval.

    Attributes:
        mu: the estimate; 0 if no effect is seen.
        low, high: ends of the two-sided interval.
        confidence: of the interval, in (0, 1).
        included, absent: numbers of canaries that it was computed from.
        releases: number of values of each canary.

    Example:
        >>> from tfdp.auditing import Effect
        >>> effect = Effect(
        ...     mu=2.01, low=1.97, high=2.05, confidence=0.95, included=5000, absent=5000, releases=4)
        >>> effect.holds(2.0), effect.holds(1.9)
        (True, False)
    """

    mu: float
    low: float
    high: float
    confidence: float
    included: int
    absent: int
    releases: int

    def holds(self, mu: float) -> bool:
        """Whether a value of mu lies in the interval."""
        return self.low <= mu <= self.high


def effect_over_noise(included, absent, confidence: float = 0.95) -> Effect:
    """Estimates mu from released values of included and of absent canaries.

    Args:
        included: array [canaries, releases] of the values that belong to the included canaries, such as
            the reserved weights after each step; or [canaries] for one value each.
        absent: the same for canaries that were not included.
        confidence: of the two-sided interval, in (0, 1).

    Raises:
        ValueError: the arrays do not fit together, or there are too few canaries for their releases.

    Example:
        >>> import numpy as np
        >>> from tfdp.auditing import effect_over_noise
        >>> rng = np.random.default_rng(0)
        >>> effect = effect_over_noise(rng.normal(2.0, 1.0, 4000), rng.normal(0.0, 1.0, 4000))
        >>> effect.holds(2.0), effect.high - effect.low < 0.15
        (True, True)
    """
    confidence = fraction("confidence", confidence)
    x, y = (_rows(name, v) for name, v in (("included", included), ("absent", absent)))
    if x.shape[1] != y.shape[1]:
        raise ValueError(
            "Expected included and absent canaries with the same number of releases. Received "
            f"{x.shape[1]} and {y.shape[1]}."
        )
    releases, freedom = x.shape[1], len(x) + len(y) - 2
    rest = freedom - releases + 1
    if rest < 10:
        raise ValueError(
            f"Expected many more canaries than releases ({releases}). Received {len(x)} included and "
            f"{len(y)} absent ones. Reserve more coordinates, or look at fewer releases."
        )
    difference = x.mean(axis=0) - y.mean(axis=0)
    scatter = sum(np.einsum("ij,ik->jk", v - v.mean(axis=0), v - v.mean(axis=0)) for v in (x, y))
    size = len(x) * len(y) / (len(x) + len(y))
    # Released values may have very different scales, so the system is solved in units of their noise.
    scale = np.sqrt(np.diag(scatter) / freedom)
    if not np.all(scale > 0):
        raise ValueError(
            "Expected noise on every release. Found released values without any variation: this "
            "training has no noise there."
        )
    within = scatter / freedom / np.outer(scale, scale)
    square = float((difference / scale) @ np.linalg.solve(within, difference / scale))
    f = size * square * rest / (freedom * releases)
    error = (1.0 - confidence) / 2.0
    low, high = (_noncentrality(f, releases, rest, 1.0 - e) for e in (error, 1.0 - error))
    unbiased = square * (rest - 2) / freedom - releases / size
    return Effect(
        mu=math.sqrt(max(0.0, unbiased)),
        low=math.sqrt(low / size),
        high=math.sqrt(high / size),
        confidence=confidence,
        included=len(x),
        absent=len(y),
        releases=releases,
    )


def _rows(name, values):
    values = np.asarray(values, float)
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or len(values) < 2 or not values.shape[1] or not np.isfinite(values).all():
        raise ValueError(
            f"Expected {name} to be finite numbers of shape [canaries, releases], two canaries at "
            f"least. Received shape {values.shape}."
        )
    return values


def _noncentrality(f: float, first: int, second: int, probability: float) -> float:
    """The noncentrality at which an F variable is at most `f` with the given probability; 0 if none.

    For large noncentralities the distribution is continued by the normal one of its cube root; its
    probabilities were within 6e-4 of SciPy's for 1 to 48 releases and 50 to 30,000 degrees of freedom.
    """

    def below(noncentrality):
        return _cdf(f, first, second, noncentrality) - probability

    if below(0.0) <= 0:
        return 0.0
    high = max(1.0, first * f)
    while below(high) > 0:
        high *= 2.0
    return float(optimize.brentq(below, 0.0, high, rtol=1e-10))


def _cdf(f, first, second, noncentrality):
    if noncentrality < 1e4:
        return float(special.ncfdtr(first, second, noncentrality, f))
    # Patnaik's chi-square of the numerator, then Wilson and Hilferty's cube roots of both.
    shift = 1.0 + noncentrality / first
    freedom = (first + noncentrality) ** 2 / (first + 2.0 * noncentrality)
    ratio = (f / shift) ** (1.0 / 3.0)
    a, b = 2.0 / (9.0 * freedom), 2.0 / (9.0 * second)
    return float(stats.norm.cdf(((1.0 - b) * ratio - (1.0 - a)) / math.sqrt(b * ratio**2 + a)))
