"""Binomial chances that stay accurate far out in the tail."""

import math

import numpy as np
from scipy import special


def binomial(number: int, chance: float, tail: float) -> tuple[np.ndarray, float]:
    """Probabilities of 0..k_max successes and the chance of more, k_max the first below `tail`."""
    if chance >= 1:
        pmf = np.zeros(number + 1)
        pmf[number] = 1.0
        return pmf, 0.0
    mean = number * chance
    reach = min(number, math.ceil(mean + 12 * math.sqrt(mean + 1) + 60))
    k = np.arange(reach + 1)
    # Ratios of neighbouring terms, summed in logarithms: differences of log-gammas of a large
    # `number` would lose nine digits.
    ratios = np.log((number - k[:-1]) / (k[:-1] + 1.0)) + math.log(chance) - math.log1p(-chance)
    log_pmf = number * math.log1p(-chance) + np.concatenate([[0.0], np.cumsum(ratios)])
    beyond = chance_of_more(k, number, chance)
    last = int(np.argmax(beyond <= tail)) if np.any(beyond <= tail) else reach
    return np.exp(log_pmf[: last + 1]), float(beyond[last])


def chance_of_more(successes, number: int, chance: float):
    """Chance of more than so many successes in `number` trials; takes arrays, too.

    By the incomplete beta function, which does not cancel; scipy's `bdtrc` takes `number` modulo
    2^32.
    """
    left = np.maximum(number - np.asarray(successes, float), 1e-300)
    beyond = special.betainc(np.asarray(successes) + 1.0, left, chance)
    return np.where(np.asarray(successes) >= number, 0.0, beyond)
