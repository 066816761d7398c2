"""Writes `benchmarks/README.md` and its plot: `python -m benchmarks.report FILE [--folder=...]`."""

import argparse
import sys
from pathlib import Path

from benchmarks import gpu_report, overhead, plot, scale, vocabulary
from benchmarks.results import load
from benchmarks.subjects import GOALS, HERE, LABELS, PEERS, REALISTIC, family_of
from benchmarks.summary import Row, number, rows, spread

_HOW = """\
## What is measured

One process per measurement: one step, the first, then an epoch (at least {warmup} steps) to warm up,
then epochs until {steps} steps and three epochs are timed, or {seconds:g} s are over (at least one
epoch). A time is the mean step of an epoch, from the end of one epoch to the end of the next, and of
those the median; the table shows the median over rounds and, in parentheses, the smallest and the
largest round. Nothing runs between steps: tfdp looks for changed weights around each hook of a
callback that it does not know, and few trainings have one. PyTorch's steps are timed one by one. An
epoch has 64 lots for the MLP, 32 for the small convolutional networks, 16 for the recurrent ones and
the transformer, 4 for the others. A round measures a framework without privacy and with it, one right
after the other, in changing order; a ratio is of two times of one round. Memory is the highest
resident memory of the process, framework and data included.

* **tfdp**: all of `model.fit` on a private model: drawing Poisson lots, padding, gradients, clipping,
  noise, update, accuracy. Without privacy: `fit` of the same Keras model, batches of the same size.
* **TensorFlow Privacy**: `fit` of its `DPModel` (compiled by XLA, its default), the same with fast
  gradient clipping where its registry covers the model; fixed-size batches.
* **Opacus**: its loop with hooks or ghost clipping on slices of one tensor, so that no loader, no
  sampler and no metrics are timed. `DPLSTM` and `DPMultiheadAttention` in private models. OpenMP's
  threads wait passively (`OMP_WAIT_POLICY`, which may be set otherwise), since PyTorch's active
  waiting suffers out of proportion from any other load.
* **jax-privacy**: `fit` of its Keras API, fixed-size batches (its default).

Data are random arrays: 28x28x1 for the first three models, 32x32x3 for the next two, rows of 64
tokens for the next two. The models after them are written as people write them
(`peers/realistic.py`): MobileNetV2 and EfficientNetB0 of `keras.applications` after `tfdp.fix` (96
and 64 pixels), a U-Net (64 pixels), an LSTM with 20,000 embeddings (64 tokens), and encoders like
BERT of layers of one's own (128 tokens; 4 layers of width 256, with all weights or with LoRA of rank
4; BERT's base size). SGD, clip norm 1, noise multiplier 1.1, ten classes. A step of more than
{max_step_seconds:g} s, a process of more than {timeout:g} s or {memory_gib:g} GiB is skipped, and the
table says so.

## Run it yourself

    pip install -e ".[dev]"
    python -m benchmarks --json=results.json --minutes=60
    python -m benchmarks --json=results.json --models=mobilenet_v2,u_net,encoder --lots=64
    python -m benchmarks --json=results.json --scale --vocabulary
    python -m benchmarks --json=results.json --overhead
    python -m benchmarks --device=gpu --json=gpu.json --minutes=10
    python -m benchmarks.report results.json --gpu=gpu.json

The first run makes one virtual environment per peer in `.benchmarks/` (TensorFlow Privacy needs a
Python 3.11 on the path). A run that was stopped, or whose minutes are over, goes on with the same
command. With `--device=gpu` all frameworks are those of the Python that runs the command.
`--models=mlp,lenet5`, `--lots=256` and `--peers=tfdp,opacus_ghost` choose less;
`python -m benchmarks --help` says more.
"""


def text(content: dict, picture: str) -> str:
    """The report in Markdown."""
    machine = content["machine"]
    found = rows(content)
    rounds = max((row.rounds for row in found), default=0)
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks.report`; do not edit.",
        "",
    ]
    if content.get("note"):
        lines += [f"**{content['note']}**", ""]
    lines += [
        f"Measured on {content['date']}, up to {rounds} round{'s' if rounds != 1 else ''}: "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, no GPU used.",
        "",
        f"![Ratios and step times]({picture})",
        "",
        *_over_plain(found),
        *_short(found),
        *_tables(found),
        *scale.lines(content),
        *vocabulary.lines(content),
        *overhead.lines(content),
        *content.get("on_gpu", []),
        *_versions(content),
        _HOW.format(**content["settings"]),
    ]
    return "\n".join(lines)


def _mine(found: list[Row]) -> list[Row]:
    return [row for row in found if row.subject == "tfdp" and row.step_ms is not None]


def _over_plain(found: list[Row]) -> list[str]:
    """Compares tfdp with the same framework without privacy on each model and lot."""
    lines = []
    for row in _mine(found):
        if row.ratio is None:
            continue
        cells = [row.model, f"{row.lot:,}", number(row.step_ms.median), spread(row.ratio)]
        cells += [f"{GOALS[row.model]:g}", number(row.first_step.median), spread(row.first_ratio)]
        cells += [f"{row.memory_ratio.median:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return []
    return [
        "## tfdp and no privacy",
        "",
        "Medians over rounds, and the range of the rounds. *Over*: relative to the same framework "
        "without privacy, in the same round. *Goal*: what we want the step to cost at most; for first "
        "steps it is 3, for memory 1.5. *First step*: tracing and compilation included.",
        "",
        "| model | lot | step, ms | over | goal | first step, s | over | memory, over |",
        "| --- | ---: | ---: | --- | ---: | ---: | --- | ---: |",
        *lines,
        "",
    ]


def _short(found: list[Row]) -> list[str]:
    """Compares tfdp with the fastest other framework on each model and lot."""
    lines = []
    for mine in _mine(found):
        rivals = [
            row
            for row in found
            if (row.model, row.lot) == (mine.model, mine.lot)
            and row.step_ms is not None
            and PEERS.get(row.subject, "tfdp") not in ("tfdp", "tfdp_xla")
        ]
        if mine.model in REALISTIC:
            continue
        cells = [mine.model, f"{mine.lot:,}", number(mine.step_ms.median)]
        if rivals:
            best = min(rivals, key=lambda row: row.step_ms.median)
            cells += [LABELS[best.subject], number(best.step_ms.median)]
            cells += [number(best.ratio.median) if best.ratio else ""]
            cells += [number(best.step_ms.median / mine.step_ms.median)]
        else:
            cells += ["none was measured", "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return []
    return [
        "## tfdp and the fastest of its peers",
        "",
        "Medians. *Over*: over the peer's own framework without privacy. *Faster*: the peer's step "
        "time over tfdp's.",
        "",
        "| model | lot | tfdp, ms | fastest peer | ms | over | faster |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
        *lines,
        "",
    ]


def _tables(found: list[Row]) -> list[str]:
    lines = []
    for model in dict.fromkeys(row.model for row in found):
        lines += [f"## {model}", ""]
        lines += ["| lot | | step, ms | over no privacy | peak, MiB | over no privacy |"]
        lines += ["| ---: | --- | --- | --- | ---: | ---: |"]
        lines += [_line(row) for row in found if row.model == model]
        lines += [""]
    return lines


def _line(row: Row) -> str:
    label = LABELS[row.subject]
    if row.subject == "tfdp":
        label = f"**{label}**"
    if row.reason is not None:
        return f"| {row.lot:,} | {label} | {row.reason.replace('|', '/')} | | | |"
    peak = number(row.peak_mib.median)
    memory = f"{row.memory_ratio.median:.2f}" if row.memory_ratio else ""
    return (
        f"| {row.lot:,} | {label} | {spread(row.step_ms)} | {spread(row.ratio)} | {peak} "
        f"| {memory} |"
    )


def _versions(content: dict) -> list[str]:
    lines = ["## Versions", ""]
    seen = {}
    for subject, versions in content["versions"].items():
        seen.setdefault(family_of(subject).name, {}).update(versions)
    for versions in seen.values():
        lines.append("* " + ", ".join(f"{name} {v}" for name, v in versions.items()))
    return [*lines, f"* Python {content['machine']['python']}", ""]


def write(path: Path, folder: Path, on_gpu: Path | None = None) -> Path:
    """Writes README.md and its plot into `folder`; returns the path of README.md.

    Args:
        path: the file of results.
        folder: the folder to write into.
        on_gpu: the file of a sitting on a GPU, if there is one.
    """
    content = load(path)
    content["on_gpu"] = gpu_report.lines(load(on_gpu)) if on_gpu else []
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "benchmarks.png"
    plot.draw(rows(content), LABELS, picture)
    readme = folder / "README.md"
    readme.write_text(text(content, picture.name))
    return readme


def main(arguments=None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m benchmarks --json` wrote")
    parser.add_argument("--gpu", type=Path, help="what it wrote with --device=gpu")
    parser.add_argument("--folder", type=Path, default=HERE, help="where to write")
    flags = parser.parse_args(arguments)
    print(write(flags.file, flags.folder, flags.gpu))
    return 0


if __name__ == "__main__":
    sys.exit(main())
