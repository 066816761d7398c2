"""The catalogue of measurements: tables of cells, each a training with some seeds, or a computation.

It is in tables/*.toml, with one file for each paper, or for tables of our own:

    paper = "SI-DPSGD"
    [[tables]]
    name = "T4"                     # `python -m papers run si_dpsgd.T4`
    title = "MNIST, accuracy by claimed epsilon"
    axis = "claimed epsilon"
    columns = ["inf", "7", ...]
    figure = "columns"              # see `Table`
    flags = {dataset = "mnist"}     # of train.py: table, row, columns, cell; later ones replace earlier
    column_flags = {inf = {mechanism = "none", l2_norm_clip = ""}}  # "" removes a flag
    [[tables.rows]]
    name = "dpsgd_lenet5"
    label = "DPSGD LeNet-5"
    paper = [99.20, "NC", ...]      # what the paper prints, in the order of the columns; "" for nothing
    paper_error = [0.02, "", ...]   # the standard errors that it prints, if it does
    flags = {mechanism = "dpsgd"}
    seeds = 3
    differs = "..."                 # from the paper; of a table, too, for all of its rows
    cells = {"0.5" = {flags = {steps = 9}, seeds = 1}, "7" = {absent = "why, and what it would cost"}}
    quoted = true                   # a figure that the paper takes from elsewhere: never run
    same_as = "si_dpsgd.T4.row"     # the trainings of another row, column by column; in `cells`, the
                                    # training of one other cell

In `flags`, `initial_weights` names the cell whose weights, of its first seed, are the start. A table
with `computed = "noise_distance"` is not trained: its flags are the arguments of a function of
`computed.COMPUTATIONS`.
"""

import collections
import dataclasses
import functools
import itertools
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tfdp._validate import did_you_mean

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "papers" / "tables"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        name: The name, "paper.table.row.column".
        label: The label of its row.
        column: The column.
        settings: The settings of train.py without the seed, or the arguments of the computation.
        seeds: The seeds that are run. Empty if none is run.
        source: Name of the cell that is run: its own, or another cell with the same training.
        printed: The paper's figure, a number in percent or a text. None if it prints nothing.
        printed_error: The standard error that the paper prints with it, or None.
        computed: Name of the computation. Empty for a training.
        differs: How the training differs from the paper's, or empty.
        absent: Why the cell is not run, or empty.
        quoted: Whether the paper takes the figure from elsewhere.
    """

    name: str
    label: str
    column: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    source: str
    printed: float | str | None
    printed_error: float | None
    computed: str
    differs: str = ""
    absent: str = ""
    quoted: bool = False

    @property
    def start(self) -> str | None:
        """Name of the cell whose weights are the start, if there is one."""
        return self.settings.get("initial_weights")

    @property
    def flags(self) -> tuple[str, ...]:
        """The settings as flags of a command."""
        return tuple(
            f"--{'' if value else 'no'}{name}" if isinstance(value, bool) else f"--{name}={value}"
            for name, value in self.settings.items()
        )


@dataclasses.dataclass(frozen=True)
class Table:
    """One table or figure.

    Attributes:
        name: The name, "paper.table".
        paper: Name of the paper.
        title: The title.
        columns: The names of the columns.
        rows: The cells, row by row.
        axis: The meaning of the columns.
        guarantee: The epsilon in the columns: "claimed", "proven" or "" for none.
        figure: The figure to draw: accuracy by "epoch", by "columns" or by "claimed" epsilon;
            "histogram", "audits", or the names of computed values, such as "sigma proven". "" for none.
        lines: Further facts about trainings that the page shows, such as "noise_multiplier".
        note: A remark below the table, or empty.
        differs: How the trainings differ from the paper's, or empty.
        computed: Name of the computation. Empty for trainings.
    """

    name: str
    paper: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    axis: str = ""
    guarantee: str = ""
    figure: str = ""
    lines: tuple[str, ...] = ()
    note: str = ""
    differs: str = ""
    computed: str = ""

    @property
    def cells(self) -> list[Cell]:
        """All cells."""
        return [cell for row in self.rows for cell in row]


@functools.cache
def tables() -> tuple[Table, ...]:
    """Returns all tables, paper by paper.

    Raises:
        ValueError: If a file names a column or a cell that does not exist.
    """
    papers = {path.stem: tomllib.loads(path.read_text()) for path in sorted(TABLES.glob("*.toml"))}
    found = [
        _table(f"{stem}.{content['name']}", paper, content)
        for stem, paper in papers.items()
        for content in paper["tables"]
    ]
    own = {cell.name: (cell, table) for table in found for cell in table.cells}
    return tuple(
        dataclasses.replace(
            table, rows=tuple(tuple(_with_source(cell, own) for cell in row) for row in table.rows)
        )
        for table in found
    )


def cells(names: Iterable[str] = ()) -> list[Cell]:
    """Returns the cells with some names, each once, or all cells without names.

    Args:
        names: Names of papers, tables, rows or cells, such as "si_dpsgd.T4" or
            "si_dpsgd.T4.dpsgd_lenet5.3".

    Raises:
        ValueError: If nothing has such a name.
    """
    every = [cell for table in tables() for cell in table.cells]
    groups = collections.defaultdict(list)  # of a paper, a table, a row, and each cell by itself
    for cell in every:
        for group in itertools.accumulate(cell.name.split(".", 3), "{}.{}".format):
            groups[group].append(cell)
    if unknown := [name for name in names if name not in groups]:
        hint = did_you_mean(unknown[0], sorted(groups))
        raise ValueError(f"No table, row or cell is called {unknown[0]!r}. `list` shows all.{hint}")
    return list({cell.name: cell for name in names for cell in groups[name]}.values()) or every


def _table(name, paper, content) -> Table:
    """Returns a table. Cells with the training of another cell have only its name, as their source."""
    columns, rows = content["columns"], []
    nothing = [""] * len(columns)
    for row in content["rows"]:
        if unknown := {*row.get("cells", ()), *row.get("column_flags", ())} - {*columns}:
            raise ValueError(f"{name} has no columns {unknown}.")
        printed = (row.get("paper", nothing), row.get("paper_error", nothing))
        each = zip(columns, *printed, strict=True)
        rows.append(tuple(_cell(name, content, row, *values) for values in each))
    own = {key: content[key] for key in content.keys() & Table.__dataclass_fields__}
    return Table(**own | {"name": name, "paper": paper["paper"], "rows": tuple(rows)})


def _cell(table_name, table, row, column, printed, error) -> Cell:
    own = row.get("cells", {}).get(column, {})
    entry = {"seeds": table.get("seeds", 3)} | row | own
    settings = table.get("flags", {}) | row.get("flags", {})
    for level in (table, row):
        settings |= level.get("column_flags", {}).get(column, {})
    settings |= own.get("flags", {})
    name, first = f"{table_name}.{row['name']}.{column}", table.get("first_seed", 1)
    source = entry.get("same_as", name)
    is_run = not entry.keys() & {"quoted", "absent"}
    return Cell(
        name=name,
        label=row["label"],
        column=column,
        settings={key: value for key, value in settings.items() if value != ""},
        seeds=tuple(range(first, first + entry["seeds"])) if is_run else (),
        source=source + (f".{column}" if source.count(".") == 2 else ""),
        printed=None if printed == "" else printed,
        printed_error=None if error == "" else error,
        computed=table.get("computed", ""),
        **{key: entry[key] for key in ("differs", "absent", "quoted") if key in entry},
    )


def _with_source(cell, own) -> Cell:
    """Returns a cell with the settings of the training that is run for it, perhaps another cell's."""
    for name in filter(None, (cell.source, cell.start)):
        if name not in own or own[name][0].source != name:
            raise ValueError(
                f"{cell.name} names {name}, which is not a cell with its own trainings."
            )
    run, table = own[cell.source]
    if run is cell:
        return cell
    return dataclasses.replace(
        run,
        name=cell.name,
        label=cell.label,
        column=cell.column,
        printed=cell.printed,
        printed_error=cell.printed_error,
        differs=cell.differs or " ".join(filter(None, (run.differs, table.differs))),
    )
