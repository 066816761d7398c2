"""Measures memory and time against the lot size: `python -m benchmarks --scale`.

All lots have the same physical batch size. A lot is cut into physical batches inside one compiled
step, and only one physical batch is in the network at a time, so that memory grows only by the inputs
of the lot. The step time should be a linear function of the lot size.
"""

import math

from benchmarks.subjects import LABELS
from benchmarks.summary import Spread, number, spread

MODEL = "tutorial_cnn"
LOTS = (256, 1024, 4096, 16384)
PHYSICAL = 256
# The data set has the same size for all lots, so that memory differs only by the needs of the lot.
EXAMPLES = 4 * max(LOTS)
BYTES_PER_EXAMPLE = 4 * (28 * 28 * 1 + 1 + 1)  # inputs, label, weight
# Pairs (subject, lot size): first without privacy, then tfdp with one physical batch and with more.
POINTS = (("keras_tf", PHYSICAL), *(("tfdp", lot) for lot in LOTS))


def plan(repeats: int):
    """Yields (round, subject, lot); odd rounds reverse the order of the points."""
    for round in range(repeats):
        for subject, lot in POINTS if round % 2 == 0 else reversed(POINTS):
            yield round, subject, lot


def spec(subject: str, lot: int) -> dict:
    """Returns the part of the measured program's spec that depends on the point."""
    own = {"model": MODEL, "lot": lot, "subject": subject, "examples": EXAMPLES}
    return own | ({"physical": PHYSICAL} if subject == "tfdp" else {})


def line_through(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Fits y = a + b x by least squares of the errors relative to y.

    Returns:
        (a, b, the largest deviation of a point from the line, relative to the line).
    """
    weights = [1 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    slope = math.fsum(
        w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)
    ) / math.fsum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    start = mean_y - slope * mean_x
    return start, slope, max(abs(y - start - slope * x) / (start + slope * x) for x, y in points)


def lines(content: dict) -> list[str]:
    """Returns the lines of the report's section; none if nothing was measured."""
    measured = [r for r in content.get("scale", []) if "step_ms" in r]
    found = {}
    for record in measured:
        found.setdefault((record["subject"], record["lot"]), []).append(record)
    first = found.get(("tfdp", min(LOTS)))
    if first is None:
        return []
    text = [
        "## Large lots",
        "",
        f"{MODEL}, {EXAMPLES:,} examples in memory, physical batches of {PHYSICAL}. *Growth*: peak "
        f"over that of a lot of {min(LOTS)}; *inputs*: what one copy of the lot's inputs, labels and "
        "weights takes.",
        "",
        "| | lot | step, ms | us per example | peak, MiB | growth, MiB | inputs, MiB |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    base = Spread.of(r["peak_mib"] for r in first).median
    points = []
    for subject, lot in POINTS:
        records = found.get((subject, lot), [])
        if not records:
            continue
        step = Spread.of(r["step_ms"] for r in records)
        peak = Spread.of(r["peak_mib"] for r in records).median
        if subject == "tfdp":
            points.append((lot, step.median))
        growth = f"{peak - base:,.0f}" if subject == "tfdp" else ""
        text.append(
            f"| {LABELS[subject]} | {lot:,} | {spread(step)} | {1000 * step.median / lot:.1f} "
            f"| {number(peak)} | {growth} | {number(lot * BYTES_PER_EXAMPLE / 2**20)} |"
        )
    if len(points) > 2:
        start, slope, off = line_through(points)
        text += [
            "",
            f"Least squares: {start:.2f} ms + {1000 * slope:.2f} us per example; no point is "
            f"off that line by more than {100 * off:.1f}%.",
        ]
    return [*text, ""]
