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
        guarantee, except in the rounding term of SI-DPSGD.
      microbatch_size: Number of examples whose mean gradient is clipped together.
      clip_groups: Number of groups of weights whose gradients are clipped separately, each at C.
      adaptive_clipping: Whether the clip norm followed a noisy count of unclipped gradients. Then
        the noise multiplier is that of sum and count together, and `l2_norm_clip` is the clip norm
        of the first step.
      batch_statistics: Whether normalization statistics were taken over the private lot.
      public_examples: Number of public examples that took part in normalization.

    Example:
      >>> from tfdp.accounting import Contribution, Run
      >>> pairs = Contribution(l2_norm_clip=1.0, microbatch_size=2)
      >>> run = Run(mechanism="dpsgd", sampling="poisson", num_examples=1000, lot_size=100, steps=10,
      ...           noise_multiplier=4.0, contribution=pairs)
      >>> pairs.sensitivity(run.sampling, "zero_out")  # twice that of single examples
      2.0
      >>> pairs.assumptions()
      ('A record that contributes nothing still takes its place in its microbatch.',)
    """

    l2_norm_clip: float | None = None
    microbatch_size: int = 1
    clip_groups: int = 1
    adaptive_clipping: bool = False
    batch_statistics: bool = False
    public_examples: int = 0

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        put("l2_norm_clip", positive("l2_norm_clip", self.l2_norm_clip, optional=True))
        put("microbatch_size", whole("microbatch_size", self.microbatch_size, 1))
        put("clip_groups", whole("clip_groups", self.clip_groups, 1))
        put("public_examples", whole("public_examples", self.public_examples, 0))
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

    def sensitivity(self, sampling: Sampling, adjacency: str) -> float:
        """Largest change of a lot's sum by one occurrence of a record, in clip norms of one group.

        The draws of the sampling are held fixed.

        * The factor is 1 for zero_out and add_or_remove_one, and 2 for replace_one.
        * With microbatches of several examples, a clipped mean moves from one point of the ball to
          another, so the factor is 2 for every adjacency.
        * With lots cut at `max_lot_size` and add_or_remove_one, the record displaces another one, so
          the factor is 2.
        * With statistics over the private lot (batch normalization as the papers write it), every
          other term of the lot moves by up to 2 as well. For a largest lot of L examples, the factor
          is 2L if the record is replaced or displaces another one, and 2L - 1 otherwise. With
          microbatches of size m > 1, it is 2 ceil(L / m).

        Args:
          sampling: Sampling scheme.
          adjacency: Neighbouring relation.

        Returns:
          The factor. It does not include `noise_divisor`.

        Raises:
          ValueError: If the adjacency is not defined for the sampling or the microbatches.
          UnboundedSensitivity: For statistics over a Poisson lot whose size is not limited.
        """
        sampling.check_adjacency(adjacency)
        self.check_adjacency(adjacency)
        displaces = adjacency == "add_or_remove_one" and sampling.may_cut
        if self.batch_statistics:
            lot = self._mixed_lot(sampling)
            if self.microbatch_size > 1:
                return 2.0 * -(-lot // self.microbatch_size)
            return 2.0 * lot if adjacency == "replace_one" or displaces else 2.0 * lot - 1.0
        if self.microbatch_size > 1 or adjacency == "replace_one" or displaces:
            return 2.0
        return 1.0

    @staticmethod
    def _mixed_lot(sampling: Sampling) -> int:
        if sampling.largest_lot is None:
            raise UnboundedSensitivity(
                "Normalization statistics were taken over Poisson lots of unlimited size, so one "
                "record can change every other gradient of its lot. Use layer normalization or "
                "public statistics, or set max_lot_size."
            )
        return sampling.largest_lot

    def assumptions(self) -> tuple[str, ...]:
        """Sentences about the bounding of gradients that have to be true for a guarantee to hold."""
        sentences = []
        if self.public_examples:
            sentences.append(
                f"The {self.public_examples} public examples that normalization used were chosen "
                "and prepared without looking at the private ones."
            )
        if self.clip_groups > 1:
            sentences.append(
                f"Each example's gradient was clipped in {self.clip_groups} groups of weights, "
                "each at the clip norm."
            )
        if self.adaptive_clipping:
            sentences.append(
                "The clip norm followed a noisy count of unclipped gradients (Andrew et al. 2021); "
                "the noise multiplier is that of sum and count together."
            )
        if self.microbatch_size > 1:
            sentences.append(
                "A record that contributes nothing still takes its place in its microbatch."
            )
        return tuple(sentences)

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe fields."""
        return records.to_record(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Contribution":
        """Inverse of `to_dict`. Raises ValueError if a field is unknown."""
        return records.from_record(cls, fields, {})
