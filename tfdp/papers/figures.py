"""Draws the figure of a table: accuracy by epsilon or by epoch, ours beside the paper's."""

import base64
import io
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfdp.papers.catalogue import Table

# The palette of Okabe and Ito, which is safe for the colour-blind, but for its yellow, which is too
# light for lines; markers differ, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


class _Series(NamedTuple):
    """A line with its points; `printed` has those of the paper."""

    label: str
    row: str
    column: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float]
    printed: list[tuple[float, float]]


def draw(table: Table, found: Mapping, path: Path) -> bool:
    """Draws a table into a file; returns whether there was anything to draw.

    Args:
        table: the table.
        found: for the name of each cell, the `Measured` or None.
        path: a .png file.
    """
    series = _curves(table, found) if table.curves else _by_column(table, found)
    if not series:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    # More curves than there are colours have a panel for each row, with a colour for each column.
    panels = [(None, series)]
    if table.curves and len(series) > len(COLOURS):
        panels = [(row, list(part)) for row, part in itertools.groupby(series, lambda s: s.row)]
    count = len(panels)
    height = 4.5 if count == 1 else 1 + 2.6 * count
    figure, grid = plt.subplots(
        count, figsize=(7.5, height), layout="constrained", sharex=True, sharey=True, squeeze=False
    )
    for axes, (row, part) in zip(grid[:, 0], panels, strict=True):
        _draw_series(axes, table, row, part)
        axes.set_ylabel("test accuracy (%)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, ncols=2)
    axis = f"{table.by} epsilon" if table.by else table.axis
    axes.set_xlabel("epoch" if table.curves else axis)
    if count > 1:  # where all that is seen happens early in most of them
        _logarithmic(axes, [1, 2, 5, 10, 20, 40, 100, 200], series)
    elif not table.curves and _all_positive(series):
        _logarithmic(axes, sorted({value for s in series for value in s.x}), series)
    seeds = {len(m.accuracies) for m in found.values() if m is not None}
    told = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else f"{min(seeds)} seeds"
    told = "one seed" if seeds == {1} else f"{told}, ± standard error"
    title = f"{table.paper}: {table.title} ({told})"
    figure.suptitle("\n".join(textwrap.wrap(title, 95)), fontsize=10)
    save(figure, path)
    plt.close(figure)
    return True


def _draw_series(axes, table, row, series):
    """Draws curves into one panel; the labels of a panel of one row leave its name to the title."""
    paper = "paper (claimed)" if table.guarantee == "proven" else "paper"
    if row is not None:
        axes.set_title(row, fontsize=9)
    for i, each in enumerate(series):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        every = max(1, len(each.x) // 10)
        label = f"{each.label}, here" if row is None else f"{table.axis} {each.column}"
        error = each.error if any(each.error) else None
        axes.errorbar(
            each.x, each.y, yerr=error, label=label, capsize=3, markevery=every, errorevery=every,
            **style,
        )  # fmt: skip
        if each.printed:
            axes.plot(
                *zip(*each.printed, strict=True), "--", markerfacecolor="white", alpha=0.6,
                label=f"{each.label}, {paper}", **style,
            )  # fmt: skip
    for i, (value, words) in enumerate(table.guides):
        axes.axhline(value, color="#666666", linestyle=(":", "-.")[i % 2], label=words)


def _logarithmic(axes, ticks, series):
    last = max(value for s in series for value in s.x)
    ticks = [tick for tick in ticks if tick <= last]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def save(figure, path: Path) -> None:
    """Writes a figure as a .png file of few colours, a quarter of the usual size."""
    from PIL import Image

    content = io.BytesIO()
    figure.savefig(content, dpi=120, format="png")
    Image.open(content).convert("RGB").quantize(64).save(path, optimize=True)


def embedded(path: Path) -> str:
    """Returns a .png file as an address that holds its content."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _by_column(table, found):
    """Series of tables whose columns are numbers, of rows with two measured cells or more."""
    series = []
    for row in table.rows:
        points = []
        for cell in row.cells:
            m = found[cell.name]
            x = getattr(m, table.by) if table.by and m is not None else number(cell.column)
            if m is not None and x is not None:
                points.append((x, m.mean, m.error or 0.0))
        if len(points) < 2:
            continue
        points.sort()
        printed = sorted(
            (number(cell.column), cell.printed)
            for cell in row.cells
            if number(cell.column) is not None and isinstance(cell.printed, int | float)
        )
        x, y, error = zip(*points, strict=True)
        series.append(_Series(row.label, row.label, "", x, y, error, printed))
    return series


def _curves(table, found):
    """Series of accuracy by epoch: the mean of the seeds, with its standard error."""
    series = []
    for row in table.rows:
        for cell in row.cells:
            m = found[cell.name]
            if m is None or not m.curves:
                continue
            # A crash can have cost a curve a point.
            epochs = sorted(set.intersection(*({e for e, _ in curve} for curve in m.curves)))
            values = np.array([[dict(curve)[e] for e in epochs] for curve in m.curves])
            error = np.zeros(len(epochs))
            if len(values) > 1:
                error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
            what = "epsilon " if "epsilon" in table.axis else ""
            label = row.label if len(row.cells) == 1 else f"{row.label}, {what}{cell.column}"
            series.append(
                _Series(label, row.label, cell.column, epochs, values.mean(axis=0), error, [])
            )
    return series


def number(text: str) -> float | None:
    """Returns the number that a text is; None if it is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _all_positive(series) -> bool:
    return all(value > 0 for s in series for value in s.x)
