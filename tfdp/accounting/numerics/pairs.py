"""Dominating pairs of one round: the two distributions that are hardest to tell apart.

All pairs are mixtures P and Q of Gaussians of standard deviation 1 on a line, and P / Q increases
from the point where it is 1. With q the sampling probability, s the sensitivity over the noise and
N(c) a Gaussian of mean c, D against D' is

    "add"         (1-q) N(0) + q N(s)    against  N(0)
    "replace"     (1-q) N(0) + q N(s)    against  (1-q) N(0) + q N(-s)
    "slot"        (1-q) N(0) + q N(2 s)  against  (1-q) N(0) + q N(s)
    "triangle"    (1-q) N(0) + q N(s)    against  N(0)
    "allocation"  see `allocation`

and D' against D is the mirrored pair for "add", the same for "replace" and "triangle", and the pair
of "triangle" for "slot"; `fixed_size` has the proofs. If a user has k examples, each drawn
independently, "add" has a binomial number j of them instead of 1, and centres j s.

A pair is described by its positive losses in both orders, since a negative loss of one order is a
positive one of the other.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import optimize, special

from tfdp._validate import fraction, one_of, positive
from tfdp.accounting.numerics import allocation
from tfdp.accounting.numerics.binomials import binomial
from tfdp.accounting.numerics.loss_grid import Losses

PAIRS = ("add", "replace", "slot", "triangle", "allocation")

# Mass that may remain beyond the last loss, and chance of more draws than are enumerated; both count
# as a complete loss.
_TAIL = 1e-20
# Largest width of a cell, and about the largest number of cells.
_WIDTH, _CELLS = 0.01, 1_000_000
# Largest exponent whose exponential is a float.
_LARGEST_EXPONENT = 700.0
# Node of Gauss-Legendre quadrature with two nodes, whose weights are 1.
_NODES = (-1 / math.sqrt(3), 1 / math.sqrt(3))


@dataclasses.dataclass(frozen=True)
class Component:
    """One dominating pair, a part of a public mixture.

    Attributes:
      weight: Probability of this component in the mixture; which one applies is treated as public.
      probability: Sampling probability q in (0, 1]; for "allocation" 1 over the number of lots.
      multiplier: Standard deviation of the noise over the sensitivity.
      pair: One of `PAIRS`.
      examples: Number of examples of one user, added or removed together; 1 except for "add".
    """

    weight: float
    probability: float
    multiplier: float
    pair: str = "add"
    examples: int = 1

    def __post_init__(self):
        one_of("pair", self.pair, PAIRS)
        drawn = "A record that is never drawn loses nothing: leave it out."
        fraction("probability", self.probability, one=True, remedy=drawn)
        remedy = "Nothing can be proven without noise: use a positive number."
        positive("noise multiplier", self.multiplier, remedy=remedy)


@dataclasses.dataclass(frozen=True, eq=False)
class Gaussians:
    """Gaussians of standard deviation 1 with weights and centres; the rest of the weight is at 0."""

    weights: np.ndarray
    centres: np.ndarray

    def log_over_standard(self, x: np.ndarray) -> np.ndarray:
        """log of the density over that of N(0), accurate where it is small and where it is large."""
        x = np.asarray(x, float)
        exponents = [c * x - c * c / 2 for c in self.centres]
        near = np.zeros_like(x)
        for weight, exponent in zip(self.weights, exponents, strict=True):
            near += weight * np.expm1(np.minimum(exponent, _LARGEST_EXPONENT))
        result = np.log1p(np.maximum(near, -0.5))
        # Even the term of a tiny weight counts where the exponent is large.
        far = (near < -0.5) | (near > 1e6)
        for exponent in exponents:
            far |= exponent > _LARGEST_EXPONENT
        if np.any(far):
            rest = max(1.0 - float(self.weights.sum()), 0.0)
            terms = [math.log(w) + e[far] for w, e in zip(self.weights, exponents, strict=True)]
            terms += [np.full_like(terms[0], math.log(rest))] if rest else []
            result[far] = functools.reduce(np.logaddexp, terms)
        return result

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest centre."""
        return min(self.centres.min(initial=0.0), 0.0), max(self.centres.max(initial=0.0), 0.0)


_NOTHING = Gaussians(np.zeros(0), np.zeros(0))


def orders(part: Component) -> tuple[tuple[Gaussians, Gaussians], tuple[Gaussians, Gaussians]]:
    """(P, Q) for D against D', and for D' against D; the same object twice if they are equal."""
    shift = 1.0 / part.multiplier
    if part.examples == 1:
        weights, numbers = np.array([part.probability]), np.array([1.0])
    else:
        # More draws than these have a chance of at most `_TAIL`, and count as a complete loss.
        weights, _ = binomial(part.examples, part.probability, _TAIL)
        weights, numbers = weights[1:], np.arange(1.0, len(weights))
    with_ = Gaussians(weights, shift * numbers)
    mirrored = Gaussians(weights, -shift * numbers)
    added = (with_, _NOTHING)
    if part.pair == "add":
        return added, (_NOTHING, mirrored)
    if part.pair == "slot":
        return (Gaussians(weights, 2 * shift * numbers), with_), added
    both = added if part.pair == "triangle" else (with_, mirrored)
    return both, both


def reach(part: Component) -> float:
    """The largest finite loss of a pair."""
    if part.pair == "allocation":
        return allocation.reach(part.probability, part.multiplier)
    largest = []
    for p, q in orders(part):
        x = np.array([_end(p, part.weight)])
        largest.append(float((p.log_over_standard(x) - q.log_over_standard(x))[0]))
    return max(largest)


def _end(p: Gaussians, weight: float) -> float:
    return p.ends[1] - float(special.ndtri(min(_TAIL / weight, 0.5)))


def mean_square(part: Component) -> float:
    """Approximate mean square loss of one round, under the distribution without the record.

    Under the distribution with it, outcomes that hardly ever occur would dominate the mean.
    """
    if part.pair == "allocation":
        return part.probability * math.expm1(min(part.multiplier**-2, 50.0))
    x = np.linspace(-8.0, 8.0, 161)
    density = np.exp(-(x**2) / 2)
    with_, _ = orders(dataclasses.replace(part, pair="add"))[0]
    losses = np.clip(with_.log_over_standard(x), -700.0, 700.0)
    return float(density @ losses**2 / density.sum())


def variance(part: Component, noise: float) -> float:
    """Approximate variance of one round's density ratio, with all noise multiplied by `noise`."""
    part = dataclasses.replace(part, multiplier=part.multiplier * noise)
    if part.pair == "allocation":
        return part.probability * math.expm1(min(part.multiplier**-2, 50.0))
    p, q = orders(part)[0]
    weights = np.concatenate([p.weights, -q.weights])
    centres = np.concatenate([p.centres, q.centres])
    centres *= min(4.0 / np.abs(centres).max(), 1.0)  # avoids overflow
    return float(weights @ np.expm1(np.outer(centres, centres)) @ weights)


def positive_losses(part: Component, fineness: float) -> tuple[Losses, Losses]:
    """The losses of a pair in both orders; the same object twice if they are equal.

    Neighbouring losses are about `fineness` apart; `weight` determines how far out they reach.
    """
    if part.pair == "allocation":
        return allocation.positive_losses(part.probability, part.multiplier)
    forward, backward = orders(part)
    one = _losses(*forward, part.weight, fineness)
    return one, (one if backward is forward else _losses(*backward, part.weight, fineness))


def _losses(p: Gaussians, q: Gaussians, weight: float, fineness: float) -> Losses:
    """Cuts the line into cells, and puts each cell's masses under P and Q onto its two ends.

    The curve of hockey-stick divergences over e^epsilon is convex. The result is a set of its chords,
    which lie above it (Doroshenko et al. 2022).
    """

    def ratio(x):
        return p.log_over_standard(x) - q.log_over_standard(x)

    end = _end(p, weight)
    low = min(p.ends[0], q.ends[0]) - 40.0
    start = optimize.brentq(lambda x: float(ratio(np.array([x]))[0]), low, end, xtol=1e-13)
    x = np.linspace(start, end, math.ceil((end - start) / _WIDTH) + 2)
    coarse = np.maximum.accumulate(np.maximum(ratio(x), 0.0))
    # Outcomes of a small weight may be coarser.
    step = max(fineness / math.sqrt(weight), coarse[-1] / _CELLS)
    x = np.sort(np.concatenate([x, np.interp(np.arange(step, coarse[-1], step), coarse, x)]))
    losses = np.maximum.accumulate(np.maximum(ratio(x), 0.0))
    mass, upper = np.zeros(len(x) - 1), np.zeros(len(x) - 1)
    for node in _NODES:
        inside = x[:-1] + np.diff(x) * (1 + node) / 2
        of_p = p.log_over_standard(inside)
        density = np.diff(x) / 2 * np.exp(of_p - inside**2 / 2) / math.sqrt(2 * math.pi)
        mass += density
        upper += density * -np.expm1(losses[:-1] - (of_p - q.log_over_standard(inside)))
    width = -np.expm1(losses[:-1] - losses[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(width > 0, np.clip(upper / width, 0.0, mass), mass)
    chances = np.zeros(len(x))
    chances[1:] = upper
    chances[:-1] += mass - upper
    return Losses(losses, chances, min(2 * _TAIL / weight, 0.5))
