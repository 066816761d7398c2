"""Draws the figure of a table: accuracy by epsilon or by epoch, ours beside the paper's."""

import io
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from papers.catalogue import Table

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


# Of one panel; with more lines each row has a panel of its own.
_LINES = 8
_WIDTH, _FONT = 6.2, 9
# A narrower range of accuracies, in points, would make much of differences that are none.
_LEAST_RANGE = 5.0
_ERRORS = (1, 2, 3, 5, 10, 20, 50)


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

    panels = [(None, series)]
    if sum(1 + bool(each.printed) for each in series) > _LINES:
        panels = [(row, list(part)) for row, part in itertools.groupby(series, lambda s: s.row)]
    count = len(panels)
    columns = 2 if count > 3 and not table.curves else 1
    rows = math.ceil(count / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(_WIDTH, 4.5 if count == 1 else 1.3 + 2.4 * rows),
        layout="constrained", sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    for axes, (row, part) in zip(grid.flat, panels, strict=False):
        _draw_series(axes, table, row, part)
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=_FONT)
    axis = f"{table.by} epsilon" if table.by else table.axis
    for i, axes in enumerate(grid.flat):
        axes.set_visible(i < count)
        if i % columns == 0:
            axes.set_ylabel(f"test {'error' if table.errors else 'accuracy'} (%)", fontsize=_FONT)
        if i + columns >= count:  # the last of its column
            axes.set_xlabel("epoch" if table.curves else axis, fontsize=_FONT)
            axes.tick_params(labelbottom=True)
    axes = grid[0, 0]
    if table.curves and count > 1:  # where all that is seen happens early in most of them
        _logarithmic(grid.flat, [1, 2, 5, 10, 20, 40, 100, 200], series, columns)
    elif not table.curves and _all_positive(series):
        ticks = sorted({value for s in series for value in s.x})
        _logarithmic(grid.flat, _round_ticks(ticks) if table.by else ticks, series, columns)
    low, high = axes.get_ylim()
    if table.errors:
        axes.set_yscale("log")
        axes.set_yticks(_ERRORS, [f"{each}" for each in _ERRORS])
    elif (short := _LEAST_RANGE - (high - low)) > 0:
        axes.set_ylim(low - short / 2, high + short / 2)
    legend = {}
    for each in grid.flat:
        legend |= dict(zip(*reversed(each.get_legend_handles_labels()), strict=True))
    figure.legend(
        legend.values(), legend.keys(), loc="outside lower center", fontsize=_FONT,
        ncols=1 if max(map(len, legend)) > 34 else 2,
    )  # fmt: skip
    seeds = {len(m.trainings) for m in found.values() if m is not None}
    told = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else f"{min(seeds)} seeds"
    told = "one seed" if seeds == {1} else f"{told}, ± standard error"
    title = f"{table.paper}: {table.title} ({told})"
    figure.suptitle("\n".join(textwrap.wrap(title, 72)), fontsize=10)
    save(figure, path)
    plt.close(figure)
    return True


def _draw_series(axes, table, row, series):
    """Draws lines into one panel; the labels of a panel of one row leave its name to the title."""
    paper = "paper (claimed)" if table.guarantee == "proven" else "paper"
    if row is not None:
        axes.set_title(row, fontsize=_FONT)
    for i, each in enumerate(series):
        # A column has one colour in all panels.
        which = table.columns.index(each.column) if row is not None and each.column else i
        style = {"color": COLOURS[which % len(COLOURS)], "marker": MARKERS[which % len(MARKERS)]}
        every = max(1, len(each.x) // 10)
        prefix = f"{each.label}, " if row is None else ""
        label = (
            f"{table.axis} {each.column}" if row is not None and each.column else f"{prefix}here"
        )
        error = each.error if any(e > 0 for e in each.error) else None
        axes.errorbar(
            each.x, each.y, yerr=error, label=label, capsize=3, markevery=every, errorevery=every,
            markersize=5, **style,
        )  # fmt: skip
        if each.printed:
            axes.plot(
                *zip(*each.printed, strict=True), "--", markerfacecolor="white", alpha=0.6,
                markersize=5, label=f"{prefix}{paper}", **style,
            )  # fmt: skip
    for i, (value, words) in enumerate(table.guides):
        axes.axhline(value, color="#666666", linestyle=(":", "-.")[i % 2], label=words)


def _logarithmic(every, ticks, series, columns):
    """Sets a logarithmic scale, and of the ticks those whose labels have room."""
    values = [value for s in series for value in s.x]
    span = math.log(max(values) / min(values)) or 1.0
    kept = []
    for tick in ticks:
        if tick <= max(values) and (
            not kept or math.log(tick / kept[-1]) > (0.07 if columns == 1 else 0.15) * span
        ):
            kept.append(tick)
    for axes in every:
        axes.set_xscale("log")
        axes.set_xticks(kept, [f"{tick:g}" for tick in kept])
        axes.minorticks_off()


def _round_ticks(values) -> list[float]:
    """Returns 1, 2 and 5 times powers of ten within the range of some values."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    every = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    return [tick for tick in every if min(values) <= tick <= max(values)]


def save(figure, path: Path) -> None:
    """Writes a figure as a .png file of few colours, a quarter of the usual size."""
    from PIL import Image

    content = io.BytesIO()
    figure.savefig(content, dpi=140, format="png")
    Image.open(content).convert("RGB").quantize(64).save(path, optimize=True)


def _by_column(table, found):
    """Series of tables whose columns are numbers, of rows with two measured cells or more.

    A cell that is not measured interrupts the line.
    """
    series = []
    for row in table.rows:
        points = []
        for cell in row.cells:
            m = found[cell.name]
            x = m.epsilon(table.by) if table.by and m is not None else number(cell.column)
            if m is not None and x is not None:
                points.append((x, 100 - m.mean if table.errors else m.mean, m.error or 0.0))
            elif x is not None and not table.by:
                points.append((x, math.nan, math.nan))
        if sum(not math.isnan(y) for _, y, _ in points) < 2:
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
            curves = [dict(each.curve) for each in m.trainings if each.curve] if m else []
            if not curves:
                continue
            # A crash can have cost a curve a point.
            epochs = sorted(set.intersection(*map(set, curves)))
            values = np.array([[100 * curve[e] for e in epochs] for curve in curves])
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
