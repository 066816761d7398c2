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
from scipy import fft, optimize

# Mass outside of the range on which a composition is computed.
_TRUNCATED = 1e-15
# About the number of points from which a Chernoff bound is computed.
_COARSE = 4096
# Largest excess over 1 of a sum of probabilities that counts as rounding.
_LARGEST_ROUNDING = 1e-6


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    """Inner product without BLAS, whose threads take longer to start than the sum takes."""
    return float(np.einsum("i,i", one, other))


@dataclasses.dataclass(frozen=True, eq=False)
class Losses:
    """Positive losses with their chances, from above, and the chance of an infinite one."""

    values: np.ndarray
    chances: np.ndarray
    infinite: float


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

    @functools.cached_property
    def coarse(self) -> "Grid":
        """A grid of fewer points, between which the masses are split with their means unchanged.

        The moments of e^loss are convex functions of the loss, so they are not smaller.
        """
        block = len(self.chances) // _COARSE
        if block < 2:
            return self
        first, before = divmod(self.lowest, block)
        rows = -(-(before + len(self.chances)) // block)
        cells = np.zeros(rows * block)
        cells[before : before + len(self.chances)] = self.chances
        cells = cells.reshape(rows, block)
        upper = np.einsum("ij,j", cells, np.arange(block) / block)
        chances = np.append(cells.sum(axis=1) - upper, 0.0)
        chances[1:] += upper
        return Grid(self.interval * block, first, chances, self.infinite)

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
    """Dominating distributions in both orders: two `halves`, or one for both."""

    halves: tuple[Grid, ...]

    @property
    def infinite(self) -> float:
        """Probability of an infinite loss, the larger one of both orders."""
        return max(half.infinite for half in self.halves)

    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at `epsilon`, in both orders."""
        return max(half.delta(epsilon) for half in self.halves)

    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at `delta`, in both orders; may be infinite."""
        return max(half.epsilon(delta) for half in self.halves)


# ---------------------------------------------------------------------- one round


def one_round(
    parts: Sequence[tuple[float, tuple[Losses, Losses]]], interval: float
) -> LossDistribution:
    """Pessimistic distribution of a public mixture: weights, each with losses in both orders."""
    orders = (0,) if all(forward is backward for _, (forward, backward) in parts) else (0, 1)
    found = [_on_grid([(weight, pair[n]) for weight, pair in parts], interval) for n in orders]
    halves = zip(found, reversed(found), strict=True)
    return LossDistribution(tuple(_joined(own, other, interval) for own, other in halves))


def _on_grid(parts: Sequence[tuple[float, Losses]], interval: float) -> tuple[np.ndarray, float]:
    """Splits each loss between the grid points around it, so that both masses of it are kept."""
    points = 1 + max(math.ceil(losses.values.max(initial=0.0) / interval) for _, losses in parts)
    total, infinite = np.zeros(points + 1), 0.0
    for weight, losses in parts:
        upper = np.ceil(losses.values / interval)
        below = np.minimum((upper - 1) * interval - losses.values, 0.0)
        share = np.clip(np.expm1(below) / math.expm1(-interval), 0.0, 1.0)
        index = upper.astype(int)
        at_upper = weight * losses.chances * share
        total += np.bincount(index, at_upper, points + 1)
        at_lower = weight * losses.chances - at_upper
        total += np.bincount(np.maximum(index - 1, 0), at_lower, points + 1)
        infinite += weight * losses.infinite
    return total[1:], infinite


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


def composed(
    rounds: Sequence[tuple[LossDistribution, int]], most_points: int
) -> LossDistribution | None:
    """Composition of independent rounds; None where a grid would exceed `most_points` points.

    All distributions have one interval. A point takes about a hundred bytes.
    """
    orders = range(max(len(each.halves) for each, _ in rounds))
    halves = [
        [(each.halves[min(n, len(each.halves) - 1)], k) for each, k in rounds] for n in orders
    ]
    ends = [_range(half) for half in halves]
    if max(last - first + 1 for first, last in ends) > most_points:
        return None
    return LossDistribution(tuple(map(sum_of, halves, ends)))


def sum_of(rounds: Sequence[tuple[Grid, int]], ends: tuple[int, int] | None = None) -> Grid:
    """Law of a sum of independent numbers, each on a grid of one interval with its number of copies.

    `ends` are the first and last grid point of the result; None for those of a Chernoff bound.
    """
    rounds = [(grid, count) for grid, count in rounds if count]
    if len(rounds) == 1 and rounds[0][1] == 1:
        return rounds[0][0]
    interval = rounds[0][0].interval
    first, last = ends or _range(rounds)
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

    def least(sign: float) -> float:
        """The least Chernoff bound on the sum (sign 1), or on its negative (sign -1)."""

        def bound(log_factor: float) -> float:
            order = normal * math.exp(log_factor)
            total = sum(grid.coarse.log_moment(sign * order) * count for grid, count in rounds)
            return (total + allowed) / order

        # Every order gives a bound. The best one is near that of a normal distribution, unless losses
        # are rare and large; the bound has one minimum.
        options = {"xatol": 0.2, "maxiter": 16}
        return optimize.minimize_scalar(
            bound, bounds=(-9.0, 4.0), method="bounded", options=options
        ).fun

    high = min(last, math.ceil(least(1.0) / interval))
    low = max(first, math.floor(-least(-1.0) / interval))
    return low, max(high, low)
