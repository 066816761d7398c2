"""From the flags to a run: what is left open is chosen as training chooses it, and recorded."""

import copy
import dataclasses
from typing import Any

from tfdp.accounting.choices import CorrelatedNoise
from tfdp.accounting.command.flags import FlagError, Flags
from tfdp.accounting.described import describe
from tfdp.accounting.guarantee import Guarantee, check_delta, check_epsilon
from tfdp.accounting.mechanisms.registry import USUAL_MECHANISM, mechanism_class
from tfdp.accounting.records import field_names
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import steps_for

# Values of flags that are not typed. The first ones are printed, like all that the mechanism chooses.
_SAID = {"mechanism": USUAL_MECHANISM, "delta": 1e-5}
_SILENT = {
    "guarantee": "proven",
    "adjacency": "zero_out",
    "learning_rate_decay": 1.0,
}
# Flags whose values become fields of a run with the same name.
_SAME_NAME = (
    "num_examples",
    "lot_size",
    "sampling",
    "nominal",
    "groups",
    "microbatch_size",
    "max_examples_per_user",
    "clip_groups",
    "batch_statistics",
    "momentum",
    "nesterov",
    "draws",
    "optimizer",
    "release",
    "start",
    "insecure_seed",
)
# Flags from which a mechanism makes its fields (see `Mechanism.from_options`).
_OPTIONS = (
    "composition",
    "num_weights",
    "noise",
    "degrees_of_freedom",
    "largest_entry",
    "strategy",
    "bands",
    "objective",
)
# Bands depend on a budget. Where the noise is given instead, they are chosen for this one, which is
# the budget of a training for which none is set.
_USUAL_EPSILON = 2.0
_EXAMPLE = (
    "For example: --mechanism=dpsgd --num_examples=60000 --lot_size=256 --epochs=15 --epsilon=2"
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run that the flags describe.

    Attributes:
      run: The run; its noise multiplier is 0 if a budget is given.
      flags: The flags, with the values that were chosen for those that were left open.
      chosen: The flags that were left open and what was chosen for them.
      notes: Sentences about what was chosen.
    """

    run: Run
    flags: Flags
    chosen: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Answer:
    """A run with its guarantees, and with the noise of the budget if there is one."""

    plan: Plan
    run: Run
    claimed: Guarantee
    proven: Guarantee


def check_complete(flags: Flags, varied: str | None = None) -> None:
    """Raises FlagError if flags are missing or exclude each other.

    Args:
      flags: The flags.
      varied: Name of the flag that --table sets, if there is one.
    """
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
        raise FlagError(f"Expected {', and '.join(missing)}. Received none. {_EXAMPLE}")


def plan(flags: Flags) -> Plan:
    """Describes the run of complete flags.

    Raises:
      ValueError: If a value is not valid, or does not go with the others.
    """
    flags, chosen, notes = copy.copy(flags), {}, []

    def choose(name: str, value: Any) -> None:
        if getattr(flags, name) is None and value is not None:
            chosen[name] = value
            setattr(flags, name, value)

    for name, value in _SILENT.items():
        if getattr(flags, name) is None:
            setattr(flags, name, value)
    for name, value in _SAID.items():
        choose(name, value)
    check_delta(flags.delta)
    if flags.epsilon is not None:
        check_epsilon(flags.epsilon)
    kind = mechanism_class(flags.mechanism)
    _refuse_foreign(flags, kind)
    choose("sampling", kind.usual_sampling)
    steps = _steps(flags)
    if "strategy" in kind.options:
        notes += _choose_strategy(flags, steps, choose)
    notes += _leave_out_the_rest(flags)
    own = {name: getattr(flags, name) for name in kind.options}
    for name, value in kind.usual_options(own).items():
        choose(name, value)
    fields = {name: getattr(flags, name) for name in _SAME_NAME}
    fields["learning_rates"] = _learning_rates(flags, steps)
    fields = {name: value for name, value in fields.items() if value is not None}
    fields |= kind.from_options({name: getattr(flags, name) for name in kind.options}, steps)
    if "noise_multiplier" in field_names(kind):
        fields["noise_multiplier"] = flags.noise_multiplier or 0.0
    run = describe(flags.mechanism, steps=steps, **fields)
    return Plan(run, flags, chosen, tuple(notes))


def _refuse_foreign(flags: Flags, kind: type) -> None:
    for name in _OPTIONS:
        if getattr(flags, name) is not None and name not in kind.options:
            raise FlagError(
                f"Expected --{name} with a mechanism that has such a setting. Received it "
                f"with {flags.mechanism!r}. Leave it out."
            )


def _steps(flags: Flags) -> int:
    steps = flags.steps
    if steps is None:
        steps = steps_for(flags.epochs, flags.num_examples, flags.lot_size, flags.sampling)
    if steps < 1:
        length = "--epochs" if flags.steps is None else "--steps"
        raise FlagError(f"Expected at least one step. Received none. Raise {length}.")
    return steps


def _choose_strategy(flags: Flags, steps: int, choose) -> list[str]:
    """Chooses what correlated noise needs; returns sentences about the choice."""
    searched = flags.groups is None and flags.bands is None and flags.epsilon is None
    noise = CorrelatedNoise(
        num_examples=flags.num_examples,
        lot_size=flags.lot_size,
        steps=steps,
        sampling=flags.sampling,
        delta=flags.delta,
        epsilon=flags.epsilon,
        adjacency=flags.adjacency,
        strategy=flags.strategy,
        bands=flags.bands,
        groups=flags.groups,
        objective=flags.objective,
    ).completed(without_budget=_USUAL_EPSILON)
    for name in ("strategy", "bands", "groups"):
        choose(name, getattr(noise, name))
    if not (searched and flags.groups):
        return []
    return [
        f"{flags.groups} groups and bands have the least noise at epsilon {_USUAL_EPSILON:g}; with "
        "--epsilon they are chosen for that."
    ]


def _leave_out_the_rest(flags: Flags) -> list[str]:
    """Leaves out the examples that do not fill the groups, as training does, and says so."""
    rest = flags.num_examples % (flags.groups or 1)
    if not rest or flags.num_examples < flags.groups:
        return []
    flags.num_examples -= rest
    return [f"Left out, since {flags.groups} equal groups have no place for them: {rest} examples."]


def _learning_rates(flags: Flags, steps: int):
    """Learning rates as a number or a table over steps, or None if no flag sets them."""
    if flags.learning_rate is None and flags.learning_rate_decay == 1.0:
        return None
    initial = 1.0 if flags.learning_rate is None else flags.learning_rate
    if flags.learning_rate_decay == 1.0:
        return initial
    per_epoch = max(1, flags.num_examples // flags.lot_size)
    return tuple(initial * flags.learning_rate_decay ** (t // per_epoch) for t in range(steps))


def answer(planned: Plan) -> Answer:
    """Computes both guarantees, after the noise if there is a budget.

    Raises:
      ValueError: If no noise meets the budget.
    """
    # These imports are slow. They come after the validation, so that a bad flag is reported at once.
    from tfdp.accounting import calibration, composition

    flags, run = planned.flags, planned.run
    if flags.epsilon is not None:
        noise = calibration.noise_for(
            flags.epsilon, flags.delta, run, flags.guarantee, flags.adjacency
        )
        run = run.with_noise(noise)
    claimed = composition.claimed(run, flags.delta, flags.adjacency)
    proven = composition.proven(run, flags.delta, flags.adjacency)
    return Answer(planned, run, claimed, proven)


def flag_words(values: dict[str, Any]) -> str:
    """Flags as one would type them."""
    return " ".join(f"--{name}={plain(value)}" for name, value in values.items())


def plain(value: Any) -> str:
    """A number or name as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)
