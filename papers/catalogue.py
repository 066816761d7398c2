"""The catalogue of what is measured: tables of cells, each a training with some seeds or a computation.

It is in tables/*.toml, one file for each paper, or for tables of our own:

    paper = "SI-DPSGD"
    cited = "..."                   # authors, title, where it is found
    [[tables]]
    name = "T4"                     # `python -m papers run si_dpsgd.T4`
    title = "MNIST, accuracy by claimed epsilon"
    axis = "claimed epsilon"
    columns = ["inf", "7", ...]
    guides = [[10, "chance"]]       # lines in the figure
    flags = "--dataset=mnist ..."   # of train.py; a later flag of one name replaces an earlier one
    column_flags = {inf = "--mechanism=none"}
    [[tables.rows]]
    name = "dpsgd_lenet5"
    label = "DPSGD LeNet-5"
    paper = [99.20, "NC", ...]      # what the paper prints, in the order of the columns; "" for nothing
    paper_error = [0.02, "", ...]   # the standard errors that it prints, if it does
    flags = "--mechanism=dpsgd ..."
    seeds = 3
    minutes = 4.0                   # of one seed on two quiet cores, measured
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


class UnknownName(ValueError):
    """No table, row or cell has this name."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        name: "paper.table.row.column".
        label: that of its row.
        column: the column's name.
        flags: the flags of train.py, without the seed.
        printed: what the paper prints there: a number in percent, a text, or None.
        printed_error: the standard error that the paper prints with it, or None.
        seeds: the seeds that are trained; empty if it is not.
        minutes: what one seed takes on two quiet cores; None if unknown.
        differs: in what the training differs from the paper.
        absent: why it is not trained, and what it would cost; empty if it is.
        quoted: whether the paper takes its figure from elsewhere.
        source: name of the cell that is trained: its own, or another's with the same training.
        start: name of the cell whose weights are the initial ones; empty for none.
        computed: name of the computation; empty for a training.
    """

    name: str
    label: str
    column: str
    flags: tuple[str, ...]
    printed: float | str | None
    printed_error: float | None
    seeds: tuple[int, ...]
    minutes: float | None
    differs: str
    absent: str
    quoted: bool
    source: str
    start: str = ""
    computed: str = ""

    @property
    def table(self) -> str:
        """Name of the table: "paper.table"."""
        return ".".join(self.name.split(".")[:2])


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table; the attributes are those of the file."""

    label: str
    cells: tuple[Cell, ...]
    differs: str
    quoted: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure; the attributes are those of the file.

    Attributes:
        name: "paper.table".
        paper: name of the paper in words.
        cited: authors and title of the paper, and where it is found.
        guarantee: which epsilon the columns are: "claimed", "proven" or "" for none.
        curves: whether accuracy by epoch is drawn.
        by: "claimed" or "proven" to draw the figure over this epsilon, not over the columns.
        errors: whether the figure shows test errors on a logarithmic scale, not accuracies.
        lines: further attributes of trainings that the page shows, such as "noise_multiplier".
        note: what has to be said below it.
        differs: in what all rows differ from the paper.
        guides: (accuracy in percent, words): lines in the figure to compare with.
        computed: name of the computation of its cells; empty for trainings.
    """

    name: str
    paper: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    cited: str = ""
    axis: str = ""
    guarantee: str = ""
    curves: bool = False
    by: str = ""
    errors: bool = False
    lines: tuple[str, ...] = ()
    note: str = ""
    differs: str = ""
    guides: tuple[tuple[float, str], ...] = ()
    computed: str = ""

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [cell for row in self.rows for cell in row.cells]

    @property
    def trained(self) -> list[Cell]:
        """The cells with trainings; of several that share one, the first."""
        return list({c.source: c for c in reversed(self.cells) if c.seeds}.values())[::-1]


@functools.cache
def tables() -> tuple[Table, ...]:
    """Returns all tables, paper by paper."""
    found = []
    for path in sorted(TABLES.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        found += [_table(path.stem, content, table) for table in content["tables"]]
    known = {cell.name: cell for table in found for cell in table.cells}
    differs = {table.name: table.differs for table in found}
    return tuple(
        dataclasses.replace(
            table, rows=tuple(_with_sources(row, known, differs) for row in table.rows)
        )
        for table in found
    )


def _with_sources(row: Row, known, differs) -> Row:
    """Returns the row with the trainings of other cells filled in, where its cells name them."""
    cells = tuple(_with_source(cell, known, differs) for cell in row.cells)
    shared = all(cell.source != cell.name for cell in cells)
    return dataclasses.replace(
        row, cells=cells, differs=cells[0].differs if shared else row.differs
    )


def _with_source(cell: Cell, known, differs) -> Cell:
    for name in filter(None, (cell.source, cell.start)):
        if name not in known or known[name].source != name:
            raise ValueError(f"{cell.name} names {name}, which is no cell with its own trainings.")
    if cell.source == cell.name or cell.absent:
        return cell
    other = known[cell.source]
    texts = (other.differs, differs[other.table])
    return dataclasses.replace(
        cell, flags=other.flags, seeds=other.seeds, minutes=other.minutes, absent=other.absent,
        start=other.start, differs=cell.differs or " ".join(filter(None, texts)),
    )  # fmt: skip


def cells(names: Iterable[str] = ()) -> list[Cell]:
    """Returns the cells that names stand for, each once; all of them without names.

    Args:
        names: of papers, tables, rows or cells, such as "si_dpsgd.T4" or "si_dpsgd.T4.dpsgd_lenet5.3".

    Raises:
        UnknownName: nothing has such a name.
    """
    every = {cell.name: cell for table in tables() for cell in table.cells}
    found = {} if names else every
    for name in names:
        # A column may have a dot, so that 0 is no prefix of 0.5.
        inner = name.count(".") < 3
        chosen = {
            n: c for n, c in every.items() if n == name or (inner and n.startswith(name + "."))
        }
        if not chosen:
            parts = (n.split(".", 3) for n in every)
            known = {".".join(part[:i]) for part in parts for i in range(1, 5)}
            raise UnknownName(
                f"No table, row or cell is called {name!r}; `list` shows all."
                f"{did_you_mean(name, sorted(known))}"
            )
        found |= chosen
    return list(found.values())


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


def _table(stem, paper, content) -> Table:
    own = {**content, "name": f"{stem}.{content['name']}"}
    for name in ("flags", "column_flags", "first_seed"):  # of its cells
        own.pop(name, None)
    own["rows"] = tuple(_row(own["name"], content, row) for row in content["rows"])
    own["guides"] = tuple(map(tuple, content.get("guides", ())))
    own["columns"], own["lines"] = tuple(content["columns"]), tuple(content.get("lines", ()))
    return Table(paper=paper["paper"], cited=paper.get("cited", ""), **own)


def _row(table, common, row) -> Row:
    columns, name = common["columns"], f"{table}.{row['name']}"
    if unknown := row.get("cells", {}).keys() - {*columns}:
        raise ValueError(f"The table of {name} has no columns {unknown}.")
    empty = [""] * len(columns)
    printed = zip(columns, row.get("paper", empty), row.get("paper_error", empty), strict=True)
    cells = tuple(_cell(name, *each, common, row) for each in printed)
    return Row(row["label"], cells, row.get("differs", ""), row.get("quoted", False))


def _cell(row_name, column, printed, error, table, row) -> Cell:
    """Makes a cell; what stands in its entry of `cells` wins over its row, and that over the table."""
    own = row.get("cells", {}).get(column, {})
    known, levels = {**row, **own}, (table, row)
    flags = [level.get("flags", "") for level in levels]
    flags += [level.get("column_flags", {}).get(column, "") for level in levels]
    first, seeds = table.get("first_seed", 1), known.get("seeds", 1 if "computed" in table else 3)
    run = not (row.get("quoted") or known.get("absent"))
    return Cell(
        name=f"{row_name}.{column}",
        label=row["label"],
        column=column,
        flags=merged(*flags, own.get("flags", "")),
        printed=None if printed == "" else printed,
        printed_error=None if error == "" else error,
        seeds=tuple(range(first, first + seeds)) if run else (),
        minutes=known.get("minutes"),
        differs=known.get("differs", ""),
        absent=known.get("absent", ""),
        quoted=row.get("quoted", False),
        source=own.get("same_as", f"{row.get('same_as', row_name)}.{column}"),
        start=known.get("start", ""),
        computed=table.get("computed", ""),
    )
