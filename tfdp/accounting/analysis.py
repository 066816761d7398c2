"""What a mechanism module hands to the accountant, and the facts that all of them share."""

import dataclasses
import math

from tfdp.accounting.privacy_loss import Loss
from tfdp.accounting.run import Run

# Samplings in which a lot's size is random and unlimited.
POISSON = ("poisson", "cyclic_poisson")


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A run, translated into privacy losses that compose.

    Attributes:
      losses: Pieces that together dominate what the run released.
      released: What the guarantee is about, in words.
      assumptions: Short sentences, each of which has to be true.
      reason: Why nothing finite can be proven, or None.
      details: JSON-safe numbers worth reporting.
    """

    losses: tuple[Loss, ...]
    released: str
    assumptions: tuple[str, ...]
    reason: str | None = None
    details: dict = dataclasses.field(default_factory=dict)


class UnboundedSensitivity(ValueError):
    """One record can move the sum by an amount that nothing limits."""


def check_adjacency_fits(run: Run, adjacency: str) -> None:
    """Refuses add_or_remove_one where it is not well defined.

    Raises:
      ValueError: With fixed-size or epoch lots (adding a record changes how all others are
        sampled), and with microbatches (it changes who shares a microbatch with whom).
    """
    if adjacency != "add_or_remove_one":
        return
    if run.sampling != "poisson":
        raise ValueError(
            f"Expected adjacency zero_out or replace_one with sampling {run.sampling!r}, because "
            "adding a record would change how the others are sampled. Received add_or_remove_one. "
            "Pass adjacency='zero_out'."
        )
    if run.microbatch_size > 1:
        raise ValueError(
            "Expected adjacency zero_out or replace_one with microbatch_size above 1, because "
            "adding a record would regroup the others. Received add_or_remove_one. Pass "
            "adjacency='zero_out'."
        )


def lots_may_be_cut(run: Run) -> bool:
    """Whether a lot can draw more examples than can be processed."""
    return (
        run.sampling in POISSON
        and run.max_lot_size is not None
        and run.max_lot_size < run.num_examples
    )


def largest_lot(run: Run) -> int | None:
    """Most examples that a lot can hold, or None where only the data set bounds it.

    The size of the data set itself is no honest bound for a Poisson lot: a sensitivity of that
    size would say nothing.
    """
    return run.max_lot_size if run.sampling in POISSON else run.lot_size


def with_one_clip_group(run: Run) -> Run:
    """The run with all weights clipped together that is exactly as private.

    g groups that are clipped at C each are one vector that is clipped at C sqrt(g).
    """
    return run.with_(
        noise_multiplier=run.noise_multiplier / math.sqrt(run.clip_groups), clip_groups=1
    )


def sensitivity(run: Run, adjacency: str) -> float:
    """Most that one occurrence of a record moves a lot's sum, in clip norms, sampling fixed.

    * zero_out 1, replace_one 2;
    * microbatches of several examples: a clipped mean moves from one point of the ball to another,
      so 2 for every adjacency;
    * a lot cut at `max_lot_size`, add_or_remove_one: the record displaces another, so 2;
    * statistics over the private lot (batch normalization as the papers write it): every other term
      of the lot moves by up to 2 as well: 2L - 1 for zero_out, 2L for replace_one.

    Args:
      run: The run.
      adjacency: Neighbouring relation.

    Returns:
      The factor.

    Raises:
      UnboundedSensitivity: For statistics over a Poisson lot whose size is not limited.
    """
    check_adjacency_fits(run, adjacency)
    if run.batch_statistics:
        lot = largest_lot(run)
        if lot is None:
            raise UnboundedSensitivity(
                "Normalization statistics were taken over Poisson lots of unlimited size, so one "
                "record can change every other gradient of its lot. Use layer normalization or "
                "public statistics, or set max_lot_size."
            )
        if run.microbatch_size > 1:
            return 2.0 * -(-lot // run.microbatch_size)
        displaces = adjacency == "add_or_remove_one" and lots_may_be_cut(run)
        return 2.0 * lot if adjacency == "replace_one" or displaces else 2.0 * lot - 1.0
    if run.microbatch_size > 1 or adjacency == "replace_one":
        return 2.0
    return 2.0 if adjacency == "add_or_remove_one" and lots_may_be_cut(run) else 1.0


def common_assumptions(run: Run) -> tuple[str, ...]:
    """Assumptions that every proven guarantee of a run with noise makes."""
    sentences = [
        f"The number of examples ({run.num_examples}) and the lot size ({run.lot_size}) are "
        "public, and every sum is divided by the constant lot size.",
        {
            "poisson": "Every lot was drawn by independent coin flips of probability "
            f"{run.lot_size}/{run.num_examples}, empty lots included.",
            "cyclic": "Epochs went through the data in one fixed order that does not depend on it.",
            "shuffle": "Every epoch took each example at most once.",
            "with_replacement": f"Every lot was {run.lot_size} independent uniform draws.",
            "cyclic_poisson": f"Examples were dealt into {run.groups} equal groups whatever they "
            "hold, the groups took turns, and each example of a step's group was drawn by an "
            f"independent coin flip of probability {run.sampling_probability:.6g}, empty lots "
            "included.",
            "unknown": "No example was in the same lot twice; it may have been in every lot.",
        }[run.sampling],
    ]
    if run.sampling == "unknown":
        sentences.append(f"No lot held more than {run.lot_size} examples.")
    if lots_may_be_cut(run):
        sentences.append(
            f"Lots of more than {run.max_lot_size} examples were cut uniformly at random."
        )
    if run.public_examples:
        sentences.append(
            f"The {run.public_examples} public examples that normalization used were chosen and "
            "prepared without looking at the private ones."
        )
    if run.clip_groups > 1:
        sentences.append(
            f"Each example's gradient was clipped in {run.clip_groups} groups of weights, each at "
            "the clip norm."
        )
    if run.adaptive_clipping:
        sentences.append(
            "The clip norm followed a noisy count of unclipped gradients (Andrew et al. 2021); the "
            "noise multiplier is that of sum and count together."
        )
    if run.microbatch_size > 1:
        sentences.append(
            "A record that contributes nothing still takes its place in its microbatch."
        )
    sentences.append(
        "The noise is Gaussian, independent and secret; attacks on floating-point sampling are not "
        "covered."
    )
    if run.seeded:
        sentences.append("The noise seed was chosen by the user: nobody else knows it.")
    return tuple(sentences)
