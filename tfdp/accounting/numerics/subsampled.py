"""Subsampled Gaussians: Rényi divergences and privacy loss distributions of one round and of many.

Both are upper bounds. dp_accounting computes the Rényi divergences of the "add" pair and `fixed_size`
those of its pairs; `loss_grid` computes the distributions of all pairs. This module forms mixtures and
chooses orders of divergence, and grids that fit into memory. A failed computation never counts as a
small loss.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tfdp.accounting.numerics import fixed_size, loss_grid

# For a larger epsilon, a privacy loss distribution (PLD) would need gigabytes although the
# guarantee is vacuous anyway; then Rényi divergences (RDP) are used alone.
_PLD_EPSILON_LIMIT = 100.0
# Discretization intervals, and the largest number of grid points of one round (each takes up to half a
# microsecond).
_INTERVALS = (1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3)
_PLD_POINTS = 400_000
# Largest number of points of a composition, each of which takes about a hundred bytes.
_COMPOSED_POINTS = 1 << 23
# An interval of this share of the standard deviation of one round's loss adds less than 1e-5 to the
# standard deviation of the composed loss, and about as much to epsilon.
_HARMLESS = 0.01
# Of the orders of Rényi divergence, every eighth one is tried first.
_STRIDE = 8


@dataclasses.dataclass(frozen=True)
class Component:
    """One subsampled Gaussian.

    Attributes:
      weight: Probability of this component in a mixture; the choice of the component is treated as
        public.
      probability: Sampling probability q.
      multiplier: Standard deviation of the noise over the sensitivity.
      pair: The dominating pair. "add" is (1-q) N(0) + q N(1) against N(0), in both orders; "replace"
        is (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1); `fixed_size` defines "slot" and
        "triangle".
    """

    weight: float
    probability: float
    multiplier: float
    pair: str = "add"


@dataclasses.dataclass(frozen=True)
class SubsampledLoss:
    """`steps` independent rounds of a public mixture of subsampled Gaussians.

    Attributes:
      components: Components of one round; their weights and `overflow` add up to 1.
      steps: Number of rounds.
      overflow: Probability per round that no component applies; this counts as a complete loss.
    """

    components: tuple[Component, ...]
    steps: int
    overflow: float = 0.0


# ---------------------------------------------------------------------- Rényi divergence


@functools.lru_cache(maxsize=512)
def _component_rdp(probability: float, multiplier: float, orders: tuple) -> np.ndarray:
    """Rényi divergences of one Poisson-subsampled Gaussian, with dp_accounting."""
    import dp_accounting

    accountant = dp_accounting.rdp.RdpAccountant(orders)
    event = dp_accounting.GaussianDpEvent(multiplier)
    if probability < 1:
        event = dp_accounting.PoissonSampledDpEvent(probability, event)
    # If the series of an order does not converge, dp_accounting returns an infinite or undefined
    # divergence and logs a warning. Such orders are dropped when the orders are compared, so the
    # warning is suppressed.
    logger = logging.getLogger("absl")
    quiet = _NotConverged()
    logger.addFilter(quiet)
    try:
        accountant.compose(event)
    finally:
        logger.removeFilter(quiet)
    return accountant.rdp


class _NotConverged(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "failed to converge" not in record.getMessage()


def default_orders() -> tuple[float, ...]:
    """Orders of Rényi divergence for the proven bound: those of dp_accounting and larger ones."""
    fine = [1 + x / 10.0 for x in range(1, 100)]
    return tuple([*fine, *range(11, 64), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024])


def one_round_rdp(loss: SubsampledLoss, orders: Sequence[float]) -> np.ndarray:
    """Upper bound on the Rényi divergence of one round of `loss` at every order.

    The "replace" pair is dominated by the "triangle" pair at half the multiplier, because its three
    Gaussians have pairwise distances of at most 2 (see `fixed_size`).

    Args:
      loss: Loss whose `steps` and `overflow` are ignored.
      orders: Orders above 1.

    Returns:
      Array with one divergence per order; not finite if it could not be computed.
    """
    orders = tuple(orders)
    alpha = np.asarray(orders)
    terms = []
    for part in loss.components:
        if part.pair == "add":
            divergence = _component_rdp(part.probability, part.multiplier, orders)
        else:
            pair, multiplier = part.pair, part.multiplier
            if pair == "replace":
                pair, multiplier = "triangle", multiplier / 2
            divergence = fixed_size.round_rdp(pair, part.probability, multiplier, orders)
        terms.append(math.log(part.weight) + (alpha - 1) * divergence)
    if len(terms) == 1:
        return divergence
    return special.logsumexp(terms, axis=0) / (alpha - 1)


def total_rdp(
    sampled: Sequence[SubsampledLoss], mu: float, orders: Sequence[float] | None = None
) -> np.ndarray:
    """Composed Rényi divergences of all losses and a mu-GDP mechanism.

    Args:
      sampled: Losses to be composed.
      mu: Parameter of the mu-GDP mechanism; 0 for none.
      orders: Orders above 1; None for `default_orders()`.
    """
    orders = default_orders() if orders is None else tuple(orders)
    gaussian_part = np.asarray(orders) * mu * mu / 2
    return gaussian_part + sum(loss.steps * one_round_rdp(loss, orders) for loss in sampled)


def rdp_epsilon(sampled: Sequence[SubsampledLoss], mu: float, delta: float) -> tuple[float, float]:
    """Epsilon at `delta` from Rényi divergences, and its order, with few orders evaluated.

    (order - 1) times the divergence is convex in the order, and so is what the conversion adds to it.
    Hence epsilon falls and then rises with the order, and the best order is a neighbour of the best
    one of a coarse selection. If a divergence could not be computed, the result may be that of a
    worse order, which is still an upper bound.
    """
    orders = default_orders()
    coarse = sorted({*range(0, len(orders), _STRIDE), len(orders) - 1})
    first = tuple(orders[i] for i in coarse)
    found = rdp_to_epsilon(total_rdp(sampled, mu, first), delta, first)
    if math.isnan(found[1]):
        return rdp_to_epsilon(total_rdp(sampled, mu), delta)
    at = orders.index(found[1])
    second = orders[max(at - _STRIDE + 1, 0) : at + _STRIDE]
    return rdp_to_epsilon(total_rdp(sampled, mu, second), delta, second)


def rdp_to_epsilon(
    rdp: np.ndarray, delta: float, orders: Sequence[float] | None = None
) -> tuple[float, float]:
    """Converts Rényi divergences to epsilon (Canonne, Kamath, Steinke 2020, Proposition 12).

    Orders whose divergence is not a positive finite number are dropped: such a divergence is a
    numerical failure, and a negative one would be reported as perfect privacy.

    Args:
      rdp: Divergence at every order.
      delta: Probability in (0, 1).
      orders: The orders; None for `default_orders()`.

    Returns:
      (epsilon, best order), or (inf, nan) if no order is usable.
    """
    alpha = np.asarray(default_orders() if orders is None else orders)
    good = (rdp > 0) & np.isfinite(rdp) & (alpha > 1.01)
    if not np.any(good):
        return math.inf, math.nan
    alpha, rdp = alpha[good], rdp[good]
    epsilon = rdp + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    best = int(np.argmin(epsilon))
    return max(float(epsilon[best]), 0.0), float(alpha[best])


# ---------------------------------------------------------------------- privacy loss distribution


def pld_interval(sampled: Sequence[SubsampledLoss], rdp_epsilon: float) -> float | None:
    """Chooses the discretization interval of a privacy loss distribution (PLD).

    Every interval gives an upper bound. The interval is fine if one round loses so little that
    rounding of the losses would be noticeable, and coarse if nobody would notice.

    Args:
      sampled: Losses to be composed.
      rdp_epsilon: Upper bound on the composed epsilon from Rényi divergences.

    Returns:
      The interval, or None if a PLD would be too large or the guarantee is vacuous.
    """
    if not rdp_epsilon <= _PLD_EPSILON_LIMIT:
        return None
    reach = sum(
        max(loss_grid.end_of_grid(part.pair, part.probability, part.multiplier, part.weight))
        for part in {part for loss in sampled for part in loss.components}
    )
    variance = min(_variance(loss, 1.0) for loss in sampled)
    finest = _INTERVALS[0] if variance < 1e-6 else 1e-4
    harmless = _HARMLESS * math.sqrt(
        min(sum(part.weight * _square(part) for part in loss.components) for loss in sampled)
    )
    fitting = [i for i in _INTERVALS if i >= finest and reach <= _PLD_POINTS * i]
    return max((i for i in fitting if i <= harmless), default=min(fitting, default=None))


def _variance(loss: SubsampledLoss, noise: float) -> float:
    """Variance of the density ratio of one round, with all noise multiplied by `noise`."""
    return sum(
        part.weight * part.probability**2 * math.expm1(min((part.multiplier * noise) ** -2, 50.0))
        for part in loss.components
    )


def typical_noise(sampled: Sequence[SubsampledLoss], mu: float) -> float:
    """Factor of the noise with which many rounds are about as private as a mu-GDP mechanism.

    By the central limit theorem for privacy losses (Bu, Dong, Long, Su 2020), mu^2 is about the sum of
    the variances. This is no bound; a search starts from it.

    Args:
      sampled: Losses of at least one round in total.
      mu: Number above 0.
    """
    low, high = 1e-6, 1e6
    while high > low * 1.001:
        middle = math.sqrt(low * high)
        variance = sum(loss.steps * _variance(loss, middle) for loss in sampled)
        low, high = (middle, high) if variance > mu * mu else (low, middle)
    return high


_POINTS = np.linspace(-8.0, 8.0, 161)
_DENSITY = np.exp(-(_POINTS**2) / 2)
_DENSITY /= _DENSITY.sum()


def _square(part: Component) -> float:
    """Mean square of the loss of one round where the record contributes nothing.

    Unlike a mean where it contributes, this one is not ruled by outcomes that hardly ever occur.
    """
    shift = 1.0 / part.multiplier
    with np.errstate(over="ignore"):
        excess = np.expm1(np.minimum(shift * _POINTS - shift**2 / 2, 700.0))
    with np.errstate(divide="ignore"):
        losses = np.log1p(part.probability * excess)
    return float(_DENSITY @ np.maximum(losses, -700.0) ** 2)


@functools.lru_cache(maxsize=32)
def one_round_pld(components: tuple[Component, ...], interval: float) -> loss_grid.LossDistribution:
    """Pessimistic privacy loss distribution of one round of a mixture.

    Args:
      components: Components of the round.
      interval: Distance of the losses on the grid.
    """
    return loss_grid.one_round([dataclasses.astuple(part) for part in components], interval)


def composed_pld(
    sampled: Sequence[SubsampledLoss], mu: float, interval: float
) -> tuple[loss_grid.LossDistribution, float] | None:
    """Composed pessimistic privacy loss distribution of all losses and a mu-GDP mechanism.

    Args:
      sampled: Losses to be composed.
      mu: Parameter of the mu-GDP mechanism; 0 for none.
      interval: The finest interval, one that `pld_interval` returned. A coarser one is taken where the
        grid would not fit into memory.

    Returns:
      (distribution, interval), or None if no grid fits.
    """
    for wider in (each for each in _INTERVALS if each >= interval):
        rounds = [(one_round_pld(loss.components, wider), loss.steps) for loss in sampled]
        if mu > 0:
            rounds.append((one_round_pld((Component(1.0, 1.0, 1 / mu),), wider), 1))
        if loss_grid.points_of(rounds) <= _COMPOSED_POINTS:
            return loss_grid.composed(rounds), wider
    return None
