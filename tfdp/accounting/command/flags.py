"""Flags of the command."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import flags as absl_flags

from tfdp import _settings
from tfdp._settings import Need, setting
from tfdp._validate import did_you_mean
from tfdp.accounting.command import common
from tfdp.accounting.mechanisms import mechanism_class
from tfdp.accounting.run import STARTS

# What --table can vary.
TABLES = ("noise_multiplier", "epochs", "steps", "lot_size", "num_examples", "delta", "epsilon")
# Flags of other commands, and the advice to give here.
_ELSEWHERE = {
    "dataset": "Pass the number of its examples as --num_examples.",
    "l2_norm_clip": "It cancels in every guarantee. Remove it.",
    "max_grad_norm": "It cancels in every guarantee. Remove it.",
    "sample_rate": "Pass --num_examples and --lot_size, which determine it.",
    "used_microbatching": "Pass --microbatch_size, the number of examples clipped together.",
}
_ENCODED = Need("mechanism", lambda name: "noise" in mechanism_class(name).settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """Values of all flags.

    `num_examples` and `lot_size` have no default; `plan.check_complete` raises without them.

    Attributes:
        typed: Names of the flags that the user typed.
        chosen: Names of the flags for which `plan` chose a default.
    """

    noise_multiplier: float | None = common.noise_multiplier.field(
        group="Noise or budget", also=("noise_scale",)
    )
    epsilon: float | None = common.epsilon.field(also=("target_epsilon",))
    guarantee: str = common.guarantee.field()
    delta: float = common.delta.field(also=("target_delta",))
    adjacency: str = common.adjacency.field()

    num_examples: int = setting(
        "The public number of examples.", group="Data and lots", also=("N", "dataset_size")
    )
    lot_size: int = common.lot_size.field(also=("batch_size",))
    epochs: float | None = common.epochs.field(also=("num_epochs",))
    steps: int | None = common.steps.field()
    sampling: str | None = common.sampling.field(
        help="The sampling of lots. By default poisson; cyclic_poisson for matrix."
    )
    nominal: bool = setting(
        "Declares that --num_examples was fixed without looking at the data; "
        "--adjacency=add_or_remove_one needs it.",
        False,
    )
    groups: int | None = common.groups.field()

    mechanism: str = common.mechanism.field(group="Mechanism and update rule")
    learning_rate: float | None = common.learning_rate.field()
    learning_rate_decay: float = common.learning_rate_decay.field()
    momentum: float = common.momentum.field()
    nesterov: bool = setting("Nesterov momentum, for si_dpsgd.", False)
    optimizer: str = setting("The update rule, for si_dpsgd.", "sgd")
    start: str = setting("The origin of the initial weights.", "assumed", choices=STARTS)
    insecure_seed: bool = setting("Declares that the user chose the seed of the noise.", False)

    microbatch_size: int = setting(
        "The number of examples whose mean is clipped.", 1, group="Contribution of an example"
    )
    max_examples_per_user: int = setting(
        "The largest number of examples of one user; epsilon is for all of them together.", 1
    )
    clip_groups: int = setting(
        "The number of groups of weights that are clipped separately, each at the clip norm.", 1
    )
    batch_statistics: bool = setting(
        "Normalization takes its statistics over the private lot.", False
    )

    strategy: str | None = common.strategy.field(group="Settings of some mechanisms")
    bands: int | None = common.bands.field()
    objective: str | None = common.objective.field()
    noise: str | None = common.noise.field()
    degrees_of_freedom: float | None = common.degrees_of_freedom.field()
    num_weights: int | None = setting(
        "The length of a gradient, for discrete_sgd with a codebook of one vector of normal "
        "quantiles. By default any length, with --largest_entry=1.",
        needs=(_ENCODED,),
    )
    largest_entry: float | None = setting(
        "The largest entry of a codebook of unit vectors, for discrete_sgd; 1 covers every codebook.",
        needs=(_ENCODED,),
    )
    composition: str | None = common.composition.field()
    release: str | None = common.release.field()

    table: str | None = setting(
        "Prints one row for each value, as in --table=noise_multiplier=0.7,1,1.5, or in "
        f"--table=epochs=1..100 (nine values in even ratios). It varies {', '.join(TABLES)}.",
        group="Output",
    )
    curve: bool = setting(
        "Prints the whole trade-off of membership tests, too: the least false negative rate for each "
        "false positive rate. Cannot be combined with --table.",
        False,
    )
    plot: str | None = setting(
        "Draws the table, or the curve, into this file (png, pdf or svg), too; needs matplotlib."
    )
    full: bool = setting(
        "Prints the whole statement: all assumptions, explanations and limits.", False
    )
    json: bool = setting("Prints JSON instead of text.", False)
    typed: frozenset[str] = frozenset()
    chosen: tuple[str, ...] = ()

    def choose(self, **values: Any) -> "Flags":
        """Returns a copy that has these values, except None, in the flags that were not typed."""
        new = {n: v for n, v in values.items() if n not in self.typed and v is not None}
        return dataclasses.replace(self, **new, chosen=(*self.chosen, *new))


SETTINGS = common.settings_of(Flags)
# Name of the flag for each accepted spelling.
_SPELLINGS = {also: name for name, known in SETTINGS.items() for also in (name, *known.also)}


def parse(argv: Sequence[str], doc: str | None = None) -> Flags:
    """Returns the flags of a command line; `--lot-size` is the same as `--lot_size`.

    Args:
        argv: The command line, without the name of the program.
        doc: The text above the flags that --help prints.

    Raises:
        ValueError: If a flag is unknown, or its value is not allowed.
    """
    values = absl_flags.FlagValues()
    _settings.define(SETTINGS, values)
    words = _settings.parse(["", *map(_spelled, argv)], doc, values)
    if words[1:]:
        raise ValueError(f"Expected flags only. Received {' '.join(words[1:])}.")
    typed = _settings.typed(SETTINGS, values)
    return Flags(**typed, typed=frozenset(typed))


def _spelled(word: str) -> str:
    """Returns the usual spelling of a flag; raises ValueError for a flag of other commands."""
    name, equals, value = word.partition("=")
    name = name[2:].replace("-", "_")
    if word[:2] != "--" or not name:
        return word
    if name in _ELSEWHERE:
        raise ValueError(f"Unknown flag --{name}. {_ELSEWHERE[name]}")
    return f"--{_SPELLINGS.get(name, name)}{equals}{value}"


def table_of(flags: Flags) -> tuple[str, list[int | float]] | None:
    """Returns the name of the flag that --table varies, and its values; None without --table.

    Raises:
        ValueError: If --table has another form, or the flag that it varies is also set.
    """
    if flags.table is None:
        return None
    typed, _, texts = flags.table.lstrip("-").partition("=")
    name = _SPELLINGS.get(typed.replace("-", "_"), "")
    if name not in TABLES:
        raise ValueError(
            f"--table cannot vary {typed!r}. It varies one of {', '.join(TABLES)}."
            f"{did_you_mean(typed, TABLES)}"
        )
    if name in flags.typed:
        raise ValueError(
            f"--{name} and --table={typed}=... cannot both be set. Remove one of them."
        )
    try:
        return name, _values(texts, SETTINGS[name].kind)
    except ValueError as error:
        raise ValueError(
            f"Expected values, as in --table={typed}=1,2,5 or 1..100: {error}."
        ) from None


def _values(texts: str, kind: type) -> list[int | float]:
    if ".." not in texts:
        values = [kind(text) for text in texts.split(",")]
        if len(set(values)) < len(values):
            raise ValueError(f"values have to differ, but {texts!r} repeats one")
        return values
    low, high = (kind(text) for text in texts.split("..", 1))
    if not 0 < low < high < float("inf"):
        raise ValueError(f"a range has to be positive and increasing, but {texts!r} is not")
    between = [float(f"{low * (high / low) ** (i / 8):.2g}") for i in range(1, 8)]
    if kind is int:
        between = [round(value) for value in between]
    return sorted({low, high, *(value for value in between if low < value < high)})
