"""Proven analysis of fresh Gaussian noise on the bounded sum of every step, for each sampling scheme.

* Coin flips ("poisson"): steps are amplified. For zero_out and add_or_remove_one the pair
  (1-q) N(0) + q N(1) against N(0) dominates; for replace_one the pair (1-q) N(0) + q N(1) against
  (1-q) N(0) + q N(-1) dominates. With groups that take turns ("cyclic_poisson"), the same pairs
  dominate each of ceil(steps / groups) turns, with probability groups * L/N.
* Epochs ("cyclic", "shuffle"): steps are not amplified. A record is in at most k = ceil(steps /
  steps_per_epoch) lots, so mu = factor * sqrt(k) / z; if the noise differs from step to step, mu^2
  is factor^2 times the largest sum of 1/z_t^2 that the scheme allows.
* "unknown": a record may be in every lot.
* Lots of fixed size, drawn at random: see `fixed_size`.

Three-point lemma, used below. Let a record be in the lot with probability q. Given everything else,
let R be the noisy sum without the record, and let P and P' be the sums with the record under the two
neighbours, at distances |P - R| <= a, |P' - R| <= a and |P - P'| <= d in units of the noise. Advanced
joint convexity (Balle, Barthe, Gaboardi 2018, Theorem 2) gives, with alpha' = 1 + q (alpha - 1) and
beta = alpha'/alpha,
    H_alpha'((1-q) R + q P || (1-q) R + q P') = q H_alpha(P || (1-beta) R + beta P'),
and a mixture of Gaussians is easiest to distinguish from P when its centres lie at their largest
distances in one direction (Choquette-Choo et al. 2024, Corollary 4.7). So a = 1, d = 2 is the
"replace" pair and P' = R is the "add" pair. The lemma covers alpha >= 1 only. Both pairs are
dominating nevertheless, because a single lot is the worst one both for D against D' and for D' against
D. If no single lot is the worst one for both orders (all three distances at most some number d: the
"triangle" pair with multiplier z / d), the two orders have to be joined (see `fixed_size`).
"""

import dataclasses
import math

import numpy as np

from tfdp.accounting import noise_tables
from tfdp.accounting.analysis import SECRET_SAMPLE, Analysis
from tfdp.accounting.noise_tables import Noise, levels
from tfdp.accounting.numerics import fixed_size
from tfdp.accounting.numerics.participation import occurrence_law, trials
from tfdp.accounting.numerics.privacy_loss import GaussianLoss, RandomGaussianLoss, epsilon_of
from tfdp.accounting.numerics.subsampled import Component, SubsampledLoss
from tfdp.accounting.run import Run

# An event with a smaller probability per step is left out of the analysis and charged to delta.
_NEGLIGIBLE = 1e-18


@dataclasses.dataclass(frozen=True)
class Diagonal:
    """Response of independent steps whose noise differs: a diagonal `linear_releases.Response`.

    Attributes:
      squares: 1 / z_t^2 of every step, shape (steps,).
    """

    squares: np.ndarray

    def cyclic(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """Sums of 1 / z_t^2 over every `period`-th step, for the offset with the largest sum."""
        rows = -(-len(self.squares) // period)
        padded = np.zeros(rows * period)
        padded[: len(self.squares)] = self.squares
        running = np.cumsum(padded.reshape(rows, period), axis=0)
        found = []
        for count in steps:
            row, column = divmod(int(count) - 1, period)
            before = running[row - 1] if row else np.zeros(period)
            found.append(max(running[row, : column + 1].max(), before[column + 1 :].max(initial=0)))
        return np.array(found), "worst participation pattern (all offsets)"

    def shuffled(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """Sums of 1 / z_t^2 over the step with the least noise in every epoch."""
        found, whole = np.empty(len(self.squares)), 0.0
        for start in range(0, len(self.squares), period):
            inside = np.maximum.accumulate(self.squares[start : start + period])
            found[start : start + period] = whole + inside
            whole += inside[-1]
        return found[np.asarray(steps) - 1], "worst step of every epoch"

    def every_step(self, steps: np.ndarray) -> np.ndarray:
        """Sums of 1 / z_t^2 over all steps."""
        return np.cumsum(self.squares)[np.asarray(steps) - 1]


def analyse_sums(
    run: Run, noise: Noise, delta: float, adjacency: str, steps: int | None = None
) -> Analysis:
    """Privacy losses of clipped sums with fresh Gaussian noise.

    Args:
      run: Run whose sampling and contribution are used.
      noise: Standard deviation over clip norm, above 0; one number or one for each step.
      delta: Probability in (0, 1); it determines how much tail mass is left out.
      adjacency: Neighbouring relation.
      steps: Number of steps; None for all steps of the run. A smaller number requires that lots of
        different steps are independent.

    Returns:
      An `Analysis` without the assumptions that all mechanisms share.

    Raises:
      UnboundedSensitivity: If nothing bounds the influence of one record.
    """
    steps = run.steps if steps is None else steps
    factor = run.contribution.sensitivity(run.sampling, adjacency)
    noise = noise_tables.scaled(
        noise_tables.of_steps(noise, steps), 1 / run.contribution.noise_divisor
    )
    sensitivity = {"sensitivity": factor * run.contribution.noise_divisor}
    found = _analyse(run, noise, steps, factor, delta, adjacency)
    secret = any(isinstance(loss, SubsampledLoss) for loss in found.losses)
    return dataclasses.replace(
        found,
        assumptions=(SECRET_SAMPLE,) if secret else (),
        details=found.details | sensitivity,
    )


def _analyse(run, noise, steps, factor, delta, adjacency) -> Analysis:
    sampling = run.sampling
    alone = run.contribution.microbatch_size == 1
    if sampling.coin_flips and alone and sampling.probability < 1:
        return amplified(run, noise, steps, factor, adjacency)
    if sampling.coin_flips and sampling.trials() is not None:
        # Leaving the record out shifts every later example to another microbatch, so the sum
        # without the record may be far from both sums with it. Hence the three-point lemma does not
        # apply and the sample is treated as revealed.
        return _revealed(run, noise, steps, factor, delta)
    if sampling.trials() is not None:
        return _fixed_size_lots(run, noise, steps, factor, delta, adjacency)
    details = {"amplification": "no"}
    if isinstance(noise, tuple):
        response = Diagonal(np.array(noise) ** -2.0)
        squares, how = sampling.squares(response, np.array([steps]))
        mu = factor * math.sqrt(squares[0])
        return Analysis((GaussianLoss(mu),), details=details | {"bound": how}, scales=True)
    participations = sampling.participations(steps)
    mu = factor * math.sqrt(participations) / noise
    details["participations"] = participations
    return Analysis((GaussianLoss(mu),), details=details, scales=True)


def _revealed(run, noise, steps, factor, delta) -> Analysis:
    """Random participation with every sample revealed: an average over its law (Theorem B)."""
    losses = tuple(
        RandomGaussianLoss(*occurrence_law(run.sampling, count, delta, factor / z))
        for z, count in levels(noise, steps)
    )
    details = {"amplification": "random participation, sample revealed"}
    return Analysis(losses, details=details, scales=True)


def amplified(run: Run, noise: Noise, steps: int, factor: float, adjacency: str) -> Analysis:
    """Privacy losses of Poisson lots of single examples, amplified by the secrecy of the sample.

    Args:
      run: Run whose lots are drawn by coin flips; a record takes part in its group's turns only.
      noise: Standard deviation over the clip norm of the whole gradient.
      steps: Number of steps.
      factor: `Contribution.sensitivity` of the run.
      adjacency: Neighbouring relation.

    Returns:
      An `Analysis` with losses and details only.
    """
    sampling = run.sampling
    if isinstance(noise, tuple):
        noise = tuple(float(z) for z in sampling.turns(np.array(noise)))
    rounds = levels(noise, sampling.participations(steps))
    details = {"amplification": "secrecy of the sample"}
    if run.contribution.batch_statistics:
        # With a cut lot or a replaced record, all three sums lie within 2 * largest lot.
        exact = adjacency != "replace_one" and not sampling.may_cut
        distance = factor if exact else 2.0 * sampling.largest_lot
        # The "add" pair dominates if one neighbour is the sum without the record. Otherwise the two
        # orders have to be joined ("triangle").
        pair = "add" if exact or adjacency == "add_or_remove_one" else "triangle"
        parts = [(Component(1.0, sampling.probability, z / distance, pair),) for z, _ in rounds]
        overflow = 0.0
    else:
        cut = sampling.chance_of_cut()
        parts = [_pairs(sampling.probability, z, cut, adjacency) for z, _ in rounds]
        overflow = cut if cut <= _NEGLIGIBLE else 0.0
        details["sampling_probability"] = sampling.probability
        if cut:
            details["chance_of_cut_lot"] = cut
    losses = tuple(
        SubsampledLoss(components, count, overflow)
        for components, (_, count) in zip(parts, rounds, strict=True)
    )
    return Analysis(losses, details=details)


def _pairs(q: float, z: float, cut: float, adjacency: str) -> tuple[Component, ...]:
    pair = "replace" if adjacency == "replace_one" else "add"
    if cut <= _NEGLIGIBLE:
        return (Component(1.0, q, z, pair),)
    # In a full lot the record displaces another one, so all three distances are at most 2. The
    # record is drawn and not dropped with a probability of at most q.
    full = {
        "zero_out": Component(cut, q, z, "slot"),
        "add_or_remove_one": Component(cut, q, z / 2, "add"),
        "replace_one": Component(cut, q, z / 2, "triangle"),
    }[adjacency]
    return (full,) if cut == 1 else (Component(1.0 - cut, q, z, pair), full)


def _fixed_size_lots(run, noise, steps, factor, delta, adjacency) -> Analysis:
    """Privacy losses of lots of L examples drawn afresh in each step, with or without replacement.

    The module `fixed_size` has the proof. If the bound that treats every draw as revealed (without
    amplification) gives a smaller epsilon, its losses are returned instead.
    """
    revealed = _revealed(run, noise, steps, factor, delta)
    revealed = dataclasses.replace(revealed, scales=run.contribution.microbatch_size > 1)
    if revealed.scales:
        return revealed
    number, _ = trials(run.sampling)
    losses = []
    for z, count in levels(noise, steps):
        rounds, overflow = fixed_size.parts(
            run.num_examples,
            run.lot_size,
            z,
            adjacency,
            replacement=number > 1,
            batch_statistics=run.contribution.batch_statistics,
            tail=1e-3 * delta / max(steps, 1),
        )
        losses.append(SubsampledLoss(tuple(Component(*r) for r in rounds), count, overflow))
    by_sample, by_secrecy = (epsilon_of(each, delta).epsilon for each in (revealed.losses, losses))
    if by_sample < by_secrecy:
        return revealed
    drawn = losses[0].components[0].probability
    details = {"amplification": "secrecy of the sample", "sampling_probability": drawn}
    return Analysis(tuple(losses), details=details)
