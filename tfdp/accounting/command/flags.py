"""Flags of the command, declared in one table."""

import argparse
from collections.abc import Sequence

from tfdp._validate import did_you_mean
from tfdp.accounting.choices import USUAL_STRATEGY
from tfdp.accounting.guarantee import ADJACENCIES, KINDS
from tfdp.accounting.mechanisms import mechanism_names
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
    "dataset": " Pass the number of its examples as --num_examples.",
    "l2_norm_clip": " It cancels in every guarantee: leave it out.",
    "max_grad_norm": " It cancels in every guarantee: leave it out.",
    "sample_rate": " Pass --num_examples and --lot_size, whose ratio it is.",
    "used_microbatching": " Pass --microbatch_size, the number of examples clipped together.",
}


class FlagError(ValueError):
    """A command line that cannot be understood; the message is one sentence or two."""


class Flags(argparse.Namespace):
    """Values of all flags by name; None for a flag that was not typed."""


def _groups() -> dict[str, list[tuple]]:
    """For each group of flags: spellings, kind (a type, or the choices), and help."""
    return {
        "what is asked: the noise gives epsilon, or a budget gives the noise": [
            ("noise_multiplier noise_scale", float,
             "Noise on the sum over the clip norm (dp_dropout: twice the paper's sigma)."),
            ("epsilon target_epsilon", float,
             "The budget, in place of the noise, which is then printed."),
            ("guarantee", KINDS,
             "The guarantee that has to stay within --epsilon. Default: proven."),
            ("delta target_delta", float,
             "Probability parameter, well below 1 over the number of examples. Default: 1e-5."),
            ("adjacency", ADJACENCIES, "What neighbouring data sets differ in. Default: zero_out."),
        ],
        "data and lots": [
            ("num_examples N dataset_size", int, "Public number of examples. Required."),
            ("lot_size batch_size", int,
             "Nominal lot size: the logical batch of one step. Required."),
            ("epochs num_epochs", float, "Passes over the data; or give --steps."),
            ("steps", int, "Number of lots, in place of --epochs."),
            ("sampling", sampling_names(),
             "How lots are really drawn. Default: poisson; cyclic_poisson for matrix."),
            ("nominal", bool, "--num_examples was fixed without looking at the data "
             "(add_or_remove_one needs it)."),
            ("groups", int, "Groups of examples that take turns (cyclic_poisson). Default: as many as "
             "--bands; for neither, the number with the least noise."),
        ],
        "mechanism and update rule": [
            ("mechanism", mechanism_names(), "Which noise is added. Default: dpsgd."),
            ("learning_rate", float, "Initial learning rate (si_dpsgd); it cancels alone."),
            ("learning_rate_decay", float, "Factor per epoch (si_dpsgd). Default: 1."),
            ("momentum", float, "Momentum coefficient (si_dpsgd). Default: 0."),
            ("nesterov", bool, "Nesterov momentum (si_dpsgd). Default: false."),
            ("optimizer", str, "Update rule (si_dpsgd). Default: sgd."),
            ("start", STARTS, "Where the initial weights are from. Default: assumed."),
            ("insecure_seed", bool, "The noise came from a seed of the user's. Default: false."),
        ],
        "what one example can add": [
            ("microbatch_size", int, "Examples whose mean is clipped. Default: 1."),
            ("max_examples_per_user", int,
             "Epsilon is for all examples of a user, who has at most so many. Default: 1."),
            ("clip_groups", int,
             "Groups of weights that are clipped separately, each at C. Default: 1."),
            ("batch_statistics", bool,
             "Normalization statistics over the private lot. Default: false."),
        ],
        "settings of some mechanisms": [
            ("strategy", STRATEGIES, f"How noise is correlated (matrix). Default: {USUAL_STRATEGY}."),
            ("bands", int, "Coefficients of the strategy (matrix). Default: as many as --groups; for "
             "cyclic lots, the steps of an epoch."),
            ("objective", OBJECTIVES,
             "The error that banded_toeplitz minimizes (matrix). Default: mean."),
            ("noise", FAMILIES, "Family of the noise (discrete_sgd). Default: student_t."),
            ("degrees_of_freedom", float, "Of student_t noise (discrete_sgd). Default: 9."),
            ("num_weights", int,
             "Length of a gradient (discrete_sgd), for a codebook of one vector of normal quantiles. "
             "Default: any length, with --largest_entry=1."),
            ("largest_entry", float,
             "Largest entry of a codebook of unit vectors (discrete_sgd); 1 covers every one."),
            ("composition", str, "The paper's recipe for the claim (dp_dropout, sgld)."),
            ("release", str,
             "theta, or mu for the un-noised means (si_dpsgd). Default: theta."),
        ],
        "output": [
            ("table", str, "One row for each value, as in FLAG=VALUES: noise_multiplier=0.7,1,1.5 or "
             f"epochs=1..100 (nine values in even ratios). FLAG is one of {', '.join(TABLES)}."),
            ("plot", str, "Also draws the table into this file (png, pdf or svg); needs matplotlib."),
            ("json", bool, "Prints JSON in place of words."),
        ],
    }  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """Attributes: `spellings`, the flag of each spelling; `kinds`, the type of each flag."""

    def __init__(self):
        super().__init__(
            prog=_PROGRAM,
            usage=f"{_PROGRAM} --num_examples=N --lot_size=L --epochs=T --noise_multiplier=Z ...",
            description="Prints what a training costs: the paper's claim, and what is proven. With "
            "--epsilon: the noise that a budget needs.",
            epilog=_EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.spellings, self.kinds = {}, {}
        for title, flags in _groups().items():
            group = self.add_argument_group(title)
            for spellings, kind, words in flags:
                self._declare(group, spellings.split(), kind, words)

    def _declare(self, group, spellings: list[str], kind, words: str) -> None:
        self.spellings |= dict.fromkeys(spellings, spellings[0])
        self.kinds[spellings[0]] = kind
        how = {"type": kind, "metavar": {int: "N", float: "X", str: "NAME"}.get(kind)}
        if kind is bool:
            how = {"type": _truth, "nargs": "?", "const": True, "metavar": "true"}
        elif isinstance(kind, tuple):
            how = {"choices": kind, "metavar": "NAME"}
            words += f" One of {', '.join(kind)}."
        group.add_argument(*(f"--{spelling}" for spelling in spellings), help=words, **how)

    def error(self, message: str):
        raise FlagError(message.removeprefix("argument "))


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "yes", "1", "false", "no", "0"):
        raise argparse.ArgumentTypeError(f"expected true or false, received {text!r}")
    return text.lower() in ("true", "yes", "1")


def parse(argv: Sequence[str]) -> Flags:
    """Returns the flags of a command line; a dash inside the name of a flag is an underscore.

    Raises:
      FlagError: If a flag is unknown, or its value is not of its type.
    """
    parser = _Parser()
    flags, unknown = parser.parse_known_args([_with_underscores(each) for each in argv], Flags())
    for typed in unknown:
        name = typed.partition("=")[0].lstrip("-")
        near = did_you_mean(f"--{name}", [f"--{known}" for known in parser.spellings])
        hint = _ELSEWHERE.get(name) or near or " See --help for all flags."
        raise FlagError(f"Unknown argument {typed.partition('=')[0]}.{hint}")
    return flags


def _with_underscores(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name[:2] == "--" else argument


def table_of(flags: Flags) -> tuple[str, list[int | float]] | None:
    """Returns the name of the flag that --table varies, and its values; None without --table.

    Raises:
      FlagError: If --table is not understood, or the flag is set as well.
    """
    if flags.table is None:
        return None
    parser = _Parser()
    typed, _, texts = flags.table.lstrip("-").partition("=")
    name = parser.spellings.get(typed.replace("-", "_"))
    if name not in TABLES:
        raise FlagError(
            f"Expected --table to vary one of {', '.join(TABLES)}. Received {typed!r}."
            f"{did_you_mean(typed, TABLES)}"
        )
    if getattr(flags, name) is not None:
        raise FlagError(f"Expected --{name} or --table={typed}=... . Received both. Leave one out.")
    try:
        return name, _values(texts, parser.kinds[name])
    except ValueError as error:
        raise FlagError(
            f"Expected values, as in --table={typed}=1,2,5 or 1..100: {error}."
        ) from None


def _values(texts: str, kind: type) -> list[int | float]:
    if ".." not in texts:
        values = [kind(text) for text in texts.split(",")]
        if len(set(values)) < len(values):
            raise ValueError(f"they have to differ, and {texts!r} has one twice")
        return values
    low, high = (kind(text) for text in texts.split("..", 1))
    if not 0 < low < high < float("inf"):
        raise ValueError(f"a range goes upwards from above 0, and {texts!r} does not")
    between = [float(f"{low * (high / low) ** (i / 8):.2g}") for i in range(1, 8)]
    if kind is int:
        between = map(round, between)
    return sorted({low, high, *(value for value in between if low < value < high)})
