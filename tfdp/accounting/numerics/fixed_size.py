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

Both accountants (the privacy loss distributions of `loss_grid` and the Rényi divergences below) compute
with the joined curve.
"""

import functools
import math

import numpy as np
from scipy import special

from tfdp.accounting.numerics import loss_grid
from tfdp.accounting.numerics.binomials import binomial

PAIRS = ("slot", "triangle")

# Orders with a larger value of order / multiplier^2 are bounded without amplification, by more than
# half of this number. Such a bound is vacuous.
_LARGEST_EXPONENT = 100.0


def occurrences(
    num_examples: int, lot_size: int, replacement: bool, tail: float
) -> tuple[tuple[tuple[int, float], ...], float, float]:
    """Law of the number of occurrences of one record in a lot of fixed size.

    Args:
      num_examples: Number N of examples, at least 1.
      lot_size: Lot size L; at most N without replacement.
      replacement: Whether the L draws are independent.
      tail: Probability of many occurrences that may be left out.

    Returns:
      (draws, probability, overflow): `draws` has pairs of a number k >= 1 and its probability, given
      that the record is in the lot; `probability` is that of being in the lot; `overflow` is the
      probability per lot of the numbers that `draws` leaves out.

    Raises:
      ValueError: If the lot is empty, or does not fit into the data set without replacement.
    """
    if not (lot_size >= 1) or not (replacement or lot_size <= num_examples):
        raise ValueError(
            "Expected a lot size of at least 1, and without replacement at most the number of "
            f"examples, {num_examples}. Received {lot_size}. Use a smaller lot."
        )
    if not replacement:
        return ((1, 1.0),), lot_size / num_examples, 0.0
    counts, overflow = binomial(lot_size, 1.0 / num_examples, tail)
    present = counts[1:].sum()
    draws = tuple((k, float(counts[k] / present)) for k in range(1, len(counts)) if counts[k] > 0)
    # The true probability of being drawn, which includes the numbers that `draws` leaves out.
    probability = (
        -math.expm1(lot_size * math.log1p(-1.0 / num_examples)) if num_examples > 1 else 1.0
    )
    return draws, probability, overflow


def parts(
    num_examples: int,
    lot_size: int,
    noise_multiplier: float,
    adjacency: str,
    *,
    replacement: bool,
    batch_statistics: bool = False,
    tail: float = 0.0,
) -> tuple[tuple[tuple[float, float, float, str], ...], float]:
    """One step of DP-SGD with lots of fixed size of single examples, as a public mixture of rounds.

    Args:
      num_examples: Number N of examples.
      lot_size: Lot size L.
      noise_multiplier: Standard deviation of the noise over the clip norm.
      adjacency: "zero_out" or "replace_one".
      replacement: Whether lots are drawn with replacement.
      batch_statistics: Whether one example may change the gradients of its whole lot.
      tail: Probability of many occurrences of a record that may be left out.

    Returns:
      (rounds, overflow): `rounds` is a tuple of (weight, probability, multiplier, pair) for each round
      of the mixture; `overflow` is the probability of the occurrences that were left out, which count
      as a complete loss.

    Raises:
      ValueError: For another adjacency, or if the lot does not fit.
    """
    if adjacency not in ("zero_out", "replace_one"):
        raise ValueError(
            "Expected adjacency zero_out or replace_one with lots of fixed size, because adding a "
            f"record would change how the others are sampled. Received {adjacency!r}. Pass "
            "adjacency='zero_out'."
        )
    draws, probability, overflow = occurrences(num_examples, lot_size, replacement, tail)
    if batch_statistics:
        # All three sums have at most L terms of norm at most 1.
        return ((1.0, probability, noise_multiplier / (2.0 * lot_size), "triangle"),), 0.0
    pair, unit = ("slot", 1.0) if adjacency == "zero_out" else ("triangle", 2.0)
    rounds = tuple(
        (weight, probability, noise_multiplier / (unit * k), pair) for k, weight in draws
    )
    return rounds, overflow


# ---------------------------------------------------------------------- the curve


def divergences(
    pair: str, probability: float, multiplier: float, epsilon: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Largest hockey-stick divergences of one round at e^epsilon, in both orders.

    Args:
      pair: "slot" or "triangle".
      probability: q in (0, 1].
      multiplier: Standard deviation of the noise over the unit of the pair, positive.
      epsilon: Array of numbers of at least 0.

    Returns:
      Two arrays of the shape of `epsilon`: D against D', and D' against D.

    Raises:
      ValueError: For an unknown pair or arguments out of range.
    """
    loss_grid.check_pair(pair, probability, multiplier, PAIRS)
    epsilon = np.asarray(epsilon, dtype=float)
    if not np.all(epsilon >= 0):
        raise ValueError(f"Expected epsilon at least 0. Received {epsilon}. Use the other order.")
    return loss_grid.divergences(pair, probability, multiplier, epsilon)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


# ---------------------------------------------------------------------- Rényi divergence


@functools.lru_cache(maxsize=256)
def round_rdp(
    pair: str, probability: float, multiplier: float, orders: tuple[float, ...]
) -> np.ndarray:
    """Rényi divergences of one round, the larger one of D from D' and D' from D.

    Let h be the curve of D against D', and h' that of D' against D. Then exp((a-1) D_a) is
        1 + a (a-1) times the integral over t > 1 of t^(a-2) h(t) + t^(-a-1) h'(t),
    (Sason and Verdú 2016). As h >= h', the divergence of D from D' is the larger one. The first
    summand contributes the mean of f(r) = e^(a r) - 1 - a (e^r - 1) over positive log-ratios r under
    the pair of h; the second contributes that of g(r) = e^((1-a) r) - 1 + (a-1) (e^r - 1) under the
    pair of h'.

    Args:
      pair: "slot" or "triangle".
      probability: q in (0, 1].
      multiplier: Standard deviation of the noise over the unit of the pair.
      orders: Orders a above 1.

    Returns:
      Array with one divergence per order.
    """
    loss_grid.check_pair(pair, probability, multiplier, PAIRS)
    shift = 1.0 / multiplier
    alpha = np.asarray(orders, dtype=float)
    # Without amplification: given the lot, D and D' differ by a shift of at most one unit.
    result = alpha * shift**2 / 2
    if probability == 1:
        return result
    amplified = np.flatnonzero(alpha * shift**2 <= _LARGEST_EXPONENT)
    if not len(amplified):
        return result
    largest = float(alpha[amplified].max())
    panel = min(0.5, 1 / shift, 1 / math.sqrt(1 + largest * shift**2))
    loss = _log_ratios(pair, probability, shift, 2 * largest * shift + 15, panel)
    gain = _log_ratios("triangle", probability, shift, 2 * shift + 15, panel)
    for index in amplified:
        order = alpha[index]
        # The integrand has its maximum between (order + 1) * shift and 2 * order * shift.
        near = loss[0] <= 2 * order * shift + 15 + 2 * shift
        terms = np.concatenate(
            [
                loss[2][near] + _log_f(loss[1][near], order),
                gain[2] + _log_g(gain[1], order - 1),
            ]
        )
        moment = float(np.logaddexp(0.0, special.logsumexp(terms)))
        result[index] = min(result[index], moment / (order - 1))
    return result


def _log_ratios(pair: str, q: float, shift: float, end: float, panel: float):
    """Nodes for quadrature over the points at which the log-ratio of a pair is positive.

    Returns:
      (x, log-ratio, log(weight * density)), one entry for each node.
    """
    start = 1.5 * shift if pair == "slot" else 0.5 * shift
    count = math.ceil((end - start) / panel) if end > start else 1
    x = (start + panel * (np.arange(count)[:, None] + (_NODES + 1) / 2)).ravel()
    log_weight = np.tile(np.log(_WEIGHTS * panel / 2), count)
    log_density = -0.5 * x**2 - 0.5 * math.log(2 * math.pi)
    if pair == "slot":
        height = shift * x - shift**2 / 2  # log of N(shift) over N(0)
        log_density += np.logaddexp(math.log1p(-q), math.log(q) + height)
        odds = math.log(q) - math.log1p(-q) + height
        log_p, log_rest, step = special.log_expit(odds), special.log_expit(-odds), height - shift**2
    else:
        log_p, log_rest = np.full_like(x, math.log(q)), np.full_like(x, math.log1p(-q))
        step = shift * x - shift**2 / 2
    # log(1 - p + p e^step), accurate for small and for large steps.
    with np.errstate(over="ignore"):
        ratio = np.where(
            step < 30,
            np.log1p(np.exp(log_p) * np.expm1(np.minimum(step, 30))),
            np.logaddexp(log_rest, log_p + step),
        )
    return x, ratio, log_weight + log_density


def _log_f(r: np.ndarray, order: float) -> np.ndarray:
    """log of f(r) = e^(a r) - 1 - a (e^r - 1) at order a (see `round_rdp`)."""
    small = order * r < 0.1
    series, direct = r[small], r[~small]
    out = np.empty_like(r)
    out[small] = _log_series(series, lambda n: order**n - order)
    out[~small] = order * direct + np.log1p(
        -np.exp(-order * direct) * (1 - order) - order * np.exp((1 - order) * direct)
    )
    return out


def _log_g(r: np.ndarray, m: float) -> np.ndarray:
    """log of g(r) = e^(-m r) - 1 + m (e^r - 1), with m the order less 1 (see `round_rdp`)."""
    small = max(m, 1.0) * r < 0.1
    series, direct = r[small], r[~small]
    out = np.empty_like(r)
    out[small] = _log_series(series, lambda n: m + (-m) ** n)
    out[~small] = math.log(m) + direct + np.log1p(np.exp(-direct) * (np.expm1(-m * direct) / m - 1))
    return out


def _log_series(r: np.ndarray, coefficient) -> np.ndarray:
    """log of the sum over n from 2 to 14 of coefficient(n) r^n / n!, the series for small r."""
    total = np.zeros_like(r)
    for n in range(14, 1, -1):
        total = total * r + coefficient(n) / math.factorial(n)
    with np.errstate(divide="ignore"):
        return np.log(total) + 2 * np.log(r)
