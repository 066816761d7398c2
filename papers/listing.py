"""Lists what the catalogue has, what was measured, and what the rest takes; in 80 columns."""

import math
import textwrap
from collections.abc import Iterable
from pathlib import Path

from papers import records, running
from papers.catalogue import cells, tables
from papers.records import Records, minutes_of

_WIDTH = 80


def print_tables(results: Path, recorded: Records) -> None:
    """Prints two lines or more for each table and figure.

    Args:
        results: the folder of all results.
        recorded: the records, by whose times those of other trainings are estimated.
    """
    print(
        f"{'name':<26}{'cells':>7}{'runs':>7}{'recorded':>10}{'here':>7}{'minutes':>10}{'left':>9}"
    )
    for table in tables():
        kept = {c.source: {*records.runs_of(c, recorded)} for c in table.trained}
        here = {c.source: _here(c, results) for c in table.trained}
        every = [(cell, seed) for cell in table.trained for seed in cell.seeds]
        left = [(c, s) for c, s in every if s not in kept[c.source] | here[c.source]]
        whole, rest = (_minutes(some, recorded) for some in (every, left))
        print(
            f"{table.name:<26}{len(table.cells):>7}{len(every):>7}{_sum(kept):>10}{_sum(here):>7}"
            f"{whole:>10}{rest:>9}\n{_wrapped(table.title, '    ')}"
        )
    print()
    print(_wrapped(
        "Minutes are those of all runs, one after the other on two quiet cores, and of those that are "
        "neither recorded nor here (left), by the time of runs like them; ? where none was run yet. "
        "`list NAME` shows the cells of a table; `run NAME --skip_recorded` runs what is missing, and "
        "`run NAME` also what is recorded."
    ))  # fmt: skip


def print_cells(names: Iterable[str], results: Path, recorded: Records) -> None:
    """Prints for each cell the paper's figure, what was run, and the command that runs it."""
    for cell in cells(names):
        if cell.quoted:
            state = "not run, as the paper quotes it from others"
        elif cell.absent:
            state = f"not run: {cell.absent.rstrip('.')}"
        else:
            last = f" to {cell.seeds[-1]}" if cell.seeds[1:] else ""
            kept, here = len(records.runs_of(cell, recorded)), len(_here(cell, results))
            state = f"seeds {cell.seeds[0]}{last}: {kept} recorded, {here} here"
            begun = sum(records.note(results, cell, seed).exists() for seed in cell.seeds)
            state += f", {begun - here} unfinished" if begun > here else ""
            if (took := minutes_of(cell, recorded)) is not None:
                state += f", {took:.1f} min each"
        printed = "no figure" if cell.printed in (None, "–") else cell.printed
        if cell.printed_error is not None:
            printed = f"{printed} ± {cell.printed_error}"
        print(_wrapped(f"{cell.name}: the paper prints {printed}; {state}."))
        if cell.start:
            print(f"    first: python -m papers run {cell.start}")
        if cell.seeds:  # in one line, to be copied
            print(f"    {running.command(cell, cell.seeds[0], results)}")


def _here(cell, results) -> set[int]:
    """The seeds that are finished here."""
    return {seed for seed in cell.seeds if records.made(results, cell, seed) is not None}


def _minutes(runs, recorded) -> str:
    some = [minutes_of(cell, recorded) for cell, _ in runs]
    return "?" if None in some else f"{math.ceil(sum(some)):,}"


def _sum(seeds) -> int:
    return sum(map(len, seeds.values()))


def _wrapped(text, indent="") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent or "    ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
