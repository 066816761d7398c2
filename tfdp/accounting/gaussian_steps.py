"""Proven analysis of fresh Gaussian noise on the bounded sum of every step, for each sampling scheme.

* Coin flips ("poisson"): steps are amplified. For zero_out and add_or_remove_one the pair
  (1-q) N(0) + q N(1) against N(0) dominates; for replace_one the pair (1-q) N(0) + q N(1) against
  (1-q) N(0) + q N(-1) dominates. With groups that take turns ("cyclic_poisson"), the same pairs
  dominate each of ceil(steps / groups) turns, with probability groups * L/N.
* Microbatches of several examples are fixed groups, and lots are drawn from whole groups. A record
  moves the clipped mean of its group from one point of the ball to another, so every adjacency is
  replace_one for groups.
* A user with k examples, in Poisson lots with zero_out: the number of them in a lot is binomial, and
  the mixture of Gaussians with centres 0, 1, ... k against N(0) dominates (Choquette-Choo et al. 2024,
  Corollary 4.7). Everywhere else the sample is taken as revealed, or all k as being in one lot.
* Random allocation, with zero_out: each epoch is one round (see `allocation`).
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
from tfdp.accounting.numerics import allocation, fixed_size
from tfdp.accounting.numerics.pairs import Component
from tfdp.accounting.numerics.participation import occurrence_law
from tfdp.accounting.numerics.privacy_loss import GaussianLoss, RandomGaussianLoss, epsilon_of
from tfdp.accounting.numerics.subsampled import SubsampledLoss
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import RandomAllocation, WithReplacement


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
    noise = noise_tables.of_steps(noise, steps)
    found = _analyse(run, noise, steps, delta, adjacency)
    secret = any(isinstance(loss, SubsampledLoss) for loss in found.losses)
    return dataclasses.replace(found, assumptions=(SECRET_SAMPLE,) if secret else ())


def _analyse(run, noise, steps, delta, adjacency) -> Analysis:
    sampling, users = run.sampling, run.contribution.max_examples_per_user
    drawn = sampling.draws(1, 0.0) is not None
    twice = run.contribution.replaces or adjacency == "replace_one"
    if sampling.coin_flips and sampling.probability < 1 and (users == 1 or (drawn and not twice)):
        return amplified(run, noise, steps, adjacency)
    if drawn:
        alone = _revealed(run, noise, steps, delta, adjacency)
        if users > 1:
            return alone
        return _smaller(_fixed_size_lots(run, noise, steps, delta, adjacency), alone, delta)
    alone = _unamplified(run, noise, steps, adjacency)
    if isinstance(sampling, RandomAllocation) and users == 1 and not twice:
        return _smaller(_allocated(run, noise, steps), alone, delta)
    return alone


def _smaller(amplified: Analysis, alone: Analysis, delta: float) -> Analysis:
    """The bound by the secrecy of the sample, or the one that takes the sample as revealed."""
    by_secrecy, by_sample = (epsilon_of(each.losses, delta).epsilon for each in (amplified, alone))
    # Only one of the two is a bound whatever the noise is.
    return dataclasses.replace(alone, scales=False) if by_sample < by_secrecy else amplified


def _details(run, adjacency, **more):
    users = run.contribution.max_examples_per_user
    factor = run.contribution.sensitivity(run.sampling, adjacency, users)
    return {"sensitivity": factor * run.contribution.noise_divisor} | more


def _unamplified(run, noise, steps, adjacency) -> Analysis:
    sampling, details = run.sampling, _details(run, adjacency, amplification="no")
    factor = details["sensitivity"]
    if isinstance(noise, tuple):
        squares, how = sampling.squares(Diagonal(np.array(noise) ** -2.0), np.array([steps]))
        mu, details["bound"] = factor * math.sqrt(squares[0]), how
    else:
        details["participations"] = sampling.participations(steps)
        mu = factor * math.sqrt(details["participations"]) / noise
    return Analysis((GaussianLoss(mu),), details=details, scales=True)


def _revealed(run, noise, steps, delta, adjacency) -> Analysis:
    """Random participation with every sample revealed: an average over its law (Theorem B)."""
    factor = run.contribution.noise_divisor * run.contribution.sensitivity(run.sampling, adjacency)
    losses = tuple(
        RandomGaussianLoss(*occurrence_law(run, count, delta, factor / z))
        for z, count in levels(noise, steps)
    )
    details = _details(run, adjacency, amplification="random participation, sample revealed")
    return Analysis(losses, details=details, scales=True)


def amplified(run: Run, noise: Noise, steps: int, adjacency: str) -> Analysis:
    """Privacy losses of Poisson lots, amplified by the secrecy of the sample.

    Args:
      run: Run whose lots are drawn by coin flips; a record takes part in its group's turns only.
      noise: Standard deviation of the noise over the clip norm.
      steps: Number of steps.
      adjacency: Neighbouring relation.

    Returns:
      An `Analysis` with losses and details only.

    Raises:
      UnboundedSensitivity: If normalization statistics were taken over the lots.
    """
    sampling, contribution = run.sampling, run.contribution
    details = _details(
        run,
        adjacency,
        amplification="secrecy of the sample",
        sampling_probability=sampling.probability,
    )
    pair = "replace" if contribution.replaces or adjacency == "replace_one" else "add"
    users, divisor = contribution.max_examples_per_user, contribution.noise_divisor

    def of_a_step(z: float) -> Component:
        return Component(1.0, sampling.probability, z / divisor, pair, users)

    losses = tuple(
        SubsampledLoss((of_a_step(z),), count) for z, count in _rounds(sampling, noise, steps)
    )
    return Analysis(losses, details=details)


def _rounds(sampling, noise, steps):
    """The distinct values of the noise, each with the number of a record's rounds."""
    if isinstance(noise, tuple):
        noise = tuple(float(z) for z in sampling.turns(np.array(noise)))
    return levels(noise, sampling.participations(steps))


def _allocated(run, noise, steps) -> Analysis:
    """Privacy losses of random allocation: one round for each epoch."""
    sampling, divisor = run.sampling, run.contribution.noise_divisor
    details = _details(
        run,
        "zero_out",
        amplification="secrecy of the sample",
        sampling_probability=sampling.probability,
    )

    def of_an_epoch(z: float) -> Component:
        if z < allocation.LEAST_MULTIPLIER:
            return Component(1.0, 1.0, z)  # as if it were known which lot has the record
        return Component(1.0, sampling.probability, z, "allocation")

    losses = tuple(
        SubsampledLoss((of_an_epoch(z / divisor),), count)
        for z, count in _rounds(sampling, noise, steps)
    )
    return Analysis(losses, details=details)


def _fixed_size_lots(run, noise, steps, delta, adjacency) -> Analysis:
    """Privacy losses of lots of L examples drawn afresh in each step, with or without replacement.

    The module `fixed_size` has the proof. What is drawn are whole microbatches.
    """
    contribution, losses = run.contribution, []
    drawn = run.sampling.of_groups(contribution.microbatch_size)
    for z, count in levels(noise, steps):
        parts, overflow = fixed_size.parts(
            drawn.num_examples,
            drawn.lot_size,
            z / contribution.noise_divisor,
            "replace_one" if contribution.replaces else adjacency,
            replacement=isinstance(run.sampling, WithReplacement),
            batch_statistics=contribution.batch_statistics,
            tail=1e-3 * delta / max(steps, 1),
        )
        losses.append(SubsampledLoss(parts, count, overflow))
    details = _details(
        run,
        adjacency,
        amplification="secrecy of the sample",
        sampling_probability=losses[0].components[0].probability,
    )
    return Analysis(tuple(losses), details=details)
