"""What the papers print, as a catalogue of cells: one training with some seeds, or a computation.

The catalogue is in the .toml files beside this module, one for each paper:

    paper = "SI-DPSGD"
    cited = "..."                   # authors, title, where it is found
    [[tables]]
    name = "T4"                     # `python -m tfdp.experiments run si_dpsgd.T4`
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
    needs = "batch_norm.pretraining.tf.-"  # the cell whose weights, of its first seed, are the start

A table with `computed = "noise_distance"` is not trained: its flags are the arguments of a function of
`computed.COMPUTATIONS`, and each cell is computed once.

This module imports neither TensorFlow nor Keras.
"""

import dataclasses
import functools
import shlex
import tomllib
from pathlib import Path

from absl import flags

from tfdp._validate import did_you_mean
from tfdp.experiments import command
from tfdp.experiments.rules import EMBEDDED
from tfdp.experiments.settings import SETTINGS, Experiment

_FOLDER = Path(__file__).parent
NO_RECIPE = "flags/papers/no_recipe.cfg"


def flag_and_text(flag: str) -> tuple[str, str]:
    """Splits a flag, written --name=value, --name or --noname, into its name and its value's text."""
    name, equals, text = flag.removeprefix("--").partition("=")
    if equals:
        return name, text
    negated = name.startswith("no") and name not in SETTINGS
    return (name.removeprefix("no"), "false") if negated else (name, "true")


class UnknownName(ValueError):
    """No table, row or cell has this name."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        name: "paper.table.row.column".
        table, row, column: names of what it belongs to.
        flags: the flags of train.py, without those of the seed.
        printed: what the paper prints there: a number in percent, a text, or None.
        printed_error: the standard error that the paper prints with it, or None.
        seeds: the seeds that are trained; empty if it is not.
        minutes: what one seed takes on two quiet cores; None if it was not measured.
        differs: in what the training differs from the paper.
        absent: why it is not trained, and what it would cost; empty if it is.
        quoted: whether the paper takes its figure from elsewhere.
        source: name of the cell that is trained: its own, or that of another with the same training.
        needs: name of the cell whose weights are the initial ones; empty for none.
        computed: name of the computation that makes it, whose arguments are the flags; empty for a
            training.
    """

    name: str
    table: str
    row: str
    column: str
    flags: tuple[str, ...]
    printed: float | str | None
    seeds: tuple[int, ...]
    minutes: float | None
    differs: str
    absent: str
    quoted: bool
    source: str
    needs: str = ""
    computed: str = ""
    printed_error: float | None = None

    @property
    def folder(self) -> Path:
        """The folder of its results below the folder of all results."""
        return Path(*self.source.split(".", 3))

    def experiment(
        self, seed: int, data_dir: str | None = None, start: str | None = None
    ) -> Experiment:
        """Returns the settings of one training.

        Args:
            seed: the seed.
            data_dir: the folder of tensorflow_datasets' data.
            start: the file of the initial weights, where the cell needs another; by default a name that
                stands for it.
        """
        values = flags.FlagValues()
        command.define(values, sweeps=False)
        words = ["experiment", *self.flags, f"--seed={seed}"]
        embedded = any(flag == f"--dataset={name}" for flag in self.flags for name in EMBEDDED)
        if data_dir is not None and not embedded:
            words.append(f"--data_dir={data_dir}")
        try:
            command.parse(words, values)
            (point,) = command.points(words, None)
        except ValueError as error:
            raise ValueError(f"In {self.name}: {error}") from error
        if self.needs:
            path = start or initial_weights(self.needs)
            return dataclasses.replace(point.experiment, initial_weights=path)
        return point.experiment

    def command(self, seed: int, results: Path) -> str:
        """Returns the command that trains, or computes, one seed alone.

        Args:
            seed: the seed.
            results: the folder of all results, which has the initial weights of a cell that needs some.
        """
        if self.computed:  # by a function that has no command of its own
            return f"python -m tfdp.experiments run {self.name}"
        words = [*self.flags, f"--seed={seed}"]
        if self.needs:
            words.append(f"--initial_weights={Path(results) / initial_weights(self.needs)}")
        # Without a file train.py would take what is not named from a recipe of flags/defaults.
        return f"python train.py --flagfile={NO_RECIPE} {shlex.join(words)}"


def initial_weights(name: str) -> str:
    """Returns the file of a cell's weights, below the folder of all results."""
    return "/".join((*name.split(".", 3), "seed=1", "model.keras"))


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a table; the attributes are those of the file."""

    name: str
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
        guarantee: which epsilon the columns are: "claimed", "proven" or "" for none.
        curves: whether what counts is accuracy by epoch.
        by: "claimed" or "proven" if the figure is drawn over this epsilon, and not over the columns.
        note: what has to be said below it.
        differs: in what all rows differ from the paper.
        guides: (accuracy in percent, words): lines in the figure to compare with.
        computed: name of the computation of its cells; empty for trainings.
        cited: authors and title of the paper, and where it is found.
    """

    name: str
    paper: str
    title: str
    axis: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    guarantee: str
    curves: bool
    by: str
    note: str
    differs: str = ""
    guides: tuple[tuple[float, str], ...] = ()
    computed: str = ""
    cited: str = ""

    @property
    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        return [cell for row in self.rows for cell in row.cells]


@functools.cache
def tables() -> tuple[Table, ...]:
    """Returns all tables, paper by paper."""
    found = []
    for path in sorted(_FOLDER.glob("*.toml")):
        content = tomllib.loads(path.read_text())
        found += [_table(path.stem, content, table) for table in content["tables"]]
    return tuple(_resolved(table, found) for table in found)


def _resolved(table, found) -> Table:
    """The table with the trainings of other rows filled in, where its rows name them."""
    known = {cell.name: cell for other in found for cell in other.cells}
    rows = []
    for row in table.rows:
        cells = []
        for cell in row.cells:
            if cell.source != cell.name and not cell.absent:
                other = known[cell.source]
                if other.source != other.name:
                    raise ValueError(
                        f"{cell.name} has trainings of {other.name}, which has others'."
                    )
                theirs = [other.differs, *(t.differs for t in found if t.name == other.table)]
                cell = dataclasses.replace(
                    cell, flags=other.flags, seeds=other.seeds, minutes=other.minutes,
                    differs=cell.differs or " ".join(text for text in theirs if text),
                    absent=other.absent, needs=other.needs,
                )  # fmt: skip
            if cell.needs and (cell.needs not in known or known[cell.needs].source != cell.needs):
                raise ValueError(
                    f"{cell.name} needs {cell.needs}, which is no cell with trainings."
                )
            cells.append(cell)
        shared = all(cell.source != cell.name for cell in cells)
        differs = cells[0].differs if shared else row.differs
        rows.append(dataclasses.replace(row, cells=tuple(cells), differs=differs))
    return dataclasses.replace(table, rows=tuple(rows))


def cells(names) -> list[Cell]:
    """Returns the cells that names stand for, each once.

    Args:
        names: of papers, tables, rows or cells, such as "si_dpsgd.T4" or "si_dpsgd.T4.dpsgd_lenet5.3".

    Raises:
        UnknownName: nothing has such a name.
    """
    every = [cell for table in tables() for cell in table.cells]
    found = {}
    for name in names:
        # The column 0 is no prefix of the column 0.5.
        chosen = [cell for cell in every if cell.name == name]
        if not chosen and name.count(".") < 3:  # behind a row stands a column, which may have a dot
            chosen = [cell for cell in every if cell.name.startswith(f"{name}.")]
        if not chosen:
            known = {p for cell in every for p in _prefixes(cell.name)}
            raise UnknownName(
                f"Expected the name of a table, row or cell. Found {name!r}; `list` shows all."
                f"{did_you_mean(name, sorted(known))}"
            )
        found |= {cell.name: cell for cell in chosen}
    return list(found.values())


def named(name: str) -> Cell:
    """Returns the cell of a name; raises UnknownName if it is not that of one cell."""
    found = cells([name])
    if found[0].name != name:
        raise UnknownName(f"Expected the name of a cell. Found {name!r}.")
    return found[0]


def started_from() -> frozenset[str]:
    """Returns the names of the cells from whose weights others start."""
    return frozenset(cell.needs for table in tables() for cell in table.cells if cell.needs)


def _prefixes(name):
    # A column such as 0.05 has a dot of its own.
    paper, table, row, column = name.split(".", 3)
    return (paper, f"{paper}.{table}", f"{paper}.{table}.{row}", f"{paper}.{table}.{row}.{column}")


def merged(*texts: str) -> tuple[str, ...]:
    """Returns the flags in several texts; of flags of one name, the last stays, in the first's place.

    A flag that is written --name= is left out.
    """
    found = {}
    for text in texts:
        for flag in shlex.split(text):
            name, value = flag_and_text(flag)
            found[name] = (flag, value)
    return tuple(flag for flag, value in found.values() if value)


def _table(stem, file, content) -> Table:
    name, columns = f"{stem}.{content['name']}", tuple(content["columns"])
    rows = tuple(_row(name, columns, content, row) for row in content["rows"])
    return Table(
        name=name,
        paper=file["paper"],
        cited=file.get("cited", ""),
        title=content["title"],
        axis=content.get("axis", ""),
        columns=columns,
        rows=rows,
        guarantee=content.get("guarantee", ""),
        curves=content.get("curves", False),
        by=content.get("by", ""),
        note=content.get("note", ""),
        differs=content.get("differs", ""),
        guides=tuple((value, words) for value, words in content.get("guides", ())),
        computed=content.get("computed", ""),
    )


def _row(table, columns, common, content) -> Row:
    quoted, own = content.get("quoted", False), content.get("cells", {})
    source = content.get("same_as", f"{table}.{content['name']}")
    printed = content.get("paper", [""] * len(columns))
    errors = content.get("paper_error", [""] * len(columns))
    if not len(printed) == len(errors) == len(columns) or own.keys() - set(columns):
        raise ValueError(f"The row {content['name']} of {table} does not have the table's columns.")
    cells = []
    for column, figure, error in zip(columns, printed, errors, strict=True):
        cell = own.get(column, {})
        absent = cell.get("absent", content.get("absent", ""))
        seeds = cell.get("seeds", content.get("seeds", 1 if common.get("computed") else 3))
        seeds = 0 if quoted or absent else seeds
        words = merged(
            common.get("flags", ""),
            content.get("flags", ""),
            common.get("column_flags", {}).get(column, ""),
            content.get("column_flags", {}).get(column, ""),
            cell.get("flags", ""),
        )
        cells.append(
            Cell(
                name=f"{table}.{content['name']}.{column}",
                table=table,
                row=content["name"],
                column=column,
                flags=words,
                printed=None if figure == "" else figure,
                seeds=tuple(range(1, seeds + 1)),
                minutes=cell.get("minutes", content.get("minutes")),
                differs=cell.get("differs", content.get("differs", "")),
                absent=absent,
                quoted=quoted,
                source=cell.get("same_as", f"{source}.{column}"),
                needs=cell.get("needs", content.get("needs", "")),
                computed=common.get("computed", ""),
                printed_error=None if error == "" else error,
            )
        )
    return Row(
        name=content["name"],
        label=content["label"],
        cells=tuple(cells),
        differs=content.get("differs", ""),
        quoted=quoted,
    )
