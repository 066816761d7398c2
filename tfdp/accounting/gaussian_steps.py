"""Proven analysis of fresh Gaussian noise on the bounded sum of every step, for each sampling scheme.

* Coin flips ("poisson", or "cyclic_poisson" from groups that take turns): steps are amplified. Of a
  user's k records, each is in the lot by its own coin flip, so the number j of them is binomial, and
  their terms add up to at most j, under D and under D'. Given the others, the sums i and j terms of two
  such lots differ by at most i for zero_out and add_or_remove_one, and by i + j for replace_one, so the
  comparison lemma (see `pairs`) gives the pairs "add" (Choquette-Choo et al. 2024, Corollary 4.7) and
  "replace" (for vectors of one direction: Schuchardt et al. 2024). In groups that take turns, there
  are ceil(steps / groups) turns, with probability groups * L/N. A user's records may be in several
  groups: given what an earlier step of a turn released, the lemma puts the terms of a later one into
  one direction. Over all steps of the turn, the centres are then no farther apart than in one step that
  has all the records.
* Microbatches of several examples are fixed groups, and lots are drawn from whole groups. A record
  moves the clipped mean of its group from one point of the ball to another, so every adjacency is
  replace_one for groups. Records of a user that share a group only leave fewer terms to move.
* A user with k examples, with other sampling: the sample counts as revealed, or all k as being in one
  lot.
* Random allocation: each epoch is one round (see `allocation`, and `replaced_allocation`).
* Epochs ("cyclic", "shuffle"): steps are not amplified. A record is in at most k = ceil(steps /
  steps_per_epoch) lots, so mu = factor * sqrt(k) / z; if the noise differs from step to step, mu^2
  is factor^2 times the largest sum of 1/z_t^2 that the scheme allows.
* "unknown": a record may be in every lot.
* Lots of fixed size, drawn at random: see `fixed_size`.
"""

import math
from collections.abc import Iterable

import numpy as np

from tfdp.accounting import noise_tables
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.mechanisms import NoisyMechanism
from tfdp.accounting.noise_tables import Noise, levels
from tfdp.accounting.numerics import allocation, fixed_size, replaced_allocation
from tfdp.accounting.numerics.binomials import binomial
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

# Chance of more draws of a user's records than are enumerated; they count as a complete loss.
_TAIL = 1e-20


def prove(run: Run, delta: float, adjacency: str) -> Analysis:
    """Returns the privacy losses of DP-SGD by its theorem."""
    assert isinstance(run.mechanism, NoisyMechanism)
    return analyse_sums(run, run.mechanism.noise_multiplier, delta, adjacency)


def analyse_sums(run: Run, noise: Noise, delta: float, adjacency: str) -> Analysis:
    """Returns the privacy losses of DP-SGD with this noise, instead of the mechanism's."""
    noise = noise_tables.of_steps(noise, run.steps)
    sampling, users = run.sampling, run.contribution.max_examples_per_user
    if sampling.coin_flips and sampling.probability < 1:
        secret = amplified(run, noise, adjacency)
        if users == 1 or draws(run, 0.0) is None:
            return secret
        return smallest([secret, _revealed(run, noise, delta, adjacency)], delta)
    if draws(run, 0.0) is not None:
        alone = _revealed(run, noise, delta, adjacency)
        return smallest([*_fixed_size_lots(run, noise, delta, adjacency), alone], delta)
    alone = _unamplified(run, noise, adjacency)
    if isinstance(sampling, RandomAllocation) and users == 1:
        return smallest([*_allocated(run, noise, adjacency), alone], delta)
    return alone


def smallest(bounds: Iterable[Analysis], delta: float) -> Analysis:
    """Returns the smallest of several bounds, such as with a secret sample and with a revealed one."""
    return min(bounds, key=lambda found: epsilon_of(found.losses, delta).epsilon)


def _analysis(run: Run, adjacency: str, losses: Iterable[Loss], secret: bool) -> Analysis:
    return Analysis(tuple(losses), secret, details={"sensitivity": sensitivity(run, adjacency)})


def sensitivity(run: Run, adjacency: str) -> float:
    """Returns the largest change of a lot's sum, in clip norms, by a record or a user's records."""
    users = run.contribution.max_examples_per_user
    factor = run.contribution.sensitivity(run.sampling, adjacency, users)
    return factor * run.contribution.noise_divisor


def _unamplified(run: Run, noise: Noise, adjacency: str) -> Analysis:
    period = run.sampling.round_length
    if not isinstance(noise, tuple):
        square = run.sampling.participations(run.steps) / noise**2
    elif run.sampling.periodic:
        square = max(math.fsum(z**-2.0 for z in noise[first::period]) for first in range(period))
    else:
        least = np.minimum.reduceat(noise, np.arange(0, len(noise), period))
        square = float(np.sum(least**-2.0))
    loss = GaussianLoss(sensitivity(run, adjacency) * math.sqrt(square))
    return _analysis(run, adjacency, [loss], False)


def _revealed(run: Run, noise: Noise, delta: float, adjacency: str) -> Analysis:
    """Random participation with every sample revealed: an average over its law (Theorem B)."""
    factor = run.contribution.noise_divisor * run.contribution.sensitivity(run.sampling, adjacency)
    losses = (
        RandomGaussianLoss(*occurrence_law(run, count, delta, factor / z))
        for z, count in levels(noise, run.steps)
    )
    return _analysis(run, adjacency, losses, False)


def _rounds(run: Run, noise: Noise):
    """The distinct noise levels of a record's rounds, over a group's clip norm, with their counts."""
    length = run.sampling.round_length
    if isinstance(noise, tuple):
        # A record may take part in any step of its round, so the least noise counts.
        noise = tuple(np.minimum.reduceat(noise, np.arange(0, len(noise), length)).tolist())
    found = levels(noise, run.sampling.participations(run.steps))
    return [(z / run.contribution.noise_divisor, count) for z, count in found]


def amplified(run: Run, noise: Noise, adjacency: str, length: int = 1) -> Analysis:
    """Returns the privacy losses of lots drawn by coin flips, amplified by the secrecy of the sample.

    Args:
        run: The run.
        noise: The noise multiplier; constant if `length` is above 1.
        adjacency: The neighbouring relation.
        length: Number of a record's lots that count as one.
    """
    pair = "replace" if run.contribution.replaces(adjacency) else "add"
    q, flips = run.sampling.probability, length * run.contribution.max_examples_per_user
    chances, overflow = (np.array([1 - q, q]), 0.0) if flips == 1 else binomial(flips, q, _TAIL)
    terms = tuple((chances / chances.sum()).tolist())
    drawn = min(math.fsum(terms[1:]), 1.0)
    losses = [
        SubsampledLoss((Component(1.0, drawn, z, pair, terms),), -(-n // length), overflow)
        for z, n in _rounds(run, noise)
    ]
    return _analysis(run, adjacency, losses, True)


def _allocated(run: Run, noise: Noise, adjacency: str) -> list[Analysis]:
    """Privacy losses of random allocation: one round for each epoch; nothing if they do not fit."""
    q, rounds = run.sampling.probability, _rounds(run, noise)
    if run.contribution.replaces(adjacency):
        if not all(replaced_allocation.fits(q, z) for z, _ in rounds):
            return []
        parts = [(Component(1.0, q, z, "replaced_allocation"), count) for z, count in rounds]
    else:
        # With almost no noise, it counts as known which lot contains the record.
        little = allocation.LEAST_MULTIPLIER
        parts = [
            (Component(1.0, 1.0, z) if z < little else Component(1.0, q, z, "allocation"), count)
            for z, count in rounds
        ]
    losses = [SubsampledLoss((part,), count) for part, count in parts]
    return [_analysis(run, adjacency, losses, True)]


def _fixed_size_lots(run: Run, noise: Noise, delta: float, adjacency: str) -> list[Analysis]:
    """Privacy losses of lots of L examples drawn afresh in each step, with or without replacement.

    The module `fixed_size` has the proof. The draws are of whole microbatches. All results are bounds.
    """
    contribution = run.contribution
    drawn = draws(run, 1e-3 * delta / run.steps)
    assert drawn is not None  # these schemes draw every lot independently
    chances, overflow = drawn

    def ways(z: float) -> list[tuple[Component, ...]]:
        if not contribution.batch_statistics:
            return fixed_size.ways(chances, z, contribution.replaces(adjacency))
        # One user may change the whole lot. All sums have at most L terms of norm 1.
        lots = run.sampling.of_groups(contribution.microbatch_size)
        pair = Component(1.0, 1.0 - float(chances[0]), z / (2.0 * lots.lot_size), "triangle")
        return [(pair,)]

    rounds = [(ways(z / contribution.noise_divisor), n) for z, n in levels(noise, run.steps)]
    return [
        _analysis(run, adjacency, [SubsampledLoss(r[way], n, overflow) for r, n in rounds], True)
        for way in range(len(rounds[0][0]))
    ]
