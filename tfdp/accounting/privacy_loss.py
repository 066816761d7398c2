"""What one run loses, in pieces that compose, and the epsilon of a list of pieces.

Mechanism modules say *what* happened as a list of pieces; this module knows *how* each is analysed.
Three pieces are enough for every mechanism here:

* `GaussianLoss`: a mu-GDP mechanism. Squares of mu add.
* `RandomGaussianLoss`: mu was drawn at random, independently of the data, and is treated as public
  (Theorem B). Squares of mu add as independent random numbers.
* `SubsampledLoss`: steps that are amplified by the secrecy of the sample. Composed as privacy loss
  distributions (PLD) and as Rényi divergences (RDP); both are upper bounds, the smaller counts.

All pieces are adaptive: a later one may depend on what earlier ones released.
"""

import dataclasses
import functools
import logging
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from tfdp.accounting import gaussian

# Beyond this, a PLD costs gigabytes to describe what everyone calls vacuous; RDP is used alone.
_PLD_EPSILON_LIMIT = 100.0
_COARSE, _FINE = 1e-4, 1e-5


class AccountingError(RuntimeError):
    """An accountant returned something that cannot be true."""


@dataclasses.dataclass(frozen=True)
class GaussianLoss:
    """A mu-GDP mechanism."""

    mu: float


@dataclasses.dataclass(frozen=True)
class RandomGaussianLoss:
    """A Gaussian mechanism whose mu depends on public randomness only.

    Attributes:
      squares: mu^2 of every outcome.
      probabilities: Chance of every outcome.
      overflow: Chance of the outcomes that are not listed.
    """

    squares: np.ndarray
    probabilities: np.ndarray
    overflow: float = 0.0


@dataclasses.dataclass(frozen=True)
class Component:
    """One subsampled Gaussian.

    Attributes:
      weight: Chance of this component; which one it is counts as public.
      probability: Sampling probability q.
      multiplier: Standard deviation of the noise over the sensitivity.
      pair: "add": (1-q) N(0) + q N(1) against N(0), both ways round;
        "replace": (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1).
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


Loss = GaussianLoss | RandomGaussianLoss | SubsampledLoss


@dataclasses.dataclass(frozen=True)
class Spent:
    """Result of `epsilon_of`: epsilon, mu where there is one, and how it was computed."""

    epsilon: float
    mu: float | None
    details: dict


def epsilon_of(losses: Sequence[Loss], delta: float) -> Spent:
    """Composes pieces and converts them to epsilon at `delta`.

    Args:
      losses: Pieces, in any order.
      delta: Probability in (0, 1).

    Returns:
      A `Spent`.

    Raises:
      AccountingError: Where two accountants contradict each other.
    """
    mu = math.sqrt(sum(loss.mu**2 for loss in losses if isinstance(loss, GaussianLoss)))
    random = [loss for loss in losses if isinstance(loss, RandomGaussianLoss)]
    sampled = [loss for loss in losses if isinstance(loss, SubsampledLoss) and loss.steps]
    if not random and not sampled:
        return Spent(gaussian.epsilon_of_mu(mu, delta), mu, {"bound": "exact Gaussian profile"})
    if not sampled:
        squares, probabilities, overflow = _add_random(random, mu * mu)
        epsilon = gaussian.epsilon_of_mixture(squares, probabilities, overflow, delta)
        return Spent(epsilon, None, {"bound": "average of Gaussian profiles", "overflow": overflow})
    if random:
        # No common language: split delta (basic composition), which is always valid.
        parts = [epsilon_of([*random, GaussianLoss(mu)], delta / 2), epsilon_of(sampled, delta / 2)]
        return Spent(
            sum(part.epsilon for part in parts), None, {"bound": "sum of two parts, delta halved"}
        )
    return _epsilon_of_subsampled(sampled, mu, delta)


def _add_random(random: Sequence[RandomGaussianLoss], constant: float, points: int = 2048):
    """Law of the sum of independent mu^2, on a grid, rounded up."""
    squares, probabilities = np.array([0.0]), np.array([1.0])
    overflow = 0.0
    for loss in random:
        if len(squares) > 1:
            squares, probabilities = _coarsen(squares, probabilities, points)
            new_squares, new_probabilities = _coarsen(loss.squares, loss.probabilities, points)
        else:
            new_squares, new_probabilities = loss.squares, loss.probabilities
        squares = (squares[:, None] + new_squares[None, :]).ravel()
        probabilities = (probabilities[:, None] * new_probabilities[None, :]).ravel()
        overflow += loss.overflow
    return squares + constant, probabilities, overflow


def _coarsen(squares: np.ndarray, probabilities: np.ndarray, points: int):
    """Moves mass up to a grid of at most `points` values (an upper bound on the loss)."""
    if len(squares) <= points or not np.all(np.isfinite(squares)):
        return squares, probabilities
    width = float(squares.max()) / (points - 1)
    index = np.minimum(np.ceil(squares / width).astype(int), points - 1)
    grid = np.arange(points) * width
    grid[-1] = max(grid[-1], float(squares.max()))
    return grid, np.bincount(index, weights=probabilities, minlength=points)


def _epsilon_of_subsampled(sampled: list[SubsampledLoss], mu: float, delta: float) -> Spent:
    overflow = sum(loss.steps * loss.overflow for loss in sampled)
    if not overflow < delta:
        return Spent(math.inf, None, {"bound": "tail mass exceeds delta", "overflow": overflow})
    # Leaving out rounds that happen with probability `overflow` in total costs that much delta.
    rdp_epsilon, order = rdp_to_epsilon(total_rdp(sampled, mu), delta - overflow)
    details = {"epsilon_rdp": rdp_epsilon, "rdp_order": order, "bound": "RDP"}
    if overflow:
        details["overflow"] = overflow
    # A composed PLD has about epsilon / interval points: skip it where that would not fit.
    if not rdp_epsilon <= _PLD_EPSILON_LIMIT:
        return Spent(rdp_epsilon, None, details)
    interval = min(pld_interval(loss) for loss in sampled)
    if rdp_epsilon > 10:
        interval = _COARSE  # a fine grid over a wide range costs seconds and gains nothing
    pld = composed_pld(sampled, mu, interval)
    pld_epsilon = float(pld.get_epsilon_for_delta(delta - overflow))
    if math.isinf(pld_epsilon):
        # The mass that a PLD gives up for its finite length exceeds a very small delta.
        return Spent(rdp_epsilon, None, details)
    rounds = sum(loss.steps for loss in sampled) + 1
    check_bounds(pld_epsilon, rdp_epsilon, rounds * interval)
    check_not_free(min(pld_epsilon, rdp_epsilon), sampled, delta)
    details |= {"epsilon_pld": pld_epsilon, "pld_interval": interval}
    if pld_epsilon <= rdp_epsilon:
        details["bound"] = "PLD"
    return Spent(min(pld_epsilon, rdp_epsilon), None, details)


def check_bounds(pld: float, rdp: float, rounding: float) -> None:
    """Refuses a pair of bounds that contradict each other.

    A pessimistic PLD is at most `rounding` (one interval per round) above the truth, so an RDP
    bound below that is a numerical failure.

    Raises:
      AccountingError: With both numbers.
    """
    finite = pld >= 0 and rdp >= 0  # false for NaN
    if not finite or rdp < pld - rounding - 1e-6:
        raise AccountingError(
            "Expected the Rényi and the privacy-loss-distribution bounds to agree within rounding "
            f"({rounding:g}). Received {rdp!r} and {pld!r}. Report this run as a bug and do not "
            "rely on its epsilon."
        )


def check_not_free(epsilon: float, sampled: Sequence[SubsampledLoss], delta: float) -> None:
    """Refuses epsilon 0 where one round alone is told apart with more than `delta`.

    The total variation distance of one round, sum of w q (2 Phi(1/(2z)) - 1), is a lower bound on
    the delta at epsilon 0 of the whole run.

    Raises:
      AccountingError: Where `epsilon` is 0 and cannot be.
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

    The "replace" pair is dominated by the "add" pair at half the multiplier: its three
    Gaussians are pairwise at distance at most 2 (see `dpsgd`).
    """
    orders = tuple(orders)
    alpha = np.asarray(orders)
    terms = []
    for part in loss.components:
        multiplier = part.multiplier / 2 if part.pair == "replace" else part.multiplier
        divergence = _component_rdp(part.probability, multiplier, orders)
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


def pld_interval(loss: SubsampledLoss) -> float:
    """Discretization interval: fine where one round loses so little that rounding would show."""
    deviation = max(
        part.probability * math.sqrt(math.expm1(min(part.multiplier**-2, 50.0)))
        for part in loss.components
        if part.weight > 1e-3
    )
    return _FINE if deviation < 1e-3 else _COARSE


@functools.lru_cache(maxsize=16)
def one_round_pld(components: tuple[Component, ...], interval: float):
    """Pessimistic privacy loss distribution of one round (a dp_accounting object)."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as plds

    relation = dp_accounting.NeighboringRelation
    total, result = 0.0, None
    for part in components:
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


def subsampled_curve(loss: SubsampledLoss, counts: Sequence[int], delta: float) -> list[float]:
    """Epsilon after several numbers of rounds, from one round's PLD and RDP.

    The distribution is composed onwards from one count to the next, not from the start.

    Args:
      loss: Its own `steps` is ignored.
      counts: Numbers of rounds, increasing, at least 0.
      delta: Probability in (0, 1).

    Returns:
      One upper bound for each of `counts`.
    """
    rdp = one_round_rdp(loss, default_orders())
    interval = pld_interval(loss)
    values, composed, done = [], None, 0
    for count in counts:
        left = delta - count * loss.overflow
        if count == 0 or not left > 0:
            values.append(0.0 if count == 0 else math.inf)
            continue
        best, _ = rdp_to_epsilon(count * rdp, left)
        if best <= _PLD_EPSILON_LIMIT:
            if best > 10 and composed is None:
                interval = _COARSE
            if count > done:
                more = one_round_pld(loss.components, interval).self_compose(int(count) - done)
                composed, done = (more if composed is None else composed.compose(more)), int(count)
            best = min(best, float(composed.get_epsilon_for_delta(left)))
        values.append(best)
    return values
