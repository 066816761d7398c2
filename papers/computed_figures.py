"""Draws the figures of tables whose cells are computed; the palette is that of the other figures."""

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from papers.catalogue import Table
from papers.figures import COLOURS, MARKERS, number, save
from tfdp._palette import ATTACK, CLAIMED, PROVEN

# Numbers that are near each other are told apart by their markers, so these are small.
_SIZE = 5
# Bounds of 0 are drawn here, at the left edge of the logarithmic axis.
_LEAST_BOUND = 0.02


def draw_distances(table: Table, found: Mapping, path: Path) -> bool:
    """Draws L1 distance by divergence, and beside it the same in percent of Gaussian noise."""
    series = _series(table, found)
    if not series:
        return False
    figure, (upper, lower) = _axes(2, 1, (6.2, 7.5))
    for label, style, x, values in series:
        upper.plot(x, [v["l1"] for v in values], label=label, **style)
        lower.plot(x, [v["of_gaussian"] for v in values], label=label, **style)
    upper.set_yscale("log", base=2)
    upper.yaxis.set_major_formatter("{x:g}")
    upper.set_ylabel("L1 distance by coordinate (clip norms)")
    lower.set_ylabel("L1 distance (% of Gaussian noise)")
    upper.legend(fontsize=8)
    _finish(figure, table, path, series, (upper, lower))
    return True


def draw_noise(table: Table, found: Mapping, path: Path) -> bool:
    """Draws sigma by claimed epsilon, and what the paper prints of it; beside it what is proven."""
    series = _series(table, found)
    if not series:
        return False
    figure, (upper, lower) = _axes(2, 1, (6.2, 7.5))
    printed = {
        row.label: [(number(c.column), c.printed) for c in row.cells if c.printed is not None]
        for row in table.rows
    }
    for label, style, x, values in series:
        upper.plot(x, [v["sigma"] for v in values], label=f"{label}, here", **style)
        if printed[label]:
            style_of_paper = {
                "linestyle": "", "marker": "x", "markersize": 11, "markeredgewidth": 2.5,
                "color": style["color"], "zorder": 5,
            }  # fmt: skip
            upper.plot(
                *zip(*printed[label], strict=True), label=f"{label}, paper", **style_of_paper
            )
        lower.plot(x, [v["proven"] for v in values], label=label, **style)
    for axes in (upper, lower):
        axes.set_yscale("log")
    every = [each for _, _, x, _ in series for each in x]
    ends = [min(every), max(every)]
    lower.plot(ends, ends, ":", color="#666666", label="proven = claimed")
    upper.set_ylabel("sigma (noise on the sum is 2 C sigma)")
    lower.set_ylabel("proven epsilon of the same noise")
    upper.legend(fontsize=8)
    lower.legend(fontsize=8)
    _finish(figure, table, path, series, (upper, lower))
    return True


def draw_histograms(table: Table, found: Mapping, path: Path) -> bool:
    """Draws the histogram of every cell, with the fitted Gaussian."""
    cells = [cell for cell in table.cells if found[cell.name] is not None]
    if not cells:
        return False
    figure, every = _axes(len(cells), 1, (6.2, 3.6 * len(cells)))
    for axes, cell in zip(np.atleast_1d(every), cells, strict=True):
        values = found[cell.name]
        edges, density = np.array(values["edges"]), np.array(values["density"])
        axes.stairs(density, edges, color=COLOURS[0], fill=True, alpha=0.35)
        axes.stairs(density, edges, color=COLOURS[0], label="entries of gradients")
        gaussian = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
        axes.plot(edges, gaussian, "--", color=COLOURS[1], label="fitted Gaussian")
        axes.set_yscale("log")
        positive = density[density > 0]
        axes.set_ylim(positive.min() / 2, 2 * positive.max())
        axes.set_xlabel(f"(entry - mean) / deviation, deviation {values['deviation']:.3g}")
        axes.set_ylabel("density")
        axes.set_title(f"{cell.label}, {table.axis} {cell.column}", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    _save(figure, table, path)
    return True


def draw_audits(table: Table, found: Mapping, path: Path) -> bool:
    """Draws the bounds of all audits beside what is stated, with a line for each case."""
    cells = [cell for cell in reversed(table.cells) if found[cell.name] is not None]
    if not cells:
        return False
    figure, axes = _axes(1, 1, (9.5, 0.45 * len(cells) + 1.6))
    labels = {"lower bounds of the audits (0 at the left edge)": ("|", ATTACK)}
    labels |= {"claimed": ("D", CLAIMED), "proven": ("D", PROVEN)}
    for label, (marker, colour) in labels.items():
        axes.plot([], [], marker, color=colour, label=label, markersize=8)
    for y, cell in enumerate(cells):
        values = found[cell.name]
        bounds = [max(_LEAST_BOUND, bound) for bound in values["every"]]
        axes.plot(bounds, [y] * len(bounds), "|", color=ATTACK, markersize=11, alpha=0.6)
        axes.plot([values["claimed"]], [y], "D", color=CLAIMED, markersize=7, zorder=3)
        axes.plot([values["proven"]], [y], "D", color=PROVEN, markersize=7, zorder=3)
    axes.set_xscale("log")
    axes.set_xlim(left=_LEAST_BOUND * 0.9)
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells])
    axes.set_xlabel("epsilon (log scale)")
    axes.grid(alpha=0.3, axis="x")
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="outside lower center")
    _save(figure, table, path)
    return True


def _series(table, found):
    """(label, style, x, values) of the rows with two cells or more."""
    series = []
    for i, row in enumerate(table.rows):
        points = [(number(c.column), found[c.name]) for c in row.cells if found[c.name] is not None]
        if len(points) > 1:
            style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
            style |= {"markersize": _SIZE, "linewidth": 1.2}
            series.append((row.label, style, *zip(*points, strict=True)))
    return series


def _axes(rows, columns, size):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(rows, columns, figsize=size, layout="constrained")


def _finish(figure, table, path, series, every):
    ticks = sorted({each for _, _, x, _ in series for each in x})
    for axes in every:
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel(table.axis)
        axes.grid(alpha=0.3)
    _save(figure, table, path)


def _save(figure, table, path):
    from matplotlib import pyplot as plt

    title = f"{table.paper}: {table.title}"
    figure.suptitle("\n".join(textwrap.wrap(title, 72)), fontsize=10)
    save(figure, path)
    plt.close(figure)
