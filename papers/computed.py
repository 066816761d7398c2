"""Cells that are no trainings of train.py: computations, and measurements of their own kind.

A table of the catalogue with `computed = "noise_distance"` has such cells. The flags of a cell are the
arguments of the computation, and its result is a run.json with the values.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from papers import audit, gradient_histogram, noise_by_epsilon, noise_distance
from papers.catalogue import Cell, pairs
from papers.records import Records, Values, runs_of
from tfdp._files import replaced_whole
from tfdp.accounting.guarantee import format_epsilon


@dataclasses.dataclass(frozen=True)
class Computation:
    """How the cells of a table are computed and shown.

    Attributes:
        compute: a function of a cell's flags that returns the values, JSON-safe.
        lines: what the pages show: (label, name of a value, function of the value to text).
        summary: makes the values that are shown of those of all seeds.
        seeded: name of the argument that is the seed; None if there is none.
    """

    compute: Callable[..., dict]
    lines: tuple[tuple[str, str, Callable[..., str]], ...]
    summary: Callable[[Sequence[Mapping]], Mapping] = lambda values: values[0]
    seeded: str | None = None


COMPUTATIONS = {
    "audit": Computation(
        audit.compute,
        (
            ("bound", "bounds", lambda bounds: "{:.3g} ({:.3g})".format(*bounds)),
            ("audits", "audits", str),
            ("claimed", "claimed", format_epsilon),
            ("proven", "proven", format_epsilon),
            ("above claimed", "above_claimed", str),
            ("above proven", "above_proven", str),
            ("of proven", "of_proven", "{:.2f}".format),
        ),
        summary=audit.summary,
        seeded="coins",
    ),
    "noise_distance": Computation(
        noise_distance.compute,
        (
            ("L1 distance", "l1", "{:.4f}".format),
            ("in % of Gaussian", "of_gaussian", "{:.2f}".format),
            ("scale", "scale", "{:.4f}".format),
        ),
    ),
    "noise_by_epsilon": Computation(
        noise_by_epsilon.compute,
        (
            ("sigma", "sigma", "{:.4g}".format),
            ("proven epsilon", "proven", format_epsilon),
        ),
    ),
    "gradient_histogram": Computation(
        gradient_histogram.compute,
        (
            ("within one deviation (%)", "within_one", "{:.2f}".format),
            ("excess kurtosis", "kurtosis", "{:,.4g}".format),
            ("fitted deviation", "deviation", "{:.3g}".format),
            ("exactly 0 (%)", "zeros", "{:.2f}".format),
            ("others within one deviation of theirs (%)", "nonzero_within_one", "{:.2f}".format),
            ("others' excess kurtosis", "nonzero_kurtosis", "{:,.4g}".format),
            ("test accuracy (%)", "test_accuracy", "{:.2f}".format),
        ),
    ),
}


def arguments(cell: Cell) -> dict:
    """Returns the arguments of a cell's computation."""
    return {name: _value(text) for name, text in pairs(cell.flags)}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def compute_into(folder: Path, cell: Cell, seed: int) -> None:
    """Computes a cell, and writes its run.json into a folder."""
    found, computation = arguments(cell), COMPUTATIONS[cell.computed]
    if computation.seeded:
        found[computation.seeded] = seed
    started = time.perf_counter()
    values = computation.compute(**found)
    content = {"values": values, "seconds": time.perf_counter() - started}
    Path(folder).mkdir(parents=True, exist_ok=True)
    with replaced_whole(Path(folder) / "run.json") as partial:
        Path(partial).write_text(json.dumps(content, indent=1) + "\n")


def values(cell: Cell, records: Records) -> Mapping | None:
    """Returns the values that are shown of a computed cell; None for nothing."""
    runs = runs_of(cell, records).values()
    return COMPUTATIONS[cell.computed].summary([run.values for run in runs]) if runs else None


def told(cell: Cell, run: Values) -> str:
    """Returns the first value of a run in words."""
    computation = COMPUTATIONS[cell.computed]
    shown = computation.summary([run.values])
    label, name, to_text = computation.lines[0]
    return f"{label} {to_text(shown[name])}"
