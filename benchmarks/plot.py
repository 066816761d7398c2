"""Draws the plot of the report: ratios above, absolute step times below, one column per lot size."""

from pathlib import Path

from benchmarks.subjects import MODELS, REALISTIC, family_of
from benchmarks.summary import Row

# One hue per family, from the palette of Okabe and Ito, which is safe for the colour-blind. Markers
# distinguish the subjects of a family; a line is its framework without privacy.
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
    "mobilenet_v2": "Mobile-\nNetV2",
    "efficientnet_b0": "Efficient-\nNet",
    "u_net": "U-Net",
    "lstm": "LSTM,\nwords",
    "bert_base": "BERT\nbase",
    "bert_base_lora": "BERT\nLoRA",
}


def draw(rows: list[Row], labels: dict[str, str], path: Path) -> None:
    """Writes the plot as a PNG file.

    Args:
        rows: The measurements.
        labels: The name of each subject in the legend.
        path: The file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = [
        row
        for row in rows
        if row.step_ms is not None
        and row.model in _NAMES
        and family_of(row.subject).name in _COLOURS
        and not row.subject.endswith(("microbatches", "backup"))
    ]
    lots = sorted({row.lot for row in timed})
    measured = {(row.lot, row.model) for row in timed}
    known = (*MODELS, *REALISTIC)
    models = {lot: [model for model in known if (lot, model) in measured] for lot in lots}
    # A column is as wide as it has models.
    figure, axes = pyplot.subplots(
        2, len(lots), figsize=(min(17.0, 1.6 + 0.9 * len(measured)), 7.6), sharey="row", sharex="col",
        squeeze=False, width_ratios=[len(models[lot]) + 0.5 for lot in lots],
    )  # fmt: skip
    drawn = {}
    for column, lot in enumerate(lots):
        here = [row for row in timed if row.lot == lot]
        _panel(axes[0][column], [r for r in here if r.ratio], models[lot], "ratio")
        drawn |= _panel(axes[1][column], here, models[lot], "step_ms")
        axes[0][column].axhline(1.0, color="#666666", linewidth=0.9, zorder=1)
        axes[0][column].set_title(f"lots of {lot:,}", fontsize=11)
    axes[0][0].set_ylabel("private step / step without privacy\nof the same framework")
    axes[1][0].set_ylabel("milliseconds per step")
    figure.text(
        0.99, 0.012, "Markers: median over rounds; bars: smallest and largest. Log scales; lower is "
        "better.", ha="right", fontsize=8, color="#555555",
    )  # fmt: skip
    subjects = sorted(drawn, key=[*labels].index)
    figure.legend(
        [drawn[subject] for subject in subjects], [labels[subject] for subject in subjects],
        loc="upper center", ncols=4, frameon=False, fontsize=9,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.03, 1, 0.9))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _panel(axis, rows, models, field) -> dict:
    """Draws a panel, and returns the drawn line of each subject."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    subjects, drawn = list(dict.fromkeys(row.subject for row in rows)), {}
    for position, subject in enumerate(subjects):
        offset = 0.72 * ((position + 0.5) / len(subjects) - 0.5)
        mine = [row for row in rows if row.subject == subject]
        values = [getattr(row, field) for row in mine]
        ends = zip(*((v.median - v.low, v.high - v.median) for v in values), strict=True)
        colour = _COLOURS[family_of(subject).name]
        drawn[subject] = axis.errorbar(
            [models.index(row.model) + offset for row in mine], [v.median for v in values],
            yerr=[*ends], color=colour, marker=_MARKERS.get(subject, "_"), markersize=7,
            markerfacecolor=colour if subject in ("tfdp", "jax_privacy") else "white",
            linestyle="none", zorder=3,
        )  # fmt: skip
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xticks(range(len(models)), [_NAMES[model] for model in models], fontsize=9)
    axis.set_xlim(-0.55, len(models) - 0.45)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    return drawn
