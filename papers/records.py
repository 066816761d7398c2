"""The records of measured cells, in records/*.json, one file for each paper.

    {"si_dpsgd.T4.dpsgd_lenet5.3": {
        "flags": ["--dataset=mnist", ...],  # the settings of the training
        "seeds": {"1": {"test_accuracy": 0.97, ...}, ...}}}

A seed has the facts that `kept` takes from the run.json of train.py, or the "values" of a computation;
"seconds"; and "code", the version of tfdp, its commit, and whether it was changed since. A record
belongs to a cell only if it has the cell's flags. Local results are in
<results>/<paper>/<table>/<row>/<column>, with a record.json of the same form.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path

from papers.catalogue import ROOT, Cell
from tfdp._files import replaced_whole

RECORDS = ROOT / "papers" / "records"
_KEPT = ("test_accuracy", "steps", "num_examples", "lot_size", "seconds")


@dataclasses.dataclass(frozen=True)
class Record:
    """The measurements of a cell, with the attributes of the file."""

    flags: tuple[str, ...]
    seeds: Mapping[int, Mapping]

    def is_of(self, cell: Cell) -> bool:
        """Whether it was made with the current flags of the catalogue."""
        return {*self.flags} == {*cell.flags}


Records = Mapping[str, Record]


def kept(content: Mapping) -> dict:
    """Returns the facts of a run.json of train.py that a record keeps."""
    noise, lost = content["noise_multiplier"], content["training"]["lost_steps"]
    run = {name: content[name] for name in _KEPT}
    # Of a table with an entry for each step, only the ends are kept.
    run["noise_multiplier"] = [noise[0], noise[-1]] if isinstance(noise, list) else noise
    for kind in ("claimed", "proven"):
        names = ("epsilon", "delta", "adjacency", "reason")
        run[kind] = {n: v for n in names if (v := content[kind].get(n)) is not None}
    if content["curve"]:  # shares of at most 10,000 examples, so four digits are exact
        run["curve"] = [[epoch, round(accuracy, 4)] for epoch, accuracy in content["curve"]]
    return run | ({"lost_steps": lost} if lost else {})


def read(*paths: Path) -> dict[str, Record]:
    """Reads the records in some files, by default those of the repository, by the names of cells."""
    return {
        name: Record(
            tuple(content["flags"]), {int(seed): run for seed, run in content["seeds"].items()}
        )
        for path in paths or sorted(RECORDS.glob("*.json"))
        for name, content in json.loads(path.read_text()).items()
    }


def write(path: Path, records: Records) -> None:
    """Writes a file of records, with a line for each run."""
    texts = []
    for name, record in sorted(records.items()):
        seeds = ",\n".join(
            f'   "{seed}": {json.dumps(run, sort_keys=True)}'
            for seed, run in sorted(record.seeds.items())
        )
        texts.append(
            f' {json.dumps(name)}: {{\n  "flags": {json.dumps(record.flags)},\n'
            f'  "seeds": {{\n{seeds}\n  }}\n }}'
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced_whole(path) as partial:
        Path(partial).write_text("{\n" + ",\n".join(texts) + "\n}\n")


def place(results: Path, cell: Cell) -> Path:
    """Returns the folder of the local results of a cell."""
    return Path(results, *cell.source.split(".", 3))


def own(results: Path, cell: Cell) -> Record | None:
    """Returns the local record of a cell, perhaps with other flags, or None."""
    path = place(results, cell) / "record.json"
    return read(path)[cell.source] if path.exists() else None


def collect(results: Path, cells: Iterable[Cell]) -> dict[str, Record]:
    """Returns the local records of some cells, without those with other flags."""
    found = {cell.source: (cell, own(results, cell)) for cell in cells if cell.seeds}
    return {name: record for name, (cell, record) in found.items() if record and record.is_of(cell)}


def merge(old: Records, new: Records) -> dict[str, Record]:
    """Merges records. Those of `new` win, and replace all records with other flags."""
    merged = dict(old)
    for name, record in new.items():
        same = name in old and {*old[name].flags} == {*record.flags}
        merged[name] = Record(record.flags, {**(old[name].seeds if same else {}), **record.seeds})
    return merged


def runs_of(cell: Cell, records: Records) -> dict[int, Mapping]:
    """Returns the recorded runs of a cell, by seed, without those with other flags."""
    record = records.get(cell.source)
    if record is None or not record.is_of(cell):
        return {}
    return {seed: record.seeds[seed] for seed in cell.seeds if seed in record.seeds}


@dataclasses.dataclass(frozen=True)
class Measured:
    """The runs of a trained cell with all seeds. Accuracies and errors are in percent."""

    runs: tuple[Mapping, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return 100 * statistics.fmean(run["test_accuracy"] for run in self.runs)

    @property
    def error(self) -> float:
        """Standard error of the mean, 0 for a single seed."""
        n = len(self.runs)
        accuracies = [100 * run["test_accuracy"] for run in self.runs]
        return statistics.stdev(accuracies) / math.sqrt(n) if n > 1 else 0.0

    def __str__(self) -> str:
        """Returns "mean ± standard error (number of seeds)"."""
        spread = f" ± {self.error:.2f}" if len(self.runs) > 1 else ""
        return f"{self.mean:.2f}{spread} ({len(self.runs)})"

    def epsilon(self, kind: str) -> float:
        """Returns the largest "claimed" or "proven" epsilon of all seeds."""
        return max(float(run[kind]["epsilon"]) for run in self.runs)
