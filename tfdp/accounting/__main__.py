"""Prints the claimed and the proven epsilon of a training, or the noise that a budget needs.

    python -m tfdp.accounting --N=60000 --lot_size=256 --epochs=15 --noise_multiplier=1.1
    python -m tfdp.accounting --N=60000 --lot_size=256 --epochs=15 --epsilon=2
    python -m tfdp.accounting --N=60000 --lot_size=256 --epochs=15 --table=noise_multiplier=1,2
    python -m tfdp.accounting --N=60000 --lot_size=256 --epsilon=2 --table=epochs=1..9 --plot=a.png
    python -m tfdp.accounting --N=60000 --lot_size=256 --epochs=15 --epsilon=2 --curve --plot=a.png

Installing tfdp adds this command as tfdp-accounting.
"""

import json
import os
import sys
from collections.abc import Sequence

import numpy as np

from tfdp.accounting.command import plan, plot, table
from tfdp.accounting.command.flags import Flags, parse, table_of
from tfdp.accounting.guarantee import Guarantee, format_epsilon
from tfdp.accounting.pictures import picture
from tfdp.accounting.statements import Statement

# False positive rates that --curve prints.
_RATES = (1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.5)


def _table(flags: Flags, name: str, values: Sequence[int | float]) -> str:
    if flags.curve:
        raise ValueError("--curve cannot be combined with --table. Remove one of them.")
    file = None if flags.plot is None else plot.check(flags.plot)
    made = table.make(flags, name, values)
    if file is not None:
        plot.draw(made, file)
    if flags.json:
        return json.dumps({"table": table.to_dict(made)}, indent=2, allow_nan=False)
    return table.text(made) + (f"\nPlot: {file}" if file else "")


def _statement(flags: Flags) -> str:
    if flags.plot is not None and not flags.curve:
        raise ValueError(
            "--plot needs --table or --curve. Replace --epochs by --table=epochs=1..100, for example."
        )
    plan.check_complete(flags)
    file = None if flags.plot is None else plot.check(flags.plot)
    found = plan.plan(flags).with_noise()
    if file is not None:
        picture([found.run], [found.proven, found.claimed]).savefig(file, dpi=150)
    statement = Statement.from_guarantees([found.run], found.claimed, found.proven)
    if flags.json:
        record = found.to_dict() | {"statement": statement.to_dict()}
        if flags.curve:
            names = ("false_positive_rates", "false_negative_rates")
            rates = (each.tolist() for each in found.proven.curve())
            record["curve"] = dict(zip(names, rates, strict=True))
        return json.dumps(record, indent=2, allow_nan=False)
    lines = []
    if flags.epsilon is not None:
        lines.append(
            f"Noise multiplier {found.noise:.6g} meets "
            f"{found.flags.guarantee} epsilon {format_epsilon(flags.epsilon)}."
        )
    if found.chosen:
        lines.append(f"Chosen by default: {plan.flag_words(found.chosen)}")
    said = statement.text(flags.full, more="--full")
    said += _curve(found.proven) if flags.curve else ""
    said += f"\nPlot: {file}" if file else ""
    return "\n".join([*lines, *found.notes, "", said] if lines or found.notes else [said])


def _curve(proven: Guarantee) -> str:
    rates = zip(_RATES, np.interp(_RATES, *proven.curve()), strict=True)
    rows = [f"  {fpr:>20g}   {fnr:.4f}" for fpr, fnr in rates]
    return "\n".join(["\n\n  false positive rate   least false negative rate (proven)", *rows])


def main(argv: Sequence[str] | None = None) -> int:
    """Parses `argv` and prints the answer; returns the exit code (2 for bad input)."""
    try:
        flags = parse(sys.argv[1:] if argv is None else argv, __doc__)
        varied = table_of(flags)
        print(_statement(flags) if varied is None else _table(flags, *varied), flush=True)
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it. Python would report this again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, ArithmeticError, RuntimeError, MemoryError, OSError) as error:
        print(f"error: {str(error) or type(error).__name__}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
