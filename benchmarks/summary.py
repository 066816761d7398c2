"""Summarizes records as one row per (model, lot, subject): medians, spreads and ratios."""

import dataclasses
import math
import statistics

from benchmarks.measure import STEADY
from benchmarks.results import REASONS
from benchmarks.subjects import LABELS, MODELS, REALISTIC, family_of


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median, the smallest and the largest value over rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of_key(cls, records, name, over=None):
        """Returns the spread over rounds of a key of records, or of its ratio to other records.

        The result is None without such records.

        Args:
            records: The records.
            name: The key. Records without it do not count.
            over: Records that divide those of the same rounds. None for no ratio.
        """
        values = {r.get("round", i): r[name] for i, r in enumerate(records) if name in r}
        if over is not None:
            others = {r["round"]: r[name] for r in over if name in r}
            values = {
                round: values[round] / others[round] for round in values.keys() & others.keys()
            }
        found = values.values()
        return cls(statistics.median(found), min(found), max(found)) if found else None


@dataclasses.dataclass(frozen=True)
class Row:
    """Summary of the measurements of one subject on one model and lot size.

    Attributes:
        model, lot, subject: The model, the lot size and the way to train.
        rounds: Number of measured rounds.
        step_ms: Median step times of the rounds, in milliseconds.
        peak_mib: Highest resident memory of the process, in MiB.
        first_step: Seconds to the end of the first step, including tracing and compilation.
        ratio, memory_ratio, first_ratio: Ratios of these three to those of the baseline in the same
            round. None for a baseline.
        least_ratio: Ratio of the shortest step of all rounds to the shortest of the baseline. Other
            programs on the machine disturb it least. None as for `ratio`.
        reason: Why nothing was measured, or None.
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
    least_ratio: float | None
    reason: str | None


def rows(content: dict) -> list[Row]:
    """Returns all rows of a file of results, ordered by model, lot size and subject."""
    cells = {}
    for record in content.get("records", []):
        key = (record["model"], record["lot"], record["subject"])
        cells.setdefault(key, []).append(record)
    order = {name: i for i, name in enumerate((*MODELS, *REALISTIC, *LABELS))}
    return [
        _row(key, cells)
        for key in sorted(cells, key=lambda key: (order[key[0]], key[1], order[key[2]]))
    ]


def _row(key, cells):
    model, lot, subject = key
    records, baseline = cells[key], family_of(subject).baseline
    plain = [] if subject == baseline else cells.get((model, lot, baseline), [])
    spreads = [
        Spread.of_key(records, name, over)
        for name in ("step_ms", "peak_mib", "first_step_seconds")
        for over in (None, plain)
    ]
    rounds = sum("step_ms" in record for record in records)
    own, others = ([r["min_ms"] for r in each if "min_ms" in r] for each in (records, plain))
    least = min(own) / min(others) if own and others else None
    reason = None if rounds else reason_of(records[0])
    return Row(model, lot, subject, rounds, *spreads, least, reason)


def least_fixed_ms(content: dict) -> float:
    """Returns the least time of the fixed computation in a file of results, or infinity."""
    sections = [value for value in content.values() if isinstance(value, list)]
    records = [record for section in sections for record in section if isinstance(record, dict)]
    return min((t for r in records for t in r.get("fixed_ms", ())), default=math.inf)


def conditions(content: dict) -> str:
    """Returns a sentence about load and speed of the machine beside the measured steps."""
    measured = [record for record in content.get("records", []) if "step_ms" in record]
    loads = [record["load"] for record in measured if "load" in record]
    found = f"Load average before a measurement {min(loads)} to {max(loads)}. " if loads else ""
    slowest = [max(record["fixed_ms"]) for record in measured if "fixed_ms" in record]
    if not slowest:
        return found + "The speed of the machine was not recorded."
    least = least_fixed_ms(content)
    steady = sum(time <= STEADY * least for time in slowest)
    return (
        f"{found}A fixed computation before and after took {least:g} to {max(slowest):g} ms; "
        f"beside {steady} of {len(measured)} measurements, it was within a tenth of its least time."
    )


def reason_of(record: dict) -> str:
    """Returns why a record has no time, in words."""
    kind = next(kind for kind in REASONS if kind in record)
    words = {"unsupported": "not supported"}.get(kind, kind)
    return f"{words}: {record[kind]}".replace("|", "/")


def number(value: float) -> str:
    """Formats a number with three significant digits, or as a whole number from 100 on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def spread(value: Spread | None) -> str:
    """Formats median and range, as in "12.3 (11.9 to 14.0)". None gives an empty text."""
    if value is None:
        return ""
    if value.low == value.high:
        return number(value.median)
    return f"{number(value.median)} ({number(value.low)} to {number(value.high)})"
