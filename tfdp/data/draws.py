"""Exact sampling from random words: binomial counts, distinct indices, orders and allocations.

Formal guarantee: each distribution is exact up to a total variation distance of 2**-50. Counts are
drawn by comparing 128 random bits with integer probabilities. Indices are drawn by accepting or
rejecting whole words. Orders compare 104 random bits where two indices tie.
"""

import bisect
import itertools

import numpy as np

from tfdp.data.words import Bits

# Largest number of units that are ordered by sorting; 24 bits of a word store the index.
MOST_SHUFFLED = 1 << 24
_INDEX = np.uint64(MOST_SHUFFLED - 1)
_BLOCK = 1 << 18


class Binomial:
    """The number of successes in independent trials, each with probability `odds[0] / odds[1]`.

    Args:
        trials: Number of trials.
        odds: Integers (a, b) with 0 <= a <= b and b > 0: the probability is a / b.
    """

    def __init__(self, trials: int, odds: tuple[int, int]):
        a, b = odds
        self._first, weights = _weights(trials, a, b)
        total = sum(weights)
        self._limits = [(c << 128) // total for c in itertools.accumulate(weights)]

    def draw(self, bits: Bits) -> int:
        """Draws a count from 128 bits."""
        low, high = bits.words(2).tolist()
        return self._first + bisect.bisect_right(self._limits, high << 64 | low)

    def exceeded_with(self, chance: float) -> int:
        """Returns the smallest count that is exceeded with at most this probability."""
        limit = (1 << 128) - int(chance * 2.0**128)
        return self._first + bisect.bisect_left(self._limits, limit)


def _weights(trials, a, b) -> tuple[int, list[int]]:
    """Returns the smallest count that is kept, and the unnormalized integer probabilities from it on.

    The most likely count has the weight 2**256. Counts with less than 2**-156 of that are left out.
    """
    mode = min(trials, (trials + 1) * a // b)

    def upwards(weight=1 << 256, k=mode):
        while weight >> 100:
            yield weight
            weight = weight * (trials - k) * a // ((k + 1) * (b - a)) if b > a else 0
            k += 1

    def downwards(weight=1 << 256, k=mode):
        while weight >> 100:
            yield weight
            weight = weight * k * (b - a) // ((trials - k + 1) * a) if a else 0
            k -= 1

    below = [*downwards()][:0:-1]
    return mode - len(below), [*below, *upwards()]


def distinct(bits: Bits, count: int, limit: int) -> np.ndarray:
    """Draws `count` distinct integers from 0 to limit - 1; every set is equally likely.

    Integers are drawn and repetitions dropped, so the cost grows with `count`, not with `limit`.

    Returns:
        The set in increasing order, int64 of shape [count].
    """
    if 2 * count > limit:  # drawing the complement is cheaper
        kept = np.ones(limit, bool)
        kept[distinct(bits, limit - count, limit)] = False
        return np.flatnonzero(kept)
    found = np.empty(0, np.uint64)
    while missing := count - len(found):
        found = np.sort(np.concatenate([found, bits.below(limit, missing)]))
        found = found[np.concatenate([[True], found[1:] != found[:-1]])]  # np.unique takes longer
    return found.astype(np.int64)


def order(bits: Bits, count: int) -> np.ndarray:
    """Draws an order of the integers 0, ..., count - 1; every order is equally likely.

    Sorts words that consist of 40 random bits and the index, and breaks ties by further words. This
    takes one sort and no more memory than the result.

    Args:
        count: At most `MOST_SHUFFLED`.

    Returns:
        The order, int64 of shape [count].
    """
    keys = bits.words(count)
    for start, block in _blocks(keys):
        block &= ~_INDEX
        block |= np.arange(start, start + len(block), dtype=np.uint64)
    keys.sort()
    for first, last in _ties(keys):
        tied = keys[first:last].copy()
        keys[first:last] = tied[np.argsort(bits.words(last - first))]
    keys &= _INDEX
    return keys.view(np.int64)


def _blocks(values):
    for start in range(0, len(values), _BLOCK):
        yield start, values[start : start + _BLOCK]


def _ties(keys):
    """Yields the start and the end of each range of sorted keys with equal random bits."""
    found = [
        start + np.flatnonzero((block ^ keys[start : start + len(block)]) <= _INDEX)
        for start, block in _blocks(keys[1:])
    ]
    places = np.concatenate([np.empty(0, np.int64), *found])
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        if len(run):
            yield run[0], run[-1] + 2


class Allocation:
    """Puts each of the integers 0, ..., count - 1 into one of `lots` lots, uniformly and independently.

    Args:
        bits: The words to draw from.
        count: At most `MOST_SHUFFLED`.
        lots: Number of lots, at most `count`.
    """

    def __init__(self, bits: Bits, count: int, lots: int):
        keys = np.empty(count, np.uint64)
        for start, block in _blocks(keys):
            block[:] = bits.below(lots, len(block))
            block <<= np.uint64(24)
            block |= np.arange(start, start + len(block), dtype=np.uint64)
        keys.sort()
        self._starts = np.searchsorted(keys, np.arange(lots + 1, dtype=np.uint64) << np.uint64(24))
        keys &= _INDEX
        self._members = keys.view(np.int64)

    def lot(self, number: int) -> np.ndarray:
        """Returns the members of a lot in increasing order, int64."""
        return self._members[self._starts[number] : self._starts[number + 1]]
