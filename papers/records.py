"""What was measured: the records of cells, in records/*.json, one file for each paper.

    {"si_dpsgd.T4.dpsgd_lenet5.3": {
        "flags": ["--dataset=mnist", ...],  # what it was trained with
        "start": "batch_norm.pretraining.ln.accuracy",  # the cell whose weights were the start
        "seeds": {"1": {"test_accuracy": 0.97, ...}, ...}}}  # of a `Training`, or `Values`

A record is a figure of a cell only if it has the cell's flags. What is trained here is a result of
train.py in <results>/<paper>/<table>/<row>/<column>/seed=<n>, and seed=<n>.json beside it says with
which flags and code it was made.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from papers.catalogue import ROOT, Cell
from tfdp._files import replaced_whole

RECORDS = ROOT / "papers" / "records"


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """An epsilon at a delta, with its adjacency and, if it is infinite, the reason."""

    epsilon: float
    delta: float
    adjacency: str
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Training:
    """One training: accuracies in [0, 1], noise of the first and the last step where it changes.

    Attributes:
        curve: (epoch, test accuracy) of epochs that were tested.
        lost_steps: steps that crashes took, which stay counted.
        code: the version of tfdp, its commit, and whether it was changed since.
    """

    test_accuracy: float
    steps: int
    num_examples: int
    lot_size: int
    noise_multiplier: float | tuple[float, ...]
    claimed: Guarantee
    proven: Guarantee
    seconds: float
    curve: tuple[tuple[float, float], ...] = ()
    lost_steps: int = 0
    code: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Values:
    """What a computation gave: numbers, or lists of numbers, by name."""

    values: Mapping[str, Any]
    seconds: float
    code: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Record:
    """What was measured for a cell; the attributes are those of the file."""

    flags: tuple[str, ...]
    seeds: Mapping[int, Training | Values]
    start: str = ""

    def is_of(self, cell: Cell) -> bool:
        """Whether it was made with the flags, and from the start, that the catalogue has now."""
        return {*self.flags} == {*cell.flags} and self.start == cell.start


Records = Mapping[str, Record]


def parse(content: Mapping) -> Training | Values:
    """Reads a run, from a record or from a run.json of train.py."""
    code, seconds = dict(content.get("code", {})), float(content["seconds"])
    if "values" in content:
        return Values(dict(content["values"]), seconds, code)
    noise = content["noise_multiplier"]
    return Training(
        test_accuracy=float(content["test_accuracy"]),
        steps=int(content["steps"]),
        num_examples=int(content["num_examples"]),
        lot_size=int(content["lot_size"]),
        # Of a table with an entry for each step the ends are kept.
        noise_multiplier=(noise[0], noise[-1]) if isinstance(noise, list) else float(noise),
        claimed=_guarantee(content["claimed"]),
        proven=_guarantee(content["proven"]),
        seconds=seconds,
        # Whole examples, so four digits say all for up to 10,000 of them.
        curve=tuple((float(e), round(float(a), 4)) for e, a in content.get("curve", ())),
        lost_steps=int(content.get("training", content).get("lost_steps", 0)),
        code=code,
    )


def _guarantee(content) -> Guarantee:
    epsilon, reason = float(content["epsilon"]), content.get("reason")
    return Guarantee(epsilon, float(content["delta"]), str(content["adjacency"]), reason)


def read(folder: Path = RECORDS) -> dict[str, Record]:
    """Returns the records in a folder, by the names of their cells."""
    found = {}
    for path in sorted(Path(folder).glob("*.json")):
        for name, content in json.loads(path.read_text()).items():
            seeds = {int(seed): parse(run) for seed, run in content["seeds"].items()}
            found[name] = Record(tuple(content["flags"]), seeds, content.get("start", ""))
    return found


def write(folder: Path, records: Records) -> None:
    """Writes records into a folder, sorted, with a line for each run."""
    files = {}
    for name, record in sorted(records.items()):
        seeds = ",\n".join(
            f'   "{seed}": {json.dumps(_content(run), sort_keys=True)}'
            for seed, run in sorted(record.seeds.items())
        )
        start = f'  "start": {json.dumps(record.start)},\n' if record.start else ""
        text = (
            f' {json.dumps(name)}: {{\n  "flags": {json.dumps(record.flags)},\n{start}'
            f'  "seeds": {{\n{seeds}\n  }}\n }}'
        )
        files.setdefault(name.split(".")[0], []).append(text)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for paper, texts in files.items():
        with replaced_whole(Path(folder) / f"{paper}.json") as partial:
            Path(partial).write_text("{\n" + ",\n".join(texts) + "\n}\n")


def _content(value):
    """Returns what of a run is written: nothing that has its default, and "inf" for infinity."""
    if not dataclasses.is_dataclass(value):
        return "inf" if value == math.inf else value
    found = {field: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {f.name: _content(v) for f, v in found.items() if v != f.default and v != {}}


# -- what is trained here --------------------------------------------------------------------------


def place(results: Path, cell: Cell, seed: int) -> Path:
    """Returns the folder of one training."""
    return Path(results, *cell.source.split(".", 3), f"seed={seed}")


def note(results: Path, cell: Cell, seed: int) -> Path:
    """Returns the file that says with which flags and code a training is made."""
    return Path(f"{place(results, cell, seed)}.json")


def is_other(results: Path, cell: Cell, seed: int) -> bool:
    """Whether a training with other flags, or another start, lies in the place of the cell's."""
    if not (path := note(results, cell, seed)).exists():
        return False
    about = json.loads(path.read_text())
    return not Record(tuple(about["flags"]), {}, about["start"]).is_of(cell)


def made(results: Path, cell: Cell, seed: int) -> Training | Values | None:
    """Returns what is finished of a cell here; None if it is not, or is with other flags."""
    path = place(results, cell, seed) / "run.json"
    if not path.exists() or is_other(results, cell, seed):
        return None
    code = json.loads(note(results, cell, seed).read_text())["code"]
    return parse(json.loads(path.read_text()) | {"code": code})


def collect(results: Path, chosen: Iterable[Cell]) -> dict[str, Record]:
    """Returns the records of what is finished here."""
    found = {}
    for cell in {cell.source: cell for cell in chosen}.values():
        runs = {seed: made(results, cell, seed) for seed in cell.seeds}
        if seeds := {seed: run for seed, run in runs.items() if run is not None}:
            found[cell.source] = Record(cell.flags, seeds, cell.start)
    return found


def merge(old: Records, new: Records) -> dict[str, Record]:
    """Returns the records of both; those of `new` win, and replace all of other flags."""
    merged = dict(old)
    for name, record in new.items():
        before = old.get(name)
        if before is not None and {*before.flags} == {*record.flags}:
            record = dataclasses.replace(record, seeds={**before.seeds, **record.seeds})
        merged[name] = record
    return merged


# -- what the catalogue shows of it ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the seeds of a cell show: its trainings, accuracies and errors in percent."""

    trainings: tuple[Training, ...]

    @property
    def accuracies(self) -> list[float]:
        """Test accuracies, one for each seed."""
        return [100 * each.test_accuracy for each in self.trainings]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.accuracies)

    @property
    def error(self) -> float | None:
        """Standard error of the mean; None for a single seed."""
        n = len(self.trainings)
        return None if n < 2 else statistics.stdev(self.accuracies) / math.sqrt(n)

    def __str__(self) -> str:
        """Mean ± standard error (number of seeds)."""
        spread = "" if self.error is None else f" ± {self.error:.2f}"
        return f"{self.mean:.2f}{spread} ({len(self.trainings)})"

    def epsilon(self, kind: str) -> float:
        """The largest "claimed" or "proven" epsilon of all seeds."""
        return max(getattr(each, kind).epsilon for each in self.trainings)


def runs_of(cell: Cell, records: Records) -> dict[int, Training | Values]:
    """Returns the recorded runs of a cell, by seed; none of those that have other flags."""
    record = records.get(cell.source)
    if record is None or not record.is_of(cell):
        return {}
    return {seed: record.seeds[seed] for seed in cell.seeds if seed in record.seeds}


def measured(cell: Cell, records: Records) -> Measured | None:
    """Returns what was measured for a trained cell; None for nothing."""
    return Measured(tuple(runs)) if (runs := runs_of(cell, records).values()) else None


def minutes_of(cell: Cell, records: Records) -> float | None:
    """Returns what a training of a cell takes, or others of its row; else what the catalogue notes.

    Where there is neither it is what others of its table take, or None. Of several trainings of a
    cell the fastest counts: others shared the processor.
    """
    parts = cell.source.split(".", 3)
    own = _minutes(records, lambda name: name == cell.source)
    row = own or _minutes(records, lambda name: name.split(".")[:3] == parts[:3]) or cell.minutes
    return row or _minutes(records, lambda name: name.split(".")[:2] == parts[:2])


def _minutes(records, belongs) -> float | None:
    seconds = [
        min(run.seconds for run in record.seeds.values())
        for name, record in records.items()
        if belongs(name)
    ]
    return statistics.fmean(seconds) / 60 if seconds else None
