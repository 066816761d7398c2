"""Turns flags into a run; missing values get the defaults of training and are recorded."""

import dataclasses
import functools
import math
from typing import Any

from tfdp._settings import check_rivals, flag_of
from tfdp.accounting.band_choice import completed
from tfdp.accounting.calibration import noise_for
from tfdp.accounting.command.common import USUAL_EPSILON
from tfdp.accounting.command.flags import SETTINGS, Flags
from tfdp.accounting.composition import claimed, proven
from tfdp.accounting.described import describe, steps_for
from tfdp.accounting.encoding import USUAL_DEGREES_OF_FREEDOM, USUAL_NOISE, Encoding
from tfdp.accounting.guarantee import Guarantee
from tfdp.accounting.mechanisms import mechanism_class
from tfdp.accounting.records import field_names
from tfdp.accounting.run import Run
from tfdp.accounting.strategies import strategy

# Flags from which an `Encoding` is made.
_ENCODING = ("noise", "degrees_of_freedom", "num_weights", "largest_entry")
# Flags whose values are not fields of a run.
_ASKED = (
    "mechanism", "noise_multiplier", "epsilon", "guarantee", "delta", "adjacency", "epochs", "steps",
    "learning_rate", "learning_rate_decay", "strategy", "bands", "objective", *_ENCODING,
    "table", "curve", "plot", "full", "json",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """The run that the flags describe; with a budget, its noise multiplier is 0 until `with_noise`.

    Attributes:
        run: The run.
        flags: The flags, with defaults filled in.
        notes: Sentences about the defaults that were chosen.
    """

    run: Run
    flags: Flags
    notes: tuple[str, ...] = ()

    def with_noise(self) -> "Plan":
        """Returns the plan with the noise for the budget; raises ValueError if no noise meets it."""
        flags = self.flags
        if flags.epsilon is None:
            return self
        noise = noise_for(flags.epsilon, flags.delta, self.run, flags.guarantee, flags.adjacency)
        return dataclasses.replace(self, run=self.run.with_noise(noise))

    @property
    def chosen(self) -> dict[str, Any]:
        """Values of the flags that were chosen."""
        return {name: getattr(self.flags, name) for name in self.flags.chosen}

    @property
    def noise(self) -> float:
        """The noise multiplier; NaN for a mechanism without noise."""
        return getattr(self.run.mechanism, "noise_multiplier", math.nan)

    @functools.cached_property
    def claimed(self) -> Guarantee:
        return claimed(self.run, self.flags.delta, self.flags.adjacency)

    @functools.cached_property
    def proven(self) -> Guarantee:
        return proven(self.run, self.flags.delta, self.flags.adjacency)

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan in JSON-safe form."""
        return {
            "noise_multiplier": None if math.isnan(self.noise) else self.noise,
            "claimed": self.claimed.to_dict(),
            "proven": self.proven.to_dict(),
            "chosen": self.chosen,
            "run": self.run.to_dict(),
        }


def check_complete(flags: Flags, varied: str | None = None) -> None:
    """Raises ValueError if flags are missing or exclude each other.

    Args:
        flags: The flags.
        varied: The flag that --table varies, which counts as given; None without --table.
    """
    given = flags.typed if varied is None else flags.typed | {varied}
    check_rivals(SETTINGS, given)
    missing = [f"--{name}" for name in ("num_examples", "lot_size") if name not in given]
    if not given & {"epochs", "steps"}:
        missing.append("--epochs or --steps")
    if not given & {"noise_multiplier", "epsilon"}:
        missing.append("--noise_multiplier or --epsilon")
    if missing:
        raise ValueError(
            f"Flags are missing: {', and '.join(missing)}. For example: --mechanism=dpsgd "
            "--num_examples=60000 --lot_size=256 --epochs=15 --epsilon=2"
        )


def plan(flags: Flags) -> Plan:
    """Describes the run of complete flags.

    Raises:
        ValueError: If a value is invalid, or conflicts with another one.
    """
    kind = mechanism_class(flags.mechanism)
    names = field_names(kind)
    sampling = flags.sampling or kind.usual_sampling
    flags = flags.choose(mechanism=flags.mechanism, delta=flags.delta, sampling=sampling)
    for name in flags.typed:
        SETTINGS[name].check(getattr(flags, name))
        SETTINGS[name].check_effect(vars(flags))
    steps = _steps(flags, sampling)
    made: dict[str, Any] = {}
    notes = []
    if "strategy" in names:
        searched = flags.groups is None and flags.bands is None and flags.epsilon is None
        chosen = completed(flags, flags.num_examples, flags.lot_size, steps, USUAL_EPSILON)
        flags, objective = flags.choose(**chosen), flags.objective or "mean"
        made["strategy"] = strategy(chosen["strategy"], steps, chosen["bands"], objective)
        if searched and flags.groups:
            notes.append(
                f"{flags.groups} groups and bands have the least noise at epsilon "
                f"{USUAL_EPSILON:g}; with --epsilon they are chosen for that."
            )
    groups = flags.groups or 1
    if (rest := flags.num_examples % groups) and flags.num_examples >= groups:
        # Training also leaves them out.
        flags = dataclasses.replace(flags, num_examples=flags.num_examples - rest)
        notes.append(f"{rest} examples are left out, so that the {groups} groups are equal.")
    if "encoding" in names:
        flags = _with_encoding(flags)
        made["encoding"] = Encoding(**{name: getattr(flags, name) for name in _ENCODING})
    fields = {name: getattr(flags, name) for name in {*flags.typed, *flags.chosen} - {*_ASKED}}
    if flags.learning_rate is not None or flags.learning_rate_decay != 1.0:
        made["learning_rates"] = _learning_rates(flags, steps)
    if "noise_multiplier" in names:
        made["noise_multiplier"] = flags.noise_multiplier or 0.0
    return Plan(describe(flags.mechanism, steps=steps, **fields, **made), flags, tuple(notes))


def _steps(flags: Flags, sampling: str) -> int:
    if flags.steps is not None:
        return flags.steps
    steps = steps_for(flags.epochs or 0.0, flags.num_examples, flags.lot_size, sampling)
    if steps < 1:
        raise ValueError("--epochs is less than one step. Raise it.")
    return steps


def _with_encoding(flags: Flags) -> Flags:
    flags = flags.choose(noise=USUAL_NOISE)
    if flags.noise == USUAL_NOISE:
        flags = flags.choose(degrees_of_freedom=USUAL_DEGREES_OF_FREEDOM)
    if flags.num_weights is None:
        # 1 covers every codebook of unit vectors, whatever their length.
        flags = flags.choose(largest_entry=1.0)
    return flags


def _learning_rates(flags: Flags, steps: int) -> float | tuple[float, ...]:
    initial = 1.0 if flags.learning_rate is None else flags.learning_rate
    if flags.learning_rate_decay == 1.0:
        return initial
    per_epoch = max(1, flags.num_examples // flags.lot_size)
    return tuple(initial * flags.learning_rate_decay ** (t // per_epoch) for t in range(steps))


def flag_words(values: dict[str, Any]) -> str:
    """Returns flags as on a command line."""
    return " ".join(flag_of(name, value) for name, value in values.items())
