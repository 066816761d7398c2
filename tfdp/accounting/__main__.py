"""Command line: `python -m tfdp.accounting --mechanism=dpsgd --num_examples=60000 ...`."""

import argparse
import json
import sys

from tfdp.accounting.encoding import Encoding
from tfdp.accounting.guarantee import ADJACENCIES, KINDS, check_delta, format_epsilon
from tfdp.accounting.noise_families import FAMILIES
from tfdp.accounting.run import COMPOSITIONS, RELEASES, SAMPLINGS, Run, steps_for
from tfdp.accounting.strategies import OBJECTIVES, STRATEGIES, strategy

# Flags that are fields of a run, under the same name.
_SAME_NAME = (
    "mechanism",
    "num_examples",
    "lot_size",
    "sampling",
    "max_lot_size",
    "microbatch_size",
    "momentum",
    "nesterov",
    "draws",
    "optimizer",
    "release",
    "batch_statistics",
    "seeded",
    "clip_groups",
    "groups",
    "composition",
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
    add(
        "--mechanism",
        required=True,
        help="dpsgd, si_dpsgd, discrete_sgd, dp_dropout, sgld, matrix or none",
    )
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
    add("--sampling", choices=SAMPLINGS, default="poisson", help="how lots are drawn")
    add("--max_lot_size", type=int, help="lots that draw more are cut")
    add("--microbatch_size", type=int, default=1, help="examples whose mean is clipped")
    add("--learning_rate", type=float, default=1.0, help="initial learning rate")
    add("--learning_rate_decay", type=float, default=1.0, help="factor per epoch")
    add("--momentum", type=float, default=0.0, help="momentum coefficient")
    add("--nesterov", action="store_true", help="Nesterov momentum")
    add("--draws", type=int, default=1, help="noise draws around each mean")
    add("--optimizer", default="sgd", help="update rule")
    add("--release", choices=RELEASES, default="theta", help="what is published (si_dpsgd)")
    add("--batch_statistics", action="store_true", help="statistics over the private lot")
    add("--seeded", action="store_true", help="the noise came from a seed of the user's")
    add("--clip_groups", type=int, default=1, help="groups of weights that are clipped separately")
    add("--groups", type=int, default=1, help="groups that take turns (cyclic_poisson)")
    add("--noise", choices=FAMILIES, default="gaussian", help="family of noise (discrete_sgd)")
    add("--degrees_of_freedom", type=float, help="of student_t noise")
    add("--num_weights", type=int, help="length of a gradient (discrete_sgd)")
    add(
        "--largest_entry",
        type=float,
        help="largest entry of a codebook of unit vectors; default: one vector of normal quantiles",
    )
    add("--strategy", choices=STRATEGIES, help="how noise is correlated (matrix)")
    add("--bands", type=int, help="coefficients of the strategy")
    add("--objective", choices=OBJECTIVES, default="mean", help="what banded_toeplitz minimizes")
    add("--composition", choices=COMPOSITIONS, help="the paper's recipe (dp_dropout, sgld)")
    add("--json", action="store_true", help="print JSON instead of words")
    return parser


def _run(flags: argparse.Namespace) -> Run:
    steps = flags.steps
    if steps is None:
        steps = steps_for(flags.epochs, flags.num_examples, flags.lot_size, flags.sampling)
    if steps < 1:
        raise ValueError("Expected at least one step. Received none: raise --epochs or --steps.")
    rates = flags.learning_rate
    if flags.learning_rate_decay != 1.0:
        per_epoch = max(1, flags.num_examples // flags.lot_size)
        rates = tuple(
            flags.learning_rate * flags.learning_rate_decay ** (t // per_epoch)
            for t in range(steps)
        )
    encoding = correlation = None
    if flags.mechanism == "discrete_sgd":
        if flags.num_weights is None:
            raise ValueError("Expected --num_weights for discrete_sgd. Received none.")
        encoding = Encoding(
            noise=flags.noise,
            degrees_of_freedom=flags.degrees_of_freedom,
            num_weights=flags.num_weights,
            largest_entry=flags.largest_entry,
        )
    elif flags.mechanism == "matrix":
        if flags.strategy is None:
            raise ValueError("Expected --strategy for matrix. Received none.")
        correlation = strategy(flags.strategy, steps, flags.bands, flags.objective)
    return Run(
        steps=steps,
        encoding=encoding,
        strategy=correlation,
        learning_rates=rates,
        noise_multiplier=0.0 if flags.noise_multiplier is None else flags.noise_multiplier,
        **{name: getattr(flags, name) for name in _SAME_NAME},
    )


def _answer(flags: argparse.Namespace) -> str:
    check_delta(flags.delta)
    run = _run(flags)
    # Loaded after the flags are known to be good, so that a typing error is answered at once.
    from tfdp.accounting import calibration, guarantees, wording

    if flags.epsilon is not None:
        noise = calibration.noise_for(
            flags.epsilon, flags.delta, run, flags.guarantee, flags.adjacency
        )
        run = run.with_(noise_multiplier=noise)
    claimed = guarantees.claimed(run, flags.delta, flags.adjacency)
    proven = guarantees.proven(run, flags.delta, flags.adjacency)
    if flags.json:
        return json.dumps(
            {
                "noise_multiplier": run.noise_multiplier,
                "claimed": claimed.to_dict(),
                "proven": proven.to_dict(),
                "run": run.to_dict(),
            },
            indent=2,
            allow_nan=False,
        )
    lines = [wording.render([run], claimed, proven)]
    if flags.epsilon is not None:
        lines.insert(
            0,
            f"Noise multiplier {run.noise_multiplier:.6g} meets {flags.guarantee} epsilon "
            f"{format_epsilon(flags.epsilon)}.\n",
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Parses `argv`, prints the answer and returns the exit code (2 for bad input)."""
    flags = _parser().parse_args(argv)
    try:
        print(_answer(flags))
    except (ValueError, ArithmeticError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
