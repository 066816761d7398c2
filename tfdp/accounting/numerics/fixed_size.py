"""Subsampled Gaussians for lots of a fixed size, and for every lot in which records displace others.

A lot of L examples always has L slots. If a record is not drawn, another one takes its slot. So a lot
without the record differs from a lot with it by more than the record's own gradient, and the pair of
Poisson sampling does not bound the loss.

Coupling. Let the records of a user be drawn j times in all: a hypergeometric number without
replacement, a binomial one with replacement. Put the other records in a random order, without or with
repetition, and let the first L - j of them fill the lot. Given j, it has the right distribution, so
hockey-stick divergences being jointly convex, the order may be treated as known. Let d and d' be the
sums of the user's own terms, g and g', in two such lots with i and j draws, one under D and the other
under D'. The lots have all but |i - j| of the other records in common, and all terms have norm at most
1. Hence, in units of the clip norm, the sums differ by at most
    zero_out (d' = 0):   i + |i - j|;
    replace_one:         i + j + |i - j| = 2 max(i, j),
and without draws they are equal. The comparison lemma of `pairs` puts the terms of a mixture on a line
at these distances or larger ones. For i >= 1 and j >= 1 these are 2i + j - 2 and 2i + 2j - 2, and from
the common term without draws they are 2i (D) and j (D'), or 2i and 2j:
    "slot" (zero_out):                      D against D':  2i against 2 - j, no draws at 0,
                                            D' against D:  j against 2 - 2i, no draws at 0;
    "triangle" (replace_one, unit 2; also any case with three sums within one distance, and one draw):
                                            both orders:   i against 1 - j, no draws at 0.
For one draw without replacement some lot attains each of these pairs, but no single lot attains both
orders: the gradients of all others point against the record's gradient in one lot, and with it in the
other. With several draws, the line is longer than the distances of i > 1 and j > 1, and no lot has all
of them. If several draws are frequent, or the noise is small, it may be better to treat their number as
known, given that it is positive: a public mixture over j of the pairs of one draw, in units of j.

Composition also needs the divergences for alpha < 1. The lemma does not cover these in its own order,
but H_alpha(D || D') = 1 - alpha + alpha H_(1/alpha)(D' || D), so they follow from the *other* order.
The two halves agree at alpha = 1, where the common term does not count. Joined, they form one convex
curve that lies above the curve of every lot, and this is the curve of a dominating pair (Zhu, Dong,
Wang 2022, Proposition 8). The pair of one half alone does not bound several steps: the other examples'
gradients depend on the released weights, so an adversary who knows the loss so far may choose in every
step which of the two lots occurs.
"""

import math

import numpy as np

from tfdp.accounting.numerics.pairs import Component

# Largest number of pairs in a public mixture over the number of draws; each takes a grid of its own.
_MOST_KNOWN = 50


def ways(draws: np.ndarray, noise_multiplier: float, replaces: bool) -> list[tuple[Component, ...]]:
    """Returns public mixtures that each dominate one step of DP-SGD with lots of fixed size.

    Args:
        draws: Probabilities that a user's records are drawn 0, 1, 2, ... times in all.
        noise_multiplier: The noise multiplier of one group of weights.
        replaces: Whether the user's terms are replaced, rather than left out.
    """
    pair, unit = ("triangle", 2.0) if replaces else ("slot", 1.0)
    chances = draws / draws.sum()
    drawn = min(math.fsum(chances[1:]), 1.0)
    multiplier = noise_multiplier / unit
    one = Component(1.0, drawn, multiplier, pair, tuple(chances.tolist()))
    found: list[tuple[Component, ...]] = [(one,)]
    possible = np.flatnonzero(chances[1:]) + 1
    if len(draws) - 1 > 1 and len(possible) <= _MOST_KNOWN:
        found.append(
            tuple(
                Component(min(float(chances[j]) / drawn, 1.0), drawn, multiplier / j, pair)
                for j in map(int, possible)
            )
        )
    return found
