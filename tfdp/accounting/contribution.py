"""Bounds on what one example can add to a lot's sum: clipping, microbatches, normalization."""

import dataclasses
import math
from typing import Any

from tfdp._validate import flag, positive, whole
from tfdp.accounting import records
from tfdp.accounting.sampling import Sampling


class UnboundedSensitivity(ValueError):
    """The influence of one record on a lot's sum has no bound."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contribution:
    """How the influence of one example on a lot's sum is bounded.

    Attributes:
      l2_norm_clip: Clip norm C of one microbatch, or None if it is not known. It cancels in every
        guarantee.
      microbatch_size: Number of examples whose mean gradient is clipped together.
      clip_groups: Number of groups of weights whose gradients are clipped separately, each at C.
      adaptive_clipping: Whether the clip norm followed a noisy count of unclipped gradients. Then
        the noise multiplier is that of sum and count together, and `l2_norm_clip` is the clip norm
        of the first step.
      batch_statistics: Whether normalization statistics were taken over the private lot.
      public_examples: Number of public examples that took part in normalization.
      max_examples_per_user: Largest number of examples of one user, all of which come and go together:
        a guarantee is for all of them at once.

    Example:
      >>> from tfdp.accounting import Contribution
      >>> from tfdp.accounting.sampling import Poisson
      >>> pairs = Contribution(l2_norm_clip=1.0, microbatch_size=2)
      >>> lots = Poisson(num_examples=1000, lot_size=100)
      >>> pairs.sensitivity(lots, "zero_out")  # single examples: 1.0
      2.0
      >>> pairs.assumptions()[0]
      'The mean gradient of 2 examples at a time was clipped to the clip norm before it was added.'
    """

    l2_norm_clip: float | None = None
    microbatch_size: int = 1
    clip_groups: int = 1
    adaptive_clipping: bool = False
    batch_statistics: bool = False
    public_examples: int = 0
    max_examples_per_user: int = 1

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        put("l2_norm_clip", positive("l2_norm_clip", self.l2_norm_clip, optional=True))
        put("microbatch_size", whole("microbatch_size", self.microbatch_size, 1))
        put("clip_groups", whole("clip_groups", self.clip_groups, 1))
        put("public_examples", whole("public_examples", self.public_examples, 0))
        users = whole("max_examples_per_user", self.max_examples_per_user, 1)
        put("max_examples_per_user", users)
        for name in ("adaptive_clipping", "batch_statistics"):
            put(name, flag(name, getattr(self, name)))

    @property
    def noise_divisor(self) -> float:
        """Factor sqrt(g): g groups clipped at C each form one vector of norm at most C sqrt(g)."""
        return math.sqrt(self.clip_groups)

    def check(self, sampling: Sampling) -> None:
        """Raises ValueError if a microbatch is larger than the nominal lot size."""
        if self.microbatch_size > sampling.lot_size:
            raise ValueError(
                f"Expected microbatch_size to be at most lot_size ({sampling.lot_size}). Received "
                f"{self.microbatch_size}. Use smaller microbatches."
            )

    def check_adjacency(self, adjacency: str) -> None:
        """Raises ValueError if adding a record would regroup the other records into microbatches."""
        if adjacency == "add_or_remove_one" and self.microbatch_size > 1:
            raise ValueError(
                "Expected adjacency zero_out or replace_one with microbatch_size above 1, because "
                "adding a record would regroup the others. Received add_or_remove_one. Pass "
                "adjacency='zero_out'."
            )

    @property
    def replaces(self) -> bool:
        """Whether one example moves what is clipped from one point of the ball to another."""
        return self.microbatch_size > 1

    def sensitivity(self, sampling: Sampling, adjacency: str, occurrences: int = 1) -> float:
        """Largest change of a lot's sum by a record or a user, in clip norms of one group of weights.

        The draws of the sampling are held fixed.

        * The factor is 1 for zero_out and add_or_remove_one, and 2 for replace_one.
        * With microbatches of several examples, a clipped mean moves from one point of the ball to
          another (`replaces`), so the factor is 2 for every adjacency.
        * With k occurrences in the lot it is k times as large.
        * With statistics over the private lot (batch normalization as the papers write it), every
          other term of the lot moves by up to 2 as well. For a largest lot of L terms, the factor is
          2L - 1 if one record is left out that was clipped alone, and 2L otherwise.

        Args:
          sampling: Sampling scheme.
          adjacency: Neighbouring relation.
          occurrences: How many examples of the lot change: those of one user, or one example that was
            drawn several times.

        Returns:
          The factor. It does not include `noise_divisor`.

        Raises:
          ValueError: If the adjacency is not defined for the sampling or the microbatches.
          UnboundedSensitivity: For statistics over a lot whose size is not limited.
        """
        sampling.check_adjacency(adjacency)
        self.check_adjacency(adjacency)
        twice = self.replaces or adjacency == "replace_one"
        if not self.batch_statistics:
            return occurrences * (2.0 if twice else 1.0)
        if sampling.largest_lot is None:
            raise UnboundedSensitivity(
                "Normalization statistics were taken over lots of unlimited size, so one record can "
                "change every other gradient of its lot. Use layer normalization, public statistics, "
                "or lots of a fixed size."
            )
        terms = -(-sampling.largest_lot // self.microbatch_size)
        return 2.0 * terms - (0.0 if twice or occurrences > 1 else 1.0)

    def assumptions(self) -> tuple[str, ...]:
        """Sentences about the bounding of gradients that have to be true for a guarantee to hold."""
        what = "Each example's gradient"
        if self.microbatch_size > 1:
            what = f"The mean gradient of {self.microbatch_size} examples at a time"
        sentences = [f"{what} was clipped to the clip norm before it was added."]
        if self.public_examples:
            sentences.append(
                f"The {self.public_examples} public examples that normalization used were chosen "
                "and prepared without looking at the private ones."
            )
        if self.clip_groups > 1:
            sentences.append(
                f"It was clipped in {self.clip_groups} groups of weights, each at the clip norm."
            )
        if self.adaptive_clipping:
            sentences.append(
                "The clip norm followed a noisy count of unclipped gradients (Andrew et al. 2021); "
                "the noise multiplier is that of sum and count together."
            )
        if self.microbatch_size > 1:
            sentences.append(
                f"Microbatches are fixed groups of {self.microbatch_size} neighbours in the data, "
                "whatever they hold, and random lots were drawn from whole groups, as if a group were "
                "one example. A record that contributes nothing keeps its place in its group."
            )
        if self.max_examples_per_user > 1:
            sentences.append(
                f"No user has more than {self.max_examples_per_user} examples, and no example of one "
                "user was made with those of another."
            )
        return tuple(sentences)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe fields."""
        return records.to_record(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Contribution":
        """Inverse of `to_dict`. Raises ValueError if a field is unknown."""
        return records.from_record(cls, fields, {})
