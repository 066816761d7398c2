"""Draws the plot of the report: ratios above, absolute step times below, one column per lot size."""

from pathlib import Path

from benchmarks.subjects import FAMILIES, MODELS, family_of
from benchmarks.summary import Row

# One hue per family, from the palette of Okabe and Ito, which is safe for the colour-blind. Markers
# distinguish the subjects of a family.
_COLOURS = {
    "tfdp": "#0072B2",
    "tf_privacy": "#E69F00",
    "opacus": "#D55E00",
    "jax_privacy": "#009E73",
}
_MARKERS = {
    "tfdp": "o",
    "tfdp_vectorized": "s",
    "tf_privacy": "o",
    "tf_privacy_fast": "^",
    "tf_privacy_vectorized": "s",
    "opacus_hooks": "s",
    "opacus_ghost": "^",
    "jax_privacy": "D",
}
_NAMES = {
    "mlp": "MLP",
    "tutorial_cnn": "tutorial\nCNN",
    "lenet5": "LeNet-5",
    "cifar_tutorial": "CIFAR\ntutorial",
    "resnet18": "ResNet-18",
    "bilstm": "BiLSTM",
    "transformer": "trans-\nformer",
}
_GRID = "#dddddd"


def draw(rows: list[Row], labels: dict[str, str], path: Path) -> None:
    """Writes the plot as a PNG file.

    Args:
        rows: the measurements.
        labels: the name of each subject in the legend.
        path: the file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = [
        row
        for row in rows
        if row.step_ms is not None
        and row.model in MODELS
        and (row.subject in _MARKERS or family_of(row.subject).name in _COLOURS)
        and "microbatches" not in row.subject
    ]
    lots = sorted({row.lot for row in timed})
    models = [model for model in MODELS if any(row.model == model for row in timed)]
    width = min(17.0, max(12.5, 1.6 + 0.8 * len(lots) * len(models)))
    figure, axes = pyplot.subplots(
        2, len(lots), figsize=(width, 7.6), sharey="row", sharex=True, squeeze=False
    )
    for column, lot in enumerate(lots):
        here = [row for row in timed if row.lot == lot]
        _panel(axes[0][column], [r for r in here if r.ratio], models, "ratio")
        _panel(axes[1][column], here, models, "step_ms")
        axes[0][column].axhline(1.0, color="#666666", linewidth=0.9, zorder=1)
        axes[0][column].set_title(f"lots of {lot:,}", fontsize=11)
    axes[0][0].set_ylabel("private step / step without privacy\nof the same framework")
    axes[1][0].set_ylabel("milliseconds per step")
    figure.text(
        0.99, 0.012, "Markers: median over rounds; bars: smallest and largest. Log scales; lower is "
        "better.", ha="right", fontsize=8, color="#555555",
    )  # fmt: skip
    _legend(figure, timed, labels)
    figure.tight_layout(rect=(0, 0.03, 1, 0.9))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(axis, rows, models, field):
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    subjects = _subjects(rows)
    for position, subject in enumerate(subjects):
        offset = 0.72 * ((position + 0.5) / len(subjects) - 0.5)
        mine = [row for row in rows if row.subject == subject]
        values = [getattr(row, field) for row in mine]
        middle = [value.median for value in values]
        ends = [
            [value.median - value.low for value in values],
            [value.high - value.median for value in values],
        ]
        places = [models.index(row.model) + offset for row in mine]
        axis.errorbar(places, middle, yerr=ends, zorder=3, **_style(subject))
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(range(len(models)), [_NAMES[model] for model in models], fontsize=9)
    axis.set_xlim(-0.55, len(models) - 0.45)
    for edge in range(1, len(models)):
        axis.axvline(edge - 0.5, color=_GRID, linewidth=0.8, zorder=0)
    axis.grid(axis="y", color=_GRID, linewidth=0.6, zorder=0)
    axis.tick_params(axis="x", length=0)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _style(subject):
    family = family_of(subject)
    colour = _COLOURS[family.name]
    baseline = subject == family.baseline
    return {
        "color": colour,
        "marker": "_" if baseline else _MARKERS[subject],
        "markersize": 9 if baseline else 6.5,
        "markeredgewidth": 2.2 if baseline else 1.2,
        "markerfacecolor": colour if subject in ("tfdp", "jax_privacy") else "white",
        "linestyle": "none",
        "elinewidth": 1.1,
        "capsize": 0,
    }


def _subjects(rows):
    found = {row.subject for row in rows}
    order = []
    for family in FAMILIES.values():
        order += [family.baseline, *(s for s in _MARKERS if family_of(s) is family)]
    return [subject for subject in order if subject in found]


def _legend(figure, rows, labels):
    from matplotlib.lines import Line2D

    handles = []
    for subject in _subjects(rows):
        style = {k: v for k, v in _style(subject).items() if k not in ("elinewidth", "capsize")}
        handles.append(Line2D([], [], label=labels[subject], **style))
    figure.legend(
        handles=handles, loc="upper center", ncols=4 if len(handles) > 4 else len(handles),
        frameon=False, fontsize=9, columnspacing=1.6, handletextpad=0.4,
    )  # fmt: skip
