"""Bounds on the influence of one example on a lot's sum: clipping, microbatches, views, statistics."""

import dataclasses
import math

from tfdp._validate import flag, positive, whole
from tfdp.accounting.records import settle
from tfdp.accounting.sampling import Sampling


class UnboundedSensitivity(ValueError):
    """The influence of one record on a lot's sum has no bound."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contribution:
    """The largest influence that one example has on a lot's sum of gradients, as part of a `Run`.

    Attributes:
        l2_norm_clip: Clip norm C of one microbatch; None if unknown. It cancels in every guarantee.
        microbatch_size: Number of examples whose mean gradient is clipped together.
        views: Number of rows of each example, such as augmented copies. They are in the same lots,
            and their gradients are averaged before clipping, so they change no guarantee.
        examples_per_person: Largest number of a person's examples in one lot, if lots were drawn
            from people. A record is then a person, and N and L count people. None if a record is an
            example.
        clip_groups: Number of groups of weights whose gradients are clipped separately, each at C.
        adaptive_clipping: Whether the clip norm followed a noisy count of unclipped gradients. Then
            the noise multiplier covers sum and count together, and `l2_norm_clip` is the clip norm
            of the first step.
        batch_statistics: Whether normalization statistics were taken over the private lot.
        public_examples: Number of public examples that took part in normalization.
        max_examples_per_user: Largest number of examples of one user. A guarantee covers all of
            them together.

    Example:
        >>> from tfdp.accounting import Contribution
        >>> from tfdp.accounting.sampling import Poisson
        >>> lots = Poisson(num_examples=1000, lot_size=100)
        >>> Contribution(microbatch_size=2).sensitivity(lots, "zero_out")  # single examples: 1.0
        2.0
    """

    l2_norm_clip: float | None = None
    microbatch_size: int = 1
    views: int = 1
    examples_per_person: int | None = None
    clip_groups: int = 1
    adaptive_clipping: bool = False
    batch_statistics: bool = False
    public_examples: int = 0
    max_examples_per_user: int = 1

    def __post_init__(self):
        wholes = ("microbatch_size", "views", "clip_groups", "max_examples_per_user")
        people = whole("examples_per_person", self.examples_per_person, 1, optional=True)
        flags = ("adaptive_clipping", "batch_statistics")
        settle(
            self,
            l2_norm_clip=positive("l2_norm_clip", self.l2_norm_clip, optional=True),
            examples_per_person=people,
            public_examples=whole("public_examples", self.public_examples, 0),
            **{name: whole(name, getattr(self, name), 1) for name in wholes},
            **{name: flag(name, getattr(self, name)) for name in flags},
        )

    @property
    def unit(self) -> str:
        """The unit that lots are drawn from: "example" or "person"."""
        return "example" if self.examples_per_person is None else "person"

    @property
    def units(self) -> str:
        """The plural of `unit`."""
        return "examples" if self.examples_per_person is None else "people"

    @property
    def augmentations(self) -> int:
        """Number of views of each example."""
        return self.views // (self.examples_per_person or 1)

    @property
    def averaged_rows(self) -> int:
        """Number of rows whose mean gradient is clipped: all views of all examples in a microbatch."""
        return self.microbatch_size * self.views

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

    def replaces(self, adjacency: str) -> bool:
        """Returns whether one example moves a clipped term from one point of the ball to another.

        The mean of several examples moves in this way for every adjacency.
        """
        return self.microbatch_size > 1 or adjacency == "replace_one"

    def chains(self, adjacency: str) -> tuple[tuple[str, int], ...]:
        """Returns the ways from one neighbour to the other by changes of single clipped terms.

        Each way is a pair (adjacency of one change, number of changes); fewest changes come first. A
        term can be replaced by one change, or by two: it is removed, and another one is added.
        """
        users = self.max_examples_per_user
        if self.replaces(adjacency):
            return ("replace_one", users), ("zero_out", 2 * users)
        return ((adjacency, users),)

    def sensitivity(self, sampling: Sampling, adjacency: str, occurrences: int = 1) -> float:
        """Returns the largest change of a lot's sum between neighbours, with the draws held fixed.

        A clipped term that is left out moves by 1, one that is replaced by 2, and k occurrences of a
        record or user move k terms. With statistics over the private lot, every other term also moves
        by up to 2, in each of the lots that contain the k occurrences. The result then bounds their
        sum as if all were in one lot: k times the effect of one occurrence (triangle inequality), or
        every term of every lot of a round, whichever is less.

        Args:
            sampling: How lots are drawn.
            adjacency: "zero_out", "replace_one" or "add_or_remove_one".
            occurrences: Number k of occurrences of the record or user.

        Returns:
            The change in clip norms of one weight group, without the factor `noise_divisor`.

        Raises:
            UnboundedSensitivity: If statistics are taken over a lot whose size is not limited.
        """
        twice = self.replaces(adjacency)
        if not self.batch_statistics:
            return occurrences * (2.0 if twice else 1.0)
        if sampling.largest_lot is None:
            raise UnboundedSensitivity(
                "Normalization statistics were taken over lots of unlimited size, so one record can "
                "change every other gradient of its lot. Use layer normalization, public statistics, "
                "or lots of a fixed size."
            )
        whole = 2.0 * -(-sampling.largest_lot // self.microbatch_size)
        one = whole if twice else whole - 1.0
        return min(occurrences * one, sampling.round_length * whole)
