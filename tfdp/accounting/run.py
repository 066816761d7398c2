"""One frozen description of what was executed: the only input of every accountant.

A `Run` holds public facts (how many examples, which sampling, which noise) and never data. It is
checked when it is made, so an accountant may rely on every field.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdp.accounting.encoding import Encoding
from tfdp.accounting.strategies import Strategy

SAMPLINGS = ("poisson", "cyclic", "shuffle", "with_replacement", "cyclic_poisson", "unknown")
COMPOSITIONS = ("ac", "ac_as_printed", "zcdp", "zcdp_a", "zcdp_c", "zcdp_as_printed")
RELEASES = ("theta", "mu")
# Mechanisms whose steps are private one by one, so that the clip norm may follow what was released.
ADAPTIVE_MECHANISMS = ("dpsgd", "dp_dropout", "sgld")
# Update rules that are linear in the gradients, so that SI-DPSGD's means stay a linear function of
# them (Theorem A needs that).
LINEAR_OPTIMIZERS = ("sgd", "momentum", "nesterov")

Schedule = float | tuple[float, ...] | None


def _schedule(name: str, value, steps: int, *, integer: bool = False, minimum: float = 0.0):
    """Checks a constant or per-step schedule and returns a number or a tuple of numbers."""
    if value is None:
        return None
    expected = "whole numbers" if integer else "finite numbers"
    rule = f"{expected} of at least {minimum:g}"
    array = np.asarray(value, dtype=float)
    if array.ndim > 1:
        raise ValueError(
            f"Expected {name} to be one number or one per step. Received an array of shape "
            f"{array.shape}. Pass a flat sequence."
        )
    good = np.isfinite(array) & (array >= minimum)
    if integer:
        good &= array == np.floor(array)
    if not np.all(good):
        bad = array[~good].flat[0] if array.ndim else float(array)
        raise ValueError(f"Expected {name} to hold {rule}. Received {bad}. Correct that value.")
    number = int if integer else float
    if array.ndim == 0:
        return number(array)
    if array.size < steps:
        raise ValueError(
            f"Expected {name} to have one value for each of the {steps} steps. Received "
            f"{array.size} values. Pass a constant or the whole schedule."
        )
    return tuple(number(v) for v in array)


def _whole(name: str, value, minimum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not value >= minimum:
        raise ValueError(
            f"Expected {name} to be a whole number of at least {minimum}. Received {value!r}. "
            "Pass such a number."
        )
    return int(value)


def _one_of(name: str, value, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"Expected {name} to be one of {', '.join(choices)}. Received {value!r}.")


def _belongs(name: str, value, kind: type, mechanism: str, mechanisms: Sequence[str]) -> None:
    """Checks a field that some mechanisms need and no other may have."""
    if mechanism in mechanisms and not isinstance(value, kind):
        raise ValueError(
            f"Expected {name} to be an {kind.__name__} for the mechanism {mechanism!r}. Received "
            f"{value!r}. Pass tfdp.accounting.{kind.__name__}(...)."
        )
    if mechanism not in mechanisms and value is not None:
        raise ValueError(
            f"Expected {name} with {', '.join(mechanisms)} only. Received one with {mechanism!r}. "
            "Leave it out."
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What was executed, in public numbers.

    Attributes:
      mechanism: Name in the registry: "none", "dpsgd", "si_dpsgd", or a registered one.
      num_examples: Public number N of examples of the data set.
      lot_size: Nominal lot size L, the constant divisor of every sum; at most N.
      steps: Number of lots processed. Schedules may be longer; their first `steps` values count.
      sampling: "poisson" (each example independently with probability L/N), "cyclic" (epochs in
        one fixed order, never reshuffled), "shuffle" (epochs of a fresh permutation),
        "with_replacement" (L independent uniform draws), "cyclic_poisson" (fixed groups take
        turns; each example of a step's group independently with probability groups * L/N) or
        "unknown" (a foreign data set: an example may take part once in every step).
      noise_multiplier: Standard deviation of the noise on the sum, divided by the clip norm (z).
        The scale of the noise for discrete_sgd, the noise before correlation for matrix.
      l2_norm_clip: Clip norm C of one microbatch. It cancels in every guarantee.
      clip_groups: Groups of weights whose gradients are clipped separately, each at C.
      microbatch_size: Examples whose mean is clipped together.
      learning_rates: Constant or per step; None stands for a constant.
      noise_learning_rates: Learning rate that scales the weight noise of SI-DPSGD; None means
        the same as `learning_rates`.
      momentum: Momentum coefficient, constant or per step.
      nesterov: Whether momentum is Nesterov's.
      draws: Independent noise draws that were made around one mean, constant or per step.
      optimizer: Name of the update rule, such as "sgd", "adam" or "rmsprop".
      release: "theta" (noised weights) or "mu" (the un-noised means of SI-DPSGD).
      batch_statistics: Whether normalization statistics were taken over the private lot.
      public_examples: How many public examples took part in normalization.
      max_lot_size: Largest lot that can be processed; what a Poisson lot draws beyond it is
        dropped uniformly at random. None means that no lot is cut.
      seeded: Whether the noise came from a seed that the user chose.
      adaptive_clipping: Whether the clip norm followed a noisy count of unclipped gradients;
        `noise_multiplier` is that of sum and count together, and `l2_norm_clip` the first one.
      groups: Number of groups that take turns in cyclic_poisson sampling.
      encoding: Codebook and family of noise (discrete_sgd).
      strategy: How noise is correlated (matrix).
      composition: Which of the paper's recipes its claim follows (dp_dropout, sgld); None for its
        first choice.
    """

    mechanism: str
    num_examples: int
    lot_size: int
    steps: int
    sampling: str
    noise_multiplier: float
    l2_norm_clip: float | None = None
    microbatch_size: int = 1
    learning_rates: Schedule = None
    noise_learning_rates: Schedule = None
    momentum: float | tuple[float, ...] = 0.0
    nesterov: bool = False
    draws: int | tuple[int, ...] = 1
    optimizer: str = "sgd"
    release: str = "theta"
    batch_statistics: bool = False
    public_examples: int = 0
    max_lot_size: int | None = None
    seeded: bool = False
    clip_groups: int = 1
    adaptive_clipping: bool = False
    groups: int = 1
    encoding: Encoding | None = None
    strategy: Strategy | None = None
    composition: str | None = None

    def __post_init__(self):
        def put(name, value):
            object.__setattr__(self, name, value)

        if not isinstance(self.mechanism, str) or not self.mechanism:
            raise ValueError(
                f"Expected mechanism to be a name. Received {self.mechanism!r}. Pass for example "
                "'dpsgd'."
            )
        put("num_examples", _whole("num_examples", self.num_examples, 1))
        put("lot_size", _whole("lot_size", self.lot_size, 1))
        put("steps", _whole("steps", self.steps, 0))
        put("microbatch_size", _whole("microbatch_size", self.microbatch_size, 1))
        put("public_examples", _whole("public_examples", self.public_examples, 0))
        if self.lot_size > self.num_examples:
            raise ValueError(
                f"Expected lot_size to be at most num_examples ({self.num_examples}). Received "
                f"{self.lot_size}. Use a smaller lot."
            )
        if self.microbatch_size > self.lot_size:
            raise ValueError(
                f"Expected microbatch_size to be at most lot_size ({self.lot_size}). Received "
                f"{self.microbatch_size}. Use smaller microbatches."
            )
        if self.max_lot_size is not None:
            put("max_lot_size", _whole("max_lot_size", self.max_lot_size, 1))
            if self.max_lot_size < self.lot_size:
                raise ValueError(
                    f"Expected max_lot_size to be at least lot_size ({self.lot_size}). Received "
                    f"{self.max_lot_size}. Raise it."
                )
        _one_of("sampling", self.sampling, SAMPLINGS)
        _one_of("release", self.release, RELEASES)
        put("clip_groups", _whole("clip_groups", self.clip_groups, 1))
        if self.adaptive_clipping and self.mechanism not in ADAPTIVE_MECHANISMS:
            raise ValueError(
                f"Expected adaptive_clipping with {', '.join(ADAPTIVE_MECHANISMS)} only: any other "
                f"guarantee needs one clip norm for all steps. Received it with {self.mechanism!r}. "
                "Leave it out."
            )
        put("groups", _whole("groups", self.groups, 1))
        if self.sampling != "cyclic_poisson" and self.groups > 1:
            raise ValueError(
                f"Expected groups with cyclic_poisson sampling only. Received {self.groups} with "
                f"{self.sampling!r}. Leave it out."
            )
        if self.groups * self.lot_size > self.num_examples:
            raise ValueError(
                f"Expected groups * lot_size to be at most num_examples ({self.num_examples}). "
                f"Received {self.groups} * {self.lot_size}. Use fewer groups."
            )
        _belongs("encoding", self.encoding, Encoding, self.mechanism, ("discrete_sgd",))
        _belongs("strategy", self.strategy, Strategy, self.mechanism, ("matrix",))
        if self.composition is not None:
            _one_of("composition", self.composition, COMPOSITIONS)
            if self.mechanism not in ("dp_dropout", "sgld"):
                raise ValueError(
                    "Expected composition with dp_dropout or sgld only. Received "
                    f"{self.composition!r} with {self.mechanism!r}. Leave it out."
                )
        for name in ("noise_multiplier", "l2_norm_clip"):
            value = getattr(self, name)
            if name == "l2_norm_clip" and value is None:
                continue
            low_enough = value >= 0 if name == "noise_multiplier" else value > 0
            if isinstance(value, bool) or not low_enough or not math.isfinite(value):
                sign = "0 or more" if name == "noise_multiplier" else "above 0"
                raise ValueError(
                    f"Expected {name} to be a finite number, {sign}. Received {value!r}."
                )
            put(name, float(value))
        if self.release == "mu" and self.mechanism != "si_dpsgd":
            raise ValueError(
                f"Expected release='theta' for the mechanism {self.mechanism!r}. Received 'mu'. "
                "Only si_dpsgd keeps un-noised means."
            )
        put("learning_rates", _schedule("learning_rates", self.learning_rates, self.steps))
        put(
            "noise_learning_rates",
            _schedule("noise_learning_rates", self.noise_learning_rates, self.steps),
        )
        put("momentum", _schedule("momentum", self.momentum, self.steps))
        put("draws", _schedule("draws", self.draws, self.steps, integer=True, minimum=1))
        if self.momentum is None or self.draws is None:
            raise ValueError("Expected momentum and draws to be numbers or schedules, not None.")
        if not isinstance(self.optimizer, str) or not self.optimizer:
            raise ValueError(
                f"Expected optimizer to be the name of an update rule. Received "
                f"{self.optimizer!r}. Pass for example 'sgd'."
            )
        put("optimizer", self.optimizer.lower())
        for name in ("nesterov", "batch_statistics", "seeded", "adaptive_clipping"):
            put(name, bool(getattr(self, name)))

    @property
    def steps_per_epoch(self) -> int:
        """Whole lots in the data set (N // L, at least 1)."""
        return max(1, self.num_examples // self.lot_size)

    @property
    def sampling_probability(self) -> float:
        """Chance that one example is in a lot that it can be in (L/N, times `groups`)."""
        return self.groups * self.lot_size / self.num_examples

    @property
    def rounds(self) -> int:
        """Most lots that one example can be in (all, unless groups take turns)."""
        return -(-self.steps // self.groups)

    @property
    def epochs(self) -> int:
        """Most often that an example can take part when epochs are whole passes (ceiling)."""
        return -(-self.steps // self.steps_per_epoch)

    def schedule(self, name: str) -> np.ndarray:
        """Returns a per-step schedule as an array of length `steps`.

        Args:
          name: "learning_rates", "noise_learning_rates", "momentum" or "draws".
        """
        value = getattr(self, name)
        if value is None and name == "noise_learning_rates":
            value = self.learning_rates
        if value is None:
            value = 1.0  # every guarantee is invariant under one common factor of the rates
        array = np.asarray(value, dtype=float)
        return np.full(self.steps, float(array)) if array.ndim == 0 else array[: self.steps]

    def with_(self, **changes: Any) -> "Run":
        """Returns a copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-safe description; schedules become `{"values": ..., "counts": ...}`."""
        result = dataclasses.asdict(self)
        for name in ("learning_rates", "noise_learning_rates", "momentum", "draws"):
            if isinstance(result[name], tuple):
                result[name] = _encode(result[name])
        return result

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Run":
        """Inverse of `to_dict`. Raises ValueError where a field is unknown or missing."""
        names = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - names)
        if unknown:
            raise ValueError(f"Expected the fields of a Run. Received unknown {unknown}.")
        readers = {"encoding": Encoding.from_dict, "strategy": Strategy.from_dict}
        try:
            return cls(
                **{
                    name: readers.get(name, _decode)(value) if isinstance(value, dict) else value
                    for name, value in fields.items()
                }
            )
        except TypeError as error:
            raise ValueError(f"Expected the fields of a Run: {error}.") from error


def _encode(values: tuple) -> dict[str, list]:
    """Run-length encoding: schedules are long and mostly constant."""
    array = np.asarray(values)
    starts = np.flatnonzero(np.concatenate([[True], array[1:] != array[:-1]])) if len(array) else []
    counts = np.diff([*starts, len(array)])
    return {"values": [values[i] for i in starts], "counts": [int(c) for c in counts]}


def _decode(coded: dict[str, list]) -> tuple:
    if sorted(coded) != ["counts", "values"] or len(coded["counts"]) != len(coded["values"]):
        raise ValueError(f"Expected a schedule with values and counts. Received {coded!r}.")
    return tuple(
        value
        for value, count in zip(coded["values"], coded["counts"], strict=True)
        for _ in range(count)
    )


def steps_for(epochs: float, num_examples: int, lot_size: int, sampling: str) -> int:
    """Number of steps in `epochs` passes over the data.

    Args:
      epochs: Passes; a fraction is allowed where lots are drawn at random.
      num_examples: Public number N of examples.
      lot_size: Nominal lot size L.
      sampling: As in `Run`.

    Returns:
      floor(epochs * N / L) for random lots, epochs * (N // L) for epochs in whole lots.
    """
    _one_of("sampling", sampling, SAMPLINGS)
    num_examples = _whole("num_examples", num_examples, 1)
    lot_size = _whole("lot_size", lot_size, 1)
    if lot_size > num_examples:
        raise ValueError(
            f"Expected lot_size to be at most num_examples ({num_examples}). Received {lot_size}. "
            "Use a smaller lot."
        )
    if not epochs > 0 or not math.isfinite(epochs):
        raise ValueError(f"Expected epochs to be a finite number above 0. Received {epochs!r}.")
    if sampling in ("poisson", "with_replacement", "cyclic_poisson"):
        # A hair of tolerance, so that 0.1 * N / L does not lose a step to rounding.
        return math.floor(epochs * num_examples / lot_size + 1e-9)
    return math.floor(epochs * (num_examples // lot_size) + 1e-9)
