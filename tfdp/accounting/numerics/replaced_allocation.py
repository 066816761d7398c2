"""Random allocation if a record is replaced: one epoch of t lots, any of which may have the record.

Let the record be in lot i. Given what the earlier lots of the epoch released, it moves the sum of this
lot by g_i, of norm at most s, under D, and by g'_i under D'. Over the density of an epoch without the
record, those of D and D' are the means over i of exp(<g_i, x_i> - |g_i|^2 / 2) and of the same with
g'_i. So

    t H_alpha(D || D') = E max(sum over i of U_i, 0),
    U_i = exp(<g_i, x_i> - |g_i|^2 / 2) - alpha exp(<g'_i, x_i> - |g'_i|^2 / 2),    x_i ~ N(0, I).

Given the other lots, this is the mean of a convex function of U_i. By the proof of the comparison lemma
(see `pairs`), it is largest for opposite g_i and g'_i of norm s, since then v g_i - v' g'_i is
longest for all v, v' >= 0. Replacing the vectors from the last lot to the first one removes their
dependence on the releases. It leaves independent U_i = exp(s x - s^2 / 2) - alpha exp(-s x - s^2 / 2),
and both orders are alike.

For several alpha, the law of U_i is put onto a lattice as in `allocation`, which increases means of
convex functions. Where U_i exceeds a large number, the excess is added to the divergence. Where it is
below a small number, it is raised to that number. Chords between the divergences found lie above the
convex curve of all of them.
"""

import functools
import math

import numpy as np
from scipy import special

from tfdp.accounting.numerics.allocation import LEAST_MULTIPLIER, between, split
from tfdp.accounting.numerics.attacks import lower_hull
from tfdp.accounting.numerics.loss_grid import Grid, Losses, sum_on_circle

# Points of the lattice for each standard deviation of U, the first of these that fit, and the largest
# number of points of a sum.
_POINTS, _MOST = (20, 10, 5), 1 << 17
# Standard deviations of x beyond which U counts as larger than the largest number, or is raised.
_ABOVE, _BELOW = 7.0, 5.0
# Points of the curve for each standard deviation of the loss, growth of their distances far out, and
# the divergence at which the curve ends.
_KNOTS, _GROWTH, _LEAST = 9, 1.15, 1e-12


def fits(probability: float, multiplier: float) -> bool:
    """Returns whether the lattice of `positive_losses` fits into memory, which needs enough noise."""
    if multiplier < LEAST_MULTIPLIER:
        return False
    return _divergence(1.0, round(1 / probability), 1 / multiplier) is not None


@functools.lru_cache(maxsize=8)
def positive_losses(probability: float, multiplier: float) -> Losses:
    """Returns the positive losses of one epoch of 1 / `probability` lots."""
    lots, shift = round(1 / probability), 1 / multiplier
    step = min(_deviation(1.0, shift) / math.sqrt(lots), 1.0) / _KNOTS
    alphas, found, loss = list[float](), list[float](), 0.0
    while not found or found[-1] > _LEAST:
        divergence = _divergence(math.exp(loss), lots, shift)
        if divergence is None or (found and not divergence < found[-1]):
            break
        alphas.append(math.exp(loss))
        found.append(divergence)
        step *= _GROWTH if len(found) > 4 * _KNOTS else 1.0
        loss += step
    return _of_chords(alphas, found)


def _of_chords(alphas: list[float], found: list[float]) -> Losses:
    """The losses whose divergences are the convex hull of points above a curve."""
    at, height = lower_hull(np.array(alphas), np.array(found))
    slopes = np.append(np.diff(height) / np.diff(at), 0.0)
    return Losses(np.log(at[1:]), at[1:] * np.diff(slopes), float(height[-1]))


def _deviation(alpha: float, shift: float) -> float:
    """Standard deviation of U."""
    square = math.expm1(shift**2) * (1 + alpha**2) - 2 * alpha * math.expm1(-(shift**2))
    return math.sqrt(square)


def _divergence(alpha: float, lots: int, shift: float) -> float | None:
    """Upper bound on the divergence at alpha; None if the lattice does not fit."""

    def value(x: float) -> float:
        return math.exp(shift * x - shift**2 / 2) - alpha * math.exp(-shift * x - shift**2 / 2)

    deviation = _deviation(alpha, shift)
    first, last = value(-_BELOW - shift), value(_ABOVE + shift)
    lowest = lots * (1 - alpha) - 10 * math.sqrt(lots) * deviation + 2 * first
    wide = _highest(lots, shift) - lowest + last - first
    # Few lots need a finer lattice. On it, each of them may be larger by a step.
    steps = [deviation / points / max(8 / lots, 1.0) for points in _POINTS]
    step = next((each for each in steps if wide / each + 2 + lots <= _MOST), None)
    if step is None:
        return None
    number = math.ceil((last - first) / step) + 1
    length = 1 << math.ceil(math.log2(wide / step + 2 + lots))
    chances = _law(first + step * np.arange(number), alpha, shift)
    law, rounding = sum_on_circle([(Grid(step, 0, chances, 0.0), lots)], length)
    # Point k of the sum's law stands for lots * first + k * step and all sums a whole circle away.
    sums = lots * first + step * np.arange(length)
    sums += step * length * np.ceil((lowest - sums) / (step * length))
    positive = np.maximum(sums, 0.0)
    error = rounding / math.sqrt(length) * math.sqrt(np.einsum("i,i", positive, positive))
    total = float(np.einsum("i,i", positive, np.maximum(law, 0.0))) + error
    return total / lots + 2 * float(special.ndtr(-_ABOVE))


def _law(points: np.ndarray, alpha: float, shift: float) -> np.ndarray:
    """The law of U on the points, from above in the increasing convex order."""
    product = 4 * alpha * math.exp(-(shift**2))
    root = np.sqrt(points**2 + product)
    term = np.where(points > 0, points + root, product / (root - np.minimum(points, 0)))
    ends = np.log(term / 2) / shift + shift / 2
    mean = between(ends - shift) - alpha * between(ends + shift)
    chances = split(points, between(ends), mean)
    chances[0] += special.ndtr(ends[0])
    chances[-1] += special.ndtr(-ends[-1])
    return chances


@functools.lru_cache(maxsize=8)
def _highest(lots: int, shift: float) -> float:
    """A number that sums of U hardly ever exceed: their share of the mean is at most 1e-16.

    U is at most X of `allocation`, up to its largest value. Weighting by one X tilts it.
    """
    largest = math.exp(shift * (_ABOVE + shift / 2))
    x = np.exp(np.linspace(-40 * shift, math.log(largest), 2000))
    ends = np.log(x) / shift + shift / 2
    mass, tilted = (np.append(between(e), special.ndtr(-e[-1])) for e in (ends, ends - shift))
    x = np.append(x[1:], largest)  # each cell moves to its upper end
    bounds = []
    for order in np.exp(np.linspace(math.log(0.1 / largest), math.log(100 / largest), 60)):
        factor = np.exp(order * (x - largest))
        logs = (lots - 1) * np.log(np.sum(mass * factor)) + np.log(np.sum(tilted * factor))
        bounds.append(lots * largest + (logs + 37) / order)
    return min(bounds)
