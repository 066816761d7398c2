"""Where the results of cells are, what they hold, and what a cell's mean is.

A result is a folder of `tfdp.experiments`: `<results>/<paper>/<table>/<row>/<column>/seed=<seed>`, with
a run.json. The collection `records.json` holds what the report needs of many run.json files, so that
the report can be made without the folders.

This module imports neither TensorFlow nor Keras.
"""

import collections
import dataclasses
import functools
import json
import math
import os
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import tfdp
from tfdp._files import replaced_whole
from tfdp.experiments.finished import different, finished, has
from tfdp.experiments.partial_folder import ResultError
from tfdp.experiments.result_files import MODEL, content_digest
from tfdp.papers import computed
from tfdp.papers.catalogue import Cell, initial_weights, named, started_from, tables

COLLECTION = "records.json"
# A training that lost more of its steps by crashes than this is no figure of a table.
LOST = 0.01
# What a collection keeps of a run.json.
KEPT = (
    "steps", "num_examples", "lot_size", "noise_multiplier", "test_accuracy", "claimed", "proven",
    "seconds", "curve", "settings", "code", "values",
)  # fmt: skip
# The digest of the initial weights, of trainings that start from those of another; and that of the
# weights at the end, of trainings from which others start.
_START, _WEIGHTS = "initial_weights_sha256", "weights_sha256"
_GUARANTEES, _OF_GUARANTEE = ("claimed", "proven"), ("epsilon", "delta", "adjacency")


class LostSteps(ResultError):
    """A training lost more steps by crashes than one of a table may."""


def place(results: Path, cell: Cell, seed: int) -> Path:
    """Returns the folder of one training."""
    return Path(results) / cell.folder / f"seed={seed}"


def start(results: Path, cell: Cell) -> str | None:
    """Returns the file of the initial weights of a cell that needs those of another."""
    return str(Path(results) / initial_weights(cell.needs)) if cell.needs else None


def done(results: Path, cell: Cell, seed: int) -> dict | None:
    """Returns the record of a training that was made with the settings of the catalogue, or None.

    Raises:
        ResultError: a result is there that is damaged, has other settings or started from weights that
            were made with others, or has lost steps by crashes.
    """
    folder = place(results, cell, seed)
    if cell.computed:
        return computed.finished(folder, cell)
    if cell.needs and done(results, first := named(cell.needs), 1) is None:
        if not place(results, cell, seed).exists():
            return None
        raise ResultError(
            f"Expected the weights from which {cell.name} starts in {place(results, first, 1)}. Found "
            f"none, so that nothing shows from which ones seed {seed} started, and other seeds would "
            f"start from others. Put them back, or remove {place(results, cell, seed)} to train anew."
        )
    experiment = cell.experiment(seed, start=start(results, cell))
    # The folder of all results may be written otherwise, and may have been moved.
    record = finished(folder, experiment, ("initial_weights",) if cell.needs else ())
    if record is None:
        return None
    _check_content(record, cell, seed, folder)
    if cell.needs and not _ends_with(record["settings"].get("initial_weights"), cell.needs):
        raise ResultError(
            f"Expected the result in {folder} to start from the weights of {cell.needs}. Found those "
            f"of {record['settings'].get('initial_weights')}. Remove it to train it anew."
        )
    lost = record["training"]["lost_steps"]
    if lost > LOST * record["steps"]:
        raise LostSteps(
            f"{cell.name}, seed {seed}: {lost:,} of {record['steps']:,} steps were lost by a crash, so "
            f"it is left out. Remove {folder} to train it anew."
        )
    return record


def _check_content(record, cell, seed, folder) -> None:
    """Raises ResultError if a run.json lacks what is read of it, or is of another training."""
    has(record, [name for name in KEPT if name not in ("curve", "values")], folder)
    has(record, ("training",), folder)
    for kind in _GUARANTEES:
        has(record[kind], _OF_GUARANTEE, folder)
    has(record["training"], ("lost_steps",), folder)
    if cell.needs:
        has(record.get("digests_of_settings"), ("initial_weights",), folder)
    whole = (record["steps"], record["training"]["lost_steps"], record["num_examples"])
    try:
        right = (
            all(isinstance(number, int) and number >= 0 for number in whole)
            and whole[0] > 0
            and whole[2] > 0
            and _is_kept_well(record)
            and isinstance(record["settings"].get("initial_weights"), str | None)
            and (record.get("cell", cell.source), record.get("seed", seed)) == (cell.source, seed)
        )
    except (TypeError, AttributeError, KeyError, ValueError):
        right = False
    if not right:
        raise ResultError(
            f"Expected the run.json in {folder} to be that of seed {seed} of {cell.source}, with whole "
            "numbers of steps, an accuracy from 0 to 1 and epsilons of 0 or more. Found something "
            "else: it was changed, or belongs to another cell. Remove the folder to train anew."
        )


def _is_kept_well(record) -> bool:
    """Whether what a collection keeps of a training has the types that the pages need."""
    table = record["noise_multiplier"]
    return (
        isinstance(record["settings"], dict)
        and isinstance(record["code"], dict)
        and isinstance(record["code"]["commit"], str | None)
        and _is_number(record["seconds"])
        and _is_number(record["test_accuracy"])
        and record["test_accuracy"] <= 1
        and all(_is_number(each) for each in (table if isinstance(table, list) else [table]))
        and (not isinstance(table, list) or len(table) > 0)
        and all(_is_number(record[name]) and record[name] > 0 for name in ("num_examples", "steps"))
        and all(isinstance(record[name], int) for name in ("num_examples", "steps"))
        and _is_number(record.get("lost_steps", 0))
        and all(_is_number(each) for point in record.get("curve", ()) for each in point)
        and all(len(point) == 2 for point in record.get("curve", ()))
        and all(point[0] > 0 and point[1] <= 1 for point in record.get("curve", ()))
        and all(isinstance(record.get(name, ""), str) for name in (_START, _WEIGHTS))
        and all(record[kind].keys() >= {*_OF_GUARANTEE} for kind in _GUARANTEES)
        and all(_is_epsilon(record[kind]["epsilon"]) for kind in _GUARANTEES)
        and all(_is_number(record[kind]["delta"]) for kind in _GUARANTEES)
        and all(record[kind]["delta"] < 1 for kind in _GUARANTEES)
        # What the pages say of all their epsilons.
        and all(record[kind]["adjacency"] == "zero_out" for kind in _GUARANTEES)
    )


def _is_number(value) -> bool:
    # No number that a training has is beyond this, and an integer may be beyond every float.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e300


def _is_epsilon(value) -> bool:
    return value == "inf" or _is_number(value)


def _ends_with(path, needs) -> bool:
    wanted = Path(initial_weights(needs)).parts
    return path is not None and Path(path).parts[-len(wanted) :] == wanted


@functools.cache
def code_version() -> dict:
    """Returns the version of tfdp, and the commit where it is in a repository.

    It is read once in a process: what was committed since is not what runs.
    """
    found = {"tfdp": tfdp.__version__, "commit": None, "changed": None}
    root = Path(tfdp.__file__).resolve().parents[1]
    if (root / ".git").exists():
        git = ["git", "-C", str(root)]
        try:
            found["commit"] = _said([*git, "rev-parse", "HEAD"])
            # Only the code counts: pages and records are written while trainings run.
            changed = _said([*git, "status", "--porcelain", "tfdp"])
            found["changed"] = bool(changed)
        except (OSError, subprocess.CalledProcessError):
            pass
    return found


def _said(command) -> str:
    # Variables such as GIT_DIR would name another repository.
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=own)
    return ended.stdout.strip()


def collect(results: Path, cells: Iterable[Cell]) -> tuple[dict, list[str]]:
    """Returns ({cell: {seed: record}} of all finished trainings, what was left out and why)."""
    found, left, starts = {}, [], started_from()
    for cell in cells:
        for seed in cell.seeds:
            try:
                record = done(results, cell, seed)
            except ResultError as error:
                left.append(str(error))
                continue
            if record is not None:
                kept = _kept(cell, record)
                if cell.needs:  # which `done` has compared with those that it started from
                    kept[_START] = weights_of(results, named(cell.needs), 1)
                if cell.source in starts:
                    kept[_WEIGHTS] = weights_of(results, cell, seed)
                found.setdefault(cell.source, {})[str(seed)] = kept
    return found, left


def weights_of(results: Path, cell: Cell, seed: int) -> str:
    """Returns the digest of the weights that a finished training has left."""
    return content_digest(os.fspath(place(results, cell, seed) / MODEL))


def _kept(cell, record) -> dict:
    kept = {name: record[name] for name in KEPT if name in record}
    if cell.computed:
        return kept
    if lost := record["training"]["lost_steps"]:
        kept["lost_steps"] = lost
    for kind in _GUARANTEES:
        kept[kind] = {name: record[kind][name] for name in _OF_GUARANTEE}
    # Whole examples, so four digits say all for up to 10,000 of them.
    kept["curve"] = [[epoch, round(accuracy, 4)] for epoch, accuracy in kept.get("curve", ())]
    if isinstance(kept["noise_multiplier"], list):  # a table with an entry for each step
        kept["noise_multiplier"] = [kept["noise_multiplier"][0], kept["noise_multiplier"][-1]]
    settings = record["settings"]
    if cell.needs:
        # The folder of all results is no setting.
        settings = settings | {"initial_weights": initial_weights(cell.needs)}
    kept["settings"] = {name: settings[name] for name in different(settings, {})}
    return kept


def read(path: Path) -> dict:
    """Returns a collection; an empty one if there is no file.

    Raises:
        ResultError: the file is damaged.
    """
    path = Path(path)
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(), object_pairs_hook=_without_repetition)
        for name, seeds in found.items():
            for seed, record in seeds.items():
                well = computed.is_kept_well if "values" in record else _is_kept_well
                if seed != str(int(seed)) or len(name.split(".", 3)) < 4 or not well(record):
                    raise ValueError(f"no record of a seed at {name!r}, {seed!r}")
    except (
        OSError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError,
    ) as error:  # fmt: skip
        raise ResultError(
            f"Expected {path} to hold a collection of records. Found it damaged: {error}. Take the "
            "file from the repository again."
        ) from error
    return found


def _without_repetition(pairs) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return found


def write(path: Path, records: Mapping) -> None:
    """Writes a collection, sorted, so that differences are readable."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # One line for each training.
    parts = []
    for name, seeds in sorted(records.items()):
        lines = [
            f"  {json.dumps(seed)}: {json.dumps(record, sort_keys=True)}"
            for seed, record in sorted(seeds.items(), key=lambda item: int(item[0]))
        ]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    with replaced_whole(os.fspath(path)) as partial:
        Path(partial).write_text("{\n" + ",\n".join(parts) + "\n}\n")


def merge(old: Mapping, new: Mapping) -> dict:
    """Returns a collection with all trainings of both; those of `new` win."""
    merged = {name: dict(seeds) for name, seeds in old.items()}
    for name, seeds in new.items():
        joined = merged.get(name, {}) | seeds
        # Trainings that start from other weights are no repetitions of the new ones.
        starts = {record.get(_START) for record in joined.values()}
        merged[name] = joined if len(starts) == 1 else dict(seeds)
    return merged


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the seeds of a cell show.

    Attributes:
        accuracies: test accuracies in percent, one for each seed.
        claimed, proven: the largest epsilon of all seeds.
        delta: that of the epsilons.
        minutes: mean time of a training.
        commits: the commits that made them.
        lost: steps of all trainings that crashes lost.
        curves: for each seed, ((epoch, accuracy in percent), ...), where there are curves.
    """

    accuracies: tuple[float, ...]
    claimed: float
    proven: float
    delta: float
    minutes: float
    commits: tuple[str, ...]
    lost: int = 0
    curves: tuple[tuple[tuple[float, float], ...], ...] = ()

    @property
    def mean(self) -> float:
        """Mean accuracy in percent."""
        return statistics.fmean(self.accuracies)

    @property
    def error(self) -> float | None:
        """Standard error of the mean in percent; None for a single seed."""
        n = len(self.accuracies)
        return None if n < 2 else statistics.stdev(self.accuracies) / math.sqrt(n)


def seeds_in(records: Mapping, cell: Cell) -> set[int]:
    """Returns the seeds of a cell that a collection holds, trained with the catalogue's settings."""
    first = records.get(cell.needs) if cell.needs else None
    if first and not seeds_in(records, named(cell.needs)):
        return set()  # the weights at the start were made with other settings
    found = {int(seed): record for seed, record in records.get(cell.source, {}).items()}
    seeds = [seed for seed in cell.seeds if seed in found and _is_of(cell, seed, found[seed])]
    if cell.needs and seeds:
        # Those that start from the recorded weights, or from those of the last one where none are
        # recorded: others are no repetitions of it.
        start = found[seeds[-1]].get(_START)
        start = (first or {}).get("1", {}).get(_WEIGHTS, start)
        seeds = [seed for seed in seeds if found[seed].get(_START) == start]
    return set(seeds)


def shown(records: Mapping) -> tuple[dict, list[str]]:
    """Returns the part of a collection that the catalogue shows, and why the rest is left out."""
    known = {cell.source: cell for table in tables() for cell in table.cells}
    found, left = {}, collections.Counter()
    for name, seeds in records.items():
        cell, table = known.get(name), ".".join(name.split(".")[:2])
        of_cell = set() if cell is None else seeds_in(records, cell)
        for seed, record in seeds.items():
            if int(seed) in of_cell:
                found.setdefault(name, {})[seed] = record
            elif cell is None:
                left[table, "the catalogue has no such cell"] += 1
            elif int(seed) in cell.seeds and _is_of(cell, int(seed), record):
                left[table, "nothing shows that the recorded weights were at the start"] += 1
            else:
                left[table, "the catalogue has other settings or seeds now"] += 1
    return found, [
        f"{table}: {f'{count} recorded trainings are' if count > 1 else 'one recorded training is'} "
        f"not shown, as {why}."
        for (table, why), count in left.items()
    ]


def start_of(records: Mapping, cell: Cell) -> str | None:
    """Returns the digest of the weights that the recorded seeds of a cell start from, if known."""
    seeds = seeds_in(records, cell)
    return records[cell.source][str(max(seeds))].get(_START) if seeds else None


def minutes_of(cell: Cell, records: Mapping) -> float | None:
    """Returns what a training of a cell took, or others of its row; else what the catalogue notes.

    Where there is neither it is what others of its table took, or None. Of several trainings of a
    cell the fastest counts: others shared the processor.
    """
    paper, table, row, _ = cell.source.split(".", 3)
    own = {cell.source: records.get(cell.source)}
    of_row, of_table = f"{paper}.{table}.{row}.", f"{paper}.{table}."
    if found := _minutes(own, "") or _minutes(records, of_row) or cell.minutes:
        return found
    return _minutes(records, of_table)


def _minutes(records, prefix) -> float | None:
    seconds = [
        min(record["seconds"] for record in seeds.values())
        for name, seeds in records.items()
        if seeds and name.startswith(prefix)
    ]
    return statistics.fmean(seconds) / 60 if seconds else None


def measured(cell: Cell, records: Mapping) -> Measured | None:
    """Returns what was measured for a cell by the settings of the catalogue; None for nothing."""
    kept = [records[cell.source][str(seed)] for seed in sorted(seeds_in(records, cell))]
    if not kept:
        return None
    return Measured(
        accuracies=tuple(100 * record["test_accuracy"] for record in kept),
        claimed=max(float(record["claimed"]["epsilon"]) for record in kept),
        proven=max(float(record["proven"]["epsilon"]) for record in kept),
        delta=kept[0]["proven"]["delta"],
        minutes=statistics.fmean(record["seconds"] for record in kept) / 60,
        commits=tuple(sorted({_commit(record["code"]) for record in kept})),
        lost=sum(record.get("lost_steps", 0) for record in kept),
        curves=tuple(
            tuple((epoch, 100 * accuracy) for epoch, accuracy in record["curve"])
            for record in kept
            if record.get("curve")
        ),
    )


def _commit(code) -> str:
    changed = " with changes" if code.get("changed") else ""
    return f"{str(code['commit'])[:10]}{changed}"


def computed_values(cell: Cell, records: Mapping) -> dict | None:
    """Returns the values of a computed cell by the settings of the catalogue; None for nothing."""
    seeds = seeds_in(records, cell)
    return records[cell.source][str(min(seeds))]["values"] if seeds else None


def _is_of(cell, seed, record) -> bool:
    """Whether a record was made with the settings that the catalogue has now."""
    if bool(cell.computed) != ("values" in record):
        return False
    if cell.computed:
        return computed.settings(cell) == record["settings"]
    from tfdp.experiments.correlation import complete

    wanted = complete(cell.experiment(seed), record["num_examples"]).recorded()
    return not different(json.loads(json.dumps(wanted)), record["settings"])
