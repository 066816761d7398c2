"""Probabilities of numbers of draws that stay accurate far out in the tail."""

import math

import numpy as np
from scipy import special, stats


def binomial(number: int, chance: float, tail: float) -> tuple[np.ndarray, float]:
    """Probabilities of the numbers of successes, up to a small tail.

    Args:
      number: Number of independent trials.
      chance: Probability of success of one trial.
      tail: Probability of larger numbers of successes that may be left out.

    Returns:
      (probabilities, overflow): the probabilities of 0..k_max successes, and the probability of more
      than k_max. Here k_max is the first number with an overflow of at most `tail`.
    """
    if chance >= 1:
        pmf = np.zeros(number + 1)
        pmf[number] = 1.0
        return pmf, 0.0
    mean = number * chance
    reach = min(number, math.ceil(mean + 12 * math.sqrt(mean + 1) + 60))
    k = np.arange(reach + 1)
    # The logarithms of the ratios of neighbouring terms are summed, because differences of
    # log-gammas of a large `number` would lose nine digits.
    ratios = np.log((number - k[:-1]) / (k[:-1] + 1.0)) + math.log(chance) - math.log1p(-chance)
    log_pmf = number * math.log1p(-chance) + np.concatenate([[0.0], np.cumsum(ratios)])
    beyond = chance_of_more(k, number, chance)
    last = int(np.argmax(beyond <= tail)) if np.any(beyond <= tail) else reach
    return np.exp(log_pmf[: last + 1]), float(beyond[last])


def chance_of_more(successes, number: int, chance: float):
    """Probability of more than `successes` successes in `number` independent trials.

    The incomplete beta function computes it without cancellation. SciPy's `bdtrc` is not used because
    it takes `number` modulo 2^32.

    Args:
      successes: Number of at least 0, or an array of such numbers.
      number: Number of trials.
      chance: Probability of success of one trial.

    Returns:
      Array of the shape of `successes`.
    """
    left = np.maximum(number - np.asarray(successes, float), 1e-300)
    beyond = special.betainc(np.asarray(successes) + 1.0, left, chance)
    return np.where(np.asarray(successes) >= number, 0.0, beyond)


def hypergeometric(population: int, drawn: int, marked: int) -> np.ndarray:
    """Probabilities of 0, 1, ... marked ones among `drawn` out of a population, without replacement."""
    marked = min(marked, population)
    k = np.arange(min(drawn, marked) + 1)
    return np.exp(stats.hypergeom.logpmf(k, population, marked, drawn))
