"""Writes the pages: what the papers print beside what was measured, in Markdown with figures."""

import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from papers import computed, figures, records
from papers.catalogue import ROOT, Cell, cells, tables
from papers.computed import COMPUTATIONS
from papers.records import Measured, Records, measured, minutes_of
from tfdp.accounting.guarantee import format_epsilon

FIGURES = "papers/figures"
_PAGES = ROOT / "papers" / "pages.toml"
_AGAIN = (
    "`python -m papers run NAME` trains a table, row or cell again, and "
    "`python -m papers report` shows it beside these records."
)
_YOURS = (
    "*Yours* is what was trained in `{}`, by the same settings; other figures are recorded ones."
)


def write_pages(results: Path, out: Path, recorded: Records, joined: bool = True) -> list[str]:
    """Writes all pages with their figures into a folder, which is laid out like the repository.

    Args:
        results: the folder of all results; it need not exist.
        out: the folder.
        recorded: the records.
        joined: whether the results join the records, in place of those of their seeds, which are then
            written, too. Otherwise they have lines of their own.

    Returns:
        What was written, line by line.
    """
    own, said = records.collect(results, cells()), []
    if joined:
        recorded, own = records.merge(recorded, own), {}
        records.write(out / records.RECORDS.relative_to(ROOT), recorded)
    (out / FIGURES).mkdir(parents=True, exist_ok=True)
    for page in tomllib.loads(_PAGES.read_text())["pages"]:
        path = out / page["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        introduction = page["introduction"].strip()
        introduction += "" if joined else f" {_YOURS.format(results)}"
        shown = [table for table in tables() if table.name.split(".")[0] in page["papers"]]
        lines = [f"# {page['title']}", "", introduction, "", *_overview(shown, recorded, path)]
        for table in shown:
            lines += _section(table, recorded, own, out, path)
        path.write_text("\n".join(lines))
        said.append(f"Written: {path}")
    return said


def _overview(shown, recorded, path) -> list[str]:
    """The papers, and how much of each table is measured."""
    cited = {table.paper: table.cited for table in shown if table.cited}
    lines = [f"* {paper}: {text}" for paper, text in cited.items()]
    if cited:
        if (path.parent / "findings.md").exists():
            lines += ["", "[What we found about the papers](findings.md)"]
        lines.append("")
    lines += [_AGAIN, "", "| name | what it shows | cells measured |", "| --- | --- | --- |"]
    lines += [f"| `{t.name}` | {_title(t)} | {_counted(t, recorded)} |" for t in shown]
    return [*lines, ""]


def _title(table) -> str:
    return f"{table.paper}, {table.title}"


def _counted(table, recorded) -> str:
    """How many cells are measured, and what the others are."""
    own = [cell for cell in table.cells if not cell.quoted]
    there = sum(bool(records.runs_of(cell, recorded)) for cell in own)
    absent = sum(bool(cell.absent) for cell in own)
    quoted = len(table.cells) - len(own)
    said = f"{there} of {len(own)}" + (f", {absent} not run" if absent else "")
    return said + (f" ({quoted} more quoted)" if quoted else "")


def _section(table, recorded, own, out, path) -> list[str]:
    """The table, its figure and the remarks on it."""
    shown = computed.values if table.computed else measured
    found, yours = ({cell.name: shown(cell, r) for cell in table.cells} for r in (recorded, own))
    lines = [f"## {_title(table)}", "", f"`{table.name}`", ""]
    if table.computed and len(table.columns) == 1:
        lines += _turned(table, found, yours)
    else:
        every = []
        for row in table.rows:
            (label, texts), *rest = _lines(table, row, found, yours)
            every += [(f"**{label}**", texts), *((f"&emsp;{name}", t) for name, t in rest)]
        lines += _markdown([(table.axis, table.columns), *every])
    lines.append("")
    picture = out / FIGURES / f"{table.name}.png"
    if figures.draw(table, found, picture):
        lines += [f"![{_title(table)}]({os.path.relpath(picture, path.parent)})", ""]
    remarks = [*_remarks(table), *([] if table.computed else _runs(table, found, yours, recorded))]
    return [*lines, *(f"* {remark}" for remark in remarks), ""]


def _lines(table, row, found, yours) -> list[tuple[str, list[str]]]:
    """The lines of a row: what the paper prints, and what was measured; the first names the row."""
    printed = [_printed(cell) for cell in row.cells]
    whose = ": quoted" if row.quoted else ": paper" if any(printed) else ""
    lines = [(row.label + whose, printed)]
    here, mine = ([shown[cell.name] for cell in row.cells] for shown in (found, yours))
    if row.quoted:
        return lines
    if table.computed:
        for values, prefix in ((here, ""), (mine, "yours, ")):
            for label, name, to_text in COMPUTATIONS[table.computed].lines if any(values) else ():
                lines.append(
                    (prefix + label, ["" if v is None else to_text(v[name]) for v in values])
                )
        return lines
    absent = ["not run" if cell.absent else "not yet" for cell in row.cells]
    lines.append(("here", [str(m or a) for m, a in zip(here, absent, strict=True)]))
    if any(mine):
        lines.append(("yours", [str(m or "") for m in mine]))
    if any(m is not None and math.isfinite(m.epsilon("claimed")) for m in here):
        short = len(here) > 2
        lines += [
            (kind, [_epsilon(m, kind, short) for m in here]) for kind in ("claimed", "proven")
        ]
    for name in table.lines:
        values = ["" if m is None else getattr(m.trainings[0], name) for m in here]
        texts = [v if v == "" else f"{v:,}" if isinstance(v, int) else f"{v:.4g}" for v in values]
        lines.append((name.replace("_", " "), texts))
    return lines


def _turned(table, found, yours) -> list[str]:
    """A table with one column of cells, which has a line for each of them."""
    shown = COMPUTATIONS[table.computed].lines
    lines = [(table.axis, [label for label, *_ in shown])]
    for cell in table.cells:
        for whose, v in (("", found[cell.name]), (", yours", yours[cell.name])):
            if v is not None:
                texts = [to_text(v[name]) for _, name, to_text in shown]
                lines.append((cell.label + whose, texts))
    return _markdown(lines)


def _markdown(rows) -> list[str]:
    """A table of (name, texts), the first of which is the head."""
    head, *rest = [f"| {name} | {' | '.join(texts)} |" for name, texts in rows]
    return [head, f"| --- |{' ---: |' * len(rows[0][1])}", *rest]


def _remarks(table) -> list[str]:
    """What the figures mean, what differs from the paper, and what was not run."""
    found = [text for text in (table.note, table.differs) if text]
    if table.guarantee == "proven" and any(cell.printed for cell in table.cells):
        found.insert(0, "The paper's figures are those at the same epsilons, claimed.")
    rows = [(row.differs, row.label) for row in table.rows]
    of_cells = [
        (cell.differs, f"{cell.label} at {cell.column}")
        for row in table.rows
        for cell in row.cells
        if cell.differs != row.differs
    ]
    absent = [(cell.absent, f"{cell.label} at {cell.column}") for cell in table.cells]
    found += [f"{', '.join(labels)}: {text}" for text, labels in _grouped(rows)]
    found += [f"{', '.join(labels)}: {text}" for text, labels in _grouped(of_cells)]
    found += [f"Not run: {', '.join(labels)}. {text}" for text, labels in _grouped(absent)]
    return found


def _grouped(pairs) -> list[tuple[str, list[str]]]:
    groups = {}
    for text, label in pairs:
        if text:
            groups.setdefault(text, []).append(label)
    return list(groups.items())


def _runs(table, found, yours, recorded) -> list[str]:
    """What is still to be trained and its cost, and what the trainings of the table took."""
    said, rows, missing = [], [], {}
    for row in table.rows:
        left = [c for c in row.cells if c.seeds and not (found[c.name] or yours[c.name])]
        if left:
            rows.append(f"{row.label} at {', '.join(cell.column for cell in left)}")
            missing |= {cell.source: minutes_of(cell, recorded) for cell in left}
    if rows:
        cost = "What they take was not measured."
        if None not in missing.values():
            total = max(1, round(sum(missing.values())))
            cost = f"All of them, one seed each, take about {_count(total, 'minute')}."
        said.append(f"Not measured yet: {'; '.join(rows)}. {cost}")
    known = [m for m in found.values() if m is not None]
    every = [training for m in known for training in m.trainings]
    if every:
        seconds = [sum(t.seconds for t in m.trainings) / len(m.trainings) for m in known]
        commits = sorted({_commit(t.code) for t in every if t.code})
        count = f"{len(every)} trainings" if len(every) > 1 else "One training"
        text = f"{count} of {_range(seconds)} minutes{' each' if len(every) > 1 else ''}"
        if commits:
            text += f", at commit{'s' * (len(commits) > 1)} {', '.join(commits)}"
        if lost := sum(training.lost_steps for training in every):
            text += f". Crashes took {lost:,} of all their steps, which stay counted"
        said.append(f"{text}.")
    return said


def _count(number, what) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _range(seconds) -> str:
    low, high = min(seconds) / 60, max(seconds) / 60
    if high < 0.05:
        return "less than 0.05"
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"


def _commit(code: Mapping) -> str:
    return f"{str(code['commit'])[:10]}{' with changes' if code.get('changed') else ''}"


def _printed(cell: Cell) -> str:
    if cell.printed is None or isinstance(cell.printed, str):
        return cell.printed or ""
    error = "" if cell.printed_error is None else f" ± {cell.printed_error:.2f}"
    return f"{cell.printed:.2f}{error}"


def _epsilon(found: Measured | None, kind: str, short: bool = True) -> str:
    if found is None:
        return ""
    epsilon = found.epsilon(kind)
    if not short and 1e5 <= epsilon < math.inf:
        return f"({math.ceil(epsilon):,})"
    if math.isinf(epsilon) or epsilon < 1e5:
        return format_epsilon(epsilon).replace("vacuous (epsilon = ", "(")
    # A table of many columns has room for one digit, rounded up.
    power = math.floor(math.log10(epsilon))
    digit = math.ceil(epsilon / 10**power)
    return f"({digit}e{power})" if digit < 10 else f"(1e{power + 1})"
