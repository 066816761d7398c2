"""Draws the figure of a table: accuracy by epsilon or by epoch, ours beside the paper's."""

import base64
import io
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tfdp.papers.catalogue import Table

# The palette of Okabe and Ito, which is safe for the colour-blind, but for its yellow, which is too
# light for lines; markers differ, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw(table: Table, found: Mapping, path: Path) -> bool:
    """Draws a table into a file; returns whether there was anything to draw.

    Args:
        table: the table.
        found: for the name of each cell, the `Measured` or None.
        path: a .png file.
    """
    if table.curves:
        series = _curves(table, found)
        axis = "epoch"
    else:
        series = _by_column(table, found)
        axis = f"{table.by} epsilon" if table.by else table.axis
    if not series:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
    paper = "paper (claimed)" if table.guarantee == "proven" else "paper"
    for i, (label, x, y, error, printed) in enumerate(series):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        every = max(1, len(x) // 10)
        axes.errorbar(x, y, yerr=error, label=f"{label}, here", capsize=3, markevery=every, **style)
        if printed:
            axes.plot(
                *zip(*printed, strict=True), "--", markerfacecolor="white", alpha=0.6,
                label=f"{label}, {paper}", **style,
            )  # fmt: skip
    for i, (value, words) in enumerate(table.guides):
        axes.axhline(value, color="#666666", linestyle=(":", "-.")[i % 2], label=words)
    if not table.curves and _all_positive(series):
        axes.set_xscale("log")
        ticks = sorted({value for _, x, *_ in series for value in x})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    seeds = {len(m.accuracies) for m in found.values() if m is not None}
    told = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else f"{min(seeds)} seeds"
    told = "one seed" if seeds == {1} else f"{told}, ± standard error"
    axes.set_xlabel(axis)
    axes.set_ylabel("test accuracy (%)")
    title = f"{table.paper}: {table.title} ({told})"
    axes.set_title("\n".join(textwrap.wrap(title, 95)), fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, ncols=2)
    save(figure, path)
    plt.close(figure)
    return True


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
        series.append((row.label, x, y, error, printed))
    return series


def _curves(table, found):
    """Series of accuracy by epoch: the mean of the seeds, with its standard error."""
    series = []
    for row in table.rows:
        for cell in row.cells:
            m = found[cell.name]
            if m is None or not m.curves:
                continue
            epochs = [epoch for epoch, _ in m.curves[0]]
            values = np.array([[a for _, a in curve] for curve in m.curves])
            error = np.zeros(len(epochs))
            if len(values) > 1:
                error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
            what = "epsilon " if "epsilon" in table.axis else ""
            label = row.label if len(row.cells) == 1 else f"{row.label}, {what}{cell.column}"
            series.append((label, epochs, values.mean(axis=0), error, []))
    return series


def number(text: str) -> float | None:
    """Returns the number that a text is; None if it is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _all_positive(series) -> bool:
    return all(value > 0 for _, x, *_ in series for value in x)
