"""Probabilities of numbers of draws, accurate far out in the tail."""

import math

import numpy as np
from scipy import special


def binomial(number: int, chance: float, tail: float) -> tuple[np.ndarray, float]:
    """Returns the probabilities of the numbers of successes in `number` independent trials.

    Returns:
        (probabilities of 0..k_max successes, probability of more); k_max is the first number beyond
        which at most `tail` is left.
    """
    if chance >= 1:
        return np.concatenate([np.zeros(number), [1.0]]), 0.0
    mean = number * chance
    k = np.arange(min(number, math.ceil(mean + 12 * math.sqrt(mean + 1) + 60)) + 1)
    # The logarithms of the ratios of neighbouring terms are summed, because differences of
    # log-gammas of a large `number` would lose nine digits.
    ratios = np.log((number - k[:-1]) / (k[:-1] + 1.0)) + math.log(chance) - math.log1p(-chance)
    log_pmf = number * math.log1p(-chance) + np.concatenate([[0.0], np.cumsum(ratios)])
    # The incomplete beta function has no cancellation. SciPy's `bdtrc` takes `number` modulo 2^32.
    beyond = special.betainc(k + 1.0, np.maximum(number - k, 1e-300), chance)
    beyond = np.where(k >= number, 0.0, beyond)
    last = int(np.argmax(beyond <= tail)) if np.any(beyond <= tail) else len(k) - 1
    return np.exp(log_pmf[: last + 1]), float(beyond[last])


def hypergeometric(population: int, drawn: int, marked: int) -> np.ndarray:
    """Returns the probabilities of 0, 1, ... marked items among those drawn without replacement.

    Args:
        population: Number of items.
        drawn: Number of drawn items.
        marked: Number of marked items in the population.
    """
    marked = min(marked, population)
    first = max(drawn + marked - population, 0)
    # With differences of log-gammas, a large population would lose digits; see `binomial`.
    if first:  # all items that are left are marked
        i = np.arange(population - drawn)
        log_first = np.log((marked - i) / (population - i)).sum()
    else:
        log_first = np.log1p(-drawn / (population - np.arange(marked))).sum()
    k = np.arange(first, min(drawn, marked))
    ratios = np.log((marked - k) / (k + 1.0)) + np.log(
        (drawn - k) / (population - marked - drawn + k + 1.0)
    )
    log_pmf = log_first + np.concatenate([[0.0], np.cumsum(ratios)])
    return np.concatenate([np.zeros(first), np.exp(log_pmf)])
