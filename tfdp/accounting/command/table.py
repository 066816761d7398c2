"""The table of --table: one row for each value, as text with bars or as JSON."""

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfdp.accounting.command.flags import Flags
from tfdp.accounting.command.plan import Answer, answer, check_complete, flag_words, plain, plan
from tfdp.accounting.guarantee import VACUOUS_ABOVE, delta_warning, format_epsilon

_BAR = 24


@dataclasses.dataclass(frozen=True)
class Table:
    """Answers for several values of one flag.

    Attributes:
      name: Name of the flag.
      values: Its values, one for each row.
      answers: The answers, one for each row.
      flags: The flags that all rows share.
    """

    name: str
    values: tuple[int | float, ...]
    answers: tuple[Answer, ...]
    flags: Flags

    @property
    def budget(self) -> bool:
        """Whether the noise of each row is that of a budget."""
        return self.answers[0].plan.flags.epsilon is not None

    def common(self, name: str) -> Any:
        """The value that a flag has in all rows, typed or chosen; None if it differs or is not set."""
        values = {getattr(each.plan.flags, name) for each in self.answers}
        return values.pop() if len(values) == 1 else None

    def noises(self) -> list[float]:
        """Noise multiplier of every row, NaN for a mechanism without noise."""
        mechanisms = [each.run.mechanism for each in self.answers]
        return [float(getattr(each, "noise_multiplier", math.nan)) for each in mechanisms]


def make(flags: Flags, name: str, values: Sequence[int | float]) -> Table:
    """Computes the rows, all of which are planned before the first is computed.

    Raises:
      ValueError: If the flags with one of the values are not valid; the message names the value.
    """
    check_complete(flags, name)
    plans, answers = [], []
    for value in values:
        row = copy.copy(flags)
        setattr(row, name, value)
        plans.append(_named(flags, name, value, plan, row))
    for value, planned in zip(values, plans, strict=True):
        answers.append(_named(flags, name, value, answer, planned))
    return Table(name, tuple(values), tuple(answers), flags)


def _named(flags: Flags, name: str, value, function, argument):
    try:
        return function(argument)
    except ValueError as error:
        row = f"--{name}={plain(value)}"
        raise ValueError(f"{error} This is the row {row} of --table.") from error


def text(table: Table) -> str:
    """The table as text."""
    chosen, rest = _chosen(table)
    header = [table.name]
    if table.name != "noise_multiplier":
        header.append("noise_multiplier")
    header += ["claimed epsilon", "proven epsilon"]
    rows = []
    for value, noise, each in zip(table.values, table.noises(), table.answers, strict=True):
        row = [plain(value)]
        if table.name != "noise_multiplier":
            row.append(f"{noise:.5g}")
        rows.append(
            [*row, format_epsilon(each.claimed.epsilon), format_epsilon(each.proven.epsilon)]
        )
    lines = [title(table)]
    if chosen:
        lines.append(f"Not set, and so chosen: {flag_words(chosen)}")
    lines += [*_notes(table), "", *_aligned([header, *rows], _bars(table), rest)]
    return "\n".join([*lines, "", *_meaning(table)])


def title(table: Table) -> str:
    """The run of the table in a few words, without the flag that varies."""
    flags = table.answers[0].plan.flags
    run = table.answers[0].run
    parts = {
        "mechanism": str(flags.mechanism),
        "num_examples": f"{flags.num_examples:,} examples",
        "lot_size": f"lots of {flags.lot_size:,} ({flags.sampling})",
        "epochs": f"{flags.epochs:g} epochs" if flags.epochs is not None else "",
        "steps": f"{run.steps:,} steps" if flags.steps is not None else "",
        "epsilon": f"{flags.guarantee} epsilon {flags.epsilon:g}" if flags.epsilon else "",
        "noise_multiplier": f"noise multiplier {plain(flags.noise_multiplier)}"
        if flags.noise_multiplier is not None
        else "",
        "delta": f"delta {flags.delta:g}",
    }
    parts.pop(table.name)
    if table.name == "lot_size":
        parts["mechanism"] += f" ({flags.sampling} lots)"
    return ", ".join(part for part in parts.values() if part)


def to_dict(table: Table) -> dict[str, Any]:
    """The table in JSON-safe form."""
    rows = []
    for value, noise, each in zip(table.values, table.noises(), table.answers, strict=True):
        rows.append(
            {
                table.name: value,
                "noise_multiplier": None if math.isnan(noise) else noise,
                "claimed": each.claimed.to_dict(),
                "proven": each.proven.to_dict(),
                "chosen": each.plan.chosen,
                "run": each.run.to_dict(),
            }
        )
    return {"over": table.name, "rows": rows}


def _chosen(table: Table) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What was chosen alike in all rows, and what else was chosen in each of them."""
    every = [each.plan.chosen for each in table.answers]
    common = {n: v for n, v in every[0].items() if all(row.get(n) == v for row in every)}
    return common, [{n: v for n, v in row.items() if n not in common} for row in every]


def _notes(table: Table) -> list[str]:
    notes = dict.fromkeys(note for each in table.answers for note in each.plan.notes)
    for each in table.answers:
        warning = delta_warning(each.proven.delta, each.run.sampling.num_examples)
        if warning:
            notes[f"Warning: {warning}"] = None
    return list(notes)


def _bars(table: Table) -> list[str]:
    """A bar for the proven epsilon of each row, or for its noise where a budget is given."""
    values = table.noises() if table.budget else [each.proven.epsilon for each in table.answers]
    drawn = [v for v in values if math.isfinite(v) and (table.budget or v <= VACUOUS_ABOVE)]
    if len(drawn) < 2 or not max(drawn) > 0:
        return [""] * len(values)
    full = max(drawn)
    return ["#" * max(1, round(_BAR * v / full)) if v in drawn else "" for v in values]


def _aligned(rows: list[list[str]], bars: list[str], rest: list[dict[str, Any]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row, bar, more in zip(rows, ["", *bars], [{}, *rest], strict=True):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        tail = f"{bar:{_BAR}}  {flag_words(more)}" if more else bar
        lines.append(f"  {'   '.join(cells)}   {tail}".rstrip())
    return lines


def _meaning(table: Table) -> list[str]:
    bars = "noise that the row needs" if table.budget else "proven epsilon"
    lines = [
        f"The bars show the {bars}. Claimed: the paper's own formula. Proven: a theorem about a run "
        f"whose lots were drawn as --sampling={table.common('sampling')} says; without --table, "
        "everything that it assumes is listed."
    ]
    reasons = dict.fromkeys(each.proven.reason for each in table.answers if each.proven.reason)
    return [*lines, *(f"Why infinite: {reason}" for reason in reasons)]
