"""The catalogue of what is measured: tables of cells, each a training with some seeds or a computation.

It is in tables/*.toml, one file for each paper, or for tables of our own:

    paper = "SI-DPSGD"
    cited = "..."                   # authors, title, where it is found
    [[tables]]
    name = "T4"                     # `python -m papers run si_dpsgd.T4`
    title = "MNIST, accuracy by claimed epsilon"
    axis = "claimed epsilon"
    columns = ["inf", "7", ...]
    figure = "columns"              # see `Table`
    flags = "--dataset=mnist ..."   # of train.py; a later flag of one name replaces an earlier one
    column_flags = {inf = "--mechanism=none"}
    [[tables.rows]]
    name = "dpsgd_lenet5"
    label = "DPSGD LeNet-5"
    paper = [99.20, "NC", ...]      # what the paper prints, in the order of the columns; "" for nothing
    paper_error = [0.02, "", ...]   # the standard errors that it prints, if it does
    flags = "--mechanism=dpsgd ..."
    seeds = 3
    differs = "..."                 # from the paper; of a table, too, for all of its rows
    cells = {"0.5" = {flags = "...", seeds = 1}, "7" = {absent = "why, and what it would cost"}}
    quoted = true                   # a figure that the paper takes from elsewhere: never run
    same_as = "si_dpsgd.T4.row"     # the trainings of another row, column by column; in `cells`, the
                                    # training of one other cell
    start = "batch_norm.pretraining.tf.-"  # the cell whose weights, of its first seed, are the start

A table with `computed = "noise_distance"` is not trained: its flags are the arguments of a function of
`computed.COMPUTATIONS`.
"""

import dataclasses
import functools
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tfdp._validate import did_you_mean

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "papers" / "tables"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table; further attributes are those of the file, empty for nothing.

    Attributes:
        name: "paper.table.row.column".
        label: that of its row.
        flags: all flags of train.py but the seed, or the arguments of the computation.
        seeds: the seeds that are run; empty if none is.
        source: name of the cell that is run: its own, or another's with the same training.
        printed: what the paper prints there: a number in percent, a text, or None.
        printed_error: the standard error that the paper prints with it, or None.
        computed: name of the computation; empty for a training.
    """

    name: str
    label: str
    column: str
    flags: tuple[str, ...]
    seeds: tuple[int, ...]
    source: str
    printed: float | str | None
    printed_error: float | None
    differs: str
    absent: str
    quoted: bool
    start: str
    computed: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table; the attributes are those of the file."""

    label: str
    cells: tuple[Cell, ...]
    differs: str
    quoted: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure; further attributes are those of the file.

    Attributes:
        name: "paper.table".
        guarantee: which epsilon the columns are: "claimed", "proven" or "" for none.
        figure: what is drawn, if anything: accuracy by "epoch", by "columns" or by "claimed" epsilon;
            "histogram", "audits", or the names of computed values, such as "sigma proven".
        lines: further attributes of trainings that the page shows, such as "noise_multiplier".
        note: what has to be said below it.
    """

    name: str
    paper: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    cited: str = ""
    axis: str = ""
    guarantee: str = ""
    figure: str = ""
    lines: tuple[str, ...] = ()
    note: str = ""
    differs: str = ""
    computed: str = ""

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [cell for row in self.rows for cell in row.cells]


@functools.cache
def tables() -> tuple[Table, ...]:
    """Returns all tables, paper by paper.

    Raises:
        ValueError: a file names a column or a cell that there is not.
    """
    papers = {path.stem: tomllib.loads(path.read_text()) for path in sorted(TABLES.glob("*.toml"))}
    entries = {name: entry for paper in papers.items() for name, entry in _entries(*paper)}
    return tuple(
        _table(f"{stem}.{table['name']}", paper, table, entries)
        for stem, paper in papers.items()
        for table in paper["tables"]
    )


def cells(names: Iterable[str] = ()) -> list[Cell]:
    """Returns the cells that names stand for, each once; all of them without names.

    Args:
        names: of papers, tables, rows or cells, such as "si_dpsgd.T4" or "si_dpsgd.T4.dpsgd_lenet5.3".

    Raises:
        ValueError: nothing has such a name.
    """
    every = [cell for table in tables() for cell in table.cells]
    groups = {}  # the cells of a paper, a table, a row, and each cell by itself
    for cell in every:
        parts = cell.name.split(".", 3)  # a column may have a dot
        for i in range(1, 5):
            groups.setdefault(".".join(parts[:i]), []).append(cell)
    for name in names:
        if name not in groups:
            raise ValueError(
                f"No table, row or cell is called {name!r}; `list` shows all."
                f"{did_you_mean(name, sorted(groups))}"
            )
    return list(dict.fromkeys(cell for name in names for cell in groups[name])) or every


def merged(*texts: str) -> tuple[str, ...]:
    """Returns the flags in several texts; of flags of one name, the last stays, in the first's place.

    A flag that is written --name= is left out, and --noname replaces --name.
    """
    flags = shlex.split(" ".join(texts))
    found = {name: flag for flag, (name, _) in zip(flags, pairs(flags), strict=True)}
    return tuple(flag for flag in found.values() if not flag.endswith("="))


def pairs(flags: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the name and the value of each flag; "true" and "false" of --name and --noname."""
    for flag in flags:
        name, equals, value = flag.removeprefix("--").partition("=")
        negated = not equals and name.startswith("no") and name != "normalize_output"
        yield (name.removeprefix("no"), "false") if negated else (name, value if equals else "true")


def _entries(stem, paper) -> Iterator[tuple[str, dict]]:
    """Yields what is said of each cell: in its own entry, else of its row, else of its table."""
    for table in paper["tables"]:
        shared = {"seeds": 1 if "computed" in table else 3, "first_seed": 1, "computed": ""}
        shared |= {key: table[key] for key in shared if key in table}
        shared["differs_all"] = table.get("differs", "")
        for row in table["rows"]:
            cells = row.get("cells", {})
            if unknown := {*cells, *row.get("column_flags", ())} - {*table["columns"]}:
                raise ValueError(f"{stem}.{table['name']} has no columns {unknown}.")
            for column in table["columns"]:
                own, levels = cells.get(column, {}), (table, row)
                flags = [level.get("flags", "") for level in levels]
                flags += [level.get("column_flags", {}).get(column, "") for level in levels]
                flags = merged(*flags, own.get("flags", ""))
                name = f"{stem}.{table['name']}.{row['name']}.{column}"
                yield name, {**shared, **row, **own, "flags": flags}


def _table(name, paper, content, entries) -> Table:
    own = {key: content[key] for key in content.keys() & Table.__dataclass_fields__}
    own["rows"] = tuple(_row(f"{name}.{r['name']}", content, r, entries) for r in content["rows"])
    return Table(**own | {"name": name, "paper": paper["paper"], "cited": paper.get("cited", "")})


def _row(name, table, row, entries) -> Row:
    empty = [""] * len(table["columns"])
    printed = (row.get("paper", empty), row.get("paper_error", empty))
    columns = zip(table["columns"], *printed, strict=True)
    cells = tuple(_cell(f"{name}.{column}", column, *each, entries) for column, *each in columns)
    differs = cells[0].differs if "same_as" in row else row.get("differs", "")
    return Row(row["label"], cells, differs, row.get("quoted", False))


def _cell(name, column, printed, error, entries) -> Cell:
    own = entries[name]
    source, differs = own.get("same_as", name), own.get("differs", "")
    source += f".{column}" if source.count(".") == 2 else ""
    for other in (source, own.get("start", source)):
        if other not in entries or (other != name and "same_as" in entries[other]):
            raise ValueError(f"{name} names {other}, which is no cell with its own trainings.")
    run = entries[source]
    if source != name and not differs:
        differs = " ".join(filter(None, (run.get("differs"), run["differs_all"])))
    first = run["first_seed"]
    is_run = not ("quoted" in own or "absent" in run)
    return Cell(
        name=name,
        label=own["label"],
        column=column,
        flags=run["flags"],
        seeds=tuple(range(first, first + run["seeds"])) if is_run else (),
        source=source,
        printed=None if printed == "" else printed,
        printed_error=None if error == "" else error,
        differs=differs,
        absent=run.get("absent", ""),
        quoted="quoted" in own,
        start=run.get("start", ""),
        computed=run["computed"],
    )
