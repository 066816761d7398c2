"""Arguments shared by the private optimizers: types for editors, and texts for `help()`.

A private optimizer takes its own arguments, those of `DPKerasOptimizer` and those of a Keras optimizer.
At run time, `describe_arguments` collects them from the constructors and docstrings of the bases. Type
checkers cannot do that, so the classes below repeat names and types; a test compares both.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Required, TypedDict

import keras
from absl import logging

from tfdp._validate import did_you_mean

Rate = float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], float]


# Keras arguments that act on gradients without noise.
REFUSED = ("gradient_accumulation_steps", "loss_scale_factor")
# Methods that decide which noise is added to which sums, and how the noise is accounted.
NOISE_MAKING = (
    "update",
    "add_noise",
    "bound",
    "mechanism_fields",
    "contribution_fields",
    "tables",
    "microbatch_size",
    "_stddev",
)


# Names that completion leaves out: training and new mechanisms use them.
INTERNAL = {
    *NOISE_MAKING,
    *REFUSED,
    *("accounted", "apply", "apply_gradients", "begin", "check_class", "continues"),
    *("described_steps", "hidden_variables", "mean_factor", "mechanism", "refused"),
    *("release_means", "resume", "scalars", "secret_state", "seeded", "stateless_apply", "title"),
}


class PrivateArguments(TypedDict, total=False):
    """Arguments of every private optimizer."""

    l2_norm_clip: Required[float]
    noise_multiplier: Required[float | Sequence[float]]
    num_microbatches: int | None
    seed: int | str | None


class NoiseArguments(PrivateArguments, total=False):
    """Arguments of `DPKerasOptimizer` except `clipping`."""

    target_quantile: float | None
    quantile_learning_rate: float | None
    quantile_noise_multiplier: float | None


class ClippingArguments(NoiseArguments, total=False):
    """All arguments of `DPKerasOptimizer`."""

    clipping: str


class KerasArguments(TypedDict, total=False):
    """Arguments of every Keras optimizer, except those that private optimizers do not support.

    Args:
        weight_decay: Rate of weight decay, in units of the learning rate; None disables it.
        clipnorm: L2 norm to which the gradient of each weight is clipped after adding noise; None
            disables it. The clip norm of single examples is `l2_norm_clip`.
        clipvalue: Largest magnitude of a gradient entry after adding noise; None disables it.
        global_clipnorm: L2 norm to which the gradient of all weights together is clipped after
            adding noise; None disables it.
        use_ema: Whether exponential moving averages of the weights replace them at the end of
            `fit`; default False.
        ema_momentum: With `use_ema`: weight of the earlier average in [0, 1]; default 0.99.
        ema_overwrite_frequency: With `use_ema`: number of steps after which the averages also
            replace the weights; None replaces them only at the end.
        name: Name of the optimizer; None derives one from the class.
    """

    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    name: str | None


class Arguments(ClippingArguments, KerasArguments, total=False):
    """Arguments of a private optimizer, except those of its update rule."""


class DiscreteArguments(PrivateArguments, KerasArguments, total=False):
    """Arguments of `DiscreteSGDOptimizer`, except its own and those of its update rule."""

    clipping: str


class StepArguments(NoiseArguments, KerasArguments, total=False):
    """Inherited arguments of `LangevinOptimizer`."""

    momentum: float
    nesterov: bool


class LangevinArguments(StepArguments, total=False):
    """Arguments of `LangevinOptimizer`, except the learning rate."""

    learning_rate_exponent: float | None
    steps_per_epoch: int
    clipping: str
    composition: str | None


def check_arguments(cls: type, given: Mapping[str, Any], refused: Sequence[str]) -> None:
    """Raises an error for keywords that a private optimizer does not support.

    Some Keras optimizers have an argument `epsilon`, which is no privacy budget. A value that looks
    like a budget is logged as a warning.

    Args:
        cls: The class of the optimizer.
        given: The keywords of its constructor, with their values.
        refused: As for `describe_arguments`; their default is accepted.

    Raises:
        TypeError: If a keyword is unknown.
        ValueError: If a keyword acts on gradients without noise.
    """
    for name in REFUSED:
        if given.get(name) not in (None, 1):
            raise ValueError(
                f"`{name}` cannot be used with a private optimizer: it acts on gradients without "
                "noise. Remove it; for lots larger than memory, set `physical_batch_size`."
            )
    known = {*inspect.signature(cls).parameters, *refused}
    for name in given.keys() - known - {"decay"}:  # which Keras ignores with a warning
        meant = did_you_mean(_OTHER_NAMES.get(name, name), known - {*refused})
        if name in _OF_BUDGETS:
            meant = f" {_BUDGET}"
        raise TypeError(f"{cls.__name__} has no argument {name!r}.{meant}")
    epsilon = given.get("epsilon")
    if isinstance(epsilon, int | float) and epsilon > _LARGE_EPSILON:
        logging.warning(
            "epsilon=%g of %s is a constant in its update rule, and no privacy budget. %s",
            epsilon,
            cls.__name__,
            _BUDGET,
        )


_OF_BUDGETS = ("epsilon", "delta", "target_epsilon", "target_delta")
_BUDGET = "For the noise of a budget, use tfdp.make_private_with_epsilon."
_LARGE_EPSILON = 0.1  # Adam's is 1e-7 by default, and at most about .1

# Argument names of other libraries that are too different for a spelling suggestion.
_OTHER_NAMES = {"lr": "learning_rate", "max_grad_norm": "l2_norm_clip", "clip_norm": "l2_norm_clip"}


def describe_arguments(cls: type, refused: Sequence[str]) -> None:
    """Sets the signature of a class, and `Args:` in its docstring, from all its constructors.

    In the docstring, the arguments of the bases replace the entry `**kwargs`. Each has the text of the
    first base that describes it; the texts of `KerasArguments` replace those of Keras.

    Args:
        cls: The class.
        refused: Names of arguments that the class does not support.
    """
    parameters = _parameters(cls, refused)
    cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    head, entries, tail = parts_of(cls.__doc__)
    if not any(name.endswith("**kwargs") for name in entries):
        return
    known: dict[str, str] = {}
    bases = [*reversed(cls.__mro__)]
    of_keras = [base for base in bases if base.__module__.startswith("keras.")]
    for base in [*of_keras, KerasArguments, *(base for base in bases if base not in of_keras)]:
        known |= parts_of(base.__doc__)[1]
    if "epsilon" in known:
        known["epsilon"] += "\n        It is no privacy budget."
    names = [name for name in entries if "*" not in name]
    names += [each.name for each in parameters if each.name not in names]
    if not known.keys() >= {
        *names
    }:  # a base for several update rules, which have their own arguments
        names += [name for name in entries if "*" in name]
    lines = [f"    {name}:{known[name]}" for name in names if name in known]
    cls.__doc__ = "\n".join([*head, "Args:", *lines, "", *tail])


def _parameters(cls: type, refused: Sequence[str]) -> list[inspect.Parameter]:
    """The parameters of the constructors of a class and its bases, so far as they are forwarded."""
    found: dict[str, inspect.Parameter] = {}
    positional = True
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        parameters = [*inspect.signature(vars(base)["__init__"]).parameters.values()][1:]
        kinds = {parameter.kind for parameter in parameters}
        for each in parameters:
            if each.name in found or each.name in refused or each.kind in _PASSED_ON:
                continue
            if each.kind is each.POSITIONAL_OR_KEYWORD and not positional:
                each = each.replace(kind=each.KEYWORD_ONLY)
            found[each.name] = each
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            break
        positional &= inspect.Parameter.VAR_POSITIONAL in kinds
    return sorted(found.values(), key=lambda each: each.kind)


_PASSED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parts_of(doc: str | None) -> tuple[list[str], dict[str, str], list[str]]:
    """Splits a docstring into the lines above `Args:`, the argument texts, and the lines below."""
    lines = inspect.cleandoc(doc or "").splitlines()
    if "Args:" not in lines:
        return lines, {}, []
    start = lines.index("Args:")
    end = start + 1
    while end < len(lines) and (not lines[end] or lines[end].startswith(" ")):
        end += 1
    entries: dict[str, str] = {}
    indent = len(lines[start + 1]) - len(lines[start + 1].lstrip())
    for line in lines[start + 1 : end]:
        if line[indent : indent + 1].strip():
            name, _, text = line.strip().partition(":")
            entries[name] = text
        elif line:
            entries[[*entries][-1]] += f"\n{line}"
    return lines[:start], entries, lines[end:]
