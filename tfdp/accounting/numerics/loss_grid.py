"""Privacy loss distributions on a grid: discretized from above, composed, and converted to epsilon.

Discretization. The curve of hockey-stick divergences over alpha = e^epsilon is convex. Its chords
between the points of a grid lie above it, and they are the curve of a distribution of losses on the
grid. So this distribution dominates the mechanism for every interval (Doroshenko et al. 2022,
"Connect the dots"), and so do its compositions (Zhu, Dong, Wang 2022). A loss moves by less than one
interval, and its mean by about interval^2 / 12 only.

Composition is a product of Fourier transforms on a range of losses outside of which a Chernoff bound
leaves a mass of at most 1e-15. The mass outside is added to the infinite loss (Koskela et al. 2020),
and so is a bound on the rounding of the transforms: about 1e-10 for some thousand rounds. For a
delta that is not far above it, chances are tilted by e^(order * loss) before and back afterwards, and
rounding is relative to the mass of large losses.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy import fft, optimize

# Mass outside of the range on which a composition is computed.
_TRUNCATED = 1e-15
# About the number of points from which a Chernoff bound is computed.
_COARSE = 4096
# Nodes of the quadrature of a cell.
_NODES = 4
# Largest excess over 1 of a sum of probabilities that counts as rounding.
_LARGEST_ROUNDING = 1e-6
# Largest loss for which chances * e^-loss, for chances that matter, keep all digits of a float.
_LARGEST_EXPONENT = 600.0


def _dot(one: np.ndarray, other: np.ndarray) -> float:
    """Inner product without BLAS, whose threads take longer to start than the sum takes."""
    return float(np.einsum("i,i", one, other))


@dataclasses.dataclass(frozen=True, eq=False)
class Losses:
    """Positive losses with upper bounds on their chances, and the chance of an infinite loss."""

    values: np.ndarray
    chances: np.ndarray
    infinite: float


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Distribution of the privacy loss of P from Q under P, on multiples of an interval.

    Attributes:
        interval: Distance of neighbouring losses.
        lowest: The first loss divided by `interval`, a whole number.
        chances: Probabilities of the losses lowest * interval, (lowest + 1) * interval, ...
        infinite: Probability of an infinite loss.
        log_error, order: At each epsilon, the chances understate delta by at most exp(log_error -
            order * epsilon).
    """

    interval: float
    lowest: int
    chances: np.ndarray
    infinite: float
    log_error: float = -math.inf
    order: float = 0.0

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
        """A grid of fewer points; each mass is split between two of them, with its mean unchanged.

        The moments of e^loss are convex functions of the loss, so they are not smaller.
        """
        block = len(self.chances) // _COARSE
        if block < 2:
            return self
        first, before = divmod(self.lowest, block)
        rows = -(-(before + len(self.chances)) // block)
        padded = np.zeros(rows * block)
        padded[before : before + len(self.chances)] = self.chances
        cells = padded.reshape(rows, block)
        upper = np.einsum("ij,j", cells, np.arange(block) / block)
        chances = np.append(cells.sum(axis=1) - upper, 0.0)
        chances[1:] += upper
        return Grid(self.interval * block, first, chances, self.infinite)

    def log_moment(self, order: float) -> float:
        """Returns an upper bound on the log of the sum of exp(order * loss) over the finite losses."""
        exponent = order * self.losses
        largest = max(exponent[0], exponent[-1])
        # Raising the smallest terms, to e^-500 times the largest one, avoids slow subnormal numbers.
        terms = np.exp(np.maximum(exponent - largest, -500.0))
        return float(largest) + math.log(max(_dot(terms, self.chances), 1e-300))

    def delta(self, epsilon: float) -> float:
        """Returns the hockey-stick divergence at e^epsilon."""
        gain = -np.expm1(np.minimum(epsilon - self.losses, 0.0))
        return self.infinite + _dot(gain, self.chances) + float(self._error(epsilon))

    def _error(self, epsilon):
        return np.exp(np.minimum(self.log_error - self.order * epsilon, 0.0))

    def epsilon(self, delta: float) -> float:
        """Returns the least epsilon of at least 0 with a divergence of at most `delta`, or infinity."""
        if self.infinite > delta:
            return math.inf
        losses = self.losses[max(1 - self.lowest, 0) :]  # those of at most 0 do not count
        if not len(losses):
            return 0.0
        # Sums over a loss and all larger ones, of the probabilities under P, and under Q times e^loss.
        # From the loss before to this one, delta(epsilon) = above - e^(epsilon - loss) * below.
        chances = self.chances[-len(losses) :]
        above = self.infinite + np.cumsum(chances[::-1])[::-1]
        below = _relative_sums(losses, chances)
        if above[0] - math.exp(-losses[0]) * below[0] + self._error(0.0) <= delta:
            return 0.0
        # The divergence falls with epsilon, hence this is the first loss at which it fits.
        fits = np.flatnonzero(above - below - delta + self._error(losses) <= 0)
        if not len(fits) and self.order:
            return math.inf
        index = int(fits[0]) if len(fits) else len(losses) - 1
        end, before = float(losses[index]), float(losses[index - 1]) if index else 0.0
        excess = above[index] - delta + float(self._error(before))
        if not (excess > 0 and below[index] > 0):
            return end
        return min(max(end + math.log(excess / below[index]), before), end)

    def tilted(self, order: float) -> tuple["Grid", float]:
        """Returns the law with chances times e^(order * loss), normalized, and the log of their sum."""
        log_sum = self.log_moment(order)
        chances = self.chances * np.exp(np.maximum(order * self.losses - log_sum, -700.0))
        return Grid(self.interval, self.lowest, chances, 0.0), log_sum


@dataclasses.dataclass(frozen=True, eq=False)
class LossDistribution:
    """Dominating distributions in both orders: two `halves`, or a common one."""

    halves: tuple[Grid, ...]

    @property
    def infinite(self) -> float:
        """Probability of an infinite loss: the larger one of the two orders."""
        return max(half.infinite for half in self.halves)

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on delta at `epsilon`, in both orders."""
        return max(half.delta(epsilon) for half in self.halves)

    def epsilon(self, delta: float) -> float:
        """Returns an upper bound on epsilon at `delta`, in both orders; it may be infinite."""
        return max(half.epsilon(delta) for half in self.halves)


def _relative_sums(losses: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Returns the sum of chances * e^(loss - losses) over each loss and all larger ones."""
    if losses[-1] <= _LARGEST_EXPONENT:
        return np.exp(losses) * np.cumsum((chances * np.exp(-losses))[::-1])[::-1]
    with np.errstate(divide="ignore"):  # slower, and e^loss would overflow
        logs = np.log(chances) - losses
    return np.exp(losses + np.logaddexp.accumulate(logs[::-1])[::-1])


# ---------------------------------------------------------------------- one round


def of_cells(
    x: np.ndarray, logs: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], infinite: float
) -> Losses:
    """Cuts a line at `x`, and puts each cell's masses under P and Q onto the losses of its two ends.

    The result is a set of chords of the curve of hockey-stick divergences.

    Args:
        x: Ends of the cells. In a cell, no positive loss may exceed those of its ends.
        logs: Function of points that returns the logs of the density of P, and of P over Q.
        infinite: Probability of an infinite loss.
    """
    losses = np.maximum(logs(x)[1], 0.0)
    lower, upper = np.minimum(losses[:-1], losses[1:]), np.maximum(losses[:-1], losses[1:])
    mass, at_upper = np.zeros(len(x) - 1), np.zeros(len(x) - 1)
    for node, weight in zip(*np.polynomial.legendre.leggauss(_NODES), strict=True):
        density, loss = logs(x[:-1] + np.diff(x) * (1 + node) / 2)
        chance = np.diff(x) / 2 * weight * np.exp(density)
        mass += chance
        at_upper += chance * -np.expm1(np.minimum(lower - loss, 0.0))
    width = -np.expm1(lower - upper)
    with np.errstate(divide="ignore", invalid="ignore"):
        at_upper = np.where(width > 0, np.clip(at_upper / width, 0.0, mass), mass)
    return Losses(
        np.concatenate([lower, upper]), np.concatenate([mass - at_upper, at_upper]), infinite
    )


def one_round(
    parts: Sequence[tuple[float, tuple[Losses, Losses]]], interval: float
) -> LossDistribution:
    """Returns the dominating distribution of a public mixture: weights, with losses in both orders."""
    orders = (0,) if all(forward is backward for _, (forward, backward) in parts) else (0, 1)
    found = [_on_grid([(weight, pair[n]) for weight, pair in parts], interval) for n in orders]
    halves = zip(found, reversed(found), strict=True)
    return LossDistribution(tuple(_joined(own, other, interval) for own, other in halves))


def _on_grid(parts: Sequence[tuple[float, Losses]], interval: float) -> tuple[np.ndarray, float]:
    """Splits each loss between the grid points around it; its masses in both orders are kept."""
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
    rounds: Sequence[tuple[LossDistribution, int]], most_points: int, delta: float | None = None
) -> LossDistribution | None:
    """Composes independent rounds, whose distributions have one interval.

    Args:
        rounds: Distributions, each with its number of rounds.
        most_points: Largest number of points of a grid, each of which takes about a hundred bytes.
        delta: With a number, rounding is small relative to deltas of this size, and the result is
            useless for much larger ones.

    Returns:
        The composition; None if a grid would exceed `most_points`.
    """
    orders = range(max(len(each.halves) for each, _ in rounds))
    halves = [
        [(each.halves[min(n, len(each.halves) - 1)], k) for each, k in rounds] for n in orders
    ]
    found = []
    for half in halves:
        tilt = 0.0 if delta is None else _chernoff(half, 1.0, -math.log(delta))[1]
        grid = _composed(half, tilt, most_points)
        if grid is None:
            return None
        found.append(grid)
    return LossDistribution(tuple(found))


def _composed(rounds: Sequence[tuple[Grid, int]], tilt: float, most_points: int) -> Grid | None:
    """The sum of the losses, computed from laws whose chances are multiplied by e^(tilt * loss).

    Rounding and aliasing of the tilted sum are small relative to its whole mass. A tilt by the order of
    a Chernoff bound moves this mass to losses whose untilted mass is about delta. Outside of the
    range, and at every loss above an epsilon, an error of the tilted mass is multiplied by at most
    e^(log of the moment - tilt * epsilon).
    """
    if not tilt:
        first, last = ends = _range(rounds)
        return None if last - first + 1 > most_points else sum_of(rounds, ends)
    tilted, log_moment = [], 0.0
    for grid, count in rounds:
        of_one, log_sum = grid.tilted(tilt)
        tilted.append((of_one, count))
        log_moment += count * log_sum
    found = _composed(tilted, 0.0, most_points)
    if found is None:
        return None
    chances = found.chances * np.exp(np.minimum(log_moment - tilt * found.losses, 700.0))
    finite = sum(count * math.log1p(-grid.infinite) for grid, count in rounds)
    log_error = log_moment + math.log(max(found.infinite, 1e-300))
    return Grid(found.interval, found.lowest, chances, -math.expm1(finite), log_error, tilt)


def sum_of(rounds: Sequence[tuple[Grid, int]], ends: tuple[int, int] | None = None) -> Grid:
    """Returns the law of a sum of independent numbers.

    Args:
        rounds: Laws on grids of one interval, each with its number of copies.
        ends: The first and the last grid point of the result; None takes those of a Chernoff bound.
    """
    rounds = [(grid, count) for grid, count in rounds if count]
    if len(rounds) == 1 and rounds[0][1] == 1:
        return rounds[0][0]
    interval = rounds[0][0].interval
    first, last = ends or _range(rounds)
    length = fft.next_fast_len(
        max(last - first + 1, *(len(grid.chances) for grid, _ in rounds)), real=True
    )
    chances, rounding = sum_on_circle(rounds, length)
    # Entry i holds the loss whose number from the lowest one is i modulo `length`. Entries below 0 are
    # rounding.
    lowest = sum(grid.lowest * count for grid, count in rounds)
    chances = np.maximum(np.roll(chances, lowest - first)[: last - first + 1], 0.0)
    finite = sum(count * math.log1p(-grid.infinite) for grid, count in rounds)
    return Grid(interval, first, chances, _TRUNCATED - math.expm1(finite) + rounding)


def sum_on_circle(rounds: Sequence[tuple[Grid, int]], length: int) -> tuple[np.ndarray, float]:
    """Returns the chances of the sum minus its least value, modulo `length`, and their rounding.

    The bound is for the sum of all errors, which is at most the Euclidean norm of the errors of their
    transform. Each entry of a transform is computed by log2(length) butterflies, each of a few rounded
    operations, so it is wrong by at most 8 u log2(length) times the sum of the magnitudes of the input
    (Higham 2002, "Accuracy and stability of numerical algorithms", section 24.1).
    """
    unit = np.finfo(float).eps / 2
    error = 8 * unit * math.log2(max(length, 2))
    entries = length // 2 + 1
    log_sum, log_size = np.zeros(entries, complex), np.zeros(entries)
    slope, relative = np.zeros(entries), np.full(entries, 8 * unit)
    for grid, count in rounds:
        transform = fft.rfft(grid.chances, length)
        size = np.abs(transform)
        log = np.log(np.maximum(size, 1e-300)) + 1j * np.angle(transform)
        size += error
        log_sum, log_size = log_sum + count * log, log_size + count * np.log(size)
        slope = slope + count * error / size
        relative = relative + 8 * unit * count * np.abs(log)
    # Most entries are tiny. Computing with subnormal numbers is slow, and they hardly move any chance.
    kept = log_size > -80.0
    product = np.zeros(len(kept), complex)
    product[kept] = np.exp(log_sum[kept])
    size = np.exp(np.maximum(log_size, -300.0))
    wrong = size * (slope + relative) + ~kept * math.exp(-80.0)
    rounding = math.sqrt(2) * (_norm(wrong) + error * _norm(size))
    return fft.irfft(product, length), rounding


def _norm(values: np.ndarray) -> float:
    return math.sqrt(_dot(values, values))


def _range(rounds: Sequence[tuple[Grid, int]]) -> tuple[int, int]:
    """Range of grid points outside of which the composition has a mass of at most 1e-15."""
    interval = rounds[0][0].interval
    first = sum(grid.lowest * count for grid, count in rounds)
    last = first + sum((len(grid.chances) - 1) * count for grid, count in rounds)
    variance = sum(grid.moments[1] * count for grid, count in rounds)
    if not variance > 0:
        return first, last
    allowed = -math.log(_TRUNCATED / 2)
    high = min(last, math.ceil(_chernoff(rounds, 1.0, allowed)[0] / interval))
    low = max(first, math.floor(-_chernoff(rounds, -1.0, allowed)[0] / interval))
    return low, max(high, low)


def _chernoff(
    rounds: Sequence[tuple[Grid, int]], sign: float, allowed: float
) -> tuple[float, float]:
    """(bound, order): the sum (sign 1) or its negative (-1) is above it with chance e^-allowed."""
    variance = sum(grid.moments[1] * count for grid, count in rounds)
    farthest = max(float(np.abs(grid.losses[[0, -1]]).max()) for grid, _ in rounds)
    normal = math.sqrt(2 * allowed / max(variance, 1e-300))

    def bound(log_factor: float) -> float:
        order = normal * math.exp(log_factor)
        total = sum(grid.coarse.log_moment(sign * order) * count for grid, count in rounds)
        return (total + allowed) / order

    # Every order gives a bound, which has one minimum: near that of a normal distribution, or, where
    # losses are rare and large, above the order at which e^(order * loss) starts to grow.
    lowest = -max(math.log(normal * farthest), 0.0) - 2.0
    options = {"xatol": 0.2, "maxiter": 20}
    best = optimize.minimize_scalar(bound, bounds=(lowest, 4.0), method="bounded", options=options)
    return best.fun, normal * math.exp(best.x)
