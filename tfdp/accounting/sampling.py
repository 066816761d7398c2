"""How lots are drawn: one small frozen class for each sampling scheme.

A scheme states in which steps a record can take part and with which probability, which assumptions
about the sampling a guarantee makes, and for which neighbouring relations the scheme is defined.
Mechanisms use these methods and never compare the scheme's name.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tfdp._validate import flag, one_of, positive, whole
from tfdp.accounting import records
from tfdp.accounting.numerics import binomials

if TYPE_CHECKING:
    from tfdp.accounting.numerics.linear_releases import Response

_NOMINAL_REMEDY = (
    "Fix a nominal number of examples N0 without looking at the data, draw lots with probability "
    'lot_size/N0 (make_lots("poisson", ..., nominal_examples=N0)), and describe the run with '
    "num_examples=N0, nominal=True; or pass adjacency='zero_out'."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """Base class of the sampling schemes.

    Attributes:
      num_examples: Public number N of examples of the data set.
      lot_size: Nominal lot size L, the constant divisor of every sum; at most N.

    Class attributes:
      name: Name of the scheme in flags and ledgers.
      words: Name of the scheme in sentences.

    Example:
      >>> from tfdp.accounting import describe
      >>> run = describe("dpsgd", "cyclic", num_examples=1000, lot_size=100, steps=25,
      ...                noise_multiplier=4.0)
      >>> run.sampling
      Cyclic(num_examples=1000, lot_size=100)
      >>> run.sampling.words
      'epochs in one fixed order'
      >>> run.sampling.participations(run.steps)  # two and a half epochs
      3
    """

    num_examples: int
    lot_size: int

    name: ClassVar[str] = ""
    words: ClassVar[str] = ""
    # Whether every example whose turn it is joins the lot by an independent coin flip.
    coin_flips: ClassVar[bool] = False
    # Whether lots come in passes over the data, each of which has an example at most once.
    whole_epochs: ClassVar[bool] = False
    # Whether every pass has the same lots in the same order.
    fixed_order: ClassVar[bool] = False
    # Some schemes have these two as fields; these constants hold for all other schemes.
    groups: ClassVar[int] = 1
    nominal: ClassVar[bool] = False

    def __post_init__(self):
        self._put("num_examples", whole("num_examples", self.num_examples, 1))
        self._put("lot_size", whole("lot_size", self.lot_size, 1))
        if self.lot_size > self.num_examples:
            raise ValueError(
                f"Expected lot_size to be at most num_examples ({self.num_examples}). Received "
                f"{self.lot_size}. Use a smaller lot."
            )

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def steps_per_epoch(self) -> int:
        """Whole lots in the data set (N // L, at least 1)."""
        return max(1, self.num_examples // self.lot_size)

    @property
    def probability(self) -> float:
        """Probability that an example is in a lot that can hold it: L/N times `groups`."""
        return self.groups * self.lot_size / self.num_examples

    @property
    def random_lots(self) -> bool:
        """Whether guarantees rest on the random draws of the lots, so that their seed matters.

        False for epochs: their order must not depend on the data, but need not be secret.
        """
        return self.coin_flips

    @property
    def largest_lot(self) -> int | None:
        """Largest number of examples in a lot; None if only the size of the data set limits it."""
        return self.lot_size

    def participations(self, steps: int) -> int:
        """Largest number of the first `steps` lots that one example can be in."""
        return steps

    def steps_in(self, epochs: float) -> int:
        """Number of steps in `epochs` passes over the data (see `steps_for`).

        Raises:
          ValueError: If `epochs` is not a finite number above 0.
        """
        epochs = positive("epochs", epochs)
        lots = self.num_examples / self.lot_size if self.random_lots else self.steps_per_epoch
        # The tolerance of 1e-9 keeps 0.1 * N / L from losing a step to rounding.
        return math.floor(epochs * lots + 1e-9)

    def draws(self, examples: int, tail: float) -> tuple[np.ndarray, float] | None:
        """How often a user's examples are drawn in one step, if every step draws lots by itself.

        Args:
          examples: Number of examples of the user.
          tail: Probability of larger numbers that may be left out.

        Returns:
          (probabilities of 0, 1, ... draws, probability of more); None for a scheme without such
          random draws in every step.
        """
        del examples, tail

    def of_groups(self, size: int) -> "Sampling":
        """How groups of `size` examples are drawn, where whole groups are drawn in place of examples.

        The probability of a group is that of an example. Only lots of a fixed size hold fewer groups.
        """
        del size
        return self

    @property
    def sizes(self) -> str:
        """The sizes of lots and data in words."""
        return f"lots of {self.lot_size} out of {self.num_examples} examples"

    def turns(self, noise: np.ndarray) -> np.ndarray:
        """Least noise of every round, in which a record can take part once; here of each step.

        Args:
          noise: Noise multiplier of every step, shape (steps,).
        """
        return noise

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        """Largest ||W m||^2 over records and draws after each of `steps`; and the method in words."""
        return response.every_step(steps), "participation in every step"

    def check_adjacency(self, adjacency: str) -> None:
        """Raises ValueError where the neighbouring relation is not defined for this scheme."""
        if adjacency == "add_or_remove_one":
            raise ValueError(
                f"Expected adjacency zero_out or replace_one with sampling {self.name!r}, because "
                "adding a record would change how the others are sampled. Received "
                "add_or_remove_one. Pass adjacency='zero_out'."
            )

    def assumptions(self) -> tuple[str, ...]:
        """Sentences about the sampling that have to be true for a guarantee to hold."""
        return (self._public_numbers(), *self._drawn())

    def _public_numbers(self) -> str:
        return (
            f"The number of examples ({self.num_examples}) and the lot size ({self.lot_size}) are "
            "public, and every sum is divided by the constant lot size."
        )

    def _drawn(self) -> tuple[str, ...]:
        return ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe fields and name."""
        return records.to_record(self)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CoinFlips(Sampling):
    """Base class of the Poisson schemes: lots of random size."""

    coin_flips: ClassVar[bool] = True

    @property
    def largest_lot(self) -> None:
        """None: a lot may hold all examples."""

    @property
    def sizes(self) -> str:
        return f"nominally {self.lot_size} out of {self.num_examples} examples"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(_CoinFlips):
    """Poisson sampling: each example is in each lot independently, with probability L/N.

    Attributes:
      nominal: Whether `num_examples` is a nominal number N0 that was fixed without looking at the
        data, so that the probability is L/N0 whatever the data set is. The adjacency
        add_or_remove_one is defined only if this is true: with the probability L / len(x), adding a
        record changes how all other records are sampled.
    """

    nominal: bool = False

    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson lots"

    def __post_init__(self):
        super().__post_init__()
        self._put("nominal", flag("nominal", self.nominal))

    def draws(self, examples: int, tail: float) -> tuple[np.ndarray, float] | None:
        if self.lot_size == self.num_examples:
            return None
        return binomials.binomial(examples, self.probability, tail)

    def check_adjacency(self, adjacency: str) -> None:
        if adjacency == "add_or_remove_one" and not self.nominal:
            raise ValueError(
                "Expected a sampling probability that was fixed without looking at the data, for "
                "adjacency add_or_remove_one: with lot_size over the number of examples, one "
                "record more or less changes how all others are sampled. Received nominal=False. "
                + _NOMINAL_REMEDY
            )

    def _public_numbers(self) -> str:
        if not self.nominal:
            return super()._public_numbers()
        return (
            f"The nominal number of examples ({self.num_examples}), the lot size "
            f"({self.lot_size}), the number of steps and every schedule were fixed without looking "
            "at the data, and every sum is divided by the constant lot size."
        )

    def _drawn(self) -> tuple[str, ...]:
        return (
            f"Every lot was drawn by independent coin flips of probability {self.lot_size}/"
            f"{self.num_examples}, empty lots included.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(_CoinFlips):
    """Cyclic Poisson sampling: fixed groups of examples take turns.

    In each step, every example of the group whose turn it is joins the lot independently, with
    probability groups * L/N.

    Attributes:
      groups: Number of groups that take turns.
    """

    groups: int = 1

    name: ClassVar[str] = "cyclic_poisson"
    words: ClassVar[str] = "Poisson lots from groups that take turns"

    def __post_init__(self):
        super().__post_init__()
        self._put("groups", whole("groups", self.groups, 1))
        if self.groups * self.lot_size > self.num_examples:
            raise ValueError(
                f"Expected groups * lot_size to be at most num_examples ({self.num_examples}). "
                f"Received {self.groups} * {self.lot_size}. Use fewer groups."
            )

    def participations(self, steps: int) -> int:
        return -(-steps // self.groups)

    def turns(self, noise: np.ndarray) -> np.ndarray:
        return _least_of_rounds(noise, self.groups)

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        return response.cyclic(self.groups, steps)

    def _drawn(self) -> tuple[str, ...]:
        return (
            f"Examples were dealt into {self.groups} equal groups whatever they hold, the groups "
            "took turns, and each example of a step's group was drawn by an independent coin flip "
            f"of probability {self.probability:.6g}, empty lots included.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Epochs(Sampling):
    """Base class of the schemes that take epochs: a record is in at most one lot of each epoch."""

    whole_epochs: ClassVar[bool] = True

    def participations(self, steps: int) -> int:
        return -(-steps // self.steps_per_epoch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(_Epochs):
    """Epochs in one fixed order that is never reshuffled."""

    name: ClassVar[str] = "cyclic"
    words: ClassVar[str] = "epochs in one fixed order"
    fixed_order: ClassVar[bool] = True

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        return response.cyclic(self.steps_per_epoch, steps)

    def _drawn(self) -> tuple[str, ...]:
        return ("Epochs went through the data in one fixed order that does not depend on it.",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(_Epochs):
    """Epochs, each in the order of a fresh permutation."""

    name: ClassVar[str] = "shuffle"
    words: ClassVar[str] = "epochs in a fresh random order"

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        return response.shuffled(self.steps_per_epoch, steps)

    def _drawn(self) -> tuple[str, ...]:
        return (
            "Every epoch took each example at most once, in an order that does not depend on what they "
            "hold.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomAllocation(_Epochs):
    """Epochs in each of which every example is in one lot, drawn uniformly and by itself."""

    name: ClassVar[str] = "random_allocation"
    words: ClassVar[str] = "epochs in which every example is in one random lot"

    @property
    def random_lots(self) -> bool:
        return True

    @property
    def largest_lot(self) -> None:
        """None: a lot may hold all examples."""

    @property
    def sizes(self) -> str:
        return f"nominally {self.lot_size} out of {self.num_examples} examples"

    @property
    def probability(self) -> float:
        """Probability that an example is in a certain lot of an epoch."""
        return 1 / self.steps_per_epoch

    def steps_in(self, epochs: float) -> int:
        return math.floor(positive("epochs", epochs) * self.steps_per_epoch + 1e-9)

    def turns(self, noise: np.ndarray) -> np.ndarray:
        return _least_of_rounds(noise, self.steps_per_epoch)

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        return response.shuffled(self.steps_per_epoch, steps)

    def _drawn(self) -> tuple[str, ...]:
        return (
            f"In every epoch of {self.steps_per_epoch} lots, each example was put into one of them, "
            "uniformly and independently of the others, empty lots included.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FreshLots(Sampling):
    """Base class of the schemes that draw a lot of fixed size afresh in each step."""

    @property
    def random_lots(self) -> bool:
        return True

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

    def _drawn(self) -> tuple[str, ...]:
        return (f"Every lot was {self.lot_size} independent uniform draws.",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize(_FreshLots):
    """Lots of L different examples, drawn afresh in every step, uniformly without replacement."""

    name: ClassVar[str] = "fixed_size"
    words: ClassVar[str] = "lots of fixed size drawn uniformly without replacement"

    def draws(self, examples: int, tail: float) -> tuple[np.ndarray, float] | None:
        if self.lot_size == self.num_examples:
            return None
        return binomials.hypergeometric(self.num_examples, self.lot_size, examples), 0.0

    def _drawn(self) -> tuple[str, ...]:
        return (
            f"Every lot was {self.lot_size} different examples, drawn uniformly and afresh in every "
            "step.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown(Sampling):
    """A data set that draws its lots in an unknown way: each example may be once in every lot."""

    name: ClassVar[str] = "unknown"
    words: ClassVar[str] = "batches drawn in an unknown way"

    @property
    def sizes(self) -> str:
        return (
            f"of at most {self.lot_size} examples each, every one of which may be in every batch (an "
            f"epoch was planned to have {self.num_examples})"
        )

    def _drawn(self) -> tuple[str, ...]:
        return (
            "No example was in the same lot twice; it may have been in every lot. Which examples were "
            "together, and in which order, does not depend on what they hold.",
            f"No lot held more than {self.lot_size} examples.",
        )


def _least_of_rounds(noise: np.ndarray, length: int) -> np.ndarray:
    # In which step of a round a record takes part is not known, so the least noise counts.
    return np.minimum.reduceat(noise, np.arange(0, len(noise), length))


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
    )
}


def sampling_names() -> tuple[str, ...]:
    """Names of all schemes.

    Example:
      >>> from tfdp.accounting import sampling_names
      >>> sampling_names()
      ('poisson', 'random_allocation', 'cyclic', 'shuffle', 'with_replacement', 'fixed_size',
      'cyclic_poisson', 'unknown')
    """
    return tuple(_CLASSES)


def sampling_class(name: str) -> type[Sampling]:
    """Returns the class of a scheme. Raises ValueError if no scheme has that name."""
    one_of("sampling", name, sampling_names())
    return _CLASSES[name]


def sampling_from_dict(fields: dict[str, Any]) -> Sampling:
    """Inverse of `Sampling.to_dict`. Raises ValueError if a field is unknown or missing."""
    return records.from_record(sampling_class(fields.get("name")), fields, {})


def steps_for(epochs: float, num_examples: int, lot_size: int, sampling: str) -> int:
    """Number of steps in `epochs` passes over the data.

    Args:
      epochs: Number of passes over the data, above 0; it may be fractional.
      num_examples: Public number N of examples.
      lot_size: Nominal lot size L.
      sampling: Name of the scheme.

    Returns:
      floor(epochs * N / L) if lots are drawn at random, floor(epochs * (N // L)) otherwise.

    Raises:
      ValueError: If the scheme is unknown or a number is out of range.

    Example:
      >>> from tfdp.accounting import steps_for
      >>> steps_for(15, num_examples=60000, lot_size=256, sampling="poisson")
      3515
      >>> steps_for(15, num_examples=60000, lot_size=256, sampling="cyclic")  # whole lots only
      3510
    """
    lots = sampling_class(sampling)(num_examples=num_examples, lot_size=lot_size)
    return lots.steps_in(epochs)
