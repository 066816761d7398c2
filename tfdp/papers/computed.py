"""Cells that are no trainings of train.py: figures that are computed, or measured in their own way.

A table of the catalogue with `computed = "noise_distance"` has such cells. The flags of a cell are the
arguments of the computation, and its result is a run.json with these settings and the values. So it is
found, refused if the settings have changed, and collected like a training.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import inspect
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tfdp._files import replaced_whole
from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments.partial_folder import ResultError
from tfdp.papers import computed_figures, gradient_histogram, noise_by_epsilon, noise_distance
from tfdp.papers.catalogue import Cell, Table, flag_and_text

_RECORD = "run.json"


@dataclasses.dataclass(frozen=True)
class Computation:
    """How the cells of a table are computed and shown.

    Attributes:
        compute: a function of a cell's settings and `data_dir` that returns the values, JSON-safe.
        lines: what the pages show: (label, name of a value, function of the value to text).
        draw: draws the figure of a table from {name of a cell: its values or None} into a file, and
            returns whether there was anything to draw.
        histogram: names of the heights and of the edges of a histogram among the values.
    """

    compute: Callable[..., dict]
    lines: tuple[tuple[str, str, Callable[[float], str]], ...]
    draw: Callable[[Table, Mapping, Path], bool]
    histogram: tuple[str, str] | None = None

    def check(self, values: Mapping) -> None:
        """Raises KeyError, TypeError, ValueError or OverflowError if values lack what is shown."""
        for _, name, to_text in self.lines:
            value = values[name]
            if isinstance(value, bool) or math.isnan(value):
                raise ValueError(f"{name} is no number")
            if value < 0 and "kurtosis" not in name:  # that in excess of a Gaussian's may be
                raise ValueError(f"{name} is below 0")
            to_text(values[name])
        if self.histogram:
            heights, edges = (values[name] for name in self.histogram)
            if not all(map(math.isfinite, (*heights, *edges))) or len(edges) != len(heights) + 1:
                raise ValueError(f"no histogram in {', '.join(self.histogram)}")


COMPUTATIONS = {
    "noise_distance": Computation(
        noise_distance.compute,
        (
            ("L1 distance", "l1", "{:.4f}".format),
            ("in % of Gaussian", "of_gaussian", "{:.2f}".format),
            ("scale", "scale", "{:.4f}".format),
        ),
        computed_figures.draw_distances,
    ),
    "noise_by_epsilon": Computation(
        noise_by_epsilon.compute,
        (
            ("sigma", "sigma", "{:.4g}".format),
            ("proven epsilon", "proven", format_epsilon),
        ),
        computed_figures.draw_noise,
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
        computed_figures.draw_histograms,
        ("density", "edges"),
    ),
}


def settings(cell: Cell) -> dict:
    """Returns the settings of a computed cell: the name of the computation, and its arguments.

    Raises:
        ValueError: the computation does not take these arguments.
    """
    if cell.computed not in COMPUTATIONS:
        raise ValueError(
            f"Expected the computation of {cell.name} to be one of {', '.join(COMPUTATIONS)}. Found "
            f"{cell.computed!r}."
        )
    arguments = {name: _value(text) for name, text in map(flag_and_text, cell.flags)}
    try:
        inspect.signature(COMPUTATIONS[cell.computed].compute).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"In {cell.name}: {error}.") from error
    return {"computed": cell.computed, **arguments}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def finished(folder: Path, cell: Cell) -> dict | None:
    """Returns the record of a cell that was computed with the settings of the catalogue, or None.

    Raises:
        ResultError: a record is there that is damaged or has other settings.
    """
    path = Path(folder) / _RECORD
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text())
        found = record["settings"]
        if not is_kept_well({**record, "settings": settings(cell)}):
            raise ValueError("its time or its commit")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ResultError(
            f"Expected {path} to hold a record. Found it damaged: {error}."
        ) from error
    if found != (wanted := settings(cell)):
        raise ResultError(
            f"Expected the result in {folder} to have the settings of the catalogue, {wanted}. Found "
            f"{found}. Remove it, or choose another folder."
        )
    return record


def is_kept_well(record: Mapping) -> bool:
    """Whether a record has what the pages need; raises what `Computation.check` raises if not."""
    COMPUTATIONS[record["settings"]["computed"]].check(record["values"])
    return 0 <= record["seconds"] < 1e300 and isinstance(record["code"]["commit"], str | None)


def compute_into(folder: Path, cell: Cell, notes: Mapping, data_dir: str | None) -> dict:
    """Computes a cell and writes its record into a folder.

    Args:
        folder: the folder of the result.
        cell: the cell.
        notes: what else is recorded.
        data_dir: the folder of tensorflow_datasets' data.

    Returns:
        The record.
    """
    found = settings(cell)
    arguments = {name: value for name, value in found.items() if name != "computed"}
    started = time.perf_counter()
    values = COMPUTATIONS[cell.computed].compute(**arguments, data_dir=data_dir)
    seconds = time.perf_counter() - started
    record = {"settings": found, "values": values, "seconds": seconds, **notes}
    Path(folder).mkdir(parents=True, exist_ok=True)
    with replaced_whole(Path(folder) / _RECORD) as partial:
        Path(partial).write_text(json.dumps(record, indent=2) + "\n")
    return record


def told(cell: Cell, record: Mapping) -> str:
    """Returns the first value of a record in words."""
    label, name, to_text = COMPUTATIONS[cell.computed].lines[0]
    return f"{label} {to_text(record['values'][name])}"
