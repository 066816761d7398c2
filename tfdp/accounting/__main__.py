"""Command line of the accountant: `python -m tfdp.accounting --mechanism=dpsgd ...`."""

import argparse
import json
import sys

from tfdp.accounting.guarantee import ADJACENCIES, KINDS, check_delta, format_epsilon
from tfdp.accounting.mechanisms.registry import mechanism_class, mechanism_names
from tfdp.accounting.numerics.noise_families import FAMILIES
from tfdp.accounting.run import STARTS, Run
from tfdp.accounting.sampling import sampling_names, steps_for
from tfdp.accounting.strategies import OBJECTIVES, STRATEGIES

# Flags whose values become fields of a run with the same name.
_SAME_NAME = (
    "mechanism",
    "num_examples",
    "lot_size",
    "sampling",
    "nominal",
    "max_lot_size",
    "groups",
    "microbatch_size",
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


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m tfdp.accounting",
        description="Prints what a run costs: the paper's claim, and what is proven.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--mechanism", required=True, choices=mechanism_names(), help="what noise is added")
    add("--num_examples", type=int, required=True, help="public number of examples")
    add("--lot_size", "--batch_size", type=int, required=True, help="nominal lot size")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=float, help="passes over the data")
    length.add_argument("--steps", type=int, help="number of lots")
    noise = parser.add_mutually_exclusive_group(required=True)
    noise.add_argument(
        "--noise_multiplier",
        "--noise_scale",
        type=float,
        help="noise on the sum over clip norm (dp_dropout: twice the paper's sigma)",
    )
    noise.add_argument("--epsilon", type=float, help="budget; prints the noise that it needs")
    add("--guarantee", choices=KINDS, default="proven", help="which guarantee meets --epsilon")
    add("--delta", type=float, default=1e-5, help="probability parameter")
    add("--adjacency", choices=ADJACENCIES, default="zero_out", help="neighbouring relation")
    add("--sampling", choices=sampling_names(), default="poisson", help="how lots are drawn")
    add(
        "--nominal",
        action="store_true",
        help="num_examples was fixed without looking at the data (add_or_remove_one needs it)",
    )
    add("--max_lot_size", type=int, help="lots that draw more are cut")
    add("--microbatch_size", type=int, default=1, help="examples whose mean is clipped")
    add("--learning_rate", type=float, help="initial learning rate (si_dpsgd)")
    add("--learning_rate_decay", type=float, default=1.0, help="factor per epoch")
    add("--momentum", type=float, default=0.0, help="momentum coefficient")
    add("--nesterov", action="store_true", help="Nesterov momentum")
    add("--draws", type=int, default=1, help="noise draws around each mean")
    add("--optimizer", default="sgd", help="update rule")
    add("--release", default="theta", help="theta, or mu for the un-noised means (si_dpsgd)")
    add("--batch_statistics", action="store_true", help="statistics over the private lot")
    add("--start", choices=STARTS, default="assumed", help="where the weights began")
    add("--insecure_seed", action="store_true", help="the noise came from a seed of the user's")
    add("--clip_groups", type=int, default=1, help="groups of weights that are clipped separately")
    add("--groups", type=int, default=1, help="groups that take turns (cyclic_poisson)")
    add("--noise", choices=FAMILIES, help="family of noise (discrete_sgd)")
    add("--degrees_of_freedom", type=float, help="of student_t noise")
    add("--num_weights", type=int, help="length of a gradient (discrete_sgd)")
    add(
        "--largest_entry",
        type=float,
        help="largest entry of a codebook of unit vectors; default: one vector of normal quantiles",
    )
    add("--strategy", choices=STRATEGIES, help="how noise is correlated (matrix)")
    add("--bands", type=int, help="coefficients of the strategy")
    add("--objective", choices=OBJECTIVES, help="what banded_toeplitz minimizes")
    add("--composition", help="the paper's recipe (dp_dropout, sgld)")
    add("--json", action="store_true", help="print JSON instead of words")
    return parser


def _run(flags: argparse.Namespace) -> Run:
    steps = flags.steps
    if steps is None:
        steps = steps_for(flags.epochs, flags.num_examples, flags.lot_size, flags.sampling)
    if steps < 1:
        raise ValueError("Expected at least one step. Received none: raise --epochs or --steps.")
    fields = {name: getattr(flags, name) for name in _SAME_NAME}
    noise = 0.0 if flags.noise_multiplier is None else flags.noise_multiplier
    return Run(
        steps=steps,
        noise_multiplier=noise,
        learning_rates=_learning_rates(flags, steps),
        **fields,
        **_made_by_the_mechanism(flags, steps),
    )


def _learning_rates(flags: argparse.Namespace, steps: int):
    """Learning rates as a number or a table over steps, or None if no flag sets them."""
    if flags.learning_rate is None and flags.learning_rate_decay == 1.0:
        return None
    initial = 1.0 if flags.learning_rate is None else flags.learning_rate
    if flags.learning_rate_decay == 1.0:
        return initial
    per_epoch = max(1, flags.num_examples // flags.lot_size)
    return tuple(initial * flags.learning_rate_decay ** (t // per_epoch) for t in range(steps))


def _made_by_the_mechanism(flags: argparse.Namespace, steps: int) -> dict:
    kind = mechanism_class(flags.mechanism)
    for name in _OPTIONS:
        if getattr(flags, name) is not None and name not in kind.options:
            raise ValueError(
                f"Expected --{name} with a mechanism that has such a setting. Received it with "
                f"{flags.mechanism!r}. Leave it out."
            )
    return kind.from_options({name: getattr(flags, name) for name in kind.options}, steps)


def _answer(flags: argparse.Namespace) -> str:
    check_delta(flags.delta)
    run = _run(flags)
    # These imports are slow. They follow the validation, so that a bad flag is reported at once.
    from tfdp.accounting import calibration, composition, wording

    if flags.epsilon is not None:
        noise = calibration.noise_for(
            flags.epsilon, flags.delta, run, flags.guarantee, flags.adjacency
        )
        run = run.with_noise(noise)
    claimed = composition.claimed(run, flags.delta, flags.adjacency)
    proven = composition.proven(run, flags.delta, flags.adjacency)
    statement = wording.Statement.from_guarantees([run], claimed, proven)
    if flags.json:
        return json.dumps(
            {
                "noise_multiplier": getattr(run, "noise_multiplier", None),
                "claimed": claimed.to_dict(),
                "proven": proven.to_dict(),
                "run": run.to_dict(),
                "statement": statement.to_dict(),
            },
            indent=2,
            allow_nan=False,
        )
    lines = [statement.text()]
    if flags.epsilon is not None:
        lines.insert(
            0,
            f"Noise multiplier {run.noise_multiplier:.6g} meets {flags.guarantee} epsilon "
            f"{format_epsilon(flags.epsilon)}.\n",
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Parses `argv` and prints both guarantees; returns the exit code (2 for bad input)."""
    flags = _parser().parse_args(argv)
    try:
        print(_answer(flags))
    except (ValueError, ArithmeticError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
