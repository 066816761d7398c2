"""Privacy losses that compose, and the epsilon of a list of them.

A mechanism describes a run as a list of losses; this module composes and converts them. Four kinds of
loss are enough for every mechanism here:

* `GaussianLoss`: a mu-GDP mechanism. Squares of mu add.
* `RandomGaussianLoss`: mu is drawn at random, independently of the data, and is treated as public
  (Theorem B). Squares of mu add as independent random numbers. Together with amplified steps, it is one
  round of a public mixture of Gaussians.
* `SubsampledLoss`: steps that the secrecy of the sample amplifies. They compose as privacy loss
  distributions, or, where no grid fits, as Rényi divergences.
* `RenyiLoss`: steps of which only Rényi divergences are known.

Composition is adaptive: a later loss may depend on earlier releases.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from tfdp.accounting.numerics import attacks, gaussian
from tfdp.accounting.numerics.pairs import Component
from tfdp.accounting.numerics.subsampled import SubsampledLoss, composed, renyi_divergences

# Largest number of different values of a random mu that is composed with amplified steps.
_LEVELS = 64
# If a composition leaves out more than this share of delta, it is computed for this delta alone.
_NOTICED = 0.01


@dataclasses.dataclass(frozen=True)
class GaussianLoss:
    """A mu-GDP mechanism."""

    mu: float


@dataclasses.dataclass(frozen=True)
class RandomGaussianLoss:
    """A Gaussian mechanism whose mu depends on public randomness only.

    Attributes:
        squares: mu^2 of the outcomes.
        probabilities: Their probabilities.
        overflow: Probability of outcomes that are not listed, which count as a complete loss.
    """

    squares: np.ndarray
    probabilities: np.ndarray
    overflow: float = 0.0

    @property
    def finite(self) -> tuple[np.ndarray, np.ndarray, float]:
        """The same law, with outcomes of an infinite mu in its overflow."""
        some = np.isfinite(self.squares)
        overflow = self.overflow + float(self.probabilities[~some].sum())
        return self.squares[some], self.probabilities[some], overflow


@dataclasses.dataclass(frozen=True)
class RenyiLoss:
    """Independent steps of which only the divergences at `ORDERS` are known (inf: unknown)."""

    divergences: tuple[float, ...]
    steps: int


Loss = GaussianLoss | RandomGaussianLoss | SubsampledLoss | RenyiLoss

# Orders of Rényi divergence: those of dp_accounting, and larger ones.
ORDERS = (
    *(1 + x / 10.0 for x in range(1, 100)),
    *range(11, 64),
    *(72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024),
)


@dataclasses.dataclass(frozen=True)
class Spent:
    """The epsilon of composed losses.

    Attributes:
        epsilon: Epsilon, which may be infinite.
        mu: The mu of a mu-GDP mechanism; None if the composition is none.
        details: JSON-safe facts.
    """

    epsilon: float
    mu: float | None
    details: dict


def epsilon_of(losses: Sequence[Loss], delta: float) -> Spent:
    """Composes losses, in any order, and converts the composition to epsilon at `delta`."""
    mu, random, steps = _sorted(losses)
    if steps:
        spent = _spent_by_steps(steps, delta)
        return dataclasses.replace(spent, details=dict(spent.details))
    epsilon = gaussian.epsilon_of_mixture(*_add_random(random, mu * mu), delta)
    if random:
        return Spent(epsilon, None, {"conversion": "average of Gaussian profiles"})
    return Spent(epsilon, mu, {"conversion": "exact Gaussian profile"})


def curve_of(losses: Sequence[Loss], delta: float) -> attacks.Curve:
    """Returns the curve of the least proven delta over epsilon, in both orders of the neighbours.

    Args:
        losses: The losses.
        delta: Probability at which the curve is accurate; epsilon has to be finite there.
    """
    mu, random, steps = _sorted(losses)
    if steps:
        overflow, found = _composed(steps, delta)
        if found:
            return lambda at: min(min(each.delta(at) for each in found) + overflow, 1.0)
        divergences, left_out = _renyi(steps)
        return lambda at: min(_renyi_delta(divergences, at) + left_out, 1.0)
    squares, probabilities, overflow = _add_random(random, mu * mu)
    some = squares > 0
    roots, chances = np.sqrt(squares[some]), probabilities[some]
    return lambda at: overflow + float(chances @ np.exp(gaussian.log_delta(at, roots)))


def rdp_to_epsilon(rdp: ArrayLike, delta: float, orders: ArrayLike = ORDERS) -> tuple[float, float]:
    """Returns (epsilon, best order) by Canonne, Kamath, Steinke 2020, Proposition 12.


    Orders whose divergence is not a positive finite number are dropped: such a divergence is a
    numerical failure, and a negative one would be reported as perfect privacy. Without any order left,
    the result is (inf, nan).
    """
    rdp, alpha = np.asarray(rdp, float), np.asarray(orders, float)
    good = (rdp > 0) & np.isfinite(rdp) & (alpha > 1.01)
    if not np.any(good):
        return math.inf, math.nan
    alpha, rdp = alpha[good], rdp[good]
    epsilon = rdp + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    best = int(np.argmin(epsilon))
    return max(float(epsilon[best]), 0.0), float(alpha[best])


def renyi_of(losses: Sequence[Loss]) -> tuple[np.ndarray, float]:
    """Returns composed divergences at `ORDERS`, and the probability of the outcomes left out."""
    mu = math.hypot(*(loss.mu for loss in losses if isinstance(loss, GaussianLoss)))
    steps = [
        _mixture(loss) if isinstance(loss, RandomGaussianLoss) else loss
        for loss in losses
        if not isinstance(loss, GaussianLoss)
    ]
    divergences, left_out = _renyi(steps)
    return divergences + np.asarray(ORDERS) * mu * mu / 2, left_out


def _renyi_delta(rdp: np.ndarray, epsilon: float) -> float:
    """The inverse of `rdp_to_epsilon` at `ORDERS`."""
    alpha = np.asarray(ORDERS)
    good = (rdp > 0) & np.isfinite(rdp)
    alpha, rdp = alpha[good], rdp[good]
    logs = (alpha - 1) * (rdp - epsilon + np.log1p(-1 / alpha)) - np.log(alpha)
    return math.exp(min(float(np.min(logs, initial=0.0)), 0.0))


def _sorted(losses: Sequence[Loss]):
    """(mu of all Gaussians, random Gaussians, steps); if there are steps, they include the others."""
    mu = math.hypot(*(loss.mu for loss in losses if isinstance(loss, GaussianLoss)))
    random = [loss for loss in losses if isinstance(loss, RandomGaussianLoss)]
    steps = [loss for loss in losses if isinstance(loss, SubsampledLoss | RenyiLoss) and loss.steps]
    if not steps:
        return mu, random, ()
    if mu > 0:
        steps.append(SubsampledLoss((Component(1.0, 1.0, 1 / mu),), 1))
    return 0.0, [], (*steps, *map(_mixture, random))


def _mixture(loss: RandomGaussianLoss) -> SubsampledLoss:
    """A random mu as one round of a public mixture of Gaussians, each rounded up to one of 64."""
    squares, chances, overflow = loss.finite
    mu, chances = np.sqrt(squares[chances > 0]), chances[chances > 0]
    width = mu.max(initial=0.0) / _LEVELS or 1.0
    level = np.maximum(np.ceil(mu / width * (1 - 1e-14)).astype(int), 0)
    at = np.bincount(level, chances)
    values = np.zeros(len(at))
    np.maximum.at(values, level, mu)  # the largest mu of its level
    parts = [
        Component(float(chance), 1.0, 1 / float(value))
        for chance, value in zip(at, values, strict=True)
        if chance > 0 and value > 0
    ]
    # A mu of 0 loses nothing; it is replaced by a part with almost no loss.
    idle = float(at[values == 0].sum())
    if idle:
        parts.append(Component(idle, 1.0, 1e6))
    return SubsampledLoss(tuple(parts), 1, overflow)


def _add_random(
    random: Sequence[RandomGaussianLoss], constant: float, points: int = 4096
) -> tuple[np.ndarray, np.ndarray, float]:
    """(squares, probabilities, overflow) of `constant` plus a sum of independent mu^2."""
    laws = [loss.finite for loss in random]
    overflow = sum(missing for _, _, missing in laws)
    if len(laws) == 1:
        return laws[0][0] + constant, laws[0][1], overflow
    width = sum(float(squares.max(initial=0.0)) for squares, _, _ in laws) / points or 1.0
    total = np.array([1.0])
    for squares, probabilities, _ in laws:
        # Rounding up gives an upper bound on the loss; the factor covers rounding of the division.
        index = np.ceil(squares / width * (1 + 1e-14)).astype(int)
        total = np.convolve(total, np.bincount(index, weights=probabilities))
    return np.arange(len(total)) * width + constant, total, overflow


# Calibration, the limit of a budget, progress bars and the final statement ask for the same epsilons.
@functools.lru_cache(maxsize=256)
def _spent_by_steps(steps: tuple[SubsampledLoss | RenyiLoss, ...], delta: float) -> Spent:
    overflow, found = _composed(steps, delta)
    # The rounds that are left out have the total probability `overflow`, which delta has to cover.
    left = delta - overflow
    if not left > 0:
        return Spent(math.inf, None, {"conversion": "tail mass exceeds delta"})
    by_pld = min((each.epsilon(left) for each in found), default=math.inf)
    by_rdp, order = math.inf, math.nan
    if math.isinf(by_pld):
        divergences, left_out = _renyi(steps)
        if left_out < delta:
            by_rdp, order = rdp_to_epsilon(divergences, delta - left_out)
    if by_pld < by_rdp:
        return Spent(by_pld, None, {"conversion": "PLD"})
    return Spent(by_rdp, None, {"conversion": "RDP", "rdp_order": order})


@functools.lru_cache(maxsize=2)  # a statement asks for epsilon, and then for the curve
def _composed(steps, delta):
    """(probability of outcomes left out, distributions of all steps; empty if none fits)."""
    sampled = [loss for loss in steps if isinstance(loss, SubsampledLoss)]
    overflow = sum(loss.steps * loss.overflow for loss in sampled)
    if len(sampled) < len(steps):
        return overflow, ()  # only Rényi divergences are known of one loss
    found = composed(sampled)
    if found is None or found.infinite <= _NOTICED * delta:
        return overflow, () if found is None else (found,)
    return overflow, tuple(each for each in (found, composed(sampled, delta)) if each is not None)


def _renyi(steps) -> tuple[np.ndarray, float]:
    """Composed divergences at `ORDERS`, and the probability of outcomes left out."""
    total, left_out = np.zeros(len(ORDERS)), 0.0
    for loss in steps:
        if isinstance(loss, RenyiLoss):
            total = total + loss.steps * np.asarray(loss.divergences)
        else:
            found, missing = renyi_divergences(loss, ORDERS)
            total, left_out = total + found, left_out + missing
    return total, left_out
