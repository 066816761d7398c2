"""Sampling schemes, which draw the examples of each lot: one small frozen class each.

A scheme knows only the number of units in the data, and draws their indices. A unit is an example, a
person with all their examples, or a group of neighbouring examples that is clipped as one
(`microbatch_size`). Each class draws exactly by its `sampling`, the scheme that is accounted.

The draws of a step depend only on the secret, the iterator and the number of the step, so they are the
same for every source of rows.
"""

import abc
import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from tfdp._validate import whole
from tfdp.data.draws import MOST_SHUFFLED, Allocation, Binomial, distinct, order
from tfdp.data.permutation import KeyedPermutation, LotSizes
from tfdp.data.words import ORDER, Words

# Lots of random size exceed their padded size with at most this probability.
OVERFLOW_PROBABILITY = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheme(abc.ABC):
    """Base class of the sampling schemes.

    Attributes:
        available: Number of examples (or people) that lots are drawn from.
        lot_size: L, the nominal number of examples in a lot.
        unit_size: Number of neighbouring examples in the data that are drawn together, a divisor of
            `lot_size`. 1 by default.

    Raises:
        ValueError: If the lot size is not an integer from 1 to N, or not a multiple of `unit_size`.
    """

    available: int
    lot_size: int
    unit_size: int = 1

    sampling: ClassVar[str]

    def __post_init__(self):
        settle = object.__setattr__
        settle(self, "available", whole("available", self.available, 1))
        settle(self, "lot_size", whole("lot_size", self.lot_size, 1))
        most = (
            f"Use at most the {'nominal ' if self.nominal else ''}number of examples (or people)."
        )
        lot_size = whole("lot_size", self.lot_size, 1, self.num_examples, remedy=most)
        settle(self, "lot_size", lot_size)
        settle(self, "unit_size", whole("microbatch_size", self.unit_size, 1, lot_size))
        if lot_size % self.unit_size:
            raise ValueError(
                f"Expected microbatch_size to divide the lot size {lot_size}. Received "
                f"{self.unit_size}. Use another one."
            )

    @property
    def num_examples(self) -> int:
        """N, the public number of examples that the accounting uses."""
        return self.available

    @property
    def nominal(self) -> bool:
        """Whether N was given rather than counted."""
        return False

    @property
    def groups(self) -> int:
        """Number of groups of examples that take turns."""
        return 1

    @property
    def steps_per_epoch(self) -> int:
        """Number of lots in an epoch, N // L."""
        return self.num_examples // self.lot_size

    @property
    def units(self) -> int:
        """Number of units to draw from. The last unit may have fewer examples than the others."""
        return -(-self.available // self.unit_size)

    @property
    def units_of_lot(self) -> int:
        """Number of units in a nominal lot."""
        return self.lot_size // self.unit_size

    # The number of units in a lot, if it is random.
    _count: ClassVar[Any] = None

    def usual_units(self) -> int:
        """Returns the number of units in a lot; if it is random, a number that it rarely exceeds."""
        if self._count is None:
            return self.units_of_lot
        return max(1, self._count.exceeded_with(OVERFLOW_PROBABILITY))

    @abc.abstractmethod
    def draw(self, words: Words, stream: int, step: int, turn: int = 0) -> np.ndarray:
        """Draws a lot and returns the indices of its units, int64.

        Args:
            words: The secret random words.
            stream: Number of the iterator.
            step: Number of the lot. The first lot of an iterator is 0.
            turn: The group that lot 0 comes from, if groups take turns.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Scheme):
    """Poisson sampling: every example joins every lot independently, with probability L / N.

    It is the default of `fit`. Sampling amplifies privacy. The size of a lot is random. A lot may be
    empty, and still counts as a step. A lot exceeds the padded size with probability at most
    `OVERFLOW_PROBABILITY`. It is never cut, because cutting would break the independence that
    amplification needs. The number of members is drawn first, then the members, so time and memory
    depend on the lot only.

    With `nominal_examples` the probability is L / nominal_examples for any number of examples. The
    adjacency add_or_remove_one requires this: if the probability depended on the number of examples,
    removing one record would change how often all others are drawn. The number of examples is then as
    private as the examples, and so are the attributes that depend on it (`available_examples`,
    `padded_size`, `physical_batch_size`).

    Attributes:
        nominal_examples: A positive integer that was chosen without looking at the data, such as
            the number of people who were asked to take part. With more or fewer examples, the
            average size of a lot is larger or smaller than L. None counts the examples.
        shard_of: Number of examples on all machines, for the shard of one; see `RandomAllocation`.
    """

    nominal_examples: int | None = None
    shard_of: int | None = None

    sampling = "poisson"

    def __post_init__(self):
        remedy = "Pass a number that was chosen without looking at the data."
        nominal = whole("nominal_examples", self.nominal_examples, 1, optional=True, remedy=remedy)
        object.__setattr__(self, "nominal_examples", nominal)
        _check_shard(self)
        if nominal is not None and self.shard_of is not None:
            raise ValueError(
                "nominal_examples cannot be combined with shard_of. Remove one of them."
            )
        super().__post_init__()

    @functools.cached_property
    def _count(self) -> Binomial:
        return Binomial(self.units, (self.lot_size, self.num_examples))

    @property
    def num_examples(self) -> int:
        return self.nominal_examples or self.shard_of or self.available

    @property
    def nominal(self) -> bool:
        return self.nominal_examples is not None

    def draw(self, words, stream, step, turn=0):
        bits = words.bits(stream, step)
        return distinct(bits, self._count.draw(bits), self.units)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(Scheme):
    """Cyclic Poisson sampling: groups take turns, and a lot is a Poisson sample of one group.

    Use it with correlated noise: amplification of the banded matrix mechanism needs it (Choquette-Choo
    et al. 2023). Each example of a group joins the lot independently, with probability groups * L / N.
    Example i is in group i mod groups, regardless of its content. Lot t comes from group t mod groups,
    so two lots with the same example are at least `groups` steps apart. With one group, this is Poisson
    sampling.

    All groups have the same size: the last (number of examples) mod groups examples are always left
    out, and do not count in `num_examples`. A lot may be empty. No lot is ever cut.

    Attributes:
        groups: Number of groups; groups * lot_size is at most the number of examples.
    """

    groups: int = 1

    sampling = "cyclic_poisson"

    def __post_init__(self):
        total, size = whole("available", self.available, 1), whole("unit_size", self.unit_size, 1)
        groups, lot_size = whole("groups", self.groups, 1), whole("lot_size", self.lot_size, 1)
        if groups * lot_size > total:
            raise ValueError(
                f"Expected groups * lot_size to be at most the number of examples, {total}. "
                f"Received {groups} * {lot_size}. Use fewer groups or smaller lots."
            )
        members = total // size // groups
        object.__setattr__(self, "groups", groups)
        object.__setattr__(self, "available", members * groups * size)
        super().__post_init__()

    @property
    def _members(self) -> int:
        return self.units // self.groups

    @functools.cached_property
    def _count(self) -> Binomial:
        return Binomial(self._members, (self.units_of_lot, self._members))

    def draw(self, words, stream, step, turn=0):
        bits = words.bits(stream, step)
        drawn = distinct(bits, self._count.draw(bits), self._members)
        return drawn * self.groups + (step + turn) % self.groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(Scheme):
    """The data in their given order, L examples at a time, with the same lots in every epoch.

    There is no randomness, and so no amplification. The last N mod L examples are left out, so that no
    lot is partial. With `keep_last` they form a last lot, filled with absent examples. The accounting
    counts absent examples: `num_examples` is then N rounded up to whole lots, so that every example is
    in exactly one of the `steps_per_epoch` lots of an epoch.

    Attributes:
        keep_last: Whether an epoch ends with a partial lot, instead of leaving out examples. False by
            default.
    """

    keep_last: bool = False

    sampling = "cyclic"

    @property
    def num_examples(self) -> int:
        whole_lots = -(-self.available // self.lot_size) * self.lot_size
        return whole_lots if self.keep_last and self.lot_size <= self.available else self.available

    def draw(self, words, stream, step, turn=0):
        first = step % self.steps_per_epoch * self.units_of_lot
        return np.arange(first, min(first + self.units_of_lot, self.units))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(Scheme):
    """A new random order of the data in each epoch, cut into N // L lots.

    Keras' `fit` shuffles in this way, but keeps a partial batch. Here the N mod L examples at the end
    of an order are left out of that epoch. It is accounted without amplification. With more than
    `draws.MOST_SHUFFLED` units, the order is a keyed permutation.
    """

    sampling = "shuffle"

    def draw(self, words, stream, step, turn=0):
        epoch, lot = divmod(step, self.steps_per_epoch)
        first = lot * self.units_of_lot
        return np.sort(_in_order(words, stream, epoch, self.units, first, self.units_of_lot))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomAllocation(Scheme):
    """In each epoch, every example is in one of the N // L lots, drawn uniformly and independently.

    This is known as "balls and bins" (Chua et al. 2024). It resembles a shuffled epoch, since every
    example is used once, but lots have random sizes, as Poisson lots have. Sampling amplifies
    privacy: epsilon is nearly as small as with Poisson lots. With more than `draws.MOST_SHUFFLED`
    units, the sizes of lots are multinomial, and their members are consecutive in a keyed
    permutation.

    Attributes:
        shard_of: Number of examples (or people) on all machines together, if the data are the shard
            that only this machine can read. The rate, or the number of lots, is then that of all
            data, so that the lots of all shards together are those of the whole data. None for whole
            data.
    """

    shard_of: int | None = None

    sampling = "random_allocation"

    def __post_init__(self):
        _check_shard(self)
        super().__post_init__()

    @property
    def num_examples(self) -> int:
        return self.shard_of or self.available

    @functools.cached_property
    def _count(self) -> Binomial:
        return Binomial(self.units, (1, self.steps_per_epoch))

    def draw(self, words, stream, step, turn=0):
        epoch, lot = divmod(step, self.steps_per_epoch)
        made = words.of_epoch((self, stream), epoch, lambda: self._epoch(words, stream, epoch))
        if isinstance(made, Allocation):
            return made.lot(lot)
        return np.sort(_in_order(words, stream, epoch, self.units, *made.lot(lot)))

    def _epoch(self, words, stream, epoch):
        if self.units > MOST_SHUFFLED:
            return LotSizes(words, stream, epoch, self.units, self.steps_per_epoch)
        bits = words.bits(stream, epoch, ORDER)
        return Allocation(bits, self.units, self.steps_per_epoch)


def _check_shard(scheme):
    remedy = "Pass the number of examples on all machines together."
    most = whole("shard_of", scheme.shard_of, scheme.available, optional=True, remedy=remedy)
    object.__setattr__(scheme, "shard_of", most)


def _in_order(words, stream, epoch, units, first, count):
    """Returns `count` units from place `first` on, in the order of an epoch."""
    if units > MOST_SHUFFLED:
        secret = words.secret(stream, epoch, ORDER)
        return KeyedPermutation(secret, units).at(np.arange(first, first + count))
    bits = words.bits(stream, epoch, ORDER)
    made = words.of_epoch((units, stream), epoch, lambda: order(bits, units))
    return made[first : first + count]


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithReplacement(Scheme):
    """Lots of L independent uniform draws: an example may occur several times in one lot."""

    sampling = "with_replacement"

    def draw(self, words, stream, step, turn=0):
        return words.bits(stream, step).below(self.units, self.units_of_lot).astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize(Scheme):
    """Lots of exactly L distinct examples, drawn anew in each step; every set is equally likely.

    This is the usual idea of a random batch. No padding is needed, except to whole physical batches.
    Nevertheless it costs more privacy than a Poisson lot: if one example is not drawn, another one
    takes its place.
    """

    sampling = "fixed_size"

    def draw(self, words, stream, step, turn=0):
        return distinct(words.bits(stream, step), self.units_of_lot, self.units)


SCHEMES: dict[str, type[Scheme]] = {
    kind.sampling: kind
    for kind in (
        Poisson,
        RandomAllocation,
        Cyclic,
        Shuffle,
        WithReplacement,
        FixedSize,
        CyclicPoisson,
    )
}
