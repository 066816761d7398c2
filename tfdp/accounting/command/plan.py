"""From the flags to a run: what is left open is chosen as training chooses it, and recorded."""

import copy
import dataclasses
import functools
import itertools
from typing import Any

from tfdp.accounting.choices import CorrelatedNoise
from tfdp.accounting.command.flags import FlagError, Flags
from tfdp.accounting.described import describe, steps_for
from tfdp.accounting.encoding import Encoding
from tfdp.accounting.guarantee import Guarantee, check_delta, check_epsilon
from tfdp.accounting.mechanisms import USUAL_MECHANISM, mechanism_class
from tfdp.accounting.records import field_names
from tfdp.accounting.run import Run
from tfdp.accounting.strategies import strategy

# Flags from which an object is made, by the field of the mechanism that it becomes.
_OBJECTS = {
    "encoding": ("noise", "degrees_of_freedom", "num_weights", "largest_entry"),
    "strategy": ("strategy", "bands", "objective"),
}
# Other flags whose values are not fields of a run.
_ASKED = (
    "mechanism", "noise_multiplier", "epsilon", "guarantee", "delta", "adjacency", "epochs", "steps",
    "learning_rate", "learning_rate_decay", "table", "plot", "json",
    *itertools.chain(*_OBJECTS.values()),
)  # fmt: skip
# Bands depend on a budget. Where the noise is given instead, they are chosen for this one, which is
# the budget of a training for which none is set.
_USUAL_EPSILON = 2.0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that the flags describe; of a budget, its noise multiplier is 0 until `with_noise`.

    `flags` have the values that were chosen for those left open, which are the `chosen` ones too, and
    `notes` are sentences about these.
    """

    run: Run
    flags: Flags
    chosen: dict[str, Any]
    notes: tuple[str, ...] = ()

    def with_noise(self) -> "Plan":
        """The plan with the noise of the budget. Raises ValueError if no noise meets it."""
        # Slow imports come after the validation, so that a bad flag is reported at once.
        from tfdp.accounting.calibration import noise_for

        flags = self.flags
        if flags.epsilon is None:
            return self
        noise = noise_for(flags.epsilon, flags.delta, self.run, flags.guarantee, flags.adjacency)
        return dataclasses.replace(self, run=self.run.with_noise(noise))

    @functools.cached_property
    def claimed(self) -> Guarantee:
        """The claimed guarantee of the run."""
        from tfdp.accounting.composition import claimed

        return claimed(self.run, self.flags.delta, self.flags.adjacency)

    @functools.cached_property
    def proven(self) -> Guarantee:
        """The proven guarantee of the run."""
        from tfdp.accounting.composition import proven

        return proven(self.run, self.flags.delta, self.flags.adjacency)


def check_complete(flags: Flags, varied: str | None = None) -> None:
    """Raises FlagError if flags are missing or exclude each other; --table sets `varied`."""
    given = {name for name, value in vars(flags).items() if value is not None} | {varied}
    for one, other in (("epochs", "steps"), ("noise_multiplier", "epsilon")):
        if {one, other} <= given:
            raise FlagError(f"Expected one of --{one} and --{other}. Received both. Leave one out.")
    missing = [f"--{name}" for name in ("num_examples", "lot_size") if name not in given]
    if not given & {"epochs", "steps"}:
        missing.append("--epochs or --steps")
    if not given & {"noise_multiplier", "epsilon"}:
        missing.append("--noise_multiplier or --epsilon")
    if missing:
        raise FlagError(
            f"Expected {', and '.join(missing)}. Received none. For example: --mechanism=dpsgd "
            "--num_examples=60000 --lot_size=256 --epochs=15 --epsilon=2"
        )


def plan(flags: Flags) -> Plan:
    """Describes the run of complete flags.

    Raises:
      ValueError: If a value is not valid, or does not go with the others.
    """
    flags, chosen, notes = copy.copy(flags), {}, []
    flags.guarantee, flags.adjacency = flags.guarantee or "proven", flags.adjacency or "zero_out"

    def choose(**values: Any) -> None:
        for name, value in values.items():
            if getattr(flags, name) is None and value is not None:
                chosen[name] = value
                setattr(flags, name, value)

    choose(mechanism=USUAL_MECHANISM, delta=1e-5)
    check_delta(flags.delta)
    if flags.epsilon is not None:
        check_epsilon(flags.epsilon)
    kind = mechanism_class(flags.mechanism)
    names = field_names(kind)
    for part, settings in _OBJECTS.items():
        for name in settings:
            if getattr(flags, name) is not None and part not in names:
                raise FlagError(
                    f"Expected --{name} with a mechanism that has such a setting. Received it "
                    f"with {flags.mechanism!r}. Leave it out."
                )
    choose(sampling=kind.usual_sampling)
    steps = _steps(flags)
    if "strategy" in names:
        notes += _choose_strategy(flags, steps, choose)
    rest = flags.num_examples % (flags.groups or 1)
    if rest and flags.num_examples >= flags.groups:  # training leaves them out, too
        flags.num_examples -= rest
        notes.append(
            f"Left out, since {flags.groups} equal groups have no place for them: {rest} examples."
        )
    if "encoding" in names:
        _choose_encoding(flags, choose)
    fields = {n: v for n, v in vars(flags).items() if v is not None and n not in _ASKED}
    fields |= _objects(flags, names, steps)
    if flags.learning_rate is not None or flags.learning_rate_decay not in (None, 1.0):
        fields["learning_rates"] = _learning_rates(flags, steps)
    if "noise_multiplier" in names:
        fields["noise_multiplier"] = flags.noise_multiplier or 0.0
    run = describe(flags.mechanism, steps=steps, **fields)
    return Plan(run, flags, chosen, tuple(notes))


def _steps(flags: Flags) -> int:
    steps = flags.steps
    if steps is None:
        steps = steps_for(flags.epochs, flags.num_examples, flags.lot_size, flags.sampling)
    if steps < 1:
        length = "--epochs" if flags.steps is None else "--steps"
        raise FlagError(f"Expected at least one step. Received none. Raise {length}.")
    return steps


def _choose_encoding(flags: Flags, choose) -> None:
    from tfdp.accounting.encoding import USUAL_DEGREES_OF_FREEDOM, USUAL_NOISE

    choose(noise=USUAL_NOISE)
    if flags.noise == USUAL_NOISE:
        choose(degrees_of_freedom=USUAL_DEGREES_OF_FREEDOM)
    if flags.num_weights is None:
        choose(largest_entry=1.0)  # every codebook of unit vectors, whatever their length


def _choose_strategy(flags: Flags, steps: int, choose) -> list[str]:
    """Chooses what correlated noise needs; returns sentences about the choice."""
    searched = flags.groups is None and flags.bands is None and flags.epsilon is None
    known = {n: getattr(flags, n) for n in field_names(CorrelatedNoise) if n != "steps"}
    noise = CorrelatedNoise(steps=steps, **known).completed(without_budget=_USUAL_EPSILON)
    choose(strategy=noise.strategy, bands=noise.bands, groups=noise.groups)
    if not (searched and flags.groups):
        return []
    return [
        f"{flags.groups} groups and bands have the least noise at epsilon {_USUAL_EPSILON:g}; with "
        "--epsilon they are chosen for that."
    ]


def _objects(flags: Flags, names: tuple[str, ...], steps: int) -> dict[str, Any]:
    """The fields of the mechanism that are objects."""
    if "encoding" in names:
        return {"encoding": Encoding(**{n: getattr(flags, n) for n in _OBJECTS["encoding"]})}
    if "strategy" in names:
        objective = flags.objective or "mean"
        return {"strategy": strategy(flags.strategy, steps, flags.bands, objective)}
    return {}


def _learning_rates(flags: Flags, steps: int) -> float | tuple[float, ...]:
    """Learning rates as a number or a table over steps."""
    initial = 1.0 if flags.learning_rate is None else flags.learning_rate
    if flags.learning_rate_decay in (None, 1.0):
        return initial
    per_epoch = max(1, flags.num_examples // flags.lot_size)
    return tuple(initial * flags.learning_rate_decay ** (t // per_epoch) for t in range(steps))


def flag_words(values: dict[str, Any]) -> str:
    """Flags as one would type them."""
    return " ".join(f"--{name}={plain(value)}" for name, value in values.items())


def plain(value: Any) -> str:
    """A number or name as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)
