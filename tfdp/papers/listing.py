"""Lists what the catalogue has, what was measured, and what the rest takes."""

import math
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tfdp.experiments.partial_folder import ResultError
from tfdp.papers.catalogue import cells, tables
from tfdp.papers.computed import COMPUTATIONS
from tfdp.papers.records import (
    collect,
    computed_values,
    done,
    measured,
    minutes_of,
    place,
    seeds_in,
)

# Narrower terminals than this have a line of words in place of the columns of a table.
_NARROW = 100
_COUNTED = ("cells", "trainings", "minutes", "recorded", "here", "minutes left")


def print_tables(results: Path, records: Mapping, to: Console) -> None:
    """Prints a line for each table and figure.

    Args:
        results: the folder of all results.
        records: the collection, by whose times those of other trainings are estimated.
        to: the terminal.
    """
    left_out = {}
    shown = Table(title="Tables and figures of the papers", title_justify="left", pad_edge=False)
    shown.add_column("name", no_wrap=True)
    shown.add_column("what it shows")
    for name in _COUNTED:
        shown.add_column(name, justify="right")
    narrow = to.width < _NARROW
    for table in tables():
        # Cells that have the same training stand for one.
        own = {cell.source: cell for cell in reversed(table.cells)}.values()
        here = {(c.source, s) for c in own for s in c.seeds if _is_there(results, c, s, left_out)}
        total = sum(len(cell.seeds) for cell in own)
        recorded = sum(len(seeds_in(records, cell)) for cell in own)
        left = [
            minutes_of(cell, records)
            for cell in own
            for s in set(cell.seeds) - seeds_in(records, cell)
            if (cell.source, s) not in here
        ]
        whole = [minutes_of(cell, records) for cell in own for _ in cell.seeds]
        took, known = (
            "?" if None in some else f"{math.ceil(sum(some)):,}" for some in (whole, left)
        )
        counts = (f"{len(table.cells)}", f"{total}", took, f"{recorded}", f"{len(here)}", known)
        if narrow:
            words = (f"{count} {name}" for name, count in zip(_COUNTED, counts, strict=True))
            to.print(f"{table.name}: {', '.join(words)}", markup=False, highlight=False)
        shown.add_row(table.name, table.title, *counts)
    if not narrow:
        to.print(shown)
    to.print(
        "Minutes are those of all trainings, one after the other on two quiet cores, and of those that "
        "are neither recorded nor here, by the time of trainings like them; ? where none was run yet."
    )
    to.print(
        "`list NAME` shows the cells of a table; `run NAME --skip_recorded` trains what is missing, "
        "and `run NAME` also what is recorded."
    )
    _say(left_out, to)


def print_cells(names, results: Path, records: Mapping, to: Console) -> None:
    """Prints a line for each cell: its flags, the paper's figure and what was trained."""
    left_out = {}
    for cell in cells(names):
        if cell.quoted:
            state = "not run, as the paper quotes it from others"
        elif cell.absent:
            state = f"not run: {cell.absent}"
        else:
            there = sum(_is_there(results, cell, seed, left_out) for seed in cell.seeds)
            recorded = len(seeds_in(records, cell))
            last = f" to {cell.seeds[-1]}" if cell.seeds[1:] else ""
            state = f"seeds 1{last}: {recorded} recorded, {there} here"
            unfinished = sum(Path(f"{place(results, cell, s)}.secret").is_dir() for s in cell.seeds)
            state += f", {unfinished} unfinished" if unfinished else ""
            if (minutes := minutes_of(cell, records)) is not None:
                state += f", {minutes:.1f} min each"
        printed = "no figure" if cell.printed in (None, "–") else cell.printed
        if cell.printed_error is not None:
            printed = f"{printed} ± {cell.printed_error}"
        said = f"{cell.name}: the paper prints {printed}; {state.rstrip('.')}."
        to.print(said, markup=False, highlight=False, soft_wrap=True)
        if cell.seeds:
            if cell.needs:
                needed = f"    first: python -m tfdp.experiments run {cell.needs}"
                to.print(needed, markup=False, highlight=False, soft_wrap=True)
            words = f"    {cell.command(cell.seeds[0], results)}"
            if cell.computed:
                words += f"  # tfdp.papers.{cell.computed}: {' '.join(cell.flags)}"
            to.print(words, markup=False, highlight=False, soft_wrap=True)
    _say(left_out, to)


def print_comparison(names, results: Path, records: Mapping, to: Console) -> None:
    """Prints what was trained here beside what is recorded, cell by cell.

    The difference is in standard errors of a difference of two such means, where each has two seeds or
    more.
    """
    here, left = collect(results, cells(names))
    title = "Test accuracy in percent, or the values of computed cells; (number of seeds)"
    shown = Table(title=title, title_justify="left", pad_edge=False)
    shown.add_column("cell", no_wrap=True)
    for name in ("recorded", "here", "difference", "in standard errors"):
        shown.add_column(name, justify="right")
    for cell in cells(names):
        if cell.computed:
            _compare_values(shown, cell, here, records)
            continue
        mine = measured(cell, here)
        if mine is None:
            continue
        theirs = measured(cell, records)
        texts = [_mean(theirs), _mean(mine), "", ""]
        if theirs is not None:
            texts[2] = f"{mine.mean - theirs.mean:+.2f}"
            texts[3] = "one seed"
            if mine.error is not None and theirs.error is not None:
                spread = math.hypot(mine.error, theirs.error)
                texts[3] = f"{(mine.mean - theirs.mean) / spread:+.1f}" if spread else "0 spread"
        shown.add_row(cell.name, *texts)
    if shown.row_count and _width(shown, to) <= to.width:
        to.print(shown)
    elif shown.row_count:
        names = [column.header for column in shown.columns[1:]]
        for name, *texts in zip(*(column.cells for column in shown.columns), strict=True):
            words = (f"{n} {t}" for n, t in zip(names, texts, strict=True) if t)
            to.print(f"{name}: {', '.join(words)}", markup=False, highlight=False)
    else:
        to.print(f"None of these cells was trained in {results}.", markup=False)
    _say(left, to)


def _width(table, to) -> int:
    """The width of a table that is not squeezed."""
    return to.measure(table, options=to.options.update(width=10_000)).maximum


def _compare_values(shown, cell, here, records) -> None:
    """Adds lines for the values of a computed cell."""
    mine, theirs = (computed_values(cell, found) or {} for found in (here, records))
    for label, name, to_text in COMPUTATIONS[cell.computed].lines:
        if name in mine:
            texts = [to_text(v[name]) if name in v else "nothing" for v in (theirs, mine)]
            difference = f"{mine[name] - theirs[name]:+.3g}" if name in theirs else ""
            shown.add_row(f"{cell.name}: {label}", *texts, difference, "")


def _mean(found) -> str:
    if found is None:
        return "nothing"
    spread = "" if found.error is None else f" ± {found.error:.2f}"
    return f"{found.mean:.2f}{spread} ({len(found.accuracies)})"


def _is_there(results, cell, seed, left_out) -> bool:
    """Whether a training can be collected; the reason why it cannot is put into `left_out`."""
    if not (place(results, cell, seed) / "run.json").exists():
        return False
    try:
        return done(results, cell, seed) is not None
    except ResultError as error:
        left_out[str(error)] = None
        return False


def _say(lines, to) -> None:
    for line in lines:
        to.print(line, markup=False, highlight=False)
