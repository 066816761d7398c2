"""Subsampled Gaussians: Rényi divergences and privacy loss distributions of one round and of many.

Both come from dp_accounting and both are upper bounds. This module feeds it mixtures, chooses grids
that fit into memory, and never takes a failed computation for a small loss.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tfdp.accounting.numerics import fixed_size

# Beyond this, a PLD costs gigabytes to describe what everyone calls vacuous; RDP is used alone.
_PLD_EPSILON_LIMIT = 100.0
# Discretization intervals, and the most points of one round (about ten microseconds each).
_INTERVALS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
_PLD_POINTS = 400_000


@dataclasses.dataclass(frozen=True)
class Component:
    """One subsampled Gaussian.

    Attributes:
      weight: Chance of this component; which one it is counts as public.
      probability: Sampling probability q.
      multiplier: Standard deviation of the noise over the sensitivity.
      pair: "add": (1-q) N(0) + q N(1) against N(0), both ways round;
        "replace": (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1);
        "slot", "triangle": see `fixed_size`.
    """

    weight: float
    probability: float
    multiplier: float
    pair: str = "add"


@dataclasses.dataclass(frozen=True)
class SubsampledLoss:
    """`steps` independent rounds of a public mixture of subsampled Gaussians.

    Attributes:
      components: Of one round; weights and `overflow` add up to 1.
      steps: Number of rounds.
      overflow: Chance per round that no component applies; counted as a complete loss.
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
    # An order whose series does not converge comes back as infinite or undefined, with a warning;
    # it is dropped where orders are compared, so the warning says nothing to a reader.
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
    """Orders of Rényi divergence for the proven bound (dp_accounting's, with larger ones)."""
    fine = [1 + x / 10.0 for x in range(1, 100)]
    return tuple([*fine, *range(11, 64), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024])


def one_round_rdp(loss: SubsampledLoss, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergence of one round of `loss` at every order (an upper bound).

    The "replace" pair is dominated by the "triangle" pair at half the multiplier: its three
    Gaussians are pairwise at distance at most 2 (see `fixed_size`).
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


def total_rdp(sampled: Sequence[SubsampledLoss], mu: float) -> np.ndarray:
    """Composed Rényi divergences at `default_orders()`."""
    orders = default_orders()
    gaussian_part = np.asarray(orders) * mu * mu / 2
    return gaussian_part + sum(loss.steps * one_round_rdp(loss, orders) for loss in sampled)


def rdp_to_epsilon(rdp: np.ndarray, delta: float) -> tuple[float, float]:
    """Converts Rényi divergences to epsilon (Canonne, Kamath, Steinke 2020, Proposition 12).

    Orders whose divergence is not a positive number carry no information (a negative one is a
    numerical failure which, taken at face value, would report perfect privacy); they are dropped.

    Args:
      rdp: Divergence at every one of `default_orders()`.
      delta: Probability in (0, 1).

    Returns:
      (epsilon, order), or (inf, nan) where no order is usable.
    """
    alpha = np.asarray(default_orders())
    good = (rdp > 0) & np.isfinite(rdp) & (alpha > 1.01)
    if not np.any(good):
        return math.inf, math.nan
    alpha, rdp = alpha[good], rdp[good]
    epsilon = rdp + np.log1p(-1 / alpha) - (math.log(delta) + np.log(alpha)) / (alpha - 1)
    best = int(np.argmin(epsilon))
    return max(float(epsilon[best]), 0.0), float(alpha[best])


# ---------------------------------------------------------------------- privacy loss distribution


def pld_interval(sampled: Sequence[SubsampledLoss], rdp_epsilon: float) -> float | None:
    """Discretization interval: fine where one round loses so little that rounding would show.

    Args:
      sampled: Pieces to be composed.
      rdp_epsilon: Rough size of the composed epsilon.

    Returns:
      The interval (every one gives an upper bound), or None where a PLD would not fit.
    """
    if not rdp_epsilon <= _PLD_EPSILON_LIMIT:
        return None
    # Losses at ten standard deviations of the noise, which is where a grid ends.
    reach = sum(
        0.5 / part.multiplier**2 + 10.0 / part.multiplier
        for part in {part for loss in sampled for part in loss.components}
    )
    variance = min(
        sum(
            part.weight * part.probability**2 * math.expm1(min(part.multiplier**-2, 50.0))
            for part in loss.components
        )
        for loss in sampled
    )
    wanted = _INTERVALS[0] if variance < 1e-6 else 1e-4
    fitting = (i for i in _INTERVALS if i >= wanted and reach <= _PLD_POINTS * i)
    return next(fitting, None)


@functools.lru_cache(maxsize=16)
def one_round_pld(components: tuple[Component, ...], interval: float):
    """Pessimistic privacy loss distribution of one round (a dp_accounting object)."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as plds

    relation = dp_accounting.NeighboringRelation
    total, result = 0.0, None
    for part in components:
        if part.pair in fixed_size.PAIRS:
            pld = fixed_size.round_pld(
                part.pair, part.probability, part.multiplier, interval, part.weight
            )
        else:
            pld = plds.from_gaussian_mechanism(
                part.multiplier,
                value_discretization_interval=interval,
                sampling_prob=part.probability,
                neighboring_relation=(
                    relation.REPLACE_ONE if part.pair == "replace" else relation.ADD_OR_REMOVE_ONE
                ),
            )
        total += part.weight
        result = pld if result is None else pld.compute_mixture(result, part.weight / total)
    return result


def composed_pld(sampled: Sequence[SubsampledLoss], mu: float, interval: float):
    """Composed pessimistic privacy loss distribution of all pieces."""
    from dp_accounting.pld import privacy_loss_distribution as plds

    result = None
    for loss in sampled:
        pld = one_round_pld(loss.components, interval).self_compose(loss.steps)
        result = pld if result is None else result.compose(pld)
    if mu > 0:
        gaussian_pld = plds.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
        result = result.compose(gaussian_pld)
    return result
