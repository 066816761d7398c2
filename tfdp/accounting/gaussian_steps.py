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

The three-point lemma of `fixed_size`, with R the noisy sum without the record and P and P' the sums
with it, proves the pairs of a record that is in a lot with probability q: with |P - R|, |P' - R| <= 1
and |P - P'| <= 2 it is the "replace" pair, and with P' = R the "add" pair. It covers alpha >= 1 only.
Both pairs are dominating nevertheless, because a single lot is the worst one both for D against D' and
for D' against D.
"""

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from tfdp.accounting import noise_tables
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.mechanisms import NoisyMechanism
from tfdp.accounting.noise_tables import Noise, levels
from tfdp.accounting.numerics import allocation, fixed_size
from tfdp.accounting.numerics.linear_response import largest_square
from tfdp.accounting.numerics.pairs import Component
from tfdp.accounting.numerics.participation import draws, occurrence_law
from tfdp.accounting.numerics.privacy_loss import (
    GaussianLoss,
    Loss,
    RandomGaussianLoss,
    epsilon_of,
)
from tfdp.accounting.numerics.subsampled import SubsampledLoss
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import RandomAllocation


@dataclasses.dataclass(frozen=True)
class Diagonal:
    """Response of independent steps whose noise differs; `squares` are 1 / z_t^2 of every step."""

    squares: np.ndarray

    def cyclic(self, period: int) -> float:
        return float(max(self.squares[offset::period].sum() for offset in range(period)))

    def shuffled(self, period: int) -> float:
        starts = np.arange(0, len(self.squares), period)
        return float(np.maximum.reduceat(self.squares, starts).sum())


def prove(run: Run, delta: float, adjacency: str) -> Analysis:
    """The theorem of DP-SGD."""
    assert isinstance(run.mechanism, NoisyMechanism)
    return analyse_sums(run, run.mechanism.noise_multiplier, delta, adjacency)


def analyse_sums(run: Run, noise: Noise, delta: float, adjacency: str) -> Analysis:
    """The theorem of DP-SGD for a run with this noise in place of its mechanism's."""
    noise = noise_tables.of_steps(noise, run.steps)
    sampling, users = run.sampling, run.contribution.max_examples_per_user
    drawn = draws(run, 0.0) is not None
    replaces = run.contribution.replaces(adjacency)
    if (
        sampling.coin_flips
        and sampling.probability < 1
        and (users == 1 or (drawn and not replaces))
    ):
        return amplified(run, noise, adjacency)
    if drawn:
        alone = _revealed(run, noise, delta, adjacency)
        if users > 1:
            return alone
        return _smaller(_fixed_size_lots(run, noise, delta, adjacency), alone, delta)
    alone = _unamplified(run, noise, adjacency)
    if isinstance(sampling, RandomAllocation) and users == 1 and not replaces:
        return _smaller(_allocated(run, noise), alone, delta)
    return alone


def _smaller(amplified: Analysis, alone: Analysis, delta: float) -> Analysis:
    """The smaller of two bounds: with the sample secret, and with the sample revealed."""
    return min(amplified, alone, key=lambda found: epsilon_of(found.losses, delta).epsilon)


def _analysis(run: Run, adjacency: str, losses: Iterable[Loss], secret: bool) -> Analysis:
    return Analysis(tuple(losses), secret, details={"sensitivity": sensitivity(run, adjacency)})


def sensitivity(run: Run, adjacency: str) -> float:
    """Largest change of a lot's sum, in clip norms, by a record or all records of a user."""
    users = run.contribution.max_examples_per_user
    factor = run.contribution.sensitivity(run.sampling, adjacency, users)
    return factor * run.contribution.noise_divisor


def _unamplified(run: Run, noise: Noise, adjacency: str) -> Analysis:
    if isinstance(noise, tuple):
        norm = math.sqrt(largest_square(run.sampling, Diagonal(np.array(noise) ** -2.0)))
    else:
        norm = math.sqrt(run.sampling.participations(run.steps)) / noise
    return _analysis(run, adjacency, [GaussianLoss(sensitivity(run, adjacency) * norm)], False)


def _revealed(run: Run, noise: Noise, delta: float, adjacency: str) -> Analysis:
    """Random participation with every sample revealed: an average over its law (Theorem B)."""
    factor = run.contribution.noise_divisor * run.contribution.sensitivity(run.sampling, adjacency)
    losses = (
        RandomGaussianLoss(*occurrence_law(run, count, delta, factor / z))
        for z, count in levels(noise, run.steps)
    )
    return _analysis(run, adjacency, losses, False)


def _rounds(run: Run, noise: Noise):
    """The distinct noise of a record's rounds over a group's clip norm, with the numbers of rounds."""
    length = run.sampling.round_length
    if isinstance(noise, tuple):
        # A record may take part in any step of its round, so the least noise counts.
        noise = tuple(np.minimum.reduceat(noise, np.arange(0, len(noise), length)).tolist())
    found = levels(noise, run.sampling.participations(run.steps))
    return [(z / run.contribution.noise_divisor, count) for z, count in found]


def amplified(run: Run, noise: Noise, adjacency: str) -> Analysis:
    """Privacy losses of lots that are drawn by coin flips, amplified by the secrecy of the sample."""
    pair = "replace" if run.contribution.replaces(adjacency) else "add"
    q, users = run.sampling.probability, run.contribution.max_examples_per_user
    losses = [
        SubsampledLoss((Component(1.0, q, z, pair, users),), n) for z, n in _rounds(run, noise)
    ]
    return _analysis(run, adjacency, losses, True)


def _allocated(run: Run, noise: Noise) -> Analysis:
    """Privacy losses of random allocation: one round for each epoch."""
    q = run.sampling.probability

    def of_an_epoch(z: float) -> Component:
        if z < allocation.LEAST_MULTIPLIER:
            return Component(1.0, 1.0, z)  # as if it were known which lot contains the record
        return Component(1.0, q, z, "allocation")

    losses = [SubsampledLoss((of_an_epoch(z),), count) for z, count in _rounds(run, noise)]
    return _analysis(run, "zero_out", losses, True)


def _fixed_size_lots(run: Run, noise: Noise, delta: float, adjacency: str) -> Analysis:
    """Privacy losses of lots of L examples drawn afresh in each step, with or without replacement.

    The module `fixed_size` has the proof. The draws are of whole microbatches.
    """
    contribution, losses = run.contribution, list[Loss]()
    lots = run.sampling.of_groups(contribution.microbatch_size)
    drawn = lots.draws(1, 1e-3 * delta / run.steps)
    assert drawn is not None  # these schemes draw every lot independently
    chances, overflow = drawn
    probability = float(chances[1:].sum()) + overflow
    for z, count in levels(noise, run.steps):
        z /= contribution.noise_divisor
        if contribution.batch_statistics:
            # One example may change the whole lot. All three sums have at most L terms of norm 1.
            pair = Component(1.0, probability, z / (2.0 * lots.lot_size), "triangle")
            losses.append(SubsampledLoss((pair,), count))
        else:
            rounds = fixed_size.rounds(chances, overflow, z, contribution.replaces(adjacency))
            losses.append(SubsampledLoss(rounds, count, overflow))
    return _analysis(run, adjacency, losses, True)
