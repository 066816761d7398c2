"""Writes the report: a page in Markdown, and the same as one HTML file that needs nothing else."""

import datetime
import html
import itertools
import math
import os
from collections.abc import Mapping
from pathlib import Path

from tfdp.accounting.guarantee import format_epsilon
from tfdp.experiments.partial_folder import ResultError
from tfdp.papers import figures
from tfdp.papers.catalogue import Cell, Table, tables
from tfdp.papers.computed import COMPUTATIONS
from tfdp.papers.records import (
    COLLECTION,
    Measured,
    collect,
    computed_values,
    measured,
    merge,
    minutes_of,
    read,
    shown,
    write,
)

_MARKDOWN, _HTML = "README.md", "index.html"
_TITLE = "# The tables and figures of the papers"
_INTRODUCTION = (
    "The tables and figures with which the four papers report experiments, beside what was measured "
    "here. The batch-normalization paper prints tables 1 to 3 of the SI-DPSGD paper again as its "
    "tables 2 to 4, and its figure 1; they stand here once. Figure 2 (a, b) of the dropout paper, "
    "both methods at epsilon 0.5, is the column 0.5 of `dropout.F1_mnist` and `dropout.F1_digits`; its "
    "curves without privacy are not measured. "
    "The first line of a row is what the *paper* prints, with its standard error where it prints one. "
    "*Here* is test accuracy in percent, unless a table says otherwise: mean ± standard error (number "
    "of seeds). *Claimed* is the epsilon of the "
    "paper's own accounting for the run that was trained, and *proven* that of a theorem about what "
    "was really sampled, computed and released, both for one record replaced by one that contributes "
    "nothing (for one record replaced by another, which the dropout paper means, proven epsilons are "
    "larger). Proven is above claimed where a paper's accounting leaves something out, or where a row "
    "is sampled or clipped otherwise than it assumes: *what we found* says which. *Not yet* is a cell "
    "that is still to be measured, *not run* one that is left out, with what is known of the cost "
    "below the table; nothing is filled in. Epsilons in brackets are above 50 and vacuous. Figures of "
    "others that a paper quotes are quoted, too, and never ranked."
)
_YOURS = (
    "*Yours* is what was trained in `{}`, by the same settings; other figures are recorded ones."
)
_OVERVIEW = ("what it shows", "cells measured")
_FOUND = ("What we found about the papers", "findings.md")
_AGAIN = (
    "`python -m tfdp.experiments run NAME` trains a table, row or cell again, and "
    "`python -m tfdp.experiments compare NAME` sets it beside these records."
)


def write_pages(
    results: Path, out: Path, recorded: Path | None = None, apart: bool = False
) -> list[str]:
    """Collects the results, and writes the pages and their records into a folder.

    Args:
        results: the folder of all results; it need not exist.
        out: the folder of the pages.
        recorded: the folder of earlier pages, whose records and findings these have, too, unless `out`
            has some; by default `out` itself.
        apart: whether the results have a line of their own below that of the records. No records are
            written then; otherwise they join the records and take the place of those of their seeds.

    Returns:
        What was written and left out, line by line.
    """
    found, left = collect(results, [cell for table in tables() for cell in table.cells])
    if recorded is None or (not apart and (out / COLLECTION).exists()):
        recorded = out
    copies = recorded != out and (recorded / _FOUND[1]).exists()
    _check_pages(out, [_MARKDOWN, _HTML, *([_FOUND[1]] if copies else [])])
    earlier = read(recorded / COLLECTION)
    out.mkdir(parents=True, exist_ok=True)
    if not (out / _MARKDOWN).exists():  # so that a report that is interrupted is known for one
        (out / _MARKDOWN).write_text(f"{_TITLE}\n\nThe report was not finished.\n")
    if copies:
        elsewhere = os.path.relpath(recorded.resolve().parent, out.resolve())
        text = (recorded / _FOUND[1]).read_text()
        (out / _FOUND[1]).write_text(text.replace("](../", f"]({elsewhere}/"))
    collection, own = (earlier, found) if apart else (merge(earlier, found), {})
    left += [
        f"{name}: the recorded seeds {', '.join(gone)} started from other weights than those in "
        f"{results}, and are not kept."
        for name, seeds in earlier.items()
        if (gone := sorted(seeds.keys() - collection[name].keys(), key=int))
    ]
    records, not_shown = shown(collection)
    left += not_shown
    sections = [_section(table, records, own) for table in tables()]
    pictures = {section.table.name: section.picture(out) for section in sections}
    introduction = f"{_INTRODUCTION} {_YOURS.format(results)}" if apart else _INTRODUCTION
    (out / _MARKDOWN).write_text(_markdown(introduction, sections, pictures))
    path = out / _FOUND[1]
    findings = _findings(path.read_text()) if path.exists() else ""
    (out / _HTML).write_text(_html(introduction, sections, out, pictures, findings))
    if not apart:
        write(out / COLLECTION, collection)
    said = ", and ".join(
        f"{sum(map(len, some.values()))} trainings of {len(some)} cells{where}"
        for some, where in ((records, " recorded" if apart else ""), (own, f" in {results}"))
        if some is records or apart
    )
    return [f"{said}: {out / _MARKDOWN}, {out / _HTML}", *left]


def _check_pages(out: Path, names: list[str]) -> None:
    """Raises ResultError if a folder has files of these names that no report has written."""
    path = out / _MARKDOWN
    if path.exists() and path.read_text(errors="replace").startswith(f"{_TITLE}\n"):
        return
    if there := [name for name in names if os.path.lexists(out / name)]:
        raise ResultError(
            f"Expected {out} to be a new folder, or one with an earlier report. Found {there[0]} of "
            "something else there, which would be written over. Choose another folder."
        )


class _Section:
    """What the pages say about one table."""

    def __init__(self, table: Table, records: Mapping, own: Mapping):
        self.table = table
        self.found = {cell.name: measured(cell, records) for cell in table.cells}
        self._own = {cell.name: measured(cell, own) for cell in table.cells}
        self._minutes = {cell.name: minutes_of(cell, records) for cell in table.cells}

    @property
    def title(self) -> str:
        return f"{self.table.paper}, {self.table.title}"

    def picture(self, out: Path) -> str | None:
        """Draws the figure of the table; returns the name of its file, or None for no figure."""
        name = f"{self.table.name}.png"
        return name if figures.draw(self.table, self.found, out / name) else None

    def lines(self) -> list[tuple[str, list[str], str]]:
        """The body: (label, cells, kind of the line)."""
        found = []
        for row in self.table.rows:
            printed = [_printed(cell) for cell in row.cells]
            whose = ": quoted" if row.quoted else ": paper" if any(printed) else ""
            found.append((row.label + whose, printed, "paper"))
            if row.quoted:
                continue
            measured_cells = [self.found[cell.name] for cell in row.cells]
            ours = [_accuracy(m, c) for m, c in zip(measured_cells, row.cells, strict=True)]
            found.append(("here", ours, "here"))
            if any(yours := [self._own[cell.name] for cell in row.cells]):
                texts = ["" if m is None else _accuracy(m, None) for m in yours]
                found.append(("yours", texts, "here"))
            if any(m is not None and math.isfinite(m.claimed) for m in measured_cells):
                found.append(
                    ("claimed", [_epsilon(m, "claimed") for m in measured_cells], "epsilon")
                )
                found.append(("proven", [_epsilon(m, "proven") for m in measured_cells], "epsilon"))
        return found

    def remarks(self) -> list[str]:
        """What differs from the paper, and what was not run."""
        found = [text for text in (self.table.note, self.table.differs) if text]
        if self.table.guarantee == "proven":
            found.insert(0, "The paper's figures are those at the same epsilons, claimed.")
        for text, labels in _grouped((row.differs, row.label) for row in self.table.rows):
            found.append(f"{', '.join(labels)}: {text}")
        of_cells = (
            (cell.differs, f"{row.label} at {cell.column}")
            for row in self.table.rows
            for cell in row.cells
            if cell.differs != row.differs
        )
        for text, labels in _grouped(of_cells):
            found.append(f"{', '.join(labels)}: {text}")
        absent = (
            (cell.absent, f"{row.label} at {cell.column}")
            for row in self.table.rows
            for cell in row.cells
        )
        for text, labels in _grouped(absent):
            found.append(f"Not run: {', '.join(labels)}. {text}")
        if missing := self.missing():
            found.append(missing)
        if trainings := self.trainings():
            found.append(trainings)
        return found

    def missing(self) -> str:
        """The cells that are still to be trained, and what that costs by the time of others."""
        rows, minutes = [], {}
        for row in self.table.rows:
            cells = [
                c for c in row.cells if c.seeds and not (self.found[c.name] or self._own[c.name])
            ]
            if cells:
                rows.append(f"{row.label} at {', '.join(cell.column for cell in cells)}")
                minutes |= {cell.source: self._minutes[cell.name] for cell in cells}
        if not rows:
            return ""
        cost = " What they take was not measured."
        if None not in minutes.values():
            total = max(1, round(sum(minutes.values())))
            cost = f" All of them, one seed each, take about {total} minute{'s' * (total > 1)}."
        return f"Not measured yet: {'; '.join(rows)}.{cost}"

    def trainings(self) -> str:
        """What the trainings of the table took, and the commits that they were made with."""
        known = [m for m in self.found.values() if m is not None]
        if not known:
            return ""
        minutes = [m.minutes for m in known]
        commits = sorted({commit for m in known for commit in m.commits})
        lost = sum(m.lost for m in known)
        count = sum(len(m.accuracies) for m in known)
        trainings = f"{count} trainings" if count > 1 else "One training"
        each = " each" if count > 1 else ""
        said = [
            f"{trainings} of {_range(minutes)} minutes{each}, at "
            f"{'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}."
        ]
        if lost:
            said.append(f"Crashes took {lost:,} of all their steps, which stay counted.")
        return " ".join(said)

    def counted(self) -> str:
        """How many cells are measured, and what the others are."""
        cells = [cell for cell in self.table.cells if not cell.quoted]
        there = sum(self.found[cell.name] is not None for cell in cells)
        absent = sum(bool(cell.absent) for cell in cells)
        quoted = len(self.table.cells) - len(cells)
        said = f"{there} of {len(cells)}"
        said += f", {absent} not run" if absent else ""
        return said + (f" ({quoted} more quoted)" if quoted else "")


class _ComputedSection(_Section):
    """What the pages say about a table whose cells are computed, in the units of their values."""

    def __init__(self, table: Table, records: Mapping, own: Mapping):
        self.table = table
        self.found = {cell.name: computed_values(cell, records) for cell in table.cells}
        self._own = {cell.name: computed_values(cell, own) for cell in table.cells}
        self._shown = COMPUTATIONS[table.computed]

    def picture(self, out: Path) -> str | None:
        name = f"{self.table.name}.png"
        return name if self._shown.draw(self.table, self.found, out / name) else None

    def lines(self) -> list[tuple[str, list[str], str]]:
        found = []
        for row in self.table.rows:
            printed = [_printed(cell) for cell in row.cells]
            label = f"{row.label}: paper" if any(printed) else row.label
            found.append((label, printed, "paper"))
            for values, whose in ((self.found, ""), (self._own, "yours, ")):
                every = [values[cell.name] for cell in row.cells]
                for label, name, to_text in self._shown.lines if any(every) else ():
                    texts = ["" if each is None else to_text(each[name]) for each in every]
                    kind = "here" if name == self._shown.lines[0][1] else "epsilon"
                    found.append((whose + label, texts, kind))
        return found

    def missing(self) -> str:
        return ""

    def trainings(self) -> str:
        return ""


def _range(minutes) -> str:
    low, high = min(minutes), max(minutes)
    if high < 0.05:
        return "less than 0.05"
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"


def _section(table, records, own) -> _Section:
    return (_ComputedSection if table.computed else _Section)(table, records, own)


def _grouped(pairs) -> list[tuple[str, list[str]]]:
    groups = {}
    for text, label in pairs:
        if text:
            groups.setdefault(text, []).append(label)
    return list(groups.items())


def _printed(cell: Cell) -> str:
    if cell.printed is None:
        return ""
    if isinstance(cell.printed, str):
        return cell.printed
    error = "" if cell.printed_error is None else f" ± {cell.printed_error:.2f}"
    return f"{cell.printed:.2f}{error}"


def _accuracy(found: Measured | None, cell: Cell) -> str:
    if found is None:
        return "not run" if cell.absent else "not yet"
    n = len(found.accuracies)
    spread = "" if found.error is None else f" ± {found.error:.2f}"
    return f"{found.mean:.2f}{spread} ({n})"


def _epsilon(found: Measured | None, kind: str) -> str:
    if found is None:
        return ""
    epsilon = getattr(found, kind)
    if math.isinf(epsilon) or epsilon < 1e5:
        return format_epsilon(epsilon).replace("vacuous (epsilon = ", "(")
    # A table has room for one digit, rounded up.
    power = math.floor(math.log10(epsilon))
    digit = math.ceil(epsilon / 10**power)
    return f"({digit}e{power})" if digit < 10 else f"(1e{power + 1})"


def _markdown(introduction, sections, pictures) -> str:
    lines = [_TITLE, "", introduction, ""]
    lines += [f"* {paper}: {cited}" for paper, cited in _cited(sections)]
    lines += ["", f"[{_FOUND[0]}]({_FOUND[1]})", "", _AGAIN, ""]
    lines += [f"| name | {' | '.join(_OVERVIEW)} |", "| --- | --- | --- |"]
    for section in sections:
        lines.append(f"| `{section.table.name}` | {section.title} | {section.counted()} |")
    lines.append("")
    for section in sections:
        table = section.table
        lines += [f"## {section.title}", "", f"`{table.name}`", ""]
        lines.append(f"| {table.axis} | {' | '.join(table.columns)} |")
        lines.append(f"| --- |{' ---: |' * len(table.columns)}")
        for label, cells, kind in section.lines():
            label = f"**{label}**" if kind == "paper" else f"&emsp;{label}"
            lines.append(f"| {label} | {' | '.join(cells)} |")
        lines.append("")
        if pictures[table.name]:
            lines += [f"![{section.title}]({pictures[table.name]})", ""]
        lines += [*(f"* {remark}" for remark in section.remarks()), ""]
    return "\n".join(lines)


def _cited(sections) -> list[tuple[str, str]]:
    """The papers, with their authors and titles."""
    found = {section.table.paper: section.table.cited for section in sections}
    return [(paper, cited) for paper, cited in found.items() if cited]


_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 84rem; }
p, li, section { max-width: 56rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .82rem; }
th, td { padding: .15rem .35rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: Canvas; }
thead th { border-bottom: 2px solid; }
tr.paper > * { border-top: 1px solid #8888; }
tr.paper td:first-child { font-weight: 600; white-space: normal; min-width: 6.5rem; }
tr.here td { font-weight: 600; }
tr.here td:first-child, tr.epsilon td:first-child { padding-left: 1.5rem; font-weight: 400; }
table.words { width: 100%; max-width: 52rem; font-size: .95rem; }
table.words th, table.words td { white-space: normal; text-align: left; vertical-align: top; }
tr.epsilon { font-size: .85em; opacity: .8; }
img { max-width: 100%; height: auto; background: white; }
code { font-size: .9em; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.2; overflow-wrap: break-word; }
.up { font-size: .85em; }
li { margin: .2rem 0; }
"""


def _findings(text: str) -> str:
    """HTML of the page of findings, whose headings are below those of the report."""
    import markdown

    text = (
        text.replace("](README.md)", "](#overview)").replace("\n#", "\n##").replace("# ", "## ", 1)
    )
    return f'<section id="findings">\n{markdown.markdown(text)}\n{_UP}\n</section>'


_UP = '<p class="up"><a href="#overview">Overview</a></p>'


def _html(introduction, sections, out, pictures, findings) -> str:
    body = ["<h1>The tables and figures of the papers</h1>"]
    body.append(f"<p>{_marked(introduction)}</p>")
    papers = (f"{html.escape(paper)}: {html.escape(cited)}" for paper, cited in _cited(sections))
    body += ["<ul>", *(f"<li>{each}</li>" for each in papers), "</ul>"]
    if findings:
        body.append(f'<p><a href="#findings">{_FOUND[0]}</a></p>')
    body.append(f'<p id="overview">{_marked(_AGAIN)}</p>')
    heads = "".join(f"<th>{word}</th>" for word in _OVERVIEW)
    body.append(f'<table class="words"><thead><tr>{heads}</tr></thead><tbody>')
    for paper, of_paper in itertools.groupby(sections, lambda section: section.table.paper):
        body.append(f'<tr class="paper"><td colspan="2">{html.escape(paper)}</td></tr>')
        for section in of_paper:
            link = f'<a href="#{section.table.name}">{html.escape(section.table.title)}</a>'
            name = f"<code>{section.table.name}</code>"
            body.append(f"<tr><td>{link} {name}</td><td>{section.counted()}</td></tr>")
    body += ["</tbody></table>", findings]
    for section in sections:
        body += _html_section(section, out, pictures[section.table.name])
    today = datetime.date.today().isoformat()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>The tables and figures of the papers</title>\n"
        f"<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + f"\n<p>Made from records on {today}.</p>\n</body>\n</html>\n"
    )


def _html_section(section, out, picture) -> list[str]:
    table = section.table
    lines = [
        f'<h2 id="{table.name}">{html.escape(section.title)}</h2>',
        f"<p><code>{table.name}</code></p>",
    ]
    lines.append('<div class="scroll"><table><thead><tr>')
    lines += [f"<th>{html.escape(text)}</th>" for text in (table.axis, *table.columns)]
    lines.append("</tr></thead><tbody>")
    for label, cells, kind in section.lines():
        tds = "".join(f"<td>{html.escape(text)}</td>" for text in (label, *cells))
        lines.append(f'<tr class="{kind}">{tds}</tr>')
    lines.append("</tbody></table></div>")
    if picture:
        data = figures.embedded(out / picture)
        lines.append(f'<p><img alt="{html.escape(section.title)}" src="{data}"></p>')
    lines += [
        "<ul>",
        *(f"<li>{_marked(remark)}</li>" for remark in section.remarks()),
        "</ul>",
        _UP,
    ]
    return lines


def _marked(text: str) -> str:
    """HTML of a text with *emphasis* and `code`."""
    parts, opened = [], False
    for i, part in enumerate(html.escape(text).split("`")):
        if i % 2:
            parts.append(f"<code>{part}</code>")
            continue
        for j, piece in enumerate(part.split("*")):
            if j:
                opened = not opened
                parts.append("<em>" if opened else "</em>")
            parts.append(piece)
    return "".join(parts)
