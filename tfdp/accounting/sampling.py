"""How lots are drawn: one small frozen class for each scheme.

A scheme says which steps one record can be in, and with which chance; which assumption about the
sampling a guarantee makes; and for which neighbouring relations it is defined. Mechanisms ask these
questions and never for the scheme's name.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tfdp.accounting import records
from tfdp.accounting.checks import one_of, whole
from tfdp.accounting.numerics.binomials import chance_of_more

if TYPE_CHECKING:
    from tfdp.accounting.numerics.linear_releases import Response

_NOMINAL_REMEDY = (
    "Fix a nominal number of examples N0 without looking at the data, draw lots with probability "
    'lot_size/N0 (make_lots("poisson", ..., nominal_examples=N0)), and describe the run with '
    "num_examples=N0, nominal=True; or pass adjacency='zero_out'."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """A scheme by which lots are drawn; the base class.

    Attributes:
      num_examples: Public number N of examples of the data set.
      lot_size: Nominal lot size L, the constant divisor of every sum; at most N.
    """

    num_examples: int
    lot_size: int

    name: ClassVar[str] = ""
    words: ClassVar[str] = ""
    # Whether every example of a turn joins its lot by an independent coin flip.
    coin_flips: ClassVar[bool] = False
    # Whether lots are cut from passes over the data that hold whole lots only.
    whole_epochs: ClassVar[bool] = False
    # What some schemes have as fields, and all others have in this one way.
    groups: ClassVar[int] = 1
    max_lot_size: ClassVar[int | None] = None
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
        """Chance that one example is in a lot that it can be in (L/N, times `groups`)."""
        return self.groups * self.lot_size / self.num_examples

    @property
    def random_lots(self) -> bool:
        """Whether guarantees rest on how lots were drawn at random, so that their seed matters.

        Epochs need an order that does not depend on the data, and no secrecy.
        """
        return self.coin_flips

    @property
    def largest_lot(self) -> int | None:
        """Most examples that a lot can hold, or None where only the data set bounds it.

        The size of the data set itself is no honest bound for a Poisson lot: a sensitivity of that
        size would say nothing.
        """
        return self.lot_size

    @property
    def may_cut(self) -> bool:
        """Whether a lot can draw more examples than can be processed."""
        return False

    def chance_of_cut(self) -> float:
        """Chance (an upper bound) that the other examples alone fill a lot."""
        return 0.0

    def usual_rows(self) -> float:
        """So many examples, or more, are in one lot with a chance below 1e-30 at most."""
        return self.lot_size if self.largest_lot is None else self.largest_lot

    def participations(self, steps: int) -> int:
        """Most lots out of the first `steps` that one example can be in."""
        return steps

    def trials(self) -> tuple[int, float] | None:
        """(number, chance) of a record's independent draws in every step.

        None where its participations are no such random number.
        """
        return None

    def turns(self, noise: np.ndarray) -> np.ndarray:
        """The least noise of every turn, for noise that differs from step to step."""
        return noise

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        """||W m||^2 of the worst record after each of `steps`, whatever was drawn; and how."""
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
        """What has to be true about the sampling, in sentences."""
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
    """What Poisson schemes share: lots of random size, which may be cut.

    Attributes:
      max_lot_size: Largest lot that can be processed; what a lot draws beyond it is dropped
        uniformly at random. None means that no lot is cut.
    """

    max_lot_size: int | None = None

    coin_flips: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        if self.max_lot_size is None:
            return
        self._put("max_lot_size", whole("max_lot_size", self.max_lot_size, 1))
        if self.max_lot_size < self.lot_size:
            raise ValueError(
                f"Expected max_lot_size to be at least lot_size ({self.lot_size}). Received "
                f"{self.max_lot_size}. Raise it."
            )

    @property
    def largest_lot(self) -> int | None:
        return self.max_lot_size

    @property
    def may_cut(self) -> bool:
        return self.max_lot_size is not None and self.max_lot_size < self.num_examples

    def chance_of_cut(self) -> float:
        if not self.may_cut:
            return 0.0
        others = -(-self.num_examples // self.groups) - 1
        return float(chance_of_more(self.max_lot_size - 1, others, self.probability))

    def usual_rows(self) -> float:
        # Bernstein: beyond 12 standard deviations and 60 more, whatever the probability.
        rows = self.lot_size + 12 * math.sqrt(self.lot_size) + 60
        return rows if self.max_lot_size is None else min(rows, self.max_lot_size)

    def _cuts(self) -> tuple[str, ...]:
        if not self.may_cut:
            return ()
        return (f"Lots of more than {self.max_lot_size} examples were cut uniformly at random.",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poisson(_CoinFlips):
    """Each example is in each lot independently, with probability L/N.

    Attributes:
      nominal: Whether `num_examples` is a nominal number N0 that was fixed without looking at the
        data, so that L/N0 stays the probability whatever the data set is. Adding or removing a
        record is defined only then: with q = L / len(x), it changes how all others are sampled.
    """

    nominal: bool = False

    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson lots"

    def __post_init__(self):
        super().__post_init__()
        self._put("nominal", bool(self.nominal))

    @property
    def may_cut(self) -> bool:
        # How many examples there really are is not public where their number is nominal.
        return super().may_cut or (self.nominal and self.max_lot_size is not None)

    def chance_of_cut(self) -> float:
        return 1.0 if self.nominal and self.may_cut else super().chance_of_cut()

    def trials(self) -> tuple[int, float] | None:
        return (1, self.probability) if self.lot_size < self.num_examples else None

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
            *self._cuts(),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CyclicPoisson(_CoinFlips):
    """Fixed groups take turns; each example of a step's group joins with probability groups * L/N.

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
        # Whichever group a record is in, each of its turns had at least the round's least noise.
        return np.minimum.reduceat(noise, np.arange(0, len(noise), self.groups))

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        return response.cyclic(self.groups, steps)

    def _drawn(self) -> tuple[str, ...]:
        return (
            f"Examples were dealt into {self.groups} equal groups whatever they hold, the groups "
            "took turns, and each example of a step's group was drawn by an independent coin flip "
            f"of probability {self.probability:.6g}, empty lots included.",
            *self._cuts(),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Epochs(Sampling):
    """What schemes of whole passes share: a record is in at most one lot of each pass."""

    whole_epochs: ClassVar[bool] = True

    def participations(self, steps: int) -> int:
        return -(-steps // self.steps_per_epoch)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(_Epochs):
    """Epochs in one fixed order that is never reshuffled."""

    name: ClassVar[str] = "cyclic"
    words: ClassVar[str] = "epochs in one fixed order"

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        return response.cyclic(self.steps_per_epoch, steps)

    def _drawn(self) -> tuple[str, ...]:
        return ("Epochs went through the data in one fixed order that does not depend on it.",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shuffle(_Epochs):
    """Epochs of a fresh permutation each."""

    name: ClassVar[str] = "shuffle"
    words: ClassVar[str] = "epochs in a fresh random order"

    def squares(self, response: "Response", steps: np.ndarray) -> tuple[np.ndarray, str]:
        return response.shuffled(self.steps_per_epoch, steps)

    def _drawn(self) -> tuple[str, ...]:
        return ("Every epoch took each example at most once.",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithReplacement(Sampling):
    """Each lot is L independent uniform draws, so that a record may be in one lot several times."""

    name: ClassVar[str] = "with_replacement"
    words: ClassVar[str] = "lots of fixed size drawn uniformly with replacement"

    @property
    def random_lots(self) -> bool:
        return True

    def trials(self) -> tuple[int, float] | None:
        return self.lot_size, 1.0 / self.num_examples

    def _drawn(self) -> tuple[str, ...]:
        return (f"Every lot was {self.lot_size} independent uniform draws.",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSize(Sampling):
    """Each lot is L different examples, a fresh uniform draw without replacement in every step."""

    name: ClassVar[str] = "fixed_size"
    words: ClassVar[str] = "lots of fixed size drawn uniformly without replacement"

    @property
    def random_lots(self) -> bool:
        return True

    def trials(self) -> tuple[int, float] | None:
        return (1, self.probability) if self.lot_size < self.num_examples else None

    def _drawn(self) -> tuple[str, ...]:
        return (
            f"Every lot was {self.lot_size} different examples, drawn uniformly and afresh in every "
            "step.",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown(Sampling):
    """A foreign data set: an example may take part once in every step."""

    name: ClassVar[str] = "unknown"
    words: ClassVar[str] = "an unknown order (every example may be in every lot)"

    def _drawn(self) -> tuple[str, ...]:
        return (
            "No example was in the same lot twice; it may have been in every lot.",
            f"No lot held more than {self.lot_size} examples.",
        )


_CLASSES: dict[str, type[Sampling]] = {
    kind.name: kind
    for kind in (Poisson, Cyclic, Shuffle, WithReplacement, FixedSize, CyclicPoisson, Unknown)
}


def sampling_names() -> tuple[str, ...]:
    """Names of all schemes."""
    return tuple(_CLASSES)


def sampling_class(name: str) -> type[Sampling]:
    """Class of a scheme. Raises ValueError where there is none of that name."""
    one_of("sampling", name, sampling_names())
    return _CLASSES[name]


def sampling_from_dict(fields: dict[str, Any]) -> Sampling:
    """Inverse of `Sampling.to_dict`. Raises ValueError where a field is unknown or missing."""
    return records.from_record(sampling_class(fields.get("name")), fields, {})


def steps_for(epochs: float, num_examples: int, lot_size: int, sampling: str) -> int:
    """Number of steps in `epochs` passes over the data.

    Args:
      epochs: Passes; a fraction is allowed where lots are drawn at random.
      num_examples: Public number N of examples.
      lot_size: Nominal lot size L.
      sampling: Name of the scheme.

    Returns:
      floor(epochs * N / L) for random lots, epochs * (N // L) for epochs in whole lots.
    """
    lots = sampling_class(sampling)(num_examples=num_examples, lot_size=lot_size)
    if not epochs > 0 or not math.isfinite(epochs):
        raise ValueError(f"Expected epochs to be a finite number above 0. Received {epochs!r}.")
    if lots.random_lots:
        # A hair of tolerance, so that 0.1 * N / L does not lose a step to rounding.
        return math.floor(epochs * num_examples / lot_size + 1e-9)
    return math.floor(epochs * (num_examples // lot_size) + 1e-9)
