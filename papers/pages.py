"""Writes the pages, which show the papers' figures beside our measurements, in Markdown."""

import collections
import math
import os
import statistics
from pathlib import Path

from papers import figures, records
from papers.catalogue import ROOT, Cell, Table, cells, tables
from papers.computed import COMPUTATIONS, shown
from papers.records import Records
from tfdp.accounting.guarantee import VACUOUS_ABOVE, format_epsilon

FIGURES = "papers/figures"
# The pages, and the papers whose tables are on each page.
PAGES = {
    "papers/README.md": ("batch_norm", "dropout", "encoding", "si_dpsgd"),
    "docs/mnist.md": ("mnist",),
    "docs/audit.md": ("audits",),
}
_BY_HAND = ROOT
# The part of a page above this line is written by hand, and kept.
_LINE = "<!-- What follows is written by `python -m papers report`. -->"


def write_pages(results: Path, out: Path, recorded: Records) -> list[Path]:
    """Writes all pages, their figures and the records into a folder with the repository's layout.

    Args:
        results: The folder of local results, if there is one. They replace records of the same seeds.
        out: The folder to write to.
        recorded: The records.

    Returns:
        The paths of the pages.
    """
    recorded = records.merge(recorded, records.collect(results, cells()))
    folder = out / records.RECORDS.relative_to(ROOT)
    for paper in {name.split(".")[0] for name in recorded}:
        some = {n: r for n, r in recorded.items() if n.startswith(f"{paper}.")}
        records.write(folder / f"{paper}.json", some)
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    paths = []
    for name, papers in PAGES.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        by_hand = (_BY_HAND / name).read_text().partition(_LINE)[0]
        of_page = [table for table in tables() if table.name.split(".")[0] in papers]
        lines = [by_hand + _LINE, ""]
        if len(of_page) > 1:
            lines += _overview(of_page, recorded)
        for table in of_page:
            lines += _section(table, recorded, out, path)
        path.write_text("\n".join(lines))
        paths.append(path)
    return paths


def _overview(of_page, recorded) -> list[str]:
    """Returns a table that shows how much of each table is measured."""
    rows = [(f"`{t.name}`", [_title(t), _counted(t, recorded)]) for t in of_page]
    return [*_markdown([("name", ["what it shows", "cells measured"]), *rows], "---"), ""]


def _title(table) -> str:
    return f"{table.paper}, {table.title}"


def _counted(table, recorded) -> str:
    """Returns a text: how many cells are measured, not run and quoted."""
    own = [cell for cell in table.cells if not cell.quoted]
    there = sum(bool(records.runs_of(cell, recorded)) for cell in own)
    absent = sum(bool(cell.absent) for cell in own)
    quoted = len(table.cells) - len(own)
    said = f"{there} of {len(own)}" + (f", {absent} not run" if absent else "")
    return said + (f" ({quoted} more quoted)" if quoted else "")


def _section(table, recorded, out, path) -> list[str]:
    """Returns the lines of a table, its figure and its remarks."""
    found = {cell.name: shown(cell, recorded) for cell in table.cells}
    lines = [f"## {_title(table)}", "", f"`{table.name}`", ""]
    if table.computed and len(table.columns) == 1:
        lines += _markdown(_turned(table, found))
    else:
        rows = [line for row in table.rows for line in _lines(table, row, found)]
        lines += _markdown([(table.axis, table.columns), *rows])
    lines.append("")
    picture = out / FIGURES / f"{table.name}.png"
    if table.figure and any(found.values()):
        figures.draw(table, found, picture)
        lines += [f"![{_title(table)}]({os.path.relpath(picture, path.parent)})", ""]
    remarks = [*_remarks(table), *([] if table.computed else _runs(table, found))]
    return [*lines, *(f"* {remark}" for remark in remarks), ""]


def _lines(table, row, found) -> list[tuple[str, list[str]]]:
    """Returns the lines of a row: the paper's figures, and our measurements."""
    printed = [_printed(cell) for cell in row]
    whose = ": quoted" if row[0].quoted else ": paper" if any(printed) else ""
    here = [found[cell.name] for cell in row]
    if table.computed and any(here):
        lines = [
            (label, [text(values[name]) if values else "" for values in here])
            for name, (label, text) in COMPUTATIONS[table.computed].lines.items()
        ]
    elif table.computed or row[0].quoted:
        lines = []
    else:
        absent = ["not run" if cell.absent else "not yet" for cell in row]
        lines = [("here", [str(m or a) for m, a in zip(here, absent, strict=True)])]
        if any(math.isfinite(m.epsilon("claimed")) for m in here if m):
            for kind in ("claimed", "proven"):
                lines.append((kind, [_epsilon(m.epsilon(kind)) if m else "" for m in here]))
        for name in table.lines:
            texts = [_number(m.runs[0][name]) if m else "" for m in here]
            lines.append((name.replace("_", " "), texts))
    return [(f"**{row[0].label}{whose}**", printed), *((f"&emsp;{name}", t) for name, t in lines)]


def _turned(table, found) -> list[tuple[str, list[str]]]:
    """Returns the lines of a table with one column of cells: one line for each cell."""
    shown = COMPUTATIONS[table.computed].lines
    rows = [
        (cell.label, [text(values[name]) for name, (_, text) in shown.items()])
        for cell in table.cells
        if (values := found[cell.name])
    ]
    return [(table.axis, [label for label, _ in shown.values()]), *rows]


def _markdown(rows, rule="---:") -> list[str]:
    """Returns a Markdown table of rows (name, texts). The first row is the head."""
    head, *rest = [f"| {name} | {' | '.join(texts)} |" for name, texts in rows]
    return [head, f"| --- |{f' {rule} |' * len(rows[0][1])}", *rest]


def _remarks(table: Table) -> list[str]:
    """Returns remarks: the meaning of figures, differences from the paper, and missing cells."""
    found = [text for text in (table.note, table.differs) if text]
    if table.guarantee == "proven" and any(cell.printed for cell in table.cells):
        found.insert(0, "The paper's figures are those at the same epsilons, claimed.")
    differs, absent = collections.defaultdict(list), collections.defaultdict(list)
    for row in table.rows:
        differs[row[0].differs].append(row[0].label)
        for cell in row:
            absent[cell.absent].append(_place(cell))
            if cell.differs != row[0].differs:
                differs[cell.differs].append(_place(cell))
    found += [f"{', '.join(labels)}: {text}" for text, labels in differs.items() if text]
    found += [f"Not run: {', '.join(labels)}. {text}" for text, labels in absent.items() if text]
    return found


def _place(cell) -> str:
    return f"{cell.label} at {cell.column}"


def _runs(table, found) -> list[str]:
    """Returns remarks on missing trainings, and on the number and time of the others."""
    left = [_place(cell) for cell in table.cells if cell.seeds and not found[cell.name]]
    said = [f"Not measured yet: {', '.join(left)}."] if left else []
    known = [m.runs for m in found.values() if m]
    if runs := [run for some in known for run in some]:
        minutes = [statistics.fmean(run["seconds"] for run in some) / 60 for some in known]
        span = " to ".join(dict.fromkeys(f"{f(minutes):.1f}" for f in (min, max)))
        facts = [f"Trainings: {len(runs)}", f"{span} minutes each"]
        if commits := sorted({_commit(run["code"]) for run in runs if "code" in run}):
            facts.append(f"commits: {', '.join(commits)}")
        if lost := sum(run.get("lost_steps", 0) for run in runs):
            facts.append(f"steps lost in crashes, which stay counted: {lost:,}")
        said.append(f"{'; '.join(facts)}.")
    return said


def _commit(code) -> str:
    return f"{str(code['commit'])[:10]}{' with changes' if code.get('changed') else ''}"


def _printed(cell: Cell) -> str:
    if cell.printed is None or isinstance(cell.printed, str):
        return cell.printed or ""
    error = "" if cell.printed_error is None else f" ± {cell.printed_error:.2f}"
    return f"{cell.printed:.2f}{error}"


def _number(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def _epsilon(epsilon: float) -> str:
    """Formats an epsilon for a table, in brackets if it is vacuous."""
    if VACUOUS_ABOVE < epsilon < math.inf:
        return f"({math.ceil(epsilon):,})"
    return format_epsilon(epsilon)
