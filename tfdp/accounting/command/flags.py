"""Flags of the command: declared in groups, with defaults in the help and errors in one sentence."""

import argparse
from collections.abc import Sequence
from typing import Any

from tfdp._validate import did_you_mean
from tfdp.accounting.choices import USUAL_STRATEGY
from tfdp.accounting.guarantee import ADJACENCIES, KINDS
from tfdp.accounting.mechanisms.registry import mechanism_names
from tfdp.accounting.numerics.noise_families import FAMILIES
from tfdp.accounting.run import STARTS
from tfdp.accounting.sampling import sampling_names
from tfdp.accounting.strategies import OBJECTIVES, STRATEGIES

_PROGRAM = "python -m tfdp.accounting"
_EXAMPLES = f"""examples:
  {_PROGRAM} --num_examples=60000 --lot_size=256 --epochs=15 --noise_multiplier=1.1
  {_PROGRAM} --num_examples=60000 --lot_size=256 --epochs=15 --epsilon=2
  {_PROGRAM} --num_examples=60000 --lot_size=256 --epochs=15 --table=noise_multiplier=0.7,1,1.5,2
  {_PROGRAM} --num_examples=60000 --lot_size=256 --epsilon=2 --table=epochs=1..100 --plot=noise.png
"""
# What --table can vary.
TABLES = ("noise_multiplier", "epochs", "steps", "lot_size", "num_examples", "delta", "epsilon")
# Flags that other commands have, and what to do here.
_ELSEWHERE = {
    "dataset": "Pass the number of its examples as --num_examples.",
    "l2_norm_clip": "It cancels in every guarantee: leave it out.",
    "max_grad_norm": "It cancels in every guarantee: leave it out.",
    "sample_rate": "Pass --num_examples and --lot_size, whose ratio it is.",
    "used_microbatching": "Pass --microbatch_size, the number of examples that are clipped together.",
}
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


class FlagError(ValueError):
    """A command line that cannot be understood; the message is one sentence or two."""


class Flags(argparse.Namespace):
    """Values of all flags by name; None for a flag that was not typed."""


class _Parser(argparse.ArgumentParser):
    """A parser that knows its flags and names close matches.

    Attributes:
      spellings: Maps every spelling of a flag, without its dashes, to the name of the flag.
      kinds: Maps the names of flags to the functions that read their values.
    """

    def __init__(self, **known):
        super().__init__(**known)
        self.spellings: dict[str, str] = {}
        self.kinds: dict[str, Any] = {}

    def _check_value(self, action, value):
        if action.choices is not None and value not in action.choices:
            listed = ", ".join(action.choices)
            hint = did_you_mean(value, action.choices)
            if not hint and action.dest == "noise":
                hint = " Did you mean --noise_multiplier, the amount of noise?"
            raise argparse.ArgumentError(
                action, f"to be one of {listed}. Received {value!r}.{hint}"
            )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        message = f"to be a whole number. Received {text!r}."
        raise argparse.ArgumentTypeError(message) from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"to be a number. Received {text!r}.") from None


def _truth(text: str) -> bool:
    if text.lower() not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"to be true or false. Received {text!r}.")
    return text.lower() in _TRUE


def parser() -> _Parser:
    """Returns the parser. A flag that is not typed has the value None."""
    made = _Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} --num_examples=N --lot_size=L --epochs=T --noise_multiplier=Z ...",
        description="Prints what a training costs: the paper's claim, and what is proven. With "
        "--epsilon: the noise that a budget needs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        exit_on_error=False,
        add_help=False,
    )
    for declare in (_question, _data, _mechanism, _contribution, _own, _output):
        declare(made)
    return made


def _group(made: _Parser, title: str):
    group = made.add_argument_group(title)

    def add(*names: str, kind: Any = str, **known: Any) -> None:
        name = names[0].lstrip("-")
        made.spellings |= {spelling.lstrip("-"): name for spelling in names}
        if kind is None:  # a flag that acts by itself
            group.add_argument(*names, **known)
            return
        if kind is bool:
            known |= {"nargs": "?", "const": True, "type": _truth, "metavar": "true"}
        else:
            known |= {"type": {int: _whole, float: _number, str: str}[kind]}
            known.setdefault("metavar", {int: "N", float: "X", str: "NAME"}[kind])
            if "choices" in known:
                known["help"] += f" One of {', '.join(known['choices'])}."
        made.kinds[name] = known["type"]
        group.add_argument(*names, default=None, **known)

    return add


def _question(made: _Parser) -> None:
    add = _group(made, "what is asked: the noise gives epsilon, or a budget gives the noise")
    add(
        "--noise_multiplier", "--noise_scale", kind=float,
        help="Noise on the sum over the clip norm (dp_dropout: twice the paper's sigma).",
    )  # fmt: skip
    add(
        "--epsilon", "--target_epsilon", kind=float,
        help="The budget, in place of the noise, which is then printed.",
    )  # fmt: skip
    add(
        "--guarantee", choices=KINDS,
        help="The guarantee that has to stay within --epsilon. Default: proven.",
    )  # fmt: skip
    add(
        "--delta", "--target_delta", kind=float,
        help="Probability parameter, well below 1 over the number of examples. Default: 1e-5.",
    )  # fmt: skip
    add(
        "--adjacency", choices=ADJACENCIES,
        help="What neighbouring data sets differ in. Default: zero_out.",
    )  # fmt: skip


def _data(made: _Parser) -> None:
    add = _group(made, "data and lots")
    add(
        "--num_examples", "--N", "--dataset_size", kind=int,
        help="Public number of examples. Required.",
    )  # fmt: skip
    add(
        "--lot_size", "--batch_size", kind=int,
        help="Nominal lot size: the logical batch of one step. Required.",
    )  # fmt: skip
    add("--epochs", "--num_epochs", kind=float, help="Passes over the data; or give --steps.")
    add("--steps", kind=int, help="Number of lots, in place of --epochs.")
    add(
        "--sampling", choices=sampling_names(),
        help="How lots are really drawn. Default: poisson; cyclic_poisson for matrix.",
    )  # fmt: skip
    add(
        "--nominal", kind=bool,
        help="--num_examples was fixed without looking at the data (add_or_remove_one needs it).",
    )  # fmt: skip
    add(
        "--groups", kind=int,
        help="Groups of examples that take turns (cyclic_poisson). Default: as many as --bands; for "
        "neither, the number with the least noise.",
    )  # fmt: skip


def _mechanism(made: _Parser) -> None:
    add = _group(made, "mechanism and update rule")
    add("--mechanism", choices=mechanism_names(), help="Which noise is added. Default: dpsgd.")
    add("--learning_rate", kind=float, help="Initial learning rate (si_dpsgd); it cancels alone.")
    add("--learning_rate_decay", kind=float, help="Factor per epoch (si_dpsgd). Default: 1.")
    add("--momentum", kind=float, help="Momentum coefficient (si_dpsgd). Default: 0.")
    add("--nesterov", kind=bool, help="Nesterov momentum (si_dpsgd). Default: false.")
    add("--optimizer", help="Update rule (si_dpsgd). Default: sgd.")
    add("--start", choices=STARTS, help="Where the initial weights are from. Default: assumed.")
    add(
        "--insecure_seed", kind=bool,
        help="The noise came from a seed of the user's. Default: false.",
    )  # fmt: skip


def _contribution(made: _Parser) -> None:
    add = _group(made, "what one example can add")
    add("--microbatch_size", kind=int, help="Examples whose mean is clipped. Default: 1.")
    add(
        "--max_examples_per_user", kind=int,
        help="Epsilon is for all examples of a user, who has at most so many. Default: 1.",
    )  # fmt: skip
    add(
        "--clip_groups", kind=int,
        help="Groups of weights that are clipped separately, each at C. Default: 1.",
    )  # fmt: skip
    add(
        "--batch_statistics", kind=bool,
        help="Normalization statistics over the private lot. Default: false.",
    )  # fmt: skip


def _own(made: _Parser) -> None:
    add = _group(made, "settings of some mechanisms")
    add(
        "--strategy", choices=STRATEGIES,
        help=f"How noise is correlated (matrix). Default: {USUAL_STRATEGY}.",
    )  # fmt: skip
    add(
        "--bands", kind=int,
        help="Coefficients of the strategy (matrix). Default: as many as --groups; for cyclic lots, "
        "the steps of an epoch.",
    )  # fmt: skip
    add(
        "--objective", choices=OBJECTIVES,
        help="The error that banded_toeplitz minimizes (matrix). Default: mean.",
    )  # fmt: skip
    add(
        "--noise", choices=FAMILIES,
        help="Family of the noise (discrete_sgd). Default: student_t.",
    )  # fmt: skip
    add(
        "--degrees_of_freedom", kind=float,
        help="Of student_t noise (discrete_sgd). Default: 9.",
    )  # fmt: skip
    add(
        "--num_weights", kind=int,
        help="Length of a gradient (discrete_sgd), for a codebook of one vector of normal quantiles. "
        "Default: any length, with --largest_entry=1.",
    )  # fmt: skip
    add(
        "--largest_entry", kind=float,
        help="Largest entry of a codebook of unit vectors (discrete_sgd); 1 covers every one.",
    )  # fmt: skip
    add("--composition", help="The paper's recipe for the claim (dp_dropout, sgld).")
    add("--draws", kind=int, help="Noise draws around each mean (si_dpsgd). Default: 1.")
    add(
        "--release",
        help="theta, or mu for the un-noised means (si_dpsgd). Default: theta.",
    )  # fmt: skip


def _output(made: _Parser) -> None:
    add = _group(made, "output")
    add(
        "--table", metavar="FLAG=VALUES",
        help="One row for each value, as in noise_multiplier=0.7,1,1.5 or epochs=1..100 (nine values "
        f"in even ratios). FLAG is one of {', '.join(TABLES)}.",
    )  # fmt: skip
    add(
        "--plot", metavar="FILE",
        help="Also draws the table into this file (png, pdf or svg); needs matplotlib.",
    )  # fmt: skip
    add("--json", kind=bool, help="Prints JSON in place of words.")
    add("--help", "-h", kind=None, action="help", help="Prints this.")


def parse(argv: Sequence[str]) -> Flags:
    """Returns the flags of a command line.

    A dash inside the name of a flag counts as an underscore.

    Raises:
      FlagError: If a flag is unknown, or its value is not of its type.
    """
    made = parser()
    spellings = made.spellings
    arguments = [_with_underscores(argument) for argument in argv]
    try:
        flags, extra = made.parse_known_args(arguments, Flags())
    except argparse.ArgumentError as error:
        raise FlagError(_sentence(error)) from None
    for argument in extra:
        raise FlagError(_unknown(argument, spellings))
    return flags


def _with_underscores(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}"


def _sentence(error: argparse.ArgumentError) -> str:
    flag = (error.argument_name or "").partition("/")[0]
    if error.message.startswith("to be "):
        return f"Expected {flag} {error.message}"
    if error.message.startswith("expected"):
        return f"Expected {flag} to have a value. Received none."
    return f"{flag}: {error.message}."


def _unknown(argument: str, spellings: dict[str, str]) -> str:
    name = argument.partition("=")[0].lstrip("-")
    if not argument.startswith("-"):
        return f"Expected flags only, such as --num_examples=60000. Received {argument!r}."
    hint = f" {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
    hint = hint or did_you_mean(f"--{name}", [f"--{known}" for known in spellings])
    return f"Unknown flag {argument.partition('=')[0]}.{hint or ' See --help.'}"


def table_of(flags: Flags) -> tuple[str, list[int | float]] | None:
    """Returns the name of the flag that --table varies, and its values; None without --table.

    Raises:
      FlagError: If --table is not understood, or the flag is set as well.
    """
    if flags.table is None:
        return None
    made = parser()
    typed, equals, texts = flags.table.lstrip("-").partition("=")
    name = made.spellings.get(typed.replace("-", "_"))
    if name not in TABLES:
        hint = did_you_mean(typed, TABLES)
        raise FlagError(
            f"Expected --table to vary one of {', '.join(TABLES)}. Received {typed!r}.{hint}"
        )
    if getattr(flags, name) is not None:
        raise FlagError(f"Expected --{name} or --table={typed}=... . Received both. Leave one out.")
    if not equals or not texts:
        raise FlagError(f"Expected values, as in --table={typed}=1,2,5. Received none.")
    try:
        return name, _values(texts, made.kinds[name])
    except argparse.ArgumentTypeError as error:
        raise FlagError(f"Expected every value of --table={typed}=... {error}") from None


def _values(texts: str, kind) -> list[int | float]:
    if ".." not in texts:
        values = [kind(text) for text in texts.split(",")]
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"to differ from the others. Received {texts!r}.")
        return values
    low, high = (kind(text) for text in texts.split("..", 1))
    if not 0 < low < high < float("inf"):
        raise argparse.ArgumentTypeError(
            f"to be above 0, and a range to go upwards, as in 1..100. Received {texts!r}."
        )
    between = [low * (high / low) ** (i / 8) for i in range(1, 8)]
    between = [float(f"{value:.2g}") for value in between]
    if kind is _whole:
        between = [round(value) for value in between]
    return sorted({low, high, *(value for value in between if low < value < high)})
