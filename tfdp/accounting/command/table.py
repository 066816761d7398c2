"""The table of --table: one row for each value, as text with bars or as JSON."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from tfdp._settings import flag_of
from tfdp.accounting.command.flags import SETTINGS, Flags
from tfdp.accounting.command.plan import Plan, check_complete, flag_words, plan
from tfdp.accounting.guarantee import VACUOUS_ABOVE, delta_warning, format_epsilon

_BAR = 24


@dataclasses.dataclass(frozen=True)
class Table:
    """Plans for several values of one flag, calibrated to the budget if there is one.

    Attributes:
        name: The flag that varies.
        values: Its values.
        rows: The plan for each value.
    """

    name: str
    values: tuple[int | float, ...]
    rows: tuple[Plan, ...]

    @property
    def budget(self) -> bool:
        """Whether the noise of each row is calibrated to a budget."""
        return self.rows[0].flags.epsilon is not None

    def common(self, name: str) -> Any:
        """Returns the common value of a flag in all rows, typed or chosen; None if there is none."""
        values = {getattr(row.flags, name) for row in self.rows}
        return values.pop() if len(values) == 1 else None


def make(flags: Flags, name: str, values: Sequence[int | float]) -> Table:
    """Computes the rows, after all of them have been planned.

    Raises:
        ValueError: If the flags are invalid with one of the values, which the message names.
    """
    check_complete(flags, name)
    rows = []
    for value in values:
        try:
            varied: dict[str, Any] = {name: value, "typed": flags.typed | {name}}
            rows.append(plan(dataclasses.replace(flags, **varied)))
        except ValueError as error:
            raise ValueError(
                f"{error} This is the row {flag_of(name, value)} of --table."
            ) from error
    return Table(name, tuple(values), tuple(row.with_noise() for row in rows))


def text(table: Table) -> str:
    """Returns the table as text."""
    first, *others = (row.chosen for row in table.rows)
    common = {n: v for n, v in first.items() if all(each.get(n) == v for each in others)}
    lines = [title(table)]
    if common:
        lines.append(f"Chosen by default: {flag_words(common)}")
    notes = dict.fromkeys(note for row in table.rows for note in row.notes)
    for row in table.rows:
        warning = delta_warning(row.flags.delta, row.run.sampling.num_examples)
        notes |= {f"Warning: {warning}": None} if warning else {}
    lines += [*notes, "", *_aligned(table, common), ""]
    bars = "noise multiplier" if table.budget else "proven epsilon"
    lines += [
        f"Bars: {bars}. Claimed: the paper's formula. Proven: a theorem for --sampling="
        f"{table.common('sampling')}.",
        "Without --table, --full lists its assumptions.",
    ]
    reasons = dict.fromkeys(row.proven.reason for row in table.rows if row.proven.reason)
    return "\n".join([*lines, *(f"Why infinite: {reason}" for reason in reasons)])


def title(table: Table) -> str:
    """Returns the flags of the table, without the one that varies."""
    flags = table.rows[0].flags
    known = {*flags.typed, *flags.chosen} - {table.name}
    return flag_words(
        {n: getattr(flags, n) for n in SETTINGS if n in known and SETTINGS[n].group != "Output"}
    )


def to_dict(table: Table) -> dict[str, Any]:
    """Returns the table in JSON-safe form."""
    pairs = zip(table.values, table.rows, strict=True)
    return {
        "over": table.name,
        "rows": [{table.name: value} | row.to_dict() for value, row in pairs],
    }


def _bars(table: Table) -> list[str]:
    """A bar for the proven epsilon of each row, or for its noise where a budget is given."""
    values = [row.noise if table.budget else row.proven.epsilon for row in table.rows]
    drawn = [v for v in values if math.isfinite(v) and (table.budget or v <= VACUOUS_ABOVE)]
    if len(drawn) < 2 or not max(drawn) > 0:
        return [""] * len(values)
    return ["#" * max(1, round(_BAR * v / max(drawn))) if v in drawn else "" for v in values]


def _aligned(table: Table, common: dict[str, Any]) -> list[str]:
    columns = [[table.name, *(f"{value:g}" for value in table.values)]]
    if table.name != "noise_multiplier":
        columns.append(["noise_multiplier", *(f"{row.noise:.5g}" for row in table.rows)])
    for kind in ("claimed", "proven"):
        epsilons = (format_epsilon(getattr(row, kind).epsilon) for row in table.rows)
        columns.append([f"{kind} epsilon", *epsilons])
    columns = [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    chosen = [{n: v for n, v in row.chosen.items() if n not in common} for row in table.rows]
    lines = []
    for cells, bar, more in zip(
        zip(*columns, strict=True), ["", *_bars(table)], [{}, *chosen], strict=True
    ):
        tail = f"{bar:{_BAR}}  {flag_words(more)}" if more else bar
        lines.append(f"  {'   '.join(cells)}   {tail}".rstrip())
    return lines
