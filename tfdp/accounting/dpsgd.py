"""DP-SGD: clipped sums with fresh Gaussian noise in every step (Abadi et al. 2016).

What is proven depends on how lots were drawn.

* "poisson": steps are amplified. For zero_out and add_or_remove_one the pair
  (1-q) N(0) + q N(1) against N(0) dominates; for replace_one (1-q) N(0) + q N(1) against
  (1-q) N(0) + q N(-1).
* "cyclic_poisson": as "poisson", in ceil(steps / groups) turns with probability groups * L/N.
* "cyclic", "shuffle": no amplification. A record is in at most k = ceil(steps / steps_per_epoch)
  lots, so mu = factor * sqrt(k) / z.
* "unknown": a record may be in every lot: mu = factor * sqrt(steps) / z.
* "with_replacement": see `_with_replacement`.

Three-point lemma, used below. Let a record be in the lot with probability q. Given everything else,
let R be the noisy sum without it, P and P' the sums with it under the two neighbours, with
distances |P - R| <= a, |P' - R| <= a and |P - P'| <= d in units of the noise. Advanced joint
convexity (Balle, Barthe, Gaboardi 2018, Theorem 2) gives, with alpha' = 1 + q (alpha - 1) and
beta = alpha'/alpha,
    H_alpha'((1-q) R + q P || (1-q) R + q P') = q H_alpha(P || (1-beta) R + beta P'),
and a mixture of Gaussians is easiest to tell from P when its centres lie at their largest distances
in one direction (Choquette-Choo et al. 2024, Corollary 4.7). So a = 1, d = 2 is the "replace" pair,
P' = R is the "add" pair, and whenever all three distances are at most D, the "add" pair with
multiplier z / D dominates.
"""

import math

from tfdp.accounting import claims
from tfdp.accounting.analysis import (
    POISSON,
    Analysis,
    UnboundedSensitivity,
    common_assumptions,
    largest_lot,
    lots_may_be_cut,
    sensitivity,
    with_one_clip_group,
)
from tfdp.accounting.participation import binomial, occurrence_law
from tfdp.accounting.privacy_loss import GaussianLoss, Loss, RandomGaussianLoss, epsilon_of
from tfdp.accounting.run import Run
from tfdp.accounting.subsampled import Component, SubsampledLoss

RELEASED = "all noisy gradients, hence every intermediate and final weight"
CLAIM_ASSUMPTIONS = claims.ASSUMPTIONS
claimed_rdp = claims.poisson_rdp

# Chance per step below which an event is left out and charged to delta instead.
_NEGLIGIBLE = 1e-18


def analyse(run: Run, delta: float, adjacency: str) -> Analysis:
    """Translates a DP-SGD run into privacy losses.

    Args:
      run: The run, with mechanism "dpsgd".
      delta: Decides how much tail mass is left out.
      adjacency: Neighbouring relation.

    Returns:
      An `Analysis`; `reason` is set where nothing finite can be proven.

    Raises:
      ValueError: Where the adjacency is not defined for the run's sampling.
    """
    try:
        factor = sensitivity(run, adjacency)
    except UnboundedSensitivity as error:
        return Analysis((), RELEASED, (), reason=str(error))
    if run.noise_multiplier == 0:
        return Analysis((), RELEASED, (), reason="No noise was added (noise_multiplier is 0).")
    draws = float(run.schedule("draws").max(initial=1))
    # n independent draws around one sum are one draw with the noise divided by sqrt(n).
    effective = with_one_clip_group(run)
    effective = effective.with_(noise_multiplier=effective.noise_multiplier / math.sqrt(draws))
    loss, details = _loss(effective.with_(draws=1), factor, delta, adjacency)
    details["sensitivity"] = factor * math.sqrt(run.clip_groups)
    assumptions = common_assumptions(run)
    if isinstance(loss, SubsampledLoss):
        assumptions += ("Which examples were in a lot stays secret.",)
    return Analysis((loss,), RELEASED, assumptions, details=details)


def _loss(run: Run, factor: float, delta: float, adjacency: str) -> tuple[Loss, dict]:
    z = run.noise_multiplier
    if run.sampling == "with_replacement":
        return _with_replacement(run, factor, delta)
    if run.sampling == "poisson" and run.microbatch_size > 1 and run.lot_size < run.num_examples:
        # Leaving the record out shifts every later example to another microbatch, so the sum
        # without it may be far away from both others. Hence the sample counts as revealed.
        law = RandomGaussianLoss(*occurrence_law(run, delta, factor))
        return law, {"amplification": "random participation, sample revealed"}
    if run.sampling in POISSON and run.microbatch_size == 1 and run.sampling_probability < 1:
        return amplified(run, factor, adjacency)
    participations = {"cyclic": run.epochs, "shuffle": run.epochs}.get(run.sampling, run.rounds)
    details = {"participations": participations, "amplification": "none"}
    return GaussianLoss(factor * math.sqrt(participations) / z), details


def amplified(run: Run, factor: float, adjacency: str) -> tuple[SubsampledLoss, dict]:
    """Poisson lots whose sample stays secret, of single examples.

    Args:
      run: With "poisson" or "cyclic_poisson" sampling; in the latter a record takes part in the
        turns of its own group only.
      factor: `sensitivity` of the run.
      adjacency: Neighbouring relation.

    Returns:
      (loss, details).
    """
    q, z = run.sampling_probability, run.noise_multiplier
    if run.batch_statistics:
        # A cut lot, and a replaced record, keep all three sums within 2 * largest lot.
        exact = adjacency != "replace_one" and not lots_may_be_cut(run)
        distance = factor if exact else 2.0 * largest_lot(run)
        part = Component(1.0, q, z / distance, "add")
        return SubsampledLoss((part,), run.rounds), {"amplification": "secrecy of the sample"}
    pair = "replace" if adjacency == "replace_one" else "add"
    cut = chance_of_cut(run)
    if cut <= _NEGLIGIBLE:
        parts, overflow = (Component(1.0, q, z, pair),), cut
    else:
        # In a full lot the record displaces another one: all three distances are at most 2. It
        # is kept with a chance of at most q.
        parts = (Component(1.0 - cut, q, z, pair), Component(cut, q, z / 2, "add"))
        overflow = 0.0
    details = {"amplification": "secrecy of the sample", "sampling_probability": q}
    if cut:
        details["chance_of_cut_lot"] = cut
    return SubsampledLoss(parts, run.rounds, overflow), details


def chance_of_cut(run: Run) -> float:
    """Chance that the other examples alone fill a lot."""
    if not lots_may_be_cut(run):
        return 0.0
    from scipy import special

    others = -(-run.num_examples // run.groups) - 1
    return float(special.bdtrc(run.max_lot_size - 1, others, run.sampling_probability))


def _with_replacement(run: Run, factor: float, delta: float) -> tuple[Loss, dict]:
    """Fixed-size lots of L independent uniform draws.

    The lot has a fixed size, so where the record is not drawn another one is: P and P' are up to 2k
    away from R when the record is drawn k times, also for zero_out. (The mixture of Gaussians that
    replaces sensitivity 1 by k with binomial weights, without the factor 2, is no bound: let all
    other gradients point the other way.) By the three-point lemma, applied after splitting by k
    (Balle et al. 2018, Theorem 10), a public k with the chances of a positive binomial, and then
    the "add" pair with q = P(k >= 1) and multiplier z / (2k), dominates. The alternative without
    amplification, in which every draw is revealed, counts where it is smaller.
    """
    z = run.noise_multiplier
    revealed = RandomGaussianLoss(*occurrence_law(run, delta, factor))
    details = {"amplification": "random participation, sample revealed"}
    if run.microbatch_size > 1:
        return revealed, details
    counts, tail = binomial(run.lot_size, 1.0 / run.num_examples, 1e-6 * delta / max(run.steps, 1))
    chance = float(counts[1:].sum())  # that the record is drawn at all
    scale = 2.0 * run.lot_size if run.batch_statistics else 2.0
    parts = tuple(
        Component(
            float(weight) / chance,
            min(chance, 1.0),
            z / (scale if run.batch_statistics else scale * k),
            "add",
        )
        for k, weight in enumerate(counts)
        if k >= 1
    )
    amplified = SubsampledLoss(parts, run.steps, tail)
    if run.steps == 0:
        return amplified, details
    by_sample, by_secrecy = (epsilon_of([loss], delta).epsilon for loss in (revealed, amplified))
    if by_sample < by_secrecy:
        return revealed, details
    return amplified, {"amplification": "secrecy of the sample", "sampling_probability": chance}
