"""Dominating pairs of one round: the two distributions that are easiest to tell apart.

All pairs are mixtures of Gaussians of standard deviation 1 on a line. With s the sensitivity over the
noise, N(c) a Gaussian of mean c, and p_j the chance that j of a record's or user's terms are drawn,
D against D' is the mixture over j, with the weights p_j, of N(s A_j) against that of N(s B_j):

                  A_j, B_j     the same of D' against D
    "add"         j, 0         0, -j
    "replace"     j, -j        j, -j
    "slot"        2j, 2 - j    j, 2 - 2j
    "triangle"    j, 1 - j     j, 1 - j
    "allocation", "replaced_allocation", "shifted_noise"    see the modules of these names

for j >= 1, and A_0 = B_0 = 0. The comparison lemma proves them; `gaussian_steps` and `fixed_size` have
the distances to which it is applied.

Comparison lemma. Let P be the mixture of Gaussians N(a_i, I) with weights p_i, and Q that of N(b_j, I)
with weights r_j, in any dimension, and let other centres A_i and B_j satisfy

    |E_s a - E_t b| <= |E_s A - E_t B|    for all distributions s of i and t of j.

Then H_alpha(P || Q) is at most that of the mixtures with the centres A_i and B_j. If all of these lie
on a line, it is enough that |a_i - b_j| <= A_i - B_j for all i and j, since |E_s a - E_t b| is at most
the mean of |a_i - b_j|. Distances within P and within Q do not matter.

Proof (interpolation; Kahane 1986, "Une inegalite du type de Slepian et Gordon"). Let c_i be all
centres, w_i their weights, p_i or -alpha r_j, and K_0 and K_1 the matrices of inner products of the
centres c_i and of the others. With K = (1 - u) K_0 + u K_1, G Gaussian of covariance K, and
v_i = w_i exp(G_i - K_ii / 2), the divergences are E f(sum of all v_i) at u = 0 and at u = 1, for
f(x) = max(x, 0). Integration by parts gives, for every convex f,

    d/du E f(sum v) = 1/2 E f''(sum v) (v' K_1 v - v' K_0 v),    v' K v = |sum of v_i c_i|^2.

Here f'' is the unit mass at 0, as a limit of smooth ones. Where sum v = 0, the positive v_i are m s
and the negative ones -m t for some m, s and t, so the bracket is m^2 (|E_s A - E_t B|^2 - |E_s a -
E_t b|^2) >= 0.

If P and Q have a term at the same point, one term of weight p_0 - alpha r_0 stands for both. With
p_0 = r_0 and alpha >= 1 it belongs to Q: for "slot" and "triangle" the distances from it to the other
terms of Q do not matter. Each order of neighbours is bounded for alpha >= 1 only, and the other order
covers alpha < 1 (see `fixed_size`).

Where P / Q >= 1, it increases with x: on the line, the derivative of P - alpha Q over the density of
N(0) is sum v_i c_i = m (E_s A - E_t B) >= 0 wherever it is 0, so it changes its sign once.

A pair is described by its positive losses in both orders, since a negative loss of one order is a
positive one of the other.
"""

import dataclasses
import math

import numpy as np
from scipy import optimize, special

from tfdp._validate import fraction, one_of, positive
from tfdp.accounting.numerics import allocation, replaced_allocation, shifted_noise
from tfdp.accounting.numerics.loss_grid import Losses, of_cells

PAIRS = ("add", "replace", "slot", "triangle", "allocation", "replaced_allocation", "shifted_noise")

# Mass that may remain beyond the last loss; it counts as a complete loss.
_TAIL = 1e-20
# Largest width of a cell, and of its losses: as a number, and as a share of their size. This share
# adds at most 2e-8 of the mean square of the loss to its variance.
_WIDTH, _WIDE, _SHARE = 0.01, 0.05, 5e-4
# Largest exponent whose exponential is a float.
_LARGEST_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True)
class Component:
    """One dominating pair, a part of a public mixture.

    Attributes:
        weight: Probability of this component in the mixture; which one applies is treated as
            public.
        probability: Sampling probability in (0, 1]; for random allocation 1 over the number of
            lots.
        multiplier: Standard deviation of the noise over the sensitivity.
        pair: One of `PAIRS`.
        draws: Chances of 0, 1, 2, ... draws, if there may be more than one; otherwise empty.
        shifts: The shifts of "shifted_noise".
    """

    weight: float
    probability: float
    multiplier: float
    pair: str = "add"
    draws: tuple[float, ...] = ()
    shifts: shifted_noise.Shifts | None = None

    def __post_init__(self):
        one_of("pair", self.pair, PAIRS)
        drawn = "Remove the component of a record that is never drawn, which loses nothing."
        fraction("probability", self.probability, one=True, remedy=drawn)
        remedy = "Use a positive number: nothing can be proven without noise."
        positive("noise multiplier", self.multiplier, remedy=remedy)

    @property
    def like_gaussian(self) -> "Component":
        """A pair "add" that is about as private, for noise of another family; otherwise the pair."""
        if self.shifts is None:
            return self
        multiplier = self.multiplier / self.shifts.mu
        return dataclasses.replace(self, pair="add", multiplier=multiplier, shifts=None)


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussians:
    """A mixture of Gaussians of standard deviation 1, one of which is at 0.

    Attributes:
        weights: Weights of the others.
        centres: Centres of the others.
        rest: Weight of the Gaussian at 0. As a difference from 1, it would be lost far below 1e-16.
    """

    weights: np.ndarray
    centres: np.ndarray
    rest: float

    def log_over_standard(self, x: np.ndarray) -> np.ndarray:
        """Returns the log of the density over that of N(0), accurate for small and large values."""
        x = np.asarray(x, float)
        near, largest = np.zeros_like(x), np.zeros_like(x)
        for weight, c in zip(self.weights, self.centres, strict=True):
            exponent = c * x - c * c / 2
            largest = np.maximum(largest, exponent)
            near += weight * np.expm1(np.minimum(exponent, _LARGEST_EXPONENT))
        result = np.log1p(np.maximum(near, -0.5))
        # Where the sum cancels, or a term is no float, the logarithms of the terms are added.
        far = (near < -0.5) | (largest > _LARGEST_EXPONENT)
        if np.any(far):
            with np.errstate(divide="ignore"):
                logs = np.log(np.append(self.weights, self.rest))
            centres = np.append(self.centres, 0.0)
            terms = np.multiply.outer(centres, x[far]) + (logs - centres**2 / 2)[:, None]
            most = terms.max(axis=0)
            result[far] = most + np.log(np.exp(terms - most).sum(axis=0))
        return result

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest centre."""
        return min(self.centres.min(initial=0.0), 0.0), max(self.centres.max(initial=0.0), 0.0)


def orders(part: Component) -> tuple[tuple[Gaussians, Gaussians], tuple[Gaussians, Gaussians]]:
    """Returns (P, Q) for D against D', and for D' against D; the same object if they are equal."""
    shift = 1.0 / part.multiplier
    none, *drawn = part.draws or (1.0 - part.probability, part.probability)
    weights, j = np.array(drawn), np.arange(1.0, len(drawn) + 1)

    def mixture(centres: np.ndarray) -> Gaussians:
        elsewhere = (centres != 0) & (weights > 0)  # some numbers of draws are impossible
        rest = none + float(weights[centres == 0].sum())
        return Gaussians(weights[elsewhere], shift * centres[elsewhere], rest)

    def pair(of_p: np.ndarray, of_q: np.ndarray) -> tuple[Gaussians, Gaussians]:
        return mixture(of_p), mixture(of_q)

    if part.pair == "add":
        return pair(j, 0 * j), pair(0 * j, -j)
    if part.pair == "slot":
        return pair(2 * j, 2 - j), pair(j, 2 - 2 * j)
    both = pair(j, -j if part.pair == "replace" else 1 - j)
    return both, both


def reach(part: Component) -> float:
    """Returns the largest finite loss of a pair."""
    if part.pair == "allocation":
        return allocation.reach(part.probability, part.multiplier)
    if part.pair in ("replaced_allocation", "shifted_noise"):
        return float(positive_losses(part, 1.0)[0].values.max(initial=0.0))
    largest = []
    for p, q in orders(part):
        x = np.array([_end(p, part.weight)])
        largest.append(float((p.log_over_standard(x) - q.log_over_standard(x))[0]))
    return max(largest)


def _end(p: Gaussians, weight: float) -> float:
    """A point beyond which each Gaussian of P has a mass of at most 2 `_TAIL` over the weight."""
    likely = weight * p.weights / p.weights.max(initial=0.0)
    far = p.centres - special.ndtri(_TAIL / np.maximum(likely, 2 * _TAIL))
    return max(far.max(initial=0.0), -float(special.ndtri(min(_TAIL / weight, 0.5))))


def mean_square(part: Component) -> float:
    """Returns the approximate mean square loss of a round, under the distribution without the record.

    Under the distribution with it, outcomes that hardly ever occur would dominate the mean.
    """
    if part.pair.endswith("allocation"):
        square = min(part.multiplier**-2, 50.0)
        chi_square = math.expm1(square)
        if part.pair == "replaced_allocation":
            chi_square = 2 * (chi_square - math.expm1(-square))
        return part.probability * chi_square
    part = part.like_gaussian
    x = np.linspace(-8.0, 8.0, 161)
    density = np.exp(-(x**2) / 2)
    with_, _ = orders(dataclasses.replace(part, pair="add"))[0]
    losses = np.clip(with_.log_over_standard(x), -700.0, 700.0)
    return float(density @ losses**2 / density.sum())


def positive_losses(part: Component, fineness: float) -> tuple[Losses, Losses]:
    """Returns the losses of a pair in both orders; the same object twice if they are equal.

    Args:
        part: The pair; its weight determines how far out the losses reach.
        fineness: About the distance of neighbouring losses.
    """
    if part.pair == "allocation":
        return allocation.positive_losses(part.probability, part.multiplier)
    if part.pair == "replaced_allocation":
        losses = replaced_allocation.positive_losses(part.probability, part.multiplier)
        return losses, losses
    if part.shifts is not None:
        return shifted_noise.positive_losses(part.shifts, part.multiplier, part.probability)
    forward, backward = orders(part)
    one = _losses(*forward, part.weight, fineness)
    return one, (one if backward is forward else _losses(*backward, part.weight, fineness))


def _spaced(step: float, end: float) -> np.ndarray:
    """Losses up to `end`, `step` apart as long as they are small, and then a share of their size."""
    near = step / _SHARE
    ends = [min(near, end), min(max(near, _WIDE / _SHARE), end), end]
    even = np.arange(step, ends[0], step)
    growing = np.exp(np.arange(math.log(near), math.log(max(ends[1], near)), _SHARE))
    return np.concatenate([even, growing, np.arange(ends[1], end, max(_WIDE, step))])


def _losses(p: Gaussians, q: Gaussians, weight: float, fineness: float) -> Losses:
    def logs(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        of_p = p.log_over_standard(x)
        density = of_p - x * x / 2 - math.log(2 * math.pi) / 2
        return density, of_p - q.log_over_standard(x)

    end = _end(p, weight)
    low = min(p.ends[0], q.ends[0]) - 40.0
    start = optimize.brentq(lambda x: float(logs(np.array([x]))[1][0]), low, end, xtol=1e-13)
    x = np.linspace(start, end, math.ceil((end - start) / _WIDTH) + 2)
    coarse = np.maximum.accumulate(np.maximum(logs(x)[1], 0.0))
    # Outcomes of a small weight may be coarser.
    among = _spaced(fineness / math.sqrt(weight), coarse[-1])
    x = np.sort(np.concatenate([x, np.interp(among, coarse, x)]))
    return of_cells(x, logs, min(2 * (len(p.weights) + 1) * _TAIL / weight, 0.5))
