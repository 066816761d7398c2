"""Steps that the secrecy of the sample amplifies: privacy loss distributions of one round and of many.

A distribution on a grid is an upper bound for every interval. This module chooses intervals that fit
into memory, and computes Rényi divergences from the same distributions, for cases that no grid
covers.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from tfdp.accounting.numerics import loss_grid
from tfdp.accounting.numerics.pairs import Component, mean_square, positive_losses, reach

# Discretization intervals, and the largest number of grid points of one round (each takes up to half a
# microsecond).
_INTERVALS = (1e-7, 1e-6, 1e-5, 3e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2)
_POINTS = 200_000
# Largest number of points of a composition, each of which takes about a hundred bytes.
_COMPOSED_POINTS = 1 << 23
# An interval of this share of the standard deviation of one round's loss adds less than 1e-5 to the
# standard deviation of the composed loss, and about as much to epsilon.
_HARMLESS = 0.01


@dataclasses.dataclass(frozen=True)
class SubsampledLoss:
    """Independent rounds of a public mixture of dominating pairs.

    Attributes:
        components: The pairs of the mixture.
        steps: Number of rounds.
        overflow: Chance in each round that no component applies, which counts as a complete loss.
    """

    components: tuple[Component, ...]
    steps: int
    overflow: float = 0.0


@functools.lru_cache(maxsize=32)
def one_round(components: tuple[Component, ...], interval: float) -> loss_grid.LossDistribution:
    """Returns a dominating distribution of the losses of one round of a mixture."""
    parts = [(part.weight, positive_losses(part, interval / 2)) for part in components]
    return loss_grid.one_round(parts, interval)


def composed(
    sampled: Sequence[SubsampledLoss], delta: float | None = None
) -> loss_grid.LossDistribution | None:
    """Returns the distribution of all losses; None if no grid fits, as with almost no privacy.

    Args:
        sampled: The losses.
        delta: With a number, the distribution is accurate relative to deltas of this size.
    """
    finest = _interval(sampled)
    for interval in (each for each in _INTERVALS if finest is not None and each >= finest):
        rounds = [(one_round(loss.components, interval), loss.steps) for loss in sampled]
        found = loss_grid.composed(rounds, _COMPOSED_POINTS, delta)
        if found is not None:
            return found
    return None


def _interval(sampled: Sequence[SubsampledLoss]) -> float | None:
    """The initial interval: fine if one round loses little, coarse if the effect is negligible."""
    parts = {part for loss in sampled for part in loss.components}
    farthest = max(reach(part) for part in parts)
    deviation = math.sqrt(
        min(sum(part.weight * mean_square(part) for part in loss.components) for loss in sampled)
    )
    finest = 1e-4 if deviation >= 1e-3 else 1e-5 if deviation >= 1e-4 else _INTERVALS[0]
    fitting = [i for i in _INTERVALS if i >= finest and farthest <= _POINTS * i]
    harmless = [i for i in fitting if i <= _HARMLESS * deviation]
    return max(harmless, default=min(fitting, default=None))


@functools.lru_cache(maxsize=8)  # trials of a search are often alike
def renyi_divergences(loss: SubsampledLoss, orders: tuple[float, ...]) -> tuple[np.ndarray, float]:
    """Returns upper bounds on the divergences of all rounds in both orders, and the mass left out.

    The divergences are infinite if no grid fits.
    """
    interval = _interval([loss])
    if interval is None:
        return np.full(len(orders), math.inf), 0.0
    halves = one_round(loss.components, interval).halves
    found = [[half.log_moment(order - 1) / (order - 1) for order in orders] for half in halves]
    left_out = loss.overflow + max(half.infinite for half in halves)
    return loss.steps * np.maximum(np.max(found, axis=0), 0.0), loss.steps * left_out
