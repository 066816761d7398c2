"""Memory and time against the size of the lot, at one physical batch: `python -m benchmarks --scale`.

A lot is cut into physical batches inside one compiled step, so that only one of them is in the
network at a time; what grows with the lot are its inputs. The cost should be a line through the lot.
"""

import math

from benchmarks.subjects import LABELS
from benchmarks.summary import Spread, number, spread

MODEL = "tutorial_cnn"
LOTS = (256, 1024, 4096, 16384)
PHYSICAL = 256
# The data are the same for all lots, so that memory differs by what the lot needs.
EXAMPLES = 4 * max(LOTS)
BYTES_PER_EXAMPLE = 4 * (28 * 28 * 1 + 1 + 1)  # inputs, label, weight
# Without privacy first; then one physical batch and more.
POINTS = (("keras_tf", PHYSICAL), *(("tfdp", lot) for lot in LOTS))


def plan(repeats: int):
    """Yields (round, subject, lot); odd rounds turn the order around."""
    for round in range(repeats):
        for subject, lot in POINTS if round % 2 == 0 else reversed(POINTS):
            yield round, subject, lot


def spec(subject: str, lot: int) -> dict:
    """What the measured program is told besides the settings."""
    own = {"model": MODEL, "lot": lot, "subject": subject, "examples": EXAMPLES}
    return own | ({"physical": PHYSICAL} if subject == "tfdp" else {})


def line_through(points: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Fits y = a + b x by least squares, each point relative to its size.

    Returns:
        (a, b, largest deviation relative to the line).
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
    """The section of the report; nothing where nothing was measured."""
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
