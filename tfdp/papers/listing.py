"""Lists what the catalogue has, what was measured, and what the rest takes."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tfdp.papers.catalogue import cells, tables
from tfdp.papers.records import minutes_of, place


def print_tables(results: Path, records: Mapping, to: Console) -> None:
    """Prints a line for each table and figure.

    Args:
        results: the folder of all results.
        records: the collection, by whose times those of other trainings are estimated.
        to: the terminal.
    """
    shown = Table(title="Tables and figures of the papers", title_justify="left", pad_edge=False)
    shown.add_column("name", no_wrap=True)
    shown.add_column("what it shows")
    for name in ("cells", "recorded", "trained here", "minutes left"):
        shown.add_column(name, justify="right")
    for table in tables():
        every = table.cells
        there = sum(_is_there(results, cell, s) for cell in every for s in cell.seeds)
        total = sum(len(cell.seeds) for cell in every)
        recorded = sum(str(s) in records.get(cell.source, {}) for cell in every for s in cell.seeds)
        left = [
            minutes_of(cell, records)
            for cell in every
            for s in cell.seeds
            if not _is_there(results, cell, s)
        ]
        known = f"{sum(minutes or 0 for minutes in left):,.0f}"
        known = "?" if left and None in left else known
        counts = (f"{len(every)}", f"{recorded}", f"{there} of {total}", known)
        shown.add_row(table.name, table.title, *counts)
    to.print(shown)
    to.print(
        "Minutes are those of trainings like them, one after the other; ? where none was run yet."
    )
    to.print("`list NAME` shows the cells of a table; `run NAME` trains what is missing.")


def print_cells(names, results: Path, records: Mapping, to: Console) -> None:
    """Prints a line for each cell: its flags, the paper's figure and what was trained."""
    for cell in cells(names):
        if cell.quoted:
            state = "quoted by the paper, not run"
        elif cell.absent:
            state = f"not run: {cell.absent}"
        else:
            there = sum(_is_there(results, cell, seed) for seed in cell.seeds)
            state = f"{there} of {len(cell.seeds)} seeds trained"
            if (minutes := minutes_of(cell, records)) is not None:
                state += f", {minutes:.1f} min each"
        printed = "nothing" if cell.printed is None else cell.printed
        said = f"{cell.name}: the paper has {printed}; {state.rstrip('.')}."
        to.print(said, markup=False, highlight=False)
        if cell.flags and not cell.quoted:
            to.print(f"    {' '.join(cell.flags)}", markup=False, highlight=False, soft_wrap=True)


def _is_there(results, cell, seed) -> bool:
    return (place(results, cell, seed) / "run.json").exists()
