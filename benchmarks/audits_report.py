"""Writes docs/audits.md and its plot from the records of `benchmarks.audits`."""

import statistics
from pathlib import Path

from scipy import stats

from tfdp._palette import ATTACK, CLAIMED, PROVEN
from tfdp.accounting.guarantee import format_epsilon


def write_text(records: dict, canaries: int, path: Path) -> None:
    """Writes the table as Markdown.

    Args:
        records: for each case, for each seed, what `audits.measure` returned.
        canaries: number of canaries in each audit.
        path: the file to write.
    """
    lines = [
        "# Audits of every mechanism",
        "",
        "Made by `python -m benchmarks.audits`; the runs are in `audits.json`. Each audit is one "
        f"training of a linear model on scikit-learn's digits with {canaries:,} canaries, "
        "delta = 1e-5, and gives a lower bound on epsilon at 95%; the seeds of the coins are 0, 1, 2 "
        "and so on. "
        "[What an audit can say, and what it cannot](audit.md).",
        "",
        "![Lower bounds and what is stated](audits.png)",
        "",
        "*Bound*: from the coins alone, median and largest of all audits. *Above*: how many bounds are "
        "above the stated epsilon, and the probability of so many or more if it were true; "
        "*refuted* where that is below one in a million. "
        "A bound of 0 means that the 50 guesses were not right more often than chance allows at 95%. "
        "*Of proven*: the median bound over the proven epsilon.",
        "",
        "| case | audits | claimed | proven | bound | above claimed | above proven | of proven |",
        "| --- | ---: | ---: | ---: | --- | --- | --- | ---: |",
    ]
    lines += [_line(name, [*seeds.values()]) for name, seeds in records.items() if seeds]
    path.write_text("\n".join(lines) + "\n")


def _line(name, found) -> str:
    bounds = [one["bound"] for one in found]
    proven = statistics.median(one["proven"] for one in found)
    claimed = statistics.median(one["claimed"] for one in found)
    cells = [
        name,
        str(len(found)),
        format_epsilon(claimed),
        format_epsilon(proven),
        f"{statistics.median(bounds):.3g} ({max(bounds):.3g})",
        _above(found, "claimed"),
        _above(found, "proven"),
        f"{statistics.median(bounds) / proven:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def _above(found, kind) -> str:
    count = sum(one["bound"] > one[kind] for one in found)
    p = stats.binom.sf(count - 1, len(found), 0.05)
    refuted = ", **refuted**" if p < 1e-6 else ""
    return f"{count} (p = {p:.2g}){refuted}" if count else "0"


def write_plot(records: dict, path: Path) -> None:
    """Draws all bounds beside what is stated; arguments as in `write_text`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name, seeds in records.items() if seeds]
    figure, axis = pyplot.subplots(figsize=(9.5, 0.45 * len(names) + 1.6))
    least = 0.02
    for row, name in enumerate(reversed(names)):
        found = [*records[name].values()]
        bounds = [max(least, one["bound"]) for one in found]
        axis.plot(bounds, [row] * len(bounds), "|", color=ATTACK, markersize=11, alpha=0.6)
        for kind, color in (("claimed", CLAIMED), ("proven", PROVEN)):
            stated = statistics.median(one[kind] for one in found)
            axis.plot([stated], [row], "D", color=color, markersize=7, zorder=3)
    for label, color, marker in (
        ("lower bounds of the audits (0 at the left edge)", ATTACK, "|"),
        ("claimed", CLAIMED, "D"),
        ("proven", PROVEN, "D"),
    ):
        axis.plot([], [], marker, color=color, label=label, markersize=8)
    axis.set_xscale("log")
    axis.set_xlim(left=least * 0.9)
    axis.set_yticks(range(len(names)), reversed(names))
    axis.set_xlabel("epsilon at delta = 1e-5 (log scale)")
    axis.grid(color="#dddddd", linewidth=0.6, axis="x")
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.legend(frameon=False, fontsize=9, ncols=3, loc="upper left")
    figure.tight_layout(rect=(0, 0, 1, 0.93))
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
