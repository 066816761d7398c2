"""Privacy loss distributions on a grid: discretized from above, composed, and converted to epsilon.

Discretization. The curve of hockey-stick divergences over alpha = e^epsilon is convex. Its chords
between the points of a grid lie above it, and they are the curve of a distribution of losses on the
grid. So this distribution dominates the mechanism whatever the interval is (Doroshenko et al. 2022,
"Connect the dots"), and so do its compositions (Zhu, Dong, Wang 2022). A loss moves by less than one
interval, and its mean by about interval^2 / 12 only.

Composition is a product of Fourier transforms on a range of losses outside of which a Chernoff bound
leaves a mass of at most 1e-15. The mass outside is added to the infinite loss (Koskela et al. 2020),
and so is what rounding in the transforms may have done: about 1e-11 for some thousand rounds. A delta
below that is left to Rényi divergences.

dp_accounting computes the same distributions, point by point in Python; the tests compare the two.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import fft, special

from tfdp._validate import fraction, one_of, positive
from tfdp.accounting.numerics import hockey_stick

PAIRS = ("add", "replace", "slot", "triangle")

# Divergence that may remain at the end of a grid, where it counts as a complete loss.
_TAIL = 1e-20
# Mass outside of the range on which a composition is computed.
_TRUNCATED = 1e-15
# Largest excess over 1 of a sum of probabilities that counts as rounding.
_LARGEST_ROUNDING = 1e-6
# Orders of the Chernoff bounds, as multiples of the best order of a normal distribution.
_ORDERS = (0.125, 0.25, 0.4, 0.6, 0.8, 1.0, 1.4, 2.0)
# Losses that are rare and large (a small probability, little noise) are far from normal. Where the
# orders above leave a range of more points than this, the orders of a wider selection are tried.
_WIDE = 1 << 20
_MORE_ORDERS = tuple(np.geomspace(1 / 64, 256, 29))


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    """Inner product without BLAS, whose threads take longer to start than the sum takes."""
    return float(np.einsum("i,i", one, other))


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Distribution of the privacy loss of P from Q under P, on multiples of an interval.

    Attributes:
      interval: Distance of neighbouring losses.
      lowest: The first loss over `interval`, a whole number.
      chances: Probabilities of the losses lowest * interval, (lowest + 1) * interval, ...
      infinite: Probability of an infinite loss.
    """

    interval: float
    lowest: int
    chances: np.ndarray
    infinite: float

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """The finite losses, in rising order."""
        return (self.lowest + np.arange(len(self.chances))) * self.interval

    @functools.cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of the finite losses."""
        mean = _dot(self.losses, self.chances)
        return mean, max(_dot(self.losses**2, self.chances) - mean * mean, 0.0)

    def log_moment(self, order: float) -> float:
        """Upper bound on the log of the sum of exp(order * loss) over the finite losses."""
        exponent = order * self.losses
        largest = max(exponent[0], exponent[-1])
        # Raising the smallest terms, to e^-500 times the largest one, avoids slow subnormal numbers.
        terms = np.exp(np.maximum(exponent - largest, -500.0))
        return float(largest) + math.log(_dot(terms, self.chances))

    def delta(self, epsilon: float) -> float:
        """Hockey-stick divergence at e^epsilon."""
        gain = -np.expm1(np.minimum(epsilon - self.losses, 0.0))
        return self.infinite + _dot(gain, self.chances)

    def epsilon(self, delta: float) -> float:
        """Smallest epsilon of at least 0 with a divergence of at most `delta`, or infinity."""
        if self.infinite > delta:
            return math.inf
        first = max(1 - self.lowest, 0)  # losses of at most 0 do not count
        losses, chances = self.losses[first:], self.chances[first:]
        # Sums over this loss and all larger ones, of the probabilities under P and under Q. At an
        # epsilon between the loss before and this one, delta is above - e^epsilon * below.
        above = self.infinite + np.cumsum(chances[::-1])[::-1]
        with np.errstate(under="ignore"):
            below = np.cumsum((chances * np.exp(-losses))[::-1])[::-1]
            at = above - np.exp(np.minimum(losses, 700.0)) * below - delta
        # The divergence falls with epsilon, hence this is the first loss at which it fits.
        fits = np.flatnonzero(at <= 0)
        if not len(losses) or above[0] - below[0] <= delta:
            return 0.0
        index = int(fits[0]) if len(fits) else len(losses) - 1
        if not below[index] > 0:  # the losses are so large that exp(-loss) underflows
            return float(losses[index])
        return max(math.log(max(above[index] - delta, 1e-300) / below[index]), 0.0)


@dataclasses.dataclass(frozen=True, eq=False)
class LossDistribution:
    """Dominating distributions of the privacy loss in both orders of two neighbours.

    Attributes:
      forward: Losses of D against D'.
      backward: Losses of D' against D; None if they have the same distribution.
    """

    forward: Grid
    backward: Grid | None = None

    @property
    def halves(self) -> tuple[Grid, ...]:
        """The one or two different orders."""
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at `epsilon`, in both orders."""
        return max(half.delta(epsilon) for half in self.halves)

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at `delta`, in both orders; may be infinite."""
        return max(half.epsilon(delta) for half in self.halves)


# ---------------------------------------------------------------------- one round


def end_of_grid(pair: str, q: float, multiplier: float, weight: float = 1.0) -> tuple[float, float]:
    """Losses beyond which next to no divergence is left, for D against D' and D' against D.

    A loss that belongs to an outcome r standard deviations behind the farthest centre is exceeded
    with a probability of at most Q(r).
    """
    shift = 1.0 / multiplier
    r = -float(special.ndtri(min(_TAIL / weight, 0.5)))

    def log_mixture(x: float, centre: float) -> float:
        """log density of (1-q) N(0) + q N(centre) over that of N(0), at x."""
        rest = math.log1p(-q) if q < 1 else -math.inf
        return float(np.logaddexp(rest, math.log(q) + centre * x - centre * centre / 2))

    forward = log_mixture(shift + r, shift)
    if pair == "add":
        return forward, -log_mixture(-r, shift)
    if pair == "slot":
        x = 2 * shift + r
        return log_mixture(x, 2 * shift) - log_mixture(x, shift), forward
    if pair == "replace":
        forward -= log_mixture(shift + r, -shift)
    return forward, forward


def divergences(
    pair: str, q: float, multiplier: float, epsilon: np.ndarray
) -> tuple[hockey_stick.Curve, hockey_stick.Curve]:
    """Hockey-stick divergences of a dominating pair at e^epsilon, for D against D' and D' against D.

    Args:
      pair: One of `PAIRS`: "add" is (1-q) N(0) + q N(1) against N(0); "replace" is (1-q) N(0) + q N(1)
        against (1-q) N(0) + q N(-1); `fixed_size` defines "slot" and "triangle".
      q: Sampling probability in (0, 1].
      multiplier: Standard deviation of the noise over the unit of the pair.
      epsilon: Array of numbers of at least 0.
    """
    forward, backward = _curves(pair)
    one = forward(q, 1.0 / multiplier, epsilon)
    return one, (one if backward is forward else backward(q, 1.0 / multiplier, epsilon))


def check_pair(pair: str, probability: float, multiplier: float, known=PAIRS) -> None:
    """Raises ValueError for a pair that is not one of `known`, or numbers out of range."""
    one_of("pair", pair, known)
    drawn = "A record that is never drawn loses nothing: leave it out."
    fraction("probability", probability, one=True, remedy=drawn)
    positive(
        "noise multiplier", multiplier, remedy="Without noise nothing can be proven: use some."
    )


def _curves(pair: str) -> tuple[hockey_stick.Curve, hockey_stick.Curve]:
    return {
        "add": (hockey_stick.mixture_against_centre, hockey_stick.centre_against_mixture),
        "replace": (hockey_stick.opposite_mixtures,) * 2,
        "slot": (hockey_stick.mixture_against_mixture, hockey_stick.mixture_against_centre),
        "triangle": (hockey_stick.mixture_against_centre,) * 2,
    }[pair]


def one_round(
    parts: Sequence[tuple[float, float, float, str]], interval: float
) -> LossDistribution:
    """Pessimistic distribution of the losses of one round, a public mixture of dominating pairs.

    Args:
      parts: For each component of the mixture its (weight, probability, multiplier, pair).
      interval: Distance of the losses on the grid.

    Raises:
      ValueError: For an unknown pair, or numbers out of range.
    """
    for _, probability, multiplier, pair in parts:
        check_pair(pair, probability, multiplier)
    symmetric = all(_curves(pair)[0] is _curves(pair)[1] for *_, pair in parts)
    forward = _positive_losses(_mixed_curve(parts, interval, 0), interval)
    if symmetric:
        return LossDistribution(_joined(forward, forward, interval))
    backward = _positive_losses(_mixed_curve(parts, interval, 1), interval)
    return LossDistribution(
        _joined(forward, backward, interval), _joined(backward, forward, interval)
    )


def _mixed_curve(parts, interval: float, order: int) -> np.ndarray:
    """Divergences of a mixture at 0, interval, 2 interval, ...

    A component is evaluated up to the end of its own grid. From there on its last value is used,
    which is an upper bound since the divergence falls.
    """
    lengths = [
        max(1, math.ceil(end_of_grid(pair, q, z, weight)[order] / interval))
        for weight, q, z, pair in parts
    ]
    total = np.zeros(max(lengths) + 1)
    for (weight, q, z, pair), length in zip(parts, lengths, strict=True):
        curve = _curves(pair)[order](q, 1.0 / z, np.arange(length + 1) * interval)
        total[: length + 1] += weight * curve
        total[length + 1 :] += weight * curve[-1]
    return total


def _positive_losses(curve: np.ndarray, interval: float) -> tuple[np.ndarray, float]:
    """Probabilities of the positive losses on the grid, and of an infinite loss.

    They are second differences of the curve over e^epsilon.

    Args:
      curve: Hockey-stick divergences at epsilon 0, interval, 2 interval, ...
      interval: Distance of the losses on the grid.

    Returns:
      The probabilities of the losses interval, 2 interval, ..., and that of an infinite loss.
    """
    curve = np.minimum.accumulate(curve)
    steps = np.diff(curve)
    chances = np.empty(len(steps))
    # First differences are subtracted from each other before anything else, because both are small.
    chances[:-1] = np.diff(steps) / math.expm1(interval) - steps[:-1]
    chances[-1] = steps[-1] / math.expm1(-interval)
    return np.maximum(chances, 0.0), float(curve[-1])


def _joined(own, other, interval: float) -> Grid:
    """The distribution in one order, from the positive losses in both orders."""
    # A loss of the other order is a gain of this one, with a probability e^loss times smaller.
    gains = other[0] * np.exp(-interval * np.arange(1, len(other[0]) + 1))
    rest = 1.0 - gains.sum() - own[0].sum() - own[1]
    if rest < -_LARGEST_ROUNDING:
        raise ArithmeticError(
            f"Expected the probabilities of a privacy loss to add up to 1. Received {1 - rest}, at "
            f"interval {interval}. Report this as a bug."
        )
    return Grid(
        interval,
        -len(gains),
        np.concatenate([gains[::-1], [max(rest, 0.0)], own[0]]),
        own[1],
    )


# ---------------------------------------------------------------------- many rounds


def composed(rounds: Sequence[tuple[LossDistribution, int]]) -> LossDistribution:
    """Composition of independent rounds.

    Args:
      rounds: Distributions of one round, all with one interval, each with its number of rounds.
    """
    return LossDistribution(*map(_composed, _halves(rounds)))


def points_of(rounds: Sequence[tuple[LossDistribution, int]]) -> int:
    """Number of points of the largest grid that `composed` would compute on.

    Args:
      rounds: As for `composed`.
    """
    ranges = [_range(half) for half in _halves(rounds)]
    return max(last - first + 1 for first, last in ranges)


def _halves(rounds: Sequence[tuple[LossDistribution, int]]) -> list[list[tuple[Grid, int]]]:
    """For each of the one or two orders of the neighbours, the rounds in that order."""
    return [
        [(each.halves[min(order, len(each.halves) - 1)], n) for each, n in rounds]
        for order in range(max(len(each.halves) for each, _ in rounds))
    ]


def _composed(rounds: Sequence[tuple[Grid, int]]) -> Grid:
    if len(rounds) == 1 and rounds[0][1] == 1:
        return rounds[0][0]
    interval = rounds[0][0].interval
    first, last = _range(rounds)
    length = fft.next_fast_len(
        max(last - first + 1, *(len(grid.chances) for grid, _ in rounds)), real=True
    )
    transform = np.ones(length // 2 + 1, complex)
    for grid, count in rounds:
        transform *= _power(fft.rfft(grid.chances, length), count)
    rounding = length * _rounding(transform, length, sum(count for _, count in rounds))
    chances = fft.irfft(transform, length)
    # The transform wraps around: entry i holds the loss whose number from the lowest one is i modulo
    # `length`. Entries below 0 are rounding.
    lowest = sum(grid.lowest * count for grid, count in rounds)
    chances = np.maximum(np.roll(chances, lowest - first)[: last - first + 1], 0.0)
    finite = sum(count * math.log1p(-grid.infinite) for grid, count in rounds)
    return Grid(interval, first, chances, _TRUNCATED - math.expm1(finite) + rounding)


def _rounding(transform: np.ndarray, length: int, count: int) -> float:
    """About the largest error of one entry of the inverse transform of a power.

    A transform of probabilities has an error of some last places of 1. The power multiplies it by the
    number of rounds, and the inverse averages the errors over all frequencies.
    """
    each = 4 * np.finfo(float).eps * (count + math.log2(length))
    return float(2 * np.abs(transform).sum() / length * each)


def _power(transform: np.ndarray, count: int) -> np.ndarray:
    """The power, with entries of a magnitude below e^-80 set to 0, which hardly moves any probability.

    Usually most entries are that small, and computing with subnormal numbers is slow.
    """
    result = np.zeros_like(transform)
    kept = np.abs(transform) > math.exp(-80.0 / count)
    result[kept] = transform[kept] ** count
    return result


def _range(rounds: Sequence[tuple[Grid, int]]) -> tuple[int, int]:
    """Range of grid points outside of which the composition has a mass of at most 1e-15."""
    interval = rounds[0][0].interval
    first = sum(grid.lowest * count for grid, count in rounds)
    last = first + sum((len(grid.chances) - 1) * count for grid, count in rounds)
    variance = sum(grid.moments[1] * count for grid, count in rounds)
    allowed = -math.log(_TRUNCATED / 2)
    if not variance > 0:
        return first, last
    normal = math.sqrt(2 * allowed / variance)

    def narrowed(orders):
        low, high = first, last
        for order in orders:
            above = sum(grid.log_moment(order) * count for grid, count in rounds) + allowed
            below = sum(grid.log_moment(-order) * count for grid, count in rounds) + allowed
            high = min(high, math.ceil(above / (order * interval)))
            low = max(low, math.floor(-below / (order * interval)))
        return low, max(high, low)

    first, last = narrowed([factor * normal for factor in _ORDERS])
    if last - first > _WIDE:
        first, last = narrowed(_MORE_ORDERS)
    return first, last
