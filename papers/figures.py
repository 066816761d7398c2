"""Draws the papers' figures from our measurements, and the audits beside the stated epsilons."""

import io
import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from papers.catalogue import Table
from papers.computed import COMPUTATIONS
from tfdp._palette import ATTACK, CLAIMED, PROVEN

# The palette of Okabe and Ito, which is safe for the colour-blind, without its yellow, which is too
# light for lines. Markers differ, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_WIDTH, _FONT = 6.2, 9
# Smallest range of accuracies, in points. A narrower one would exaggerate insignificant differences.
_LEAST_RANGE = 5.0
# Bounds of 0 are drawn here, at the left edge of a logarithmic axis.
_LEAST_BOUND = 0.02


def draw(table: Table, found: Mapping[str, Any], path: Path) -> None:
    """Draws the figure of a table into a file.

    Args:
        table: The table.
        found: The `Measured` of each cell, or the values of a computation, or None, by name.
        path: Path of the .png file.
    """
    known = {cell.name: found[cell.name] for cell in table.cells if found[cell.name]}
    kinds = {"epoch": _curves, "columns": _accuracies, "claimed": _accuracies}
    kinds |= {"histogram": _histograms, "audits": _audits}
    figure = kinds.get(table.figure, _values)(table, known)
    title = f"{table.paper}: {table.title}"
    if not table.computed:
        seeds = sorted({len(m.runs) for m in known.values()})
        number = f"{seeds[0]} to {seeds[-1]}" if seeds[1:] else seeds[0]
        title += " (one seed)" if seeds == [1] else f" ({number} seeds, ± standard error)"
    _save(figure, title, path)


def _curves(table, known):
    """Draws accuracy by epoch, mean and standard error. With several columns, each row has a panel."""
    several = len(table.columns) > 1
    figure, grid = _panels(len(table.rows) if several else 1, 2.6 if several else 3.2, sharey=True)
    for i, row in enumerate(table.rows):
        axes = grid[i if several else 0]
        axes.set_title(row[0].label if several else "", fontsize=_FONT)
        axes.set_ylabel("test accuracy (%)", fontsize=_FONT)
        for cell in row:
            m = known.get(cell.name)
            curves = [dict(run["curve"]) for run in m.runs if "curve" in run] if m else []
            if curves:
                # A crash may have cost a curve a point.
                epochs = sorted(set.intersection(*map(set, curves)))
                values = 100 * np.array([[curve[e] for e in epochs] for curve in curves])
                n = len(values)
                error = values.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else None
                label = f"{table.axis} {cell.column}" if several else row[0].label
                _line(axes, label, epochs, values.mean(axis=0), error)
    grid[-1].set_xlabel("epoch", fontsize=_FONT)
    return figure


def _accuracies(table, known):
    """Draws accuracy by column, or by claimed epsilon."""
    figure, (axes,) = _panels(1, 3.2)
    for row in table.rows:
        some = [(cell, known[cell.name]) for cell in row if cell.name in known]
        by_column = table.figure == "columns"
        points = [(float(c.column) if by_column else m.epsilon("claimed"), m) for c, m in some]
        points = sorted((x, m.mean, m.error) for x, m in points)
        if points:
            _line(axes, row[0].label, *zip(*points, strict=True))
    low, high = axes.get_ylim()
    if (short := _LEAST_RANGE - (high - low)) > 0:
        axes.set_ylim(low - short / 2, high + short / 2)
    _logarithmic(axes, "x")
    axes.set_ylabel("test accuracy (%)", fontsize=_FONT)
    axes.set_xlabel(table.axis if by_column else "claimed epsilon", fontsize=_FONT)
    return figure


def _values(table, known):
    """Draws computed values by column, beside printed ones, and proven epsilons beside claimed ones."""
    names = table.figure.split()
    figure, grid = _panels(len(names), 3.2)
    columns = [float(column) for column in table.columns]
    printed = [(float(c.column), c.printed) for c in table.cells if c.printed is not None]
    for axes, name in zip(grid, names, strict=True):
        for row in table.rows:
            y = [known[cell.name][name] for cell in row if cell.name in known]
            if len(y) == len(columns):
                _line(axes, row[0].label, columns, y)
        if name == "proven":
            axes.plot(columns, columns, "--", color="#666666", label="proven = claimed")
        elif axes is grid[0] and printed:
            axes.plot(
                *zip(*printed, strict=True), "xk", markersize=11, label="printed in the paper"
            )
        _logarithmic(axes, "x")
        low, high = axes.dataLim.intervaly
        if high > 10 * low > 0:
            _logarithmic(axes, "y")
        axes.set_ylabel(COMPUTATIONS[table.computed].lines[name][0], fontsize=_FONT)
    grid[-1].set_xlabel(table.axis, fontsize=_FONT)
    return figure


def _histograms(table, known):
    """Draws the histogram of every cell, with the fitted Gaussian."""
    figure, grid = _panels(len(known), 3.4, sharex=False)
    labels = {cell.name: f"{cell.label}, {table.axis} {cell.column}" for cell in table.cells}
    for axes, (name, values) in zip(grid, known.items(), strict=True):
        edges, density = np.array(values["edges"]), np.array(values["density"])
        axes.stairs(density, edges, color=COLOURS[0], label="entries of gradients")
        gaussian = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
        axes.plot(edges, gaussian, "--", color=COLOURS[1], label="fitted Gaussian")
        axes.set_yscale("log")
        axes.set_ylim(density[density > 0].min() / 2, 2 * density.max())
        axes.set_xlabel(f"(entry - mean) / deviation, deviation {values['deviation']:.3g}")
        axes.set_ylabel("density")
        axes.set_title(labels[name], fontsize=_FONT)
    return figure


def _audits(table, known):
    """Draws the bounds of all audits beside the stated epsilons, with a line for each case."""
    cells = [cell for cell in reversed(table.cells) if cell.name in known]
    figure, (axes,) = _panels(1, 0.45 * len(cells) + 0.3, width=9.5)
    _logarithmic(axes, "x")
    kinds = {"every": ("|", ATTACK), "claimed": ("D", CLAIMED), "proven": ("D", PROVEN)}
    labels = {"every": "lower bounds of the audits (0 at the left edge)"}
    for name, (marker, colour) in kinds.items():
        for y, cell in enumerate(cells):
            x = np.maximum(_LEAST_BOUND, np.ravel(known[cell.name][name]))
            label = None if y else labels.get(name, name)
            axes.plot(x, [y] * len(x), marker, color=colour, markersize=8, alpha=0.7, label=label)
    axes.set_xlim(left=_LEAST_BOUND * 0.9)
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells])
    axes.set_xlabel("epsilon (log scale)")
    return figure


def _line(axes, label, x, y, error=None):
    i, every = len(axes.containers), max(1, len(x) // 10)
    axes.errorbar(
        x, y, yerr=error if np.any(error) else None, label=label, capsize=3, markevery=every,
        errorevery=every, color=COLOURS[i], marker=MARKERS[i], markersize=5,
    )  # fmt: skip


def _logarithmic(axes, which):
    """Sets a logarithmic scale with ticks at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _panels(number, height, width=_WIDTH, *, sharex=True, sharey=False):
    """Returns a figure and its panels, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        number, 1, figsize=(width, 1.3 + height * number), layout="constrained", squeeze=False,
        sharex=sharex, sharey=sharey,
    )  # fmt: skip
    return figure, grid[:, 0]


def _save(figure, title, path):
    """Adds grids and one legend, and writes a .png file of few colours, which is small."""
    from matplotlib import pyplot
    from PIL import Image

    legend = {}
    for axes in figure.axes:
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=_FONT)
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(
        legend.values(), legend.keys(), loc="outside lower center", fontsize=_FONT,
        ncols=1 if max(map(len, legend)) > 50 else 2,
    )  # fmt: skip
    figure.suptitle("\n".join(textwrap.wrap(title, 78)), fontsize=10)
    content = io.BytesIO()
    figure.savefig(content, dpi=140, format="png")
    Image.open(content).convert("RGB").quantize(64).save(path, optimize=True)
    pyplot.close(figure)
