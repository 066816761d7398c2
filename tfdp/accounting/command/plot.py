"""The plot of --plot: the curves of a table, drawn with matplotlib if it is installed."""

import importlib.util
import math
from pathlib import Path

from tfdp._palette import CLAIMED, GREY, PROVEN
from tfdp.accounting.command.flags import FlagError
from tfdp.accounting.command.table import Table, title
from tfdp.accounting.guarantee import VACUOUS_ABOVE

_SUFFIXES = (".png", ".pdf", ".svg")
_AXES = {
    "noise_multiplier": "noise multiplier (noise over clip norm)",
    "epochs": "epochs",
    "steps": "steps",
    "lot_size": "lot size",
    "num_examples": "number of examples",
    "delta": "delta",
    "epsilon": "epsilon of the budget",
}


def check(path: str) -> Path:
    """Returns the file to write.

    Raises:
      FlagError: If the file cannot be a plot, its folder does not exist, or matplotlib is missing.
    """
    file = Path(path)
    if file.suffix.lower() not in _SUFFIXES:
        raise FlagError(
            f"Expected --plot to name a file that ends with {', '.join(_SUFFIXES)}. Received {path!r}."
        )
    if not file.parent.is_dir():
        raise FlagError(
            f"Expected --plot to name a file in a folder that exists. Received {path!r}. Make the "
            "folder first."
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise FlagError(
            "Expected matplotlib to be installed for --plot. Found none. Install it with "
            "pip install 'tfdp[plot]', or pip install matplotlib."
        )
    return file


def draw(table: Table, path: Path) -> None:
    """Draws epsilon against the flag that varies, or the noise that a budget needs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7.2, 4.5))
    drawn = _noise_curve(axis, table) if table.budget else _epsilon_curves(axis, table)
    axis.set_xlabel(_AXES[table.name])
    _headings(axis, table)
    _scales(axis, table, drawn)
    axis.grid(color="#dddddd", linewidth=0.6, which="major")
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.legend(frameon=False, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _headings(axis, table: Table) -> None:
    what = "Noise that a budget needs" if table.budget else "Epsilon"
    settings = _two_lines(title(table))
    lines = settings.count("\n") + 1
    axis.set_title(
        f"{what}, by {_AXES[table.name].partition(' (')[0]}", loc="left", fontsize=13,
        pad=12 + 13 * lines,
    )  # fmt: skip
    axis.annotate(
        settings, (0, 1), xytext=(0, 8), xycoords="axes fraction", textcoords="offset points",
        va="bottom", color=GREY, fontsize=9.5,
    )  # fmt: skip


def _epsilon_curves(axis, table: Table) -> list[float]:
    """Draws both epsilons; returns the values that were drawn."""
    delta = table.common("delta")
    axis.set_ylabel("epsilon" if delta is None else f"epsilon (at delta = {delta:g})")
    drawn = []
    curves = (
        ("proven", [each.proven.epsilon for each in table.answers], PROVEN, "o-"),
        ("claimed by the paper's formula", [e.claimed.epsilon for e in table.answers], CLAIMED, "s--"),
    )  # fmt: skip
    for label, values, colour, style in curves:
        finite = [value if math.isfinite(value) else math.nan for value in values]
        missing = sum(map(math.isnan, finite))
        if missing:
            label += f" (infinite at {missing} of {len(values)} points)"
        axis.plot(table.values, finite, style, color=colour, label=label, markersize=5)
        drawn += [value for value in finite if not math.isnan(value)]
    if drawn and max(drawn) > VACUOUS_ABOVE:
        axis.axhline(VACUOUS_ABOVE, color=GREY, linewidth=0.9, linestyle=":")
        axis.annotate(
            f"above {VACUOUS_ABOVE:g}: vacuous", (1, VACUOUS_ABOVE), xytext=(-4, 3), ha="right",
            xycoords=("axes fraction", "data"), textcoords="offset points", color=GREY, fontsize=9,
        )  # fmt: skip
    return drawn


def _noise_curve(axis, table: Table) -> list[float]:
    """Draws the noise that meets the budget; returns the values that were drawn."""
    flags = table.answers[0].plan.flags
    axis.set_ylabel("noise multiplier that meets the budget")
    budget = "each epsilon" if table.name == "epsilon" else f"epsilon {flags.epsilon:g}"
    label = f"noise for {flags.guarantee} {budget}"
    noises = table.noises()
    colour = PROVEN if flags.guarantee == "proven" else CLAIMED
    axis.plot(table.values, noises, "o-", color=colour, label=label, markersize=5)
    return [noise for noise in noises if math.isfinite(noise)]


def _scales(axis, table: Table, drawn: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def logarithmic(one, values) -> None:
        wide = max(values) > 1e3 * min(values)
        one.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        one.set_minor_formatter(NullFormatter())

    if min(table.values) > 0 and max(table.values) >= 8 * min(table.values):
        axis.set_xscale("log")
        logarithmic(axis.xaxis, table.values)
    if drawn and min(drawn) > 0 and max(drawn) >= 8 * min(drawn):
        axis.set_yscale("log")
        logarithmic(axis.yaxis, drawn)
    elif drawn:
        axis.set_ylim(0, 1.1 * max(drawn))


def _two_lines(words: str) -> str:
    """Breaks a long title after the comma next to its middle."""
    if len(words) <= 70:
        return words
    commas = [place for place in range(len(words)) if words[place : place + 2] == ", "]
    middle = min(commas, key=lambda place: abs(place - len(words) / 2))
    return f"{words[: middle + 1]}\n{words[middle + 2 :]}"
