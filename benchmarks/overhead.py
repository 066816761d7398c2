"""Measures what `fit` spends on lots and metrics: `python -m benchmarks --overhead`."""

from benchmarks.subjects import Family
from benchmarks.summary import Spread, spread

FAMILY = Family("tfdp", "keras_tf", "run_overhead.py", own_environment=False)
SPEC = {"model": "tutorial_cnn", "lot": 256, "subject": "overhead", "examples": 60_000}
PARTS = {
    "fit": "`fit` with Poisson lots and accuracy",
    "fit_plain": "`fit` with Poisson lots, without metrics",
    "fit_cyclic": "the same with lots of fixed order",
    "lots": "drawing and gathering lots alone (beside the step otherwise)",
}


def lines(content: dict) -> list[str]:
    """Returns the lines of the report's section; none if nothing was measured."""
    records = [r["parts"] for r in content.get("overhead", []) if "parts" in r]
    if not records:
        return []
    text = [
        "## What is not the step",
        "",
        f"{SPEC['model']}, Poisson lots of {SPEC['lot']} out of {SPEC['examples']:,} examples, ghost "
        "engine. All parts are measured in one process, in turns; medians, and their range over "
        "processes. Processor time counts all threads.",
        "",
        "| | ms | processor ms |",
        "| --- | --- | --- |",
    ]
    for name, label in PARTS.items():
        cells = [label]
        for kind in ("", "_cpu"):
            cells.append(spread(Spread.of(r[name + kind] for r in records)))
        text.append(f"| {' | '.join(cells)} |")
    return [*text, ""]
