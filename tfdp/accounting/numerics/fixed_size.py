"""Subsampled Gaussians for lots of a fixed size, and for every lot in which records displace others.

A lot of L examples always has L slots. If a record is not drawn, another one takes its slot. So a lot
without the record differs from a lot with it by more than the record's own gradient, and the pair of
Poisson sampling does not bound the loss.

Coupling. Let the record be drawn k times: K in {0, 1} with P(K = 1) = L/N without replacement, K
binomial (L, 1/N) with replacement. Draw L others as if the record did not exist, and let R be their
sum. Give the last k slots to the record: P = R - (the last k) + k g under D and P' = R - (the last
k) + k g' under D' (g' = 0 for zero_out). Given K = k, this lot has the right distribution for every k
(without replacement: L distinct others less one of them are L - 1 distinct others), so K may be drawn
first. All terms have norm at most 1. Hence, in units of the clip norm,
    zero_out:     |P - R| <= 2k, |P' - R| <= k,  |P - P'| <= k;
    replace_one:  |P - R| <= 2k, |P' - R| <= 2k, |P - P'| <= 2k.
Hockey-stick divergences are jointly convex, so the draw of the others may be treated as known, and
so may k, given that k is positive.

Three-point lemma, for alpha >= 1, q = P(K >= 1), alpha' = 1 + q (alpha - 1) and b = alpha'/alpha
(advanced joint convexity; Balle, Barthe, Gaboardi 2018, Theorem 2):
    H_alpha'((1-q) R + q P || (1-q) R + q P') = q H_alpha(P || (1-b) R + b P').
A Gaussian is easiest to distinguish from a mixture whose centres lie at their largest distances in
one direction (Choquette-Choo et al. 2024, Corollary 4.7): R at |P - R| and P' at |P - P'| from P. The
other order is the same with P and P' exchanged. So these pairs have the largest divergences for
alpha >= 1:
    "slot" (zero_out, unit k):      D against D':  (1-q) N(0) + q N(2) against (1-q) N(0) + q N(1),
                                    D' against D:  (1-q) N(1) + q N(0) against N(1);
    "triangle" (replace_one, unit 2k; also any case with three sums within one distance):
                                    both orders:   (1-q) N(0) + q N(1) against N(0).
Without replacement some lot attains each of these pairs, but no single lot attains both orders: the
gradients of all others point against the record's gradient in one lot, and with it in the other.

Composition also needs the divergences for alpha < 1. The lemma does not cover these in its own order,
but H_alpha(D || D') = 1 - alpha + alpha H_(1/alpha)(D' || D), so they follow from the *other* order.
The two halves, joined at alpha = 1, form one convex curve that lies above the curve of every lot, and
this is the curve of a dominating pair (Zhu, Dong, Wang 2022, Proposition 8). The pair of one half
alone does not bound several steps: the other examples' gradients depend on the released weights, so
an adversary who knows the loss so far may choose in every step which of the two lots occurs.

Privacy loss distributions (`loss_grid`) are made of the positive losses in both orders, which is the
joined curve.
"""

import numpy as np

from tfdp.accounting.numerics.pairs import Component


def rounds(
    draws: np.ndarray, overflow: float, noise_multiplier: float, replaces: bool
) -> tuple[Component, ...]:
    """One step of DP-SGD with lots of fixed size, as a public mixture of rounds.

    `draws` are the probabilities that the record is drawn 0, 1, 2, ... times, and `overflow` is that
    of more draws, which the rounds leave out. `replaces`: its term is replaced, and not only left out.
    """
    pair, unit = ("triangle", 2.0) if replaces else ("slot", 1.0)
    drawn = float(draws[1:].sum())
    return tuple(
        Component(float(draws[k]) / drawn, drawn + overflow, noise_multiplier / (unit * k), pair)
        for k in range(1, len(draws))
        if draws[k] > 0
    )
