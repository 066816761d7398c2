"""Random allocation: in each epoch, every example is in one lot, drawn uniformly and independently.

One epoch of t lots is dominated, in both orders, by the mixture over i of N(e_i, z^2 I) against
N(0, z^2 I) in t dimensions (Chua et al. 2024, "Balls-and-bins sampling for DP-SGD"; Feldman and
Shenfeld 2025, "Privacy amplification by random allocation"). The ratio of their densities is the
mean Y of t independent X = exp(x / z - 1 / (2 z^2)), where x is standard normal under N(0). Its mean
is 1, and the hockey-stick divergences are the means of max(Y - e^epsilon, 0) and
max(1 - e^epsilon Y, 0) under N(0): convex functions of Y.

So the law of any number that exceeds Y in the convex order gives an upper bound on both. Such a law for
X moves the mass between two points of a lattice to these two points, with its mean unchanged. Sums of
independent numbers keep the order. Sums on an even lattice are convolutions. Truncated tails count as a
complete loss, in both orders.

In few lots, Y may be so small or so large that one step of an even lattice multiplies it several times.
There the lattice is even in log X, and the sum of two numbers on it is split between two of its points
again. The distance of these points from the larger number depends only on the quotient of the two. All
terms are positive, so rounding is relative to each mass.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tfdp.accounting.numerics.loss_grid import Grid, Losses, sum_of

# Distance of lattice points in standard deviations of X, and the largest number of such points.
_FINE = 0.02
# Standard deviations of x beyond which a mass of 6e-16 is left out, and the mass for each lot of an
# epoch below which a case is left out.
_FAR, _LEFT_OUT = 8.0, 1e-17
_FINEST = 1 << 16
# X is large if hardly any lot of an epoch has such a value. Large values are on a coarser lattice:
# its number of points, and the step at which it begins. Those of an epoch are enumerated one by one.
_RARE, _COARSE, _GAP = 1e-3, 1 << 16, 20

# Largest number of lots, and largest noise multiplier, of a lattice that is even in log X. Its points
# for each standard deviation of log X, for one lot; the sum of more lots deviates less.
_FEW, _LITTLE, _POINTS = 32, 2.0, 50
# Standard deviations of x beyond which a mass of 1e-19 is left out there.
_FARTHER = 9.0

# With less noise than this, computing takes long, and amplification changes little.
LEAST_MULTIPLIER = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class _Law:
    """A part of the law of X, or of a sum of such numbers: first + step * (0, 1, 2, ...)."""

    first: float
    step: float
    chances: np.ndarray

    @property
    def values(self) -> np.ndarray:
        return self.first + self.step * np.arange(len(self.chances))


def positive_losses(probability: float, multiplier: float) -> tuple[Losses, Losses]:
    """Returns the positive losses of one epoch of 1 / `probability` lots in both orders."""
    lots = round(1 / probability)
    if lots <= _FEW and multiplier <= _LITTLE:
        return _of_few(lots, 1 / multiplier)
    included, left_in = _sums(lots, 1 / multiplier, True)
    excluded, left_out = _sums(lots, 1 / multiplier, False)
    forward = [(np.log(law.values / lots), law.chances) for law in included]
    backward = [(-np.log(law.values / lots), law.chances) for law in excluded]
    return _positive(forward, left_in), _positive(backward, left_out)


def _of_few(lots: int, shift: float) -> tuple[Losses, Losses]:
    """`positive_losses` on a lattice that is even in log X."""
    step = shift / _POINTS / math.sqrt(lots)
    first = math.floor(-shift * (_FARTHER + shift / 2) / step)
    last = math.ceil(shift * (_FARTHER + shift / 2) / step)
    one = _split(np.exp(step * np.arange(first, last + 1)), shift)
    total, base, left = np.zeros(0), one, lots
    while left:
        if left % 2:
            total = _added(total, base, step) if len(total) else base
        left //= 2
        if left:
            base = _added(base, base, step)
    losses = step * (first + np.arange(len(total))) - math.log(lots)
    missing = 2 * lots * float(special.ndtr(-_FARTHER))
    above, below = losses > 0, losses < 0
    included = Losses(losses[above], (total * np.exp(losses))[above], missing)
    return included, Losses(-losses[below][::-1], total[below][::-1], missing)


def _added(one: np.ndarray, other: np.ndarray, step: float) -> np.ndarray:
    """Chances of the sum of two independent numbers, all on points e^(step * i) from the same first i.

    The sum of e^(step * i) and e^(step * (i - d)) lies between two points, whose distance from i
    depends on d.
    """
    size = max(len(one), len(other))
    one, other = (np.pad(law, (0, size - len(law))) for law in (one, other))
    d = np.arange(size)
    rise = np.log1p(np.exp(-step * d)) / step
    lower = np.floor(rise).astype(int)
    upper = np.expm1(step * (rise - lower)) / math.expm1(step)
    total = np.zeros(size + lower[0] + 2)
    for larger, smaller, nearest in ((one, other, 0), (other, one, 1)):
        for level in range(lower[0] + 1):
            ds = d[nearest:][lower[nearest:] == level]
            if not len(ds):
                continue
            for place, share in ((level, 1 - upper[ds]), (level + 1, upper[ds])):
                beside = np.convolve(smaller[: size - ds[0]], share)[: size - ds[0]]
                total[place + ds[0] : place + size] += larger[ds[0] :] * beside
    return total


def _positive(atoms, infinite: float) -> Losses:
    values, chances = (np.concatenate(each) for each in zip(*atoms, strict=True))
    some = (values > 0) & (chances > 0)
    return Losses(values[some], chances[some], infinite)


def reach(probability: float, multiplier: float) -> float:
    """Returns the approximate largest finite loss."""
    shift = 1 / multiplier
    return shift * _FAR + shift**2 / 2


def _sums(lots: int, shift: float, included: bool) -> tuple[list[_Law], float]:
    """The law of the sum of an epoch's X, in parts, and the mass that is left out."""
    small, large = _parts(lots, shift)
    rest = lots - 1 if included else lots
    found, total = [], 0.0  # the total, less what rounding may have added
    for k in range(rest + 1):  # large values in other lots than the example's
        before = total
        cases = [([(small, rest - k)], [(large, k)], False)]
        if included:  # the example's lot has a small or a large value
            cases = [
                ([(small, rest - k), (_weighted(small), 1)], [(large, k)], True),
                ([(small, rest - k)], [(large, k), (_weighted(large), 1)], False),
            ]
        for fine, coarse, weighted in cases:
            if math.comb(rest, k) * _mass(fine) * _mass(coarse) < _LEFT_OUT * lots:
                continue
            law, missing = _sum_of(*fine)
            if sum(count for _, count in coarse):
                law, more = _sum_of((_coarser(law, large.step, weighted), 1), *coarse)
                missing += more
            found.append(_Law(law.first, law.step, law.chances * math.comb(rest, k)))
            total += math.comb(rest, k) * _mass(fine) * _mass(coarse) * (1.0 - missing)
        if total == before:
            break
    return found, max(1.0 - total, 0.0) + 1e-14 + 1e-15 * lots


def _mass(terms: Sequence[tuple[_Law, int]]) -> float:
    return math.prod(float(law.chances.sum()) ** count for law, count in terms)


def _weighted(law: _Law) -> _Law:
    """The part under P for the example's lot: weighted by X."""
    return _Law(law.first, law.step, law.chances * law.values)


@functools.lru_cache(maxsize=16)  # both orders need sums of similar numbers of small values
def _sum_of(*terms: tuple[_Law, int]) -> tuple[_Law, float]:
    """The law of the sum of independent numbers, each with its number of copies.

    The second result is the share of its mass that truncation and rounding may have left out.
    """
    terms = tuple((law, count) for law, count in terms if count)
    if not terms:
        return _Law(0.0, 1.0, np.ones(1)), 0.0
    # Laws of a mass below 1 are normalized for the sum, and scaled back.
    step = terms[0][0].step
    grid = sum_of(
        [(Grid(step, 0, law.chances / law.chances.sum(), 0.0), count) for law, count in terms]
    )
    first = sum(law.first * count for law, count in terms)
    law = _Law(first + grid.lowest * step, step, grid.chances * _mass(terms))
    return law, grid.infinite


@functools.lru_cache(maxsize=16)
def _coarser(law: _Law, step: float, weighted: bool) -> _Law:
    """The law on a lattice of a larger step, with each value split between two points.

    Splitting keeps the mean. If the masses are `weighted` by their values, it keeps the mean of the
    law before weighting.
    """
    place = (law.values - law.first) / step
    lower = np.floor(place).astype(int)
    points = int(lower[-1]) + 2
    upper = law.chances * (place - lower)
    if weighted:
        upper *= (law.first + step * (lower + 1)) / law.values
    chances = np.bincount(lower + 1, upper, points)
    return _Law(law.first, step, chances + np.bincount(lower, law.chances - upper, points))


@functools.lru_cache(maxsize=16)
def _parts(lots: int, shift: float) -> tuple[_Law, _Law]:
    """The law of X in two parts: small values on a fine lattice, and large ones on a coarse one."""

    def value(x):
        return math.exp(shift * x - shift**2 / 2)

    first, last = value(-_FAR), value(shift + _FAR)
    step = _FINE * math.sqrt(math.expm1(shift**2))
    coarse = max((last - first) / _COARSE, step)
    border = max(value(-float(special.ndtri(_RARE / lots))), _GAP * coarse)
    step = max(step, border / _FINEST)
    if border >= last:
        return _lattice(first, last, step, shift), _Law(0.0, coarse, np.zeros(1))
    points = math.ceil((border - first) / step)
    border = first + points * step
    return _lattice(first, border, step, shift), _lattice(border, last, coarse, shift)


def _lattice(first: float, last: float, step: float, shift: float) -> _Law:
    """The law of X between first and last on an even lattice."""
    points = first + step * np.arange(round(math.ceil((last - first) / step - 1e-9)) + 1)
    return _Law(first, step, _split(points, shift))


def _split(points: np.ndarray, shift: float) -> np.ndarray:
    """Splits the mass of X between neighbouring points among these, with its mean unchanged."""
    ends = np.log(points) / shift + shift / 2
    return split(points, between(ends), between(ends - shift))


def split(points: np.ndarray, mass: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Splits the mass of each cell between its two points; `mean` is the mean times the mass, kept."""
    upper = np.clip((mean - points[:-1] * mass) / np.diff(points), 0.0, mass)
    chances = np.zeros(len(points))
    chances[1:] = upper
    chances[:-1] += mass - upper
    return chances


def between(ends: np.ndarray) -> np.ndarray:
    """Returns standard normal masses between neighbouring points, without cancellation in the tails."""
    below, above = np.diff(special.ndtr(ends)), -np.diff(special.ndtr(-ends))
    return np.where(ends[:-1] > 0, above, below)
