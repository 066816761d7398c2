"""Subsampled Gaussians: Rényi divergences and privacy loss distributions of one round and of many.

Both are upper bounds. dp_accounting computes both for the "add" pair, computes the distributions of
the "replace" pair, and composes distributions. This module adds the pairs of `fixed_size`, forms
mixtures and chooses grids that fit into memory. A failed computation never counts as a small loss.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tfdp.accounting.numerics import fixed_size

# For a larger epsilon, a privacy loss distribution (PLD) would need gigabytes although the
# guarantee is vacuous anyway; then Rényi divergences (RDP) are used alone.
_PLD_EPSILON_LIMIT = 100.0
# Discretization intervals, and the largest number of grid points of one round (each takes about ten
# microseconds).
_INTERVALS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
_PLD_POINTS = 400_000


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


def total_rdp(sampled: Sequence[SubsampledLoss], mu: float) -> np.ndarray:
    """Composed Rényi divergences at `default_orders()` of all losses and a mu-GDP mechanism."""
    orders = default_orders()
    gaussian_part = np.asarray(orders) * mu * mu / 2
    return gaussian_part + sum(loss.steps * one_round_rdp(loss, orders) for loss in sampled)


def rdp_to_epsilon(rdp: np.ndarray, delta: float) -> tuple[float, float]:
    """Converts Rényi divergences to epsilon (Canonne, Kamath, Steinke 2020, Proposition 12).

    Orders whose divergence is not a positive finite number are dropped: such a divergence is a
    numerical failure, and a negative one would be reported as perfect privacy.

    Args:
      rdp: Divergence at every one of `default_orders()`.
      delta: Probability in (0, 1).

    Returns:
      (epsilon, best order), or (inf, nan) if no order is usable.
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
    """Chooses the discretization interval of a privacy loss distribution (PLD).

    Every interval gives an upper bound. The interval is fine if one round loses so little that
    rounding of the losses would be noticeable.

    Args:
      sampled: Losses to be composed.
      rdp_epsilon: Upper bound on the composed epsilon from Rényi divergences.

    Returns:
      The interval, or None if a PLD would be too large or the guarantee is vacuous.
    """
    if not rdp_epsilon <= _PLD_EPSILON_LIMIT:
        return None
    # A grid ends at the loss that belongs to ten standard deviations of the noise.
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
    """Pessimistic privacy loss distribution of one round of a mixture.

    Args:
      components: Components of the round.
      interval: Distance of the losses on the grid.

    Returns:
      A dp_accounting `PrivacyLossDistribution`.
    """
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
    """Composed pessimistic privacy loss distribution of all losses and a mu-GDP mechanism."""
    from dp_accounting.pld import privacy_loss_distribution as plds

    result = None
    for loss in sampled:
        pld = one_round_pld(loss.components, interval).self_compose(loss.steps)
        result = pld if result is None else result.compose(pld)
    if mu > 0:
        gaussian_pld = plds.from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)
        result = result.compose(gaussian_pld)
    return result
