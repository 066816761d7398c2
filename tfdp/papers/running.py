"""Runs cells: each that is not there yet, one process for each, until a budget of time is used up.

A finished training is not run again, and one that was interrupted goes on.
"""

import contextlib
import dataclasses
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tfdp.experiments.partial_folder import ResultBusy, ResultError
from tfdp.papers.catalogue import Cell, named
from tfdp.papers.computed import compute_into, told
from tfdp.papers.records import (
    LostSteps,
    code_version,
    done,
    minutes_of,
    place,
    seeds_in,
    start,
    start_of,
    weights_of,
)

# What a training takes that was never measured, for the estimate of the time that is left.
_UNKNOWN_MINUTES = 5.0
# Exit statuses of a training that another process is making (EX_TEMPFAIL of sysexits.h), and of one
# that has lost too many steps and has to begin anew.
BUSY, AGAIN = 75, 76


@dataclasses.dataclass
class _Running:
    process: subprocess.Popen
    cell: Cell
    seeds: tuple[int, ...]
    since: float
    log: Path


def missing(
    cells: Sequence[Cell],
    results: Path,
    records: Mapping | None = None,
    wrong: dict[str, str] | None = None,
) -> list[tuple[Cell, tuple[int, ...]]]:
    """Returns the cells that have trainings to run, with the seeds of these.

    Cells whose weights others start from come before these, and of cells that have the same trainings
    there is one.

    Args:
        cells: the cells.
        results: the folder of all results.
        records: a collection; trainings that it holds are not missing, unless others start from them.
            Those that start from weights that are not in `results` are missing, too, if others of
            their cell are: all of a cell start from the same.
        wrong: is filled with the reasons of cells that cannot be run, by their names; None raises the
            first of them.

    Raises:
        ResultError: a result is there that is damaged or has other settings.
    """
    found, asked = {}, {cell.name: cell for cell in cells}
    for cell in cells:
        if cell.source in found:
            continue
        try:
            needed, seeds = _missing_of(cell, results, records or {})
        except ResultError as error:
            if wrong is None:
                raise
            wrong[cell.name] = str(error)
            continue
        if seeds and needed is not None and needed.source not in found:
            wanted = {1, *asked[needed.name].seeds} if needed.name in asked else {1}
            left = [s for s in sorted(wanted) if done(results, needed, s) is None]
            found[needed.source] = (needed, tuple(left))
        if seeds:
            found[cell.source] = (cell, tuple(seeds))
    return list(found.values())


def _missing_of(cell, results, records) -> tuple[Cell | None, list[int]]:
    """The cell whose weights are missing at the start of this one, and the seeds to train."""
    not_here = [seed for seed in cell.seeds if done(results, cell, seed) is None]
    recorded = seeds_in(records, cell)
    seeds = [seed for seed in not_here if seed not in recorded]
    if not seeds or not cell.needs:
        return None, seeds
    if done(results, named(cell.needs), 1) is not None:
        # What is recorded with other weights at its start does not go with what is trained here.
        alike = start_of(records, cell) == weights_of(results, named(cell.needs), 1)
        return None, seeds if alike else not_here
    return named(cell.needs), not_here


def train(cell: Cell, seeds: Sequence[int], results: Path, data_dir: str | None) -> None:
    """Runs some trainings of a cell, or its computation, in this process.

    Raises:
        ResultBusy: another process makes some of them; the others are finished.
        LostSteps: it went on after a crash that cost too many steps. Its result is removed; another
            process can train anew, but not this one, which has spent a part of the budget.
        ResultError, ValueError, DataUnavailable, FloatingPointError: as in `run_into`.
    """
    from tfdp.experiments.result_folder import ResultFolder

    busy = None
    for seed in seeds:
        if done(results, cell, seed) is not None:
            continue
        notes = {"cell": cell.source, "seed": seed, "code": code_version()}
        if cell.computed:
            record = compute_into(place(results, cell, seed), cell, notes, data_dir)
            print(f"{cell.name}: {told(cell, record)}", flush=True)
            continue
        from tfdp.experiments.saving import run_into

        path = place(results, cell, seed)
        goes_on = Path(f"{path}.secret").is_dir()
        try:
            with ResultFolder(path) as folder:
                print(f"{cell.name}, seed {seed}{', goes on' if goes_on else ''}", flush=True)
                experiment = cell.experiment(seed, data_dir, start(results, cell))
                command = cell.command(seed, results)
                result = run_into(folder, experiment, verbose=2, command=command, notes=notes)
        except ResultBusy as error:
            busy = error
            continue
        try:
            done(results, cell, seed)
        except LostSteps:  # it went on after a crash
            shutil.rmtree(path)
            raise
        print(f"{cell.name}, seed {seed}: {100 * result.test_accuracy:.2f}%", flush=True)
    if busy is not None:
        raise busy


def run(
    cells: Sequence[Cell],
    results: Path,
    *,
    jobs: int = 1,
    budget_minutes: float | None = None,
    data_dir: str | None = None,
    records: Mapping | None = None,
    times: Mapping | None = None,
    console: Console | None = None,
) -> dict[str, list[str]]:
    """Runs what is missing of some cells.

    Args:
        cells: the cells, in the order in which they are run.
        results: the folder of all results.
        jobs: number of trainings at a time.
        budget_minutes: no training is begun after this time; None has no end.
        data_dir: the folder of tensorflow_datasets' data.
        records: a collection whose trainings are not run again.
        times: a collection, by whose times that of the trainings is estimated.
        console: where progress is shown; by default the terminal.

    Returns:
        Names of cells by how they ended: "done" (now or before), "failed", "busy" (another process
        makes them), "left" (not begun).
    """
    console, times = console or Console(), times or {}
    wrong = {}
    waiting = missing(cells, results, records, wrong)
    trainings = {(c.source, seed) for c in cells for seed in c.seeds}
    trainings |= {(c.source, seed) for c, seeds in waiting for seed in seeds}
    total = len(trainings)
    ended = {"done": [], "failed": [], "busy": [], "left": []}
    todo = {cell.source for cell, _ in waiting}
    ended["done"] = [
        c.name for c in cells if c.seeds and c.source not in todo and c.name not in wrong
    ]
    ended["failed"] = list(wrong)
    for text in wrong.values():
        console.print(text, highlight=False, markup=False)
    if waiting:
        number = sum(len(seeds) for _, seeds in waiting)
        took = max(1, math.ceil(minutes(waiting, times)))
        cost = f", about {took:,} minute{'s' * (took > 1)} one after the other on two quiet cores"
        console.print(f"To train: {number} of {total}{cost}.", highlight=False)
    started, running, begun_anew = time.monotonic(), [], set()
    shown = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"), console=console, disable=not console.is_terminal,
    )  # fmt: skip
    before = total - sum(len(seeds) for _, seeds in waiting)
    with shown:
        bar = shown.add_task("all", total=total, completed=before, left="")
        try:
            while waiting or running:
                used = (time.monotonic() - started) / 60
                over = budget_minutes is not None and used >= budget_minutes
                while len(running) < jobs and not over:
                    try:
                        ready = _ready(waiting, running, results)
                    except _Unusable as found:
                        waiting.remove(found.pair)
                        ended["failed"].append(found.pair[0].name)
                        console.print(str(found), highlight=False, markup=False)
                        continue
                    if ready is None:
                        break
                    waiting.remove(ready)
                    cell, seeds = ready
                    running.append(_start(cell, seeds, results, data_dir, jobs))
                    if not console.is_terminal:
                        log = running[-1].log
                        said = f"{cell.name}: {len(seeds)} to train; what it prints goes to {log}"
                        console.print(said, highlight=False, markup=False)
                if not running:
                    break
                time.sleep(0.2)
                for each in [each for each in running if each.process.poll() is not None]:
                    running.remove(each)
                    how = _end(each, results, console)
                    if how == "again" and each.cell.source not in begun_anew:
                        begun_anew.add(each.cell.source)
                        waiting.insert(0, (each.cell, each.seeds))
                        continue
                    ended["failed" if how == "again" else how].append(each.cell.name)
                now = ", ".join(each.cell.name for each in running)
                here = sum(_is_there(results, each.cell, s) for each in running for s in each.seeds)
                gone = total - _left(waiting, running) + here
                shown.update(bar, completed=gone, description=now, left=_estimate(waiting, times))
        except BaseException:
            _stop(running)
            raise
        finally:
            ended["left"] = [cell.name for cell, _ in waiting]
    return ended


class _Unusable(Exception):
    """What a cell that waits starts from cannot be used."""

    def __init__(self, pair, error):
        super().__init__(f"{pair[0].name}: {error}")
        self.pair = pair


def _ready(waiting, running, results):
    """The next of those that wait whose initial weights are there; None if there is none."""
    busy = {each.cell.source for each in running}
    for cell, seeds in waiting:
        if not cell.needs:
            return cell, seeds
        try:
            if cell.needs not in busy and done(results, named(cell.needs), 1) is not None:
                return cell, seeds
        except ResultError as error:
            raise _Unusable((cell, seeds), error) from error
    return None


def _left(waiting, running) -> int:
    """Number of trainings that have not ended, at most."""
    return sum(len(seeds) for _, seeds in waiting) + sum(len(each.seeds) for each in running)


def minutes(cells: Sequence[tuple[Cell, Sequence[int]]], times: Mapping) -> float:
    """Returns about how many minutes some trainings take on two quiet cores, one after the other.

    Args:
        cells: cells with their seeds.
        times: a collection of records, by whose times they are estimated.
    """
    each = (len(seeds) * (minutes_of(cell, times) or _UNKNOWN_MINUTES) for cell, seeds in cells)
    return sum(each)


def _estimate(waiting, times) -> str:
    return f"about {minutes(waiting, times):,.0f} min to begin" if waiting else ""


def _is_there(results, cell, seed) -> bool:
    return (place(results, cell, seed) / "run.json").exists()


def _start(cell, seeds, results, data_dir, jobs) -> _Running:
    log = Path(results) / cell.folder / "log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "tfdp.experiments", "train", cell.name, f"--results={results}"]
    words.append(f"--seeds={','.join(map(str, seeds))}")
    if data_dir is not None:
        words.append(f"--data_dir={data_dir}")
    with open(log, "a") as file:
        # In a session of its own: a terminal's Ctrl-C reaches this process alone, which passes one
        # signal on. A training takes a second one as the wish to end at once.
        process = subprocess.Popen(
            words,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=_environment(jobs),
            start_new_session=True,
        )
    return _Running(process, cell, tuple(seeds), time.monotonic(), log)


def _environment(jobs) -> dict[str, str]:
    """Of a training; several at a time share the processor's cores."""
    found = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if jobs > 1:
        threads = max(1, (os.cpu_count() or 1) // jobs)
        found |= {"TF_NUM_INTRAOP_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return found


def _end(each, results, console) -> str:
    took = (time.monotonic() - each.since) / 60
    if each.process.returncode in (0, BUSY):  # what was busy may be made by now
        try:
            found = [done(results, each.cell, seed) for seed in each.seeds]
        except ResultError as error:
            console.print(f"{each.cell.name}: {error}", highlight=False, markup=False)
            return "failed"
        if None not in found:
            words = ", ".join(_words(each.cell, record) for record in found)
            console.print(f"{each.cell.name}: {words} ({took:.1f} min)", highlight=False)
            return "done"
    if each.process.returncode == AGAIN:
        console.print(f"{each.cell.name}: a crash cost too many steps.", highlight=False)
        return "again"
    if each.process.returncode == BUSY:
        left = [str(seed) for seed in each.seeds if not _is_there(results, each.cell, seed)]
        which = f"seed{'s' * (len(left) > 1)} {', '.join(left)}"
        console.print(f"{each.cell.name}: another process is making {which}.", highlight=False)
        return "busy"
    last = _reason(each)
    console.print(
        f"{each.cell.name}: failed after {took:.1f} min: {last} (all of it: {each.log})",
        highlight=False,
        markup=False,
    )
    return "failed"


def _reason(each) -> str:
    if (status := each.process.returncode) < 0:
        name = signal.Signals(-status).name
        memory = ", as the system does where memory runs out" if name == "SIGKILL" else ""
        return (
            f"{name} ended it{memory}; the same command goes on from its last state, and trains anew "
            "what lost too many steps"
        )
    lines = each.log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing was printed"


def _words(cell, record) -> str:
    return told(cell, record) if cell.computed else f"{100 * record['test_accuracy']:.2f}%"


def _stop(running) -> None:
    """Lets the trainings write their states; a second Ctrl-C ends them at once."""
    for _ in range(2):
        for each in running:
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(KeyboardInterrupt):
            for each in running:
                each.process.wait()
            return
