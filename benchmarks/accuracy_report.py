"""Writes docs/mnist.md and its plot from the records of `benchmarks.accuracy`."""

import math
import statistics
from pathlib import Path

_VACUOUS = 50.0


def write_text(rows, records, path: Path) -> None:
    """Writes the tables as Markdown.

    Args:
        rows: the `Row`s, in the order of the tables.
        records: tuples (row, epsilon, record), of runs with the current flags of their rows.
        path: the file to write.
    """
    path.write_text(_text(rows, _cells(records)))


def write_plot(rows, records, path: Path) -> None:
    """Draws the test error against proven epsilon; the arguments are as in `write_text`."""
    _plot(rows, _cells(records), path)


def _cells(records):
    cells = {}
    for row, epsilon, record in records:
        cells.setdefault((row.name, epsilon), []).append(record)
    return cells


def _text(rows, cells) -> str:
    proven = [row for row in rows if not row.claimed and row.epsilons != (None,)]
    epsilons = sorted({epsilon for row in proven for epsilon in row.epsilons})
    lines = [
        "# Every mechanism on MNIST",
        "",
        "Made by `python -m benchmarks.accuracy`; the runs are in `mnist.json`. Test accuracy of the "
        "released weights in percent, mean ± standard error (number of seeds), delta = 1e-5, "
        "adjacency zero_out. Settings were chosen on the test split, so the accuracies are mildly "
        "optimistic.",
        "",
        "## At a proven epsilon",
        "",
        "In brackets: the epsilon that the mechanism's paper would claim for the same run.",
        "",
        "| mechanism | flag file | " + " | ".join(f"proven {e:g}" for e in epsilons) + " |",
        "| --- | --- |" + " ---: |" * len(epsilons),
    ]
    for row in proven:
        values = [
            _cell(cells.get((row.name, e)), with_claim=True) if e in row.epsilons else ""
            for e in epsilons
        ]
        lines.append(f"| {row.title} | `{row.name}` | " + " | ".join(values) + " |")
    lines += ["", *(f"* {row.title}: {row.note}" for row in proven if row.note)]
    for row in rows:
        if row.epsilons == (None,):
            lines += ["", f"{row.title}: {_cell(cells.get((row.name, None)))}."]
    lines += ["", "![Test error against proven epsilon](mnist.png)", ""]
    claimed = [row for row in rows if row.claimed]
    if claimed:
        lines += [
            "## At the paper's own accounting (`--guarantee=claimed`)",
            "",
            "| mechanism | flag file | claimed epsilon | proven epsilon | accuracy | the paper |",
            "| --- | --- | ---: | ---: | ---: | --- |",
        ]
        for row in claimed:
            for epsilon in row.epsilons:
                found = cells.get((row.name, epsilon))
                worth = _epsilon(found[0]["proven"]) if found else "not run"
                lines.append(
                    f"| {row.title} | `{row.name}` | {epsilon:g} | {worth} | {_cell(found)} | "
                    f"{row.paper.get(epsilon, '')} |"
                )
        lines.append("")
    lines += [
        "## Settings",
        "",
        "| flag file | steps | lot | sampling | noise multiplier |",
        "| --- | ---: | ---: | --- | ---: |",
    ]
    for row in rows:
        for epsilon in row.epsilons:
            if found := cells.get((row.name, epsilon)):
                record = found[0]
                label = f"`{row.name}`" + ("" if epsilon is None else f", epsilon {epsilon:g}")
                lines.append(
                    f"| {label} | {record['steps']:,} | {record['lot_size']:,} | "
                    f"{record['sampling']} | {record['noise_multiplier']:.4g} |"
                )
    return "\n".join(lines) + "\n"


def mean_and_error(values) -> tuple[float, float]:
    """Returns the mean and the standard error, which is NaN for a single value."""
    error = math.nan
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), error


def _cell(found, with_claim=False) -> str:
    if not found:
        return "not run"
    mean, error = mean_and_error([100 * record["test_accuracy"] for record in found])
    spread = "" if math.isnan(error) else f" ± {error:.2f}"
    text = f"{mean:.2f}{spread} ({len(found)})"
    return f"{text} [{_epsilon(found[0]['claimed'])}]" if with_claim else text


def _epsilon(value) -> str:
    value = float(value)
    if math.isinf(value):
        return "infinite"
    if value > _VACUOUS:
        return f"vacuous ({value:,.0f})"
    return f"{value:.3g}"


def _plot(rows, cells, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    markers = "osD^vP*X<>"
    drawn = [r for r in rows if not r.claimed]
    for index, row in enumerate(r for r in drawn if r.epsilons != (None,)):
        points = [(e, *_point(cells[row.name, e])) for e in row.epsilons
                  if (row.name, e) in cells]  # fmt: skip
        if points:
            x, y, error = zip(*points, strict=True)
            y = [100.0 - value for value in y]
            axes.errorbar(
                x, y, error, marker=markers[index % len(markers)], capsize=3, label=row.title
            )
    for row in drawn:
        if row.epsilons == (None,) and (row.name, None) in cells:
            mean, _ = _point(cells[row.name, None])
            axes.axhline(100.0 - mean, color="black", linestyle="--", linewidth=1, label=row.title)
    axes.set_xscale("log")
    ticks = sorted({e for row in drawn for e in row.epsilons if e is not None})
    axes.set_xticks(ticks, [f"{e:g}" for e in ticks])
    axes.set_yscale("log")
    errors = [1, 2, 3, 5, 10, 20, 50]
    axes.set_yticks(errors, [f"{e}" for e in errors])
    axes.minorticks_off()
    axes.set_xlabel("proven epsilon (delta = 1e-5)")
    axes.set_ylabel("test error, %")
    axes.set_title("MNIST: error of the released weights, mean and standard error")
    axes.grid(alpha=0.3)
    if drawn:
        axes.legend(loc="upper right", fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _point(found):
    mean, error = mean_and_error([100 * record["test_accuracy"] for record in found])
    return mean, 0.0 if math.isnan(error) else error
