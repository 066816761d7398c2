"""How lots are drawn: one small frozen class for each sampling scheme.

A scheme states in which steps a record can take part and with which probability, and for which
neighbouring relations it is defined. Theorems use these methods and never compare the scheme's name.
"""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from tfdp._validate import flag, one_of, positive, whole
from tfdp.accounting.numerics import binomials
from tfdp.accounting.records import settle


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """Base class of the sampling schemes: how the lots of a training are drawn.

    A scheme describes the draws for the accounting; `tfdp.data.make_lots` makes the draws. `describe`
    accepts the name of a scheme, one of `sampling_names()`.

    Attributes:
        num_examples: Public number N of examples of the data set.
        lot_size: Nominal lot size L, the constant divisor of every sum; at most N.

    Class attributes:
        name: Name of the scheme in flags and ledgers.
        words: The scheme in the words of a statement.
        coin_flips: Whether every example whose turn it is joins the lot by an independent coin flip.
        whole_epochs: Whether lots come in passes over the data, each with every example at most once.
        fixed_order: Whether every pass has the same lots in the same order.
        random_lots: Whether guarantees rely on random draws of the lots, so that their seed is
            secret.
        random_sizes: Whether lots may have any number of examples.

    Example:
        >>> from tfdp.accounting import describe
        >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=25,
        ...                noise_multiplier=4.0)
        >>> run.sampling.participations(run.steps)  # two and a half epochs
        3
    """

    num_examples: int
    lot_size: int

    name: ClassVar[str] = ""
    words: ClassVar[str] = ""
    coin_flips: ClassVar[bool] = False
    whole_epochs: ClassVar[bool] = False
    fixed_order: ClassVar[bool] = False
    random_lots: ClassVar[bool] = True
    random_sizes: ClassVar[bool] = False

    def __post_init__(self):
        settle(
            self,
            num_examples=whole("num_examples", self.num_examples, 1),
            lot_size=whole("lot_size", self.lot_size, 1),
        )
        if self.lot_size > self.num_examples:
            raise ValueError(
                f"Expected lot_size to be at most num_examples ({self.num_examples}). Received "
                f"{self.lot_size}. Use a smaller lot."
            )

    @property
    def groups(self) -> int:
        """Number of groups of examples that take turns; a field of the schemes that have groups."""
        return 1

    @property
    def nominal(self) -> bool:
        """Whether `num_examples` was fixed without looking at the data; a field of Poisson sampling."""
        return False

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole lots in the data set: N // L, at least 1."""
        return max(1, self.num_examples // self.lot_size)

    @property
    def round_length(self) -> int:
        """Number of consecutive steps in which a record can take part at most once."""
        return self.steps_per_epoch if self.whole_epochs else self.groups

    @property
    def periodic(self) -> bool:
        """Whether the steps in which a record can take part are `round_length` apart."""
        return self.fixed_order or not self.whole_epochs

    @property
    def probability(self) -> float:
        """Probability that an example is in a lot that can contain it: L/N times `groups`."""
        return self.groups * self.lot_size / self.num_examples

    @property
    def largest_lot(self) -> int | None:
        """Largest number of examples in a lot; None if only the size of the data set limits it."""
        return None if self.random_sizes else self.lot_size

    def participations(self, steps: int) -> int:
        """Returns the largest number of the first `steps` lots that one example can be in."""
        return -(-steps // self.round_length)

    def steps_in(self, epochs: float) -> int:
        """Returns the number of steps in `epochs` passes over the data (see `steps_for`)."""
        drawn = self.random_lots and not self.whole_epochs
        lots = self.num_examples / self.lot_size if drawn else self.steps_per_epoch
        # The tolerance of 1e-9 keeps 0.1 * N / L from losing a step to rounding.
        return math.floor(positive("epochs", epochs) * lots + 1e-9)

    def draws(self, examples: int, tail: float) -> tuple[np.ndarray, float] | None:
        """Returns the law of the number of a user's examples that are drawn in one step.

        Args:
            examples: Number of the user's examples.
            tail: Largest probability of more draws than are listed.

        Returns:
            The probabilities of 0, 1, ... draws and the probability of more draws than these. None if
            the scheme does not draw each lot independently at random.
        """
        del examples, tail
        return None

    def of_groups(self, size: int) -> "Sampling":
        """Returns the scheme that draws whole groups of `size` examples.

        A group is as likely to be drawn as a single example is in this scheme.
        """
        del size
        return self

    def check_adjacency(self, adjacency: str) -> None:
        """Raises ValueError if the neighbouring relation is not defined for this scheme."""
        if adjacency == "add_or_remove_one":
            raise ValueError(
                f"Expected adjacency zero_out or replace_one with sampling {self.name!r}, because "
                "adding a record would change how the others are sampled. Received "
                "add_or_remove_one. Pass adjacency='zero_out'."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(Sampling):
    """Poisson sampling: each example is in each lot independently, with probability L/N.

    Attributes:
        nominal: Whether `num_examples` was fixed without looking at the data, so that the
            probability does not change when a record is added. The adjacency add_or_remove_one
            needs this.
    """

    nominal: bool = False

    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson lots"
    coin_flips: ClassVar[bool] = True
    random_sizes: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        settle(self, nominal=flag("nominal", self.nominal))

    def draws(self, examples: int, tail: float) -> tuple[np.ndarray, float] | None:
        if self.lot_size == self.num_examples:
            return None
        return binomials.binomial(examples, self.probability, tail)

    def check_adjacency(self, adjacency: str) -> None:
        if adjacency == "add_or_remove_one" and not self.nominal:
            raise ValueError(
                "Expected a sampling probability that was fixed without looking at the data, for "
                "adjacency add_or_remove_one: otherwise, adding a record changes it for all others. "
                "Pass adjacency='zero_out', or choose a nominal number of examples N0 without looking "
                "at the data, and pass nominal_examples=N0 to make_lots or train.py, or "
                "num_examples=N0 and nominal=True to describe."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(Sampling):
    """Poisson sampling from fixed groups of examples that take turns.

    Attributes:
        groups: Number of groups. Each example of a step's group joins the lot with probability
            groups * L/N.
    """

    groups: int = 1

    name: ClassVar[str] = "cyclic_poisson"
    words: ClassVar[str] = "Poisson lots from groups that take turns"
    coin_flips: ClassVar[bool] = True
    random_sizes: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        settle(self, groups=whole("groups", self.groups, 1))
        if self.groups * self.lot_size > self.num_examples:
            raise ValueError(
                f"Expected groups * lot_size to be at most num_examples ({self.num_examples}). "
                f"Received {self.groups} * {self.lot_size}. Use fewer groups."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(Sampling):
    """Epochs in one fixed order that is never reshuffled."""

    name: ClassVar[str] = "cyclic"
    words: ClassVar[str] = "epochs in one fixed order"
    whole_epochs: ClassVar[bool] = True
    fixed_order: ClassVar[bool] = True
    random_lots: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(Sampling):
    """Epochs, each in the order of a fresh permutation."""

    name: ClassVar[str] = "shuffle"
    words: ClassVar[str] = "epochs in a fresh random order"
    whole_epochs: ClassVar[bool] = True
    random_lots: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomAllocation(Sampling):
    """Epochs in which every example is in one lot, drawn uniformly and independently.

    Class attributes:
        largest_random_order: Number of examples above which the order of an epoch is a keyed
            permutation.
    """

    largest_random_order: ClassVar[int] = 1 << 24

    name: ClassVar[str] = "random_allocation"
    words: ClassVar[str] = "epochs in which every example is in one random lot"
    whole_epochs: ClassVar[bool] = True
    random_sizes: ClassVar[bool] = True

    @property
    def probability(self) -> float:
        """Probability that an example is in a given lot of an epoch."""
        return 1 / self.steps_per_epoch

    @property
    def keyed_order(self) -> bool:
        """Whether the order of an epoch is a keyed permutation."""
        return self.num_examples > self.largest_random_order


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FreshLots(Sampling):
    """Base class of the schemes that draw a lot of fixed size independently in each step."""

    def of_groups(self, size: int) -> "Sampling":
        groups, drawn = -(-self.num_examples // size), -(-self.lot_size // size)
        return dataclasses.replace(self, num_examples=groups, lot_size=drawn)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithReplacement(_FreshLots):
    """Lots of L independent uniform draws, so a record may be in one lot several times."""

    name: ClassVar[str] = "with_replacement"
    words: ClassVar[str] = "lots of fixed size drawn uniformly with replacement"

    def draws(self, examples: int, tail: float) -> tuple[np.ndarray, float]:
        chance = min(examples / self.num_examples, 1.0)
        return binomials.binomial(self.lot_size, chance, tail)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize(_FreshLots):
    """Lots of L different examples, drawn afresh in every step, uniformly without replacement."""

    name: ClassVar[str] = "fixed_size"
    words: ClassVar[str] = "lots of fixed size drawn uniformly without replacement"

    def draws(self, examples: int, tail: float) -> tuple[np.ndarray, float] | None:
        if self.lot_size == self.num_examples:
            return None
        return binomials.hypergeometric(self.num_examples, self.lot_size, examples), 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown(Sampling):
    """Batches drawn in an unknown way: each example may be in every lot, but only once in each.

    The number of examples is unknown, too. `num_examples` is the number of rows planned for an epoch,
    or the number in one batch. Only the claimed epsilon depends on it.
    """

    name: ClassVar[str] = "unknown"
    words: ClassVar[str] = "batches drawn in an unknown way"
    random_lots: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OncePerEpoch(Unknown):
    """Batches of a user who declared that each example is at most once in every epoch.

    The proof is the one of `Shuffle`, which needs no random order.
    """

    name: ClassVar[str] = "once_per_epoch"
    words: ClassVar[str] = (
        "batches that hold each example at most once in an epoch, as you declared"
    )
    whole_epochs: ClassVar[bool] = True


_CLASSES: dict[str, type[Sampling]] = {
    kind.name: kind
    for kind in (
        Poisson,
        RandomAllocation,
        Cyclic,
        Shuffle,
        WithReplacement,
        FixedSize,
        CyclicPoisson,
        Unknown,
        OncePerEpoch,
    )
}


def sampling_names() -> tuple[str, ...]:
    """Returns the names of all sampling schemes, such as "poisson".

    Example:
        >>> from tfdp.accounting import sampling_names
        >>> sampling_names()[:4]
        ('poisson', 'random_allocation', 'cyclic', 'shuffle')
    """
    return tuple(_CLASSES)


def sampling_class(name: str) -> type[Sampling]:
    """Returns the class of a scheme; raises ValueError if no scheme has this name."""
    return _CLASSES[one_of("sampling", name, _CLASSES)]
