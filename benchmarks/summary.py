"""Summarizes records as one row per (model, lot, subject): medians, spreads and ratios."""

import dataclasses
import statistics

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.results import REASONS
from benchmarks.subjects import LABELS, MODELS, REALISTIC, family_of


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median, smallest and largest value over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values):
        """Returns the spread of some values, or None if there are none."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values)) if values else None


@dataclasses.dataclass(frozen=True)
class Row:
    """Summary of the measurements of one subject on one model and lot size.

    Attributes:
        model: name of the model.
        lot: lot size.
        subject: name of the subject, a peer or a baseline.
        rounds: how many rounds were measured.
        step_ms: median step times of the rounds, in milliseconds.
        ratio: step time over the step time of the baseline in the same round; None for a baseline.
        peak_mib: highest resident memory of the process, in MiB.
        memory_ratio: `peak_mib` over that of the baseline in the same round; None for a baseline.
        first_step: seconds to the end of the first step, tracing and compilation included.
        first_ratio: `first_step` over that of the baseline in the same round; None for a baseline.
        reason: why nothing was measured, or None.
    """

    model: str
    lot: int
    subject: str
    rounds: int
    step_ms: Spread | None
    ratio: Spread | None
    peak_mib: Spread | None
    memory_ratio: Spread | None
    first_step: Spread | None
    first_ratio: Spread | None
    reason: str | None


def rows(content: dict) -> list[Row]:
    """Returns all rows of a file of results, ordered by model, lot size and subject."""
    cells = {}
    for record in content["records"]:
        key = (record["model"], record["lot"], record["subject"])
        cells.setdefault(key, {})[record["round"]] = record
    order = {name: i for i, name in enumerate((*MODELS, *REALISTIC, *LABELS))}
    return [
        _row(key, cells)
        for key in sorted(cells, key=lambda key: (order[key[0]], key[1], order[key[2]]))
    ]


def _row(key, cells):
    model, lot, subject = key
    measured = {n: record for n, record in cells[key].items() if "step_ms" in record}
    baseline = family_of(subject).baseline
    pairs = []
    if subject != baseline:
        other = cells.get((model, lot, baseline), {})
        pairs = [(r, other[n]) for n, r in measured.items() if "step_ms" in other.get(n, {})]
    reason = None
    if not measured:
        last = next(iter(cells[key].values()))
        words = {"unsupported": "not supported", "skipped": "skipped", "failed": "failed"}
        reason = next(f"{words[kind]}: {last[kind]}" for kind in REASONS if kind in last)
    return Row(
        model=model,
        lot=lot,
        subject=subject,
        rounds=len(measured),
        step_ms=Spread.of(r["step_ms"] for r in measured.values()),
        ratio=Spread.of(r["step_ms"] / b["step_ms"] for r, b in pairs),
        peak_mib=Spread.of(r["peak_mib"] for r in measured.values()),
        memory_ratio=Spread.of(r["peak_mib"] / b["peak_mib"] for r, b in pairs),
        first_step=Spread.of(r["first_step_seconds"] for r in measured.values()),
        first_ratio=Spread.of(r["first_step_seconds"] / b["first_step_seconds"] for r, b in pairs),
        reason=reason,
    )


def number(value: float) -> str:
    """Formats a number with three significant digits, or as a whole number from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(value: Spread | None) -> str:
    """Formats median and range, as in "12.3 (11.9 to 14.0)"; None gives an empty text."""
    if value is None:
        return ""
    if value.low == value.high:
        return number(value.median)
    return f"{number(value.median)} ({number(value.low)} to {number(value.high)})"


def show(content: dict) -> None:
    """Prints the table of all rows.

    Args:
        content: the content of a file of results.
    """
    table = Table(box=box.SIMPLE_HEAD, title="Training steps: median over rounds (range)")
    for name in ("model", "lot", "what", "step, ms", "over no privacy", "peak, MiB", "over"):
        table.add_column(name, justify="left" if name in ("model", "what") else "right")
    before = None
    for row in rows(content):
        if before not in (None, (row.model, row.lot)):
            table.add_section()
        before = (row.model, row.lot)
        table.add_row(
            row.model,
            str(row.lot),
            LABELS[row.subject],
            row.reason or spread(row.step_ms),
            spread(row.ratio),
            number(row.peak_mib.median) if row.peak_mib else "",
            f"{row.memory_ratio.median:.2f}" if row.memory_ratio else "",
        )
    Console().print(table)
