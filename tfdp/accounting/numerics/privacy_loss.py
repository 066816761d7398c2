"""Privacy losses that compose, and the epsilon of a list of them.

A mechanism describes a run as a list of losses; this module composes and converts them. Four kinds of
loss are enough for every mechanism here:

* `GaussianLoss`: a mu-GDP mechanism. Squares of mu add.
* `RandomGaussianLoss`: mu is drawn at random, independently of the data, and is treated as public
  (Theorem B). Squares of mu add as independent random numbers.
* `SubsampledLoss`: steps that the secrecy of the sample amplifies. They compose as privacy loss
  distributions (PLD) and as Rényi divergences (RDP); both are upper bounds, and the smaller one counts.
* `RenyiLoss`: steps of which only Rényi divergences are known.

Composition is adaptive: a later loss may depend on earlier releases.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tfdp.accounting.numerics import attacks, gaussian
from tfdp.accounting.numerics.subsampled import (
    SubsampledLoss,
    composed_pld,
    default_orders,
    pld_interval,
    rdp_epsilon,
    rdp_to_epsilon,
    total_rdp,
)


class AccountingError(RuntimeError):
    """Two bounds contradict each other, or a bound cannot be true.

    Example:
      >>> from tfdp.accounting.numerics.privacy_loss import check_bounds
      >>> check_bounds(pld=2.0, rdp=1.5, rounding=0.01)  # a valid upper bound cannot be this much lower
      Traceback (most recent call last):
      ...
      tfdp.accounting.numerics.privacy_loss.AccountingError: Expected the Rényi and the ... bounds to
      agree within rounding (0.01). Received 1.5 and 2.0. Report this run as a bug ...
    """


@dataclasses.dataclass(frozen=True)
class GaussianLoss:
    """A mu-GDP mechanism."""

    mu: float


@dataclasses.dataclass(frozen=True)
class RandomGaussianLoss:
    """A Gaussian mechanism whose mu depends on public randomness only.

    Attributes:
      squares: mu^2 of every outcome, shape (outcomes,).
      probabilities: Probability of every outcome, shape (outcomes,).
      overflow: Probability of all outcomes that are not listed; they count as a complete loss.
    """

    squares: np.ndarray
    probabilities: np.ndarray
    overflow: float = 0.0


@dataclasses.dataclass(frozen=True)
class RenyiLoss:
    """Steps of which only Rényi divergences are known.

    Attributes:
      divergences: Divergences of one step at `subsampled.default_orders()`; infinite if unknown.
      steps: Number of independent steps.
      overflow: Probability per step of outcomes that the divergences leave out; they count as a
        complete loss.
    """

    divergences: tuple[float, ...]
    steps: int
    overflow: float = 0.0


Loss = GaussianLoss | RandomGaussianLoss | SubsampledLoss | RenyiLoss


@dataclasses.dataclass(frozen=True)
class Spent:
    """Result of `epsilon_of`.

    Attributes:
      epsilon: Upper bound on epsilon; may be infinite.
      mu: Parameter of the composition if it is a mu-GDP mechanism, else None.
      details: JSON-safe facts about the computation.
    """

    epsilon: float
    mu: float | None
    details: dict


def epsilon_of(losses: Sequence[Loss], delta: float) -> Spent:
    """Composes losses and converts the composition to epsilon at `delta`.

    Args:
      losses: Losses, in any order.
      delta: Probability in (0, 1).

    Returns:
      A `Spent`.

    Raises:
      AccountingError: If two bounds contradict each other, or a bound cannot be true.
    """
    mu = math.sqrt(sum(loss.mu**2 for loss in losses if isinstance(loss, GaussianLoss)))
    random = [loss for loss in losses if isinstance(loss, RandomGaussianLoss)]
    sampled = [
        loss for loss in losses if isinstance(loss, SubsampledLoss | RenyiLoss) and loss.steps
    ]
    if not random and not sampled:
        return Spent(gaussian.epsilon_of_mu(mu, delta), mu, {"bound": "exact Gaussian profile"})
    if not sampled:
        squares, probabilities, overflow = _add_random(random, mu * mu)
        epsilon = gaussian.epsilon_of_mixture(squares, probabilities, overflow, delta)
        return Spent(epsilon, None, {"bound": "average of Gaussian profiles", "overflow": overflow})
    if random:
        # These two kinds of loss have no common composition. Basic composition with half of delta
        # for each part is always valid.
        parts = [epsilon_of([*random, GaussianLoss(mu)], delta / 2), epsilon_of(sampled, delta / 2)]
        return Spent(
            sum(part.epsilon for part in parts), None, {"bound": "sum of two parts, delta halved"}
        )
    return _epsilon_of_steps(sampled, mu, delta)


def curve_of(losses: Sequence[Loss], delta: float) -> attacks.Curve:
    """The least delta that is proven for each epsilon of at least 0, in both orders of the neighbours.

    Args:
      losses: Losses, in any order, whose composition has a finite epsilon at `delta`.
      delta: Probability in (0, 1) that decides about the computation's accuracy, as in `epsilon_of`.
    """
    mu = math.sqrt(sum(loss.mu**2 for loss in losses if isinstance(loss, GaussianLoss)))
    random = [loss for loss in losses if isinstance(loss, RandomGaussianLoss)]
    steps = tuple(
        loss for loss in losses if isinstance(loss, SubsampledLoss | RenyiLoss) and loss.steps
    )
    if random and steps:
        return attacks.of_one_point(epsilon_of(losses, delta).epsilon, delta)
    if steps:
        return _curve_of_steps(steps, mu, delta)
    squares, probabilities, overflow = np.array([mu * mu]), np.array([1.0]), 0.0
    if random:
        squares, probabilities, overflow = _add_random(random, mu * mu)
    some = squares > 0
    roots, chances = np.sqrt(squares[some]), probabilities[some]
    return lambda at: overflow + float(chances @ np.exp(gaussian.log_delta(at, roots)))


def _curve_of_steps(steps, mu, delta):
    overflow = sum(loss.steps * loss.overflow for loss in steps)
    rdp, by_rdp, _ = _renyi(steps, mu, delta - overflow)
    made = _distribution(steps, mu, by_rdp)
    orders = np.asarray(default_orders())
    usable = (rdp > 0) & np.isfinite(rdp)
    rdp, orders = rdp[usable], orders[usable]

    def curve(at: float) -> float:
        logs = (orders - 1) * (rdp - at + np.log1p(-1 / orders)) - np.log(orders)
        least = math.exp(min(float(np.min(logs, initial=0.0)), 0.0))
        if made is not None:
            least = min(least, made[0].delta(at))
        return min(least + overflow, 1.0)

    return curve


def scaled(losses: Sequence[Loss], factor: float) -> tuple[Loss, ...]:
    """Returns Gaussian losses with every mu multiplied by `factor` (see `analysis.Analysis.scales`).

    Raises:
      TypeError: If one of the losses is of another kind.
    """
    result = []
    for loss in losses:
        if isinstance(loss, GaussianLoss):
            result.append(GaussianLoss(loss.mu * factor))
        elif isinstance(loss, RandomGaussianLoss):
            result.append(dataclasses.replace(loss, squares=loss.squares * factor * factor))
        else:
            raise TypeError(f"Expected Gaussian losses. Received {type(loss).__name__}.")
    return tuple(result)


def common_mu(losses: Sequence[Loss]) -> float | None:
    """The mu of the composition, or None if one of the losses is not a `GaussianLoss`."""
    if not all(isinstance(loss, GaussianLoss) for loss in losses):
        return None
    return math.hypot(*(loss.mu for loss in losses))


def quick_epsilon(losses: Sequence[Loss], delta: float) -> float | None:
    """Upper bound on epsilon from Rényi divergences alone, which takes a fraction of the time.

    Returns None if there is no loss, or one of the losses is not a `SubsampledLoss`.
    """
    if not losses or not all(isinstance(loss, SubsampledLoss) for loss in losses):
        return None
    left = delta - sum(loss.steps * loss.overflow for loss in losses)
    return rdp_epsilon(losses, 0.0, left)[0] if left > 0 else math.inf


def _add_random(random: Sequence[RandomGaussianLoss], constant: float, points: int = 4096):
    """Law of `constant` plus the sum of independent mu^2, rounded up to a common grid.

    Args:
      random: Losses with independent laws of mu^2.
      constant: Number that is added to the sum.
      points: Approximate number of grid points; a single law needs no grid.

    Returns:
      (squares, probabilities, overflow).
    """
    overflow = sum(loss.overflow for loss in random)
    infinite = [~np.isfinite(loss.squares) for loss in random]
    overflow += sum(
        float(loss.probabilities[bad].sum()) for loss, bad in zip(random, infinite, strict=True)
    )
    laws = [
        (loss.squares[~bad], loss.probabilities[~bad])
        for loss, bad in zip(random, infinite, strict=True)
    ]
    if len(laws) == 1:
        return laws[0][0] + constant, laws[0][1], overflow
    width = sum(float(squares.max(initial=0.0)) for squares, _ in laws) / points or 1.0
    total = np.array([1.0])
    for squares, probabilities in laws:
        # Rounding up gives an upper bound on the loss; the factor covers rounding of the division.
        index = np.ceil(squares / width * (1 + 1e-14)).astype(int)
        total = np.convolve(total, np.bincount(index, weights=probabilities))
    return np.arange(len(total)) * width + constant, total, overflow


def _epsilon_of_steps(steps: list[SubsampledLoss | RenyiLoss], mu: float, delta: float) -> Spent:
    spent = _spent_by_steps(tuple(steps), mu, delta)
    return dataclasses.replace(spent, details=dict(spent.details))


# Calibration, the limit of a budget, progress bars and the final statement ask for the same epsilons.
@functools.lru_cache(maxsize=256)
def _spent_by_steps(
    steps: tuple[SubsampledLoss | RenyiLoss, ...], mu: float, delta: float
) -> Spent:
    overflow = sum(loss.steps * loss.overflow for loss in steps)
    if not overflow < delta:
        return Spent(math.inf, None, {"bound": "tail mass exceeds delta", "overflow": overflow})
    sampled = [loss for loss in steps if isinstance(loss, SubsampledLoss)]
    # The rounds that are left out have the total probability `overflow`, which delta has to cover.
    left = delta - overflow
    if len(sampled) == len(steps):
        by_rdp, order = rdp_epsilon(sampled, mu, left)
    else:
        _, by_rdp, order = _renyi(steps, mu, left)
    details = {"epsilon_rdp": by_rdp, "rdp_order": order, "bound": "RDP"}
    if overflow:
        details["overflow"] = overflow
    made = _distribution(steps, mu, by_rdp)
    if made is None:
        return Spent(by_rdp, None, details)
    distribution, interval = made
    by_pld = distribution.epsilon(left)
    if math.isinf(by_pld):
        # For a very small delta, the mass beyond the finite grid of the PLD exceeds delta.
        return Spent(by_rdp, None, details)
    rounds = sum(loss.steps for loss in sampled) + 1
    check_bounds(by_pld, by_rdp, rounds * interval)
    check_not_free(min(by_pld, by_rdp), sampled, delta)
    details |= {"epsilon_pld": by_pld, "pld_interval": interval}
    if by_pld <= by_rdp:
        details["bound"] = "PLD"
    return Spent(min(by_pld, by_rdp), None, details)


def _renyi(steps, mu, delta):
    """(divergences at `default_orders()`, epsilon, its order)."""
    rdp = total_rdp([loss for loss in steps if isinstance(loss, SubsampledLoss)], mu)
    for loss in steps:
        if isinstance(loss, RenyiLoss):
            rdp = rdp + loss.steps * np.asarray(loss.divergences)
    return rdp, *rdp_to_epsilon(rdp, delta)


@functools.lru_cache(maxsize=2)  # a statement asks for epsilon, and then for the curve
def _distribution(steps, mu, by_rdp):
    """The distribution of all steps and its interval, or None if there is none or it is too large."""
    if not all(isinstance(loss, SubsampledLoss) for loss in steps):
        return None  # only Rényi divergences are known of one loss
    interval = pld_interval(steps, by_rdp)
    return None if interval is None else composed_pld(steps, mu, interval)


def check_bounds(pld: float, rdp: float, rounding: float) -> None:
    """Refuses a pair of bounds that contradict each other.

    A pessimistic PLD is at most `rounding` (one interval per round) above the true epsilon, so an RDP
    bound that is smaller by more than that is a numerical failure.

    Args:
      pld: Epsilon from privacy loss distributions.
      rdp: Epsilon from Rényi divergences.
      rounding: Largest error of `pld` by the discretization.

    Raises:
      AccountingError: If the bounds contradict each other; the message has both.
    """
    finite = pld >= 0 and rdp >= 0  # both comparisons are false for NaN
    if not finite or rdp < pld - rounding - 1e-6:
        raise AccountingError(
            "Expected the Rényi and the privacy-loss-distribution bounds to agree within rounding "
            f"({rounding:g}). Received {rdp!r} and {pld!r}. Report this run as a bug and do not "
            "rely on its epsilon."
        )


def check_not_free(epsilon: float, sampled: Sequence[SubsampledLoss], delta: float) -> None:
    """Refuses epsilon 0 if the total variation distance of one round alone exceeds `delta`.

    The total variation distance of one round, sum of w q (2 Phi(1/(2z)) - 1), is a lower bound on
    the delta at epsilon 0 of the whole run.

    Args:
      epsilon: Computed upper bound.
      sampled: Losses that were composed.
      delta: Probability in (0, 1).

    Raises:
      AccountingError: If `epsilon` is 0 although it cannot be.
    """
    distance = max(
        sum(
            part.weight * part.probability * special.erf(0.5 / (math.sqrt(2) * part.multiplier))
            for part in loss.components
        )
        for loss in sampled
    )
    if epsilon == 0 and distance > delta:
        raise AccountingError(
            f"Expected epsilon above 0: one step alone is told apart with probability {distance:g},"
            f" which exceeds delta = {delta:g}. Received 0. Report this run as a bug."
        )
