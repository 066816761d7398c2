"""The plot of --plot: the curves of a table, drawn with matplotlib if it is installed."""

import importlib.util
import math
import textwrap
from pathlib import Path

from tfdp._palette import CLAIMED, GREY, PROVEN, new_figure
from tfdp.accounting.command.table import Table, title
from tfdp.accounting.guarantee import VACUOUS_ABOVE


def check(path: str) -> Path:
    """Returns the file to write.

    Raises:
        ValueError: If the file cannot be a plot, its folder does not exist, or matplotlib is
            missing.
    """
    file = Path(path)
    if file.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--plot={path} is not a .png, .pdf or .svg file. Use one of these.")
    if not file.parent.is_dir():
        raise ValueError(
            f"The folder of --plot={path} does not exist. Create it, or choose another."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "--plot needs matplotlib, which is not installed. Install it: pip install 'tfdp[plot]'."
        )
    return file


def draw(table: Table, path: Path) -> None:
    """Plots epsilon, or the noise for a budget, against the flag that varies."""
    figure, (axis,) = new_figure(7.2, 4.5)
    label = table.name.replace("_", " ")
    axis.set_xlabel(label)
    what = "Noise for a budget" if table.budget else "Epsilon"
    settings = textwrap.fill(title(table), 90)
    axis.set_title(f"{what}, by {label}\n{settings}", loc="left", fontsize=10)
    drawn = _noise_curve(axis, table) if table.budget else _epsilon_curves(axis, table)
    _scales(axis, table, drawn)
    axis.legend(frameon=False, fontsize=10)
    figure.savefig(path, dpi=150)


def _epsilon_curves(axis, table: Table) -> list[float]:
    """Plots both epsilons and returns the plotted values."""
    delta, drawn = table.common("delta"), []
    axis.set_ylabel("epsilon" if delta is None else f"epsilon (at delta = {delta:g})")
    for kind, label, colour, style in (
        ("proven", "proven", PROVEN, "o-"),
        ("claimed", "claimed by the paper's formula", CLAIMED, "s--"),
    ):
        values = [getattr(row, kind).epsilon for row in table.rows]
        finite = [value if math.isfinite(value) else math.nan for value in values]
        missing = sum(map(math.isnan, finite))
        if missing:
            label += f" (infinite at {missing} of {len(values)} points)"
        axis.plot(table.values, finite, style, color=colour, label=label, markersize=5)
        drawn += [value for value in finite if not math.isnan(value)]
    if drawn and max(drawn) > VACUOUS_ABOVE:
        label = f"above {VACUOUS_ABOVE:g}: vacuous"
        axis.axhline(VACUOUS_ABOVE, color=GREY, linewidth=0.9, linestyle=":", label=label)
    return drawn


def _noise_curve(axis, table: Table) -> list[float]:
    """Plots the noise that meets the budget and returns the plotted values."""
    flags = table.rows[0].flags
    axis.set_ylabel("noise multiplier that meets the budget")
    budget = "each epsilon" if table.name == "epsilon" else f"epsilon {flags.epsilon:g}"
    label, noises = f"noise for {flags.guarantee} {budget}", [row.noise for row in table.rows]
    colour = PROVEN if flags.guarantee == "proven" else CLAIMED
    axis.plot(table.values, noises, "o-", color=colour, label=label, markersize=5)
    return [noise for noise in noises if math.isfinite(noise)]


def _scales(axis, table: Table, drawn: list[float]) -> None:
    """Makes axes logarithmic, with plain numbers, if values differ by a factor of 8 or more."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for name, one, values in (("x", axis.xaxis, table.values), ("y", axis.yaxis, drawn)):
        if not values or not min(values) > 0 or max(values) < 8 * min(values):
            if name == "y" and drawn:
                axis.set_ylim(0, 1.1 * max(drawn))
            continue
        axis.set(**{f"{name}scale": "log"})
        wide = max(values) > 1e3 * min(values)
        one.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        one.set_minor_formatter(NullFormatter())
