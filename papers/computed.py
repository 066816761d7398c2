"""Cells that are computed, or measured in another way than by a training of train.py.

A table of the catalogue with `computed = "noise_distance"` has such cells. The flags of a cell are the
arguments of the computation.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from papers import audit, gradient_histogram, noise
from papers.catalogue import Cell
from papers.records import Measured, Records, runs_of
from tfdp.accounting.guarantee import format_epsilon


@dataclasses.dataclass(frozen=True)
class Computation:
    """How the cells of a table are computed and shown.

    Attributes:
        compute: A function of a cell's flags that returns the values, JSON-safe.
        lines: The values that the pages show: for each name its label, and a function that formats it.
        summary: A function that summarizes the values of all seeds for the pages.
        seeded: Name of the argument that is the seed. None if there is none.
    """

    compute: Callable[..., dict]
    lines: Mapping[str, tuple[str, Callable[..., str]]]
    summary: Callable[[Sequence[Mapping]], Mapping] = lambda values: values[0]
    seeded: str | None = None


_POINTS = "{:.2f}".format
COMPUTATIONS = {
    "audit": Computation(
        audit.compute,
        {
            "bounds": ("bound", lambda bounds: "{:.3g} ({:.3g})".format(*bounds)),
            "audits": ("audits", str),
            "claimed": ("claimed", format_epsilon),
            "proven": ("proven", format_epsilon),
            "above_claimed": ("above claimed", str),
            "above_proven": ("above proven", str),
            "of_proven": ("of proven", _POINTS),
        },
        summary=audit.summary,
        seeded="coins",
    ),
    "noise_distance": Computation(
        noise.distance,
        {
            "l1": ("L1 distance", "{:.4f}".format),
            "of_gaussian": ("in % of Gaussian", _POINTS),
            "scale": ("scale", "{:.4f}".format),
        },
    ),
    "noise_by_epsilon": Computation(
        noise.by_epsilon,
        {"sigma": ("sigma", "{:.4g}".format), "proven": ("proven epsilon", format_epsilon)},
    ),
    "gradient_histogram": Computation(
        gradient_histogram.compute,
        {
            "within_one": ("within one deviation (%)", _POINTS),
            "kurtosis": ("excess kurtosis", "{:,.4g}".format),
            "deviation": ("fitted deviation", "{:.3g}".format),
            "zeros": ("exactly 0 (%)", _POINTS),
            "nonzero_within_one": ("others within one deviation of theirs (%)", _POINTS),
            "nonzero_kurtosis": ("others' excess kurtosis", "{:,.4g}".format),
            "test_accuracy": ("test accuracy (%)", _POINTS),
        },
    ),
}


def compute(cell: Cell, seed: int) -> dict:
    """Computes a cell with a seed."""
    computation = COMPUTATIONS[cell.computed]
    seeded = {computation.seeded: seed} if computation.seeded else {}
    return computation.compute(**cell.settings | seeded)


def shown(cell: Cell, records: Records) -> Measured | Mapping | None:
    """Returns the measurements or the computed values of a cell, None if there are none."""
    runs = tuple(runs_of(cell, records).values())
    if not runs or not cell.computed:
        return Measured(runs) if runs else None
    return COMPUTATIONS[cell.computed].summary([run["values"] for run in runs])
