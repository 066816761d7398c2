"""The suites of `python -m benchmarks`: whole steps, large lots and large embeddings.

A suite has points, each measured in a separate process, and lines for the report. Odd rounds reverse
the order of the subjects, so that none is always the first.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from benchmarks.subjects import LABELS, REALISTIC, groups
from benchmarks.summary import Spread, number, spread


@dataclasses.dataclass(frozen=True)
class Suite:
    """One kind of measurement.

    Attributes:
        section: Name of the list of its records in the file of results.
        points: A function that yields the points of a number of rounds. A point is part of the spec of
            the measured program, and identifies its record.
        rest: A function that returns the other entries of the program's spec for a point.
    """

    section: str
    points: Callable[[int], Iterable[dict]]
    rest: Callable[[dict], dict] = lambda point: {}


def steps(models: list[str], lots: list[int], peers: list[str]) -> Suite:
    """Returns the suite of whole steps: a framework without privacy and its peers, one after the other.

    Realistic models are measured only with tfdp's own engine and without privacy.
    """

    def points(rounds: int) -> Iterator[dict]:
        for round in range(rounds):
            for model in models:
                for lot in lots:
                    for group in groups(["tfdp"] if model in REALISTIC else peers):
                        for subject in group if round % 2 == 0 else reversed(group):
                            yield {"model": model, "lot": lot, "subject": subject, "round": round}

    return Suite("records", points)


def _in_turns(points: list[dict]) -> Callable[[int], Iterator[dict]]:
    """Returns a function that yields the points of every round, in reverse order in odd ones."""

    def of(rounds: int) -> Iterator[dict]:
        for round in range(rounds):
            yield from (
                {"round": round, **point} for point in points[:: 1 if round % 2 == 0 else -1]
            )

    return of


# -- Large lots: memory and time against the lot size. Only one physical batch is in the network at a
# time, so that memory grows only by the inputs of the lot, and the step time is linear in it.

_CNN = "tutorial_cnn"
LARGE_LOTS = (256, 1024, 4096, 16384)
_PHYSICAL = 256
# The data set has the same size for all lots, so that memory differs only by the needs of the lot.
_EXAMPLES = 4 * max(LARGE_LOTS)
BYTES_PER_EXAMPLE = 4 * (28 * 28 * 1 + 1 + 1)  # inputs, label, weight
_SCALE = (("keras_tf", _PHYSICAL), *(("tfdp", lot) for lot in LARGE_LOTS))


def _scale_rest(point: dict) -> dict:
    rest = {"model": _CNN, "examples": _EXAMPLES}
    return rest | ({"physical": _PHYSICAL} if point["subject"] == "tfdp" else {})


def _by(records: list[dict], *names: str) -> dict[tuple, list[dict]]:
    """Groups the records with times by some of their keys."""
    found = {}
    for record in records:
        if "step_ms" in record:
            found.setdefault(tuple(record[name] for name in names), []).append(record)
    return found


def _scale_lines(records: list[dict]) -> list[str]:
    found = _by(records, "subject", "lot")
    if ("tfdp", min(LARGE_LOTS)) not in found:
        return []
    lines = [
        "## Large lots",
        "",
        f"{_CNN}, {_EXAMPLES:,} examples in memory, physical batches of {_PHYSICAL}. *Growth*: peak "
        f"over that of a lot of {min(LARGE_LOTS)}; *inputs*: what one copy of the lot's inputs, labels "
        "and weights takes.",
        "",
        "| | lot | step, ms | us per example | peak, MiB | growth, MiB | inputs, MiB |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    base = Spread.of_key(found["tfdp", min(LARGE_LOTS)], "peak_mib").median
    points = []
    for subject, lot in (key for key in _SCALE if key in found):
        step, peak = (Spread.of_key(found[subject, lot], k) for k in ("step_ms", "peak_mib"))
        growth = f"{peak.median - base:,.0f}" if subject == "tfdp" else ""
        points += [(lot, step.median)] if subject == "tfdp" else []
        lines.append(
            f"| {LABELS[subject]} | {lot:,} | {spread(step)} | {1000 * step.median / lot:.1f} "
            f"| {number(peak.median)} | {growth} | {number(lot * BYTES_PER_EXAMPLE / 2**20)} |"
        )
    if len(points) > 2:
        lot, ms = np.array(points).T
        start, slope = np.polynomial.polynomial.polyfit(lot, ms, 1, w=1 / ms)  # errors are relative
        off = np.max(np.abs(ms / (start + slope * lot) - 1))
        lines += [
            "",
            f"Least squares: {start:.2f} ms + {1000 * slope:.2f} us per example; no point is "
            f"off that line by more than {100 * off:.1f}%.",
        ]
    return [*lines, ""]


# -- Large embeddings: a plain step touches the rows whose tokens are in the lot. A private step adds
# noise to all rows, since rows without noise would reveal the tokens. So time and memory grow with the
# table.

_LSTM, _WIDTH, _LOT = "lstm", 100, 256
_VOCABULARIES = (1_000, 10_000, 100_000, 1_000_000)
_TWO = ("keras_tf", "tfdp")


def _vocabulary_lines(records: list[dict]) -> list[str]:
    found = _by(records, "subject", "vocabulary")
    if not found:
        return []
    lines = [
        "## Vocabularies",
        "",
        f"{_LSTM}, lots of {_LOT}, embeddings of {_WIDTH} numbers a token. *Embedding*: its "
        "memory. *Growth*: how much more memory than with the smallest vocabulary, in embeddings. "
        "Noise is added to every row of an embedding, used or not, because the rows without noise "
        "would tell which tokens a lot has.",
        "",
        "| | vocabulary | step, ms | first step, s | peak, MiB | embedding, MiB | growth |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for subject in _TWO:
        base = None
        for vocabulary in (v for v in _VOCABULARIES if (subject, v) in found):
            step, peak, first = (
                Spread.of_key(found[subject, vocabulary], key)
                for key in ("step_ms", "peak_mib", "first_step_seconds")
            )
            size = 4 * _WIDTH * vocabulary / 2**20
            growth = "" if base is None else f"{(peak.median - base) / size:.1f}"
            base = peak.median if base is None else base
            lines.append(
                f"| {LABELS[subject]} | {vocabulary:,} | {spread(step)} | {number(first.median)} "
                f"| {number(peak.median)} | {number(size)} | {growth} |"
            )
    return [*lines, ""]


SUITES = {
    "scale": Suite(
        "scale", _in_turns([{"subject": name, "lot": lot} for name, lot in _SCALE]), _scale_rest
    ),
    "vocabulary": Suite(
        "vocabulary",
        _in_turns([{"subject": s, "vocabulary": v} for v in _VOCABULARIES for s in _TWO]),
        lambda _: {"model": _LSTM, "lot": _LOT},
    ),
}


def lines(content: dict) -> list[str]:
    """Returns the report's lines on all suites except whole steps."""
    of = {"scale": _scale_lines, "vocabulary": _vocabulary_lines}
    return [line for name, make in of.items() for line in make(content.get(name, []))]
