"""Draws the figure of a table: what was measured, by column or by epoch, and what the paper prints."""

import io
import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from papers.catalogue import Table
from tfdp._palette import ATTACK, CLAIMED, PROVEN

# The palette of Okabe and Ito, which is safe for the colour-blind, but for its yellow, which is too
# light for lines; markers differ, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#666666")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# Of one panel; with more lines each row has a panel of its own.
_LINES = 8
_WIDTH, _FONT = 6.2, 9
# A narrower range of accuracies, in points, would make much of differences that are none.
_LEAST_RANGE = 5.0
# Bounds of 0 are drawn here, at the left edge of a logarithmic axis.
_LEAST_BOUND = 0.02


class Line(NamedTuple):
    """A line of a panel, for a row, for a cell, or for what the paper printed; with standard errors.

    The label tells it from others of its row; it is empty for a row with one line.
    """

    row: str
    label: str
    style: int
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] = ()
    printed: bool = False


class Panel(NamedTuple):
    """Some lines with their vertical axis."""

    title: str
    axis: str
    lines: list[Line]
    log: bool = False


def draw(table: Table, found: Mapping[str, Any], path: Path) -> bool:
    """Draws a table into a file; returns whether there was anything to draw.

    Args:
        table: the table.
        found: for the name of each cell the `Measured`, or the values of a computation, or None.
        path: a .png file.
    """
    known = {cell.name: found[cell.name] for cell in table.cells if found[cell.name] is not None}
    special = {"gradient_histogram": _histograms, "audit": _audits}
    if table.computed in special:
        return bool(known) and special[table.computed](table, known, path)
    if table.computed:
        panels = _PANELS[table.computed](table, known)
    else:
        panels = _split(table, _curves(table, known) if table.curves else _by_column(table, known))
    if not panels[0].lines:
        return False
    seeds = {1} if table.computed else {len(m.trainings) for m in known.values()}
    told = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else f"{min(seeds)} seeds"
    told = " (one seed)" if seeds == {1} else f" ({told}, ± standard error)"
    axis = "epoch" if table.curves else f"{table.by} epsilon" if table.by else table.axis
    _draw_panels(table, panels, axis, "" if table.computed else told, path)
    return True


def _by_column(table, known) -> list[Line]:
    """Lines of tables whose columns are numbers, of rows with two measured cells or more.

    A cell that is not measured interrupts the line.
    """
    lines = []
    for row in table.rows:
        points = []
        for cell in row.cells:
            m, x = known.get(cell.name), number(cell.column)
            if m is not None:
                x = m.epsilon(table.by) if table.by else x
                y = (100 - m.mean if table.errors else m.mean, m.error or 0.0)
            if x is not None and (m is not None or not table.by):
                points.append((x, *((math.nan, math.nan) if m is None else y)))
        if sum(not math.isnan(y) for _, y, _ in points) < 2:
            continue
        style = len({line.row for line in lines})
        printed = _printed(row)
        label = "here" if printed else ""
        lines.append(Line(row.label, label, style, *zip(*sorted(points), strict=True)))
        if printed:
            label = "paper (claimed)" if table.guarantee == "proven" else "paper"
            x, y = zip(*printed, strict=True)
            lines.append(Line(row.label, label, style, x, y, printed=True))
    return lines


def _printed(row) -> list[tuple[float, float]]:
    return sorted(
        (number(cell.column), cell.printed)
        for cell in row.cells
        if number(cell.column) is not None and isinstance(cell.printed, int | float)
    )


def _curves(table, known) -> list[Line]:
    """Lines of accuracy by epoch: the mean of the seeds, with its standard error."""
    lines = []
    for cell in table.cells:
        m = known.get(cell.name)
        curves = [dict(each.curve) for each in m.trainings if each.curve] if m else []
        if not curves:
            continue
        # A crash can have cost a curve a point.
        epochs = sorted(set.intersection(*map(set, curves)))
        values = np.array([[100 * curve[e] for e in epochs] for curve in curves])
        error = np.zeros(len(epochs))
        if len(values) > 1:
            error = values.std(axis=0, ddof=1) / math.sqrt(len(values))
        label = f"{table.axis} {cell.column}" if len(table.columns) > 1 else ""
        style = table.columns.index(cell.column) if len(table.columns) > 1 else len(lines)
        lines.append(Line(cell.label, label, style, epochs, values.mean(axis=0), error))
    return lines


def _split(table, lines) -> list[Panel]:
    """One panel, or one for each row where there are many lines."""
    axis = f"test {'error' if table.errors else 'accuracy'} (%)"
    if len(lines) > _LINES:
        rows = itertools.groupby(lines, lambda line: line.row)
        if not table.curves:  # whose columns have styles
            rows = ((row, [line._replace(style=0) for line in part]) for row, part in rows)
        lines = [
            (row, [line._replace(label=line.label or "here") for line in part])
            for row, part in rows
        ]
        return [Panel(row, axis, part, table.errors) for row, part in lines]
    several = len({line.row for line in lines}) > 1
    named = [
        line._replace(
            label=", ".join(filter(None, (line.row, line.label))),
            style=i if table.curves else line.style,
        )
        if several or not line.label
        else line
        for i, line in enumerate(lines)
    ]
    return [Panel("", axis, named, table.errors)]


def _values(table, known, name) -> list[Line]:
    """Lines of one of the values of computed cells."""
    lines = []
    for style, row in enumerate(table.rows):
        points = [(number(c.column), known[c.name][name]) for c in row.cells if c.name in known]
        if len(points) > 1:
            lines.append(Line(row.label, row.label, style, *zip(*points, strict=True)))
    return lines


def _distances(table, known) -> list[Panel]:
    return [
        Panel("", "L1 distance by coordinate (clip norms)", _values(table, known, "l1"), True),
        Panel("", "L1 distance (% of Gaussian noise)", _values(table, known, "of_gaussian")),
    ]


def _noise(table, known) -> list[Panel]:
    sigma, proven = _values(table, known, "sigma"), _values(table, known, "proven")
    for style, row in enumerate(table.rows):
        if printed := _printed(row):
            x, y = zip(*printed, strict=True)
            sigma.append(Line(row.label, f"{row.label}, paper", style, x, y, printed=True))
    ends = sorted({x for line in proven for x in line.x})
    proven.append(Line("", "proven = claimed", -1, ends, ends, printed=True))
    return [
        Panel("", "sigma (noise on the sum is 2 C sigma)", sigma, True),
        Panel("", "proven epsilon of the same noise", proven, True),
    ]


_PANELS = {"noise_distance": _distances, "noise_by_epsilon": _noise}


def _draw_panels(table, panels, axis, told, path):
    columns = 2 if len(panels) > 3 and not table.curves else 1
    rows = math.ceil(len(panels) / columns)
    height = 4.5 if len(panels) == 1 else 1.3 + (2.4 if panels[0].title else 3.2) * rows
    figure, grid = _subplots(
        rows, columns, (_WIDTH, height), sharex=True, sharey=bool(panels[0].title)
    )
    values = [x for panel in panels for line in panel.lines for x in line.x]
    log = min(values) > 0 and (len(panels) > 1 if table.curves else True)
    for i, (axes, panel) in enumerate(itertools.zip_longest(grid.flat, panels)):
        if panel is None:
            axes.set_visible(False)
            continue
        _draw_panel(axes, table, panel)
        if log:
            _logarithmic(axes, "x")
        if i % columns == 0:
            axes.set_ylabel(panel.axis, fontsize=_FONT)
        if i + columns >= len(panels):  # the last of its column
            axes.set_xlabel(axis, fontsize=_FONT)
            axes.tick_params(labelbottom=True)
    legend = {}
    for axes in grid.flat:
        legend |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        legend.values(), legend.keys(), loc="outside lower center", fontsize=_FONT,
        ncols=1 if max(map(len, legend)) > 34 else 2,
    )  # fmt: skip
    _save(figure, f"{table.paper}: {table.title}{told}", path)


def _draw_panel(axes, table, panel):
    axes.set_title(panel.title, fontsize=_FONT)
    axes.tick_params(labelsize=_FONT)
    axes.grid(alpha=0.3)
    for line in panel.lines:
        style = {
            "color": COLOURS[line.style % 8],
            "marker": MARKERS[line.style % 8],
            "markersize": 5,
        }
        every = max(1, len(line.x) // 10)
        if line.printed:
            style |= {"linestyle": "--", "markerfacecolor": "white", "alpha": 0.6}
            style |= {"marker": "x", "markersize": 11, "alpha": 1} if len(line.x) == 1 else {}
            axes.plot(line.x, line.y, label=line.label, **style)
        else:
            axes.errorbar(
                line.x, line.y, yerr=line.error if any(e > 0 for e in line.error) else None,
                label=line.label, capsize=3, markevery=every, errorevery=every, **style,
            )  # fmt: skip
    for i, (value, words) in enumerate(table.guides):
        axes.axhline(value, color="#666666", linestyle=(":", "-.")[i % 2], label=words)
    low, high = axes.get_ylim()
    if panel.log:
        _logarithmic(axes, "y")
    elif not table.computed and (short := _LEAST_RANGE - (high - low)) > 0:
        axes.set_ylim(low - short / 2, high + short / 2)


def _logarithmic(axes, which):
    """Sets a logarithmic scale with ticks at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _histograms(table, known, path) -> bool:
    """Draws the histogram of every cell, with the fitted Gaussian."""
    figure, grid = _subplots(len(known), 1, (_WIDTH, 3.6 * len(known)))
    labels = {cell.name: f"{cell.label}, {table.axis} {cell.column}" for cell in table.cells}
    for axes, (name, values) in zip(grid.flat, known.items(), strict=True):
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
        axes.set_title(labels[name], fontsize=_FONT)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=_FONT)
    _save(figure, f"{table.paper}: {table.title}", path)
    return True


def _audits(table, known, path) -> bool:
    """Draws the bounds of all audits beside what is stated, with a line for each case."""
    cells = [cell for cell in reversed(table.cells) if cell.name in known]
    figure, grid = _subplots(1, 1, (9.5, 0.45 * len(cells) + 1.6))
    axes = grid[0, 0]
    kinds = {"every": ("|", ATTACK), "claimed": ("D", CLAIMED), "proven": ("D", PROVEN)}
    labels = {"every": "lower bounds of the audits (0 at the left edge)"}
    for name, (marker, colour) in kinds.items():
        for y, cell in enumerate(cells):
            x = np.maximum(_LEAST_BOUND, np.ravel(known[cell.name][name]))
            label = None if y else labels.get(name, name)
            axes.plot(x, [y] * len(x), marker, color=colour, markersize=8, alpha=0.7, label=label)
    axes.set_xlim(left=_LEAST_BOUND * 0.9)
    _logarithmic(axes, "x")
    axes.set_yticks(range(len(cells)), [cell.label for cell in cells])
    axes.set_xlabel("epsilon (log scale)")
    axes.grid(alpha=0.3, axis="x")
    figure.legend(frameon=False, fontsize=_FONT, ncols=3, loc="outside lower center")
    _save(figure, f"{table.paper}: {table.title}", path)
    return True


def _subplots(rows, columns, size, **shared):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", squeeze=False, **shared
    )


def _save(figure, title, path):
    """Writes a figure as a .png file of few colours, a quarter of the usual size."""
    from matplotlib import pyplot
    from PIL import Image

    figure.suptitle("\n".join(textwrap.wrap(title, 72)), fontsize=10)
    content = io.BytesIO()
    figure.savefig(content, dpi=140, format="png")
    Image.open(content).convert("RGB").quantize(64).save(path, optimize=True)
    pyplot.close(figure)


def number(text: str) -> float | None:
    """Returns the number that a text is; None if it is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
