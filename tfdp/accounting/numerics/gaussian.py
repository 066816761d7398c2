"""Exact conversion between mu-GDP, epsilon and delta, also for mu that is drawn at random.

A mechanism is mu-GDP if no test distinguishes its outputs on neighbours better than the best test
distinguishes N(0, 1) from N(mu, 1) (Dong, Roth, Su 2022). Its privacy profile has a closed form:

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

(Balle and Wang 2018, Theorem 8).
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

_SQRT2 = math.sqrt(2.0)


def log_delta(epsilon: float, mu: ArrayLike) -> np.ndarray:
    """Returns log delta(epsilon) of N(0, 1) against N(mu, 1), mu > 0; -inf where it underflows."""
    mu = np.asarray(mu, dtype=float)
    a, b = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    # epsilon - b^2/2 equals -a^2/2. Writing the second term with erfcx and -a^2/2 avoids the
    # difference of two numbers of size epsilon, which at epsilon = 1e14 would be pure rounding.
    log_second = -a * a / 2 + np.log(special.erfcx(b / _SQRT2) / 2)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        log_first = np.where(
            a < 0,
            -a * a / 2 + np.log(special.erfcx(np.maximum(-a, 0) / _SQRT2) / 2),
            special.log_ndtr(a),
        )
        gap = np.minimum(log_second - log_first, 0.0)
        return log_first + np.log(-np.expm1(gap))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Returns the least epsilon with which a mu-GDP mechanism is (epsilon, delta)-DP; mu may be inf."""
    return epsilon_of_mixture(np.array([mu * mu]), np.array([1.0]), 0.0, delta)


def epsilon_of_mixture(
    squares: np.ndarray, probabilities: np.ndarray, overflow: float, delta: float
) -> float:
    """Returns an upper bound on epsilon if mu is drawn at random, independently of the data.

    By joint convexity, the profile is at most the average of the profiles of the outcomes, plus the
    probability of the outcomes that are left out (Theorem B).

    Args:
        squares: mu^2 of the outcomes.
        probabilities: Their probabilities.
        overflow: Probability of the outcomes that are left out.
        delta: Probability in (0, 1).

    Returns:
        Epsilon; infinite if `overflow` plus the probability of an infinite mu is not below delta.
    """
    infinite = ~np.isfinite(squares)
    overflow = overflow + float(probabilities[infinite].sum())
    if not overflow < delta:
        return math.inf
    keep = (probabilities > 0) & (squares > 0) & ~infinite
    if not np.any(keep):
        return 0.0
    mu, log_p = np.sqrt(squares[keep]), np.log(probabilities[keep])
    target = math.log(delta - overflow)

    def excess(epsilon: float) -> float:
        # The root finder needs finite numbers. The floor of -700 is below log(1e-300). SciPy's
        # logsumexp took twenty times as long for few outcomes.
        logs = log_p + log_delta(epsilon, mu)
        largest = max(float(logs.max()), -700.0)
        return max(largest + math.log(max(np.exp(logs - largest).sum(), 1e-300)), -700.0) - target

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2.0
    root, step = optimize.brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-13), 1e-13
    while excess(root) > 0:  # an epsilon below the root would understate the loss
        root, step = root * (1 + step), 2 * step
    return root
