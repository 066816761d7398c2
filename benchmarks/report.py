"""Writes `benchmarks/README.md` and its plot: `python -m benchmarks.report FILE [--folder=...]`."""

import argparse
import json
import sys
from pathlib import Path

from benchmarks import gpu_report, plot, suites
from benchmarks.subjects import GOALS, HERE, LABELS, PEERS, REALISTIC, family_of
from benchmarks.summary import Row, conditions, number, rows, spread

# Texts written by hand: notes at the top of the page until the next measurement, and its last part.
_NOTES, _METHOD = HERE / "notes.md", HERE / "method.md"


def text(content: dict, picture: str) -> str:
    """Returns the report in Markdown."""
    machine = content["machine"]
    found = rows(content)
    rounds = max((row.rounds for row in found), default=0)
    lines = [
        "# Benchmarks",
        "",
        "Written by `python -m benchmarks.report`; do not edit.",
        "",
    ]
    lines += [
        f"Measured on {content['date']}, up to {rounds} round{'s' if rounds != 1 else ''}: "
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, no GPU used. {conditions(content)}",
        "",
    ]
    lines += [_NOTES.read_text()] if _NOTES.exists() else []
    lines += [f"**{content['note']}**\n"] if content.get("note") else []
    lines += [
        f"![Ratios and step times]({picture})",
        "",
        *_over_plain(found),
        *_short(found),
        *tables(found),
        *suites.lines(content),
        *content.get("on_gpu", []),
        *_versions(content),
        _METHOD.read_text().format(**content["settings"]),
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
        cells += [number(row.least_ratio) if row.least_ratio else ""]
        cells += [f"{GOALS[row.model]:g}", number(row.first_step.median), spread(row.first_ratio)]
        cells += [f"{row.memory_ratio.median:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return _section(
        "tfdp and no privacy",
        "Medians over rounds, and the range of the rounds. *Over*: relative to the same framework "
        "without privacy, in the same round. *Least*: the least step of all rounds over the least "
        "without privacy. *Goal*: what the step should cost at most on a quiet machine; for first "
        "steps it is 2, for memory 1.15. *First step*: tracing and compilation included.",
        "| model | lot | step, ms | over | least | goal | first step, s | over | memory, over |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | --- | ---: |",
        lines,
    )


def _section(title, text, head, rule, lines) -> list[str]:
    return ["## " + title, "", text, "", head, rule, *lines, ""] if lines else []


def _short(found: list[Row]) -> list[str]:
    """Compares tfdp with the fastest other framework on each model and lot."""
    lines = []
    for mine in _mine(found):
        if mine.model in REALISTIC:
            continue
        rivals = [
            row
            for row in found
            if (row.model, row.lot) == (mine.model, mine.lot)
            and row.step_ms is not None
            and PEERS.get(row.subject, "tfdp") not in ("tfdp", "tfdp_xla")
        ]
        cells = [mine.model, f"{mine.lot:,}", number(mine.step_ms.median)]
        if rivals:
            best = min(rivals, key=lambda row: row.step_ms.median)
            cells += [LABELS[best.subject], number(best.step_ms.median)]
            cells += [number(best.ratio.median) if best.ratio else ""]
            cells += [number(best.step_ms.median / mine.step_ms.median)]
        else:
            cells += ["none was measured", "", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return _section(
        "tfdp and the fastest of its peers",
        "Medians. *Over*: over the peer's own framework without privacy. *Faster*: the peer's step "
        "time over tfdp's.",
        "| model | lot | tfdp, ms | fastest peer | ms | over | faster |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: |",
        lines,
    )


def tables(found: list[Row]) -> list[str]:
    """Returns a table for each model."""
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
        return f"| {row.lot:,} | {label} | {row.reason} | | | |"
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


def main(arguments=None) -> int:
    """Runs the command line and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("file", type=Path, help="what `python -m benchmarks --json` wrote")
    parser.add_argument("--gpu", type=Path, help="what it wrote with --device=gpu")
    parser.add_argument("--folder", type=Path, default=HERE, help="where to write")
    flags = parser.parse_args(arguments)
    content = json.loads(flags.file.read_text())
    content["on_gpu"] = gpu_report.lines(json.loads(flags.gpu.read_text())) if flags.gpu else []
    flags.folder.mkdir(parents=True, exist_ok=True)
    plot.draw(rows(content), LABELS, flags.folder / "benchmarks.png")
    readme = flags.folder / "README.md"
    readme.write_text(text(content, "benchmarks.png"))
    print(readme)
    return 0


if __name__ == "__main__":
    sys.exit(main())
