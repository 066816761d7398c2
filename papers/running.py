"""Runs what is missing of cells: train.py, in a process of its own for each training, or a computation.

A finished training is not run again, and one that was interrupted is resumed by train.py.
"""

import concurrent.futures
import contextlib
import fcntl
import functools
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import tfdp
from papers import computed, records
from papers.catalogue import ROOT, Cell, cells
from papers.records import Records
from tfdp._files import replaced_whole

# Without a flag file train.py would take what is not named from a recipe.
_NO_RECIPE = "papers/no_recipe.cfg"
# Default minutes for an unmeasured training, to estimate the time that is left.
_UNKNOWN_MINUTES = 5.0
# Minutes until a process of train.py has imported TensorFlow and read its data.
_START_MINUTES = 0.3
Todo = dict[str, tuple[Cell, list[int]]]


def flags_of(cell: Cell, seed: int, results: Path) -> list[str]:
    """Returns all flags of train.py for one training but its folder."""
    words = [*cell.flags, f"--seed={seed}"]
    if cell.start:
        words.append(f"--initial_weights={_weights(results, cell)}")
    return words


def command(cell: Cell, seed: int, results: Path) -> str:
    """Returns the command that trains, or computes, one seed alone."""
    if cell.computed:
        return f"python -m papers run {cell.name}"
    return f"python train.py --flagfile={_NO_RECIPE} {shlex.join(flags_of(cell, seed, results))}"


def _weights(results, cell) -> Path:
    (start,) = cells([cell.start])
    return records.place(results, start, 1) / "model.keras"


def missing(chosen: Sequence[Cell], results: Path, recorded: Records | None = None) -> Todo:
    """Returns the seeds to run, by the names of their cells.

    Among them are the cells from whose weights others start.

    Args:
        chosen: the cells.
        results: the folder of all results.
        recorded: records; trainings that they hold are not missing, unless others start from them.
    """
    todo = {}

    def add(cell, seeds):
        left = {seed for seed in seeds if records.made(results, cell, seed) is None}
        if left:
            before = todo.get(cell.source, (cell, ()))[1]
            todo[cell.source] = (cell, sorted({*before, *left}))
        return left

    for cell in chosen:
        if add(cell, {*cell.seeds} - {*records.runs_of(cell, recorded or {})}) and cell.start:
            add(*cells([cell.start]), [1])
    return todo


def minutes(todo: Todo, recorded: Records) -> float:
    """Returns about how many minutes trainings take on two quiet cores, one after the other."""
    return sum(
        len(seeds) * (records.minutes_of(cell, recorded) or _UNKNOWN_MINUTES)
        + len(seeds) * (not cell.computed) * _START_MINUTES
        for cell, seeds in todo.values()
    )


def run(
    chosen: Sequence[Cell],
    results: Path,
    recorded: Records,
    *,
    skip: bool = False,
    jobs: int = 1,
    budget_minutes: float = math.inf,
) -> dict[str, list[str]]:
    """Runs what is missing of some cells, and prints how each of them ended.

    Args:
        chosen: the cells.
        results: the folder of all results.
        recorded: the records, by whose times the time is estimated.
        skip: whether trainings that are recorded are not run again.
        jobs: number of cells at a time.
        budget_minutes: no cell is begun after this time; one that has begun runs all of its seeds.

    Returns:
        Names of cells by how they ended: "done" (now or before), "failed", "busy" (another process
        makes them), "left" (not begun).
    """
    todo = missing(chosen, results, recorded if skip else None)
    if todo:
        number, took = sum(len(seeds) for _, seeds in todo.values()), minutes(todo, recorded)
        print(
            f"To run: {number}, about {math.ceil(took):,} min one after the other on two quiet cores.",
            flush=True,
        )
    done = [cell.name for cell in chosen if cell.seeds and cell.source not in todo]
    ended = {"done": done, "failed": [], "busy": [], "left": []}
    runner = _Runner(results, jobs, time.monotonic() + 60 * budget_minutes)
    needed = {cell.start for cell, _ in todo.values()}
    pool = concurrent.futures.ThreadPoolExecutor(jobs)
    try:
        for of_start in (True, False):
            group = [each for name, each in todo.items() if (name in needed) == of_start]
            waiting = {pool.submit(runner.run, *each): each[0].name for each in group}
            for future in concurrent.futures.as_completed(waiting):
                how, words = future.result()
                ended[how].append(waiting[future])
                count = sum(map(len, ended.values())) - len(ended["left"])
                print(f"[{count}] {waiting[future]}: {words}", flush=True)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        runner.stop()
        raise
    pool.shutdown()
    return ended


class _Runner:
    """Runs cells in threads; a thread waits for one process at a time."""

    def __init__(self, results, jobs, deadline):
        self._results, self._deadline = results, deadline
        self._processes, self._lock, self._stopped = set(), threading.Lock(), False
        self._environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        if jobs > 1:
            threads = str(max(1, (os.cpu_count() or 1) // jobs))
            self._environment |= dict.fromkeys(
                ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS"), threads
            )

    def run(self, cell, seeds) -> tuple[str, str]:
        """Runs the seeds of a cell; returns how it ended, and words about it."""
        if time.monotonic() > self._deadline or self._stopped:
            return "left", "not begun"
        log = records.place(self._results, cell, 0).parent / "log.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        started, words = time.monotonic(), []
        with open(log, "a+") as file:
            try:  # held by the process of the training, too
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return "busy", "another process makes it"
            try:
                for seed in seeds:
                    words.append(self._one(cell, seed, file))
                    if len(seeds) > 1:
                        print(f"    {cell.name}, seed {seed}: {words[-1]}", flush=True)
            except Exception as error:  # one cell that fails ends no others
                return "failed", f"{error} (all of it: {log})"
        return "done", f"{', '.join(words)} ({(time.monotonic() - started) / 60:.1f} min)"

    def _one(self, cell, seed, log) -> str:
        """Runs one seed, unless it is there by now; returns what it gave in words."""
        run = records.made(self._results, cell, seed)
        if run is None:
            folder, path = (at(self._results, cell, seed) for at in (records.place, records.note))
            if records.is_other(self._results, cell, seed):
                raise RuntimeError(
                    f"{folder} was made with other flags or another start than the catalogue has "
                    "now. Remove it, or choose another folder of --results."
                )
            with replaced_whole(path) as partial:
                about = {"flags": cell.flags, "start": cell.start, "code": code_version()}
                Path(partial).write_text(json.dumps(about, indent=1) + "\n")
            if cell.computed:
                computed.compute_into(folder, cell, seed)
            else:
                self._train(cell, seed, folder, log)
            run = records.made(self._results, cell, seed)
        return computed.told(cell, run) if cell.computed else f"{100 * run.test_accuracy:.2f}%"

    def _train(self, cell, seed, folder, log):
        words = [sys.executable, "train.py", f"--flagfile={_NO_RECIPE}"]
        words += flags_of(cell, seed, self._results.resolve())
        words.append(f"--model_dir={folder.resolve()}")
        with self._lock:
            if self._stopped:
                raise RuntimeError("It was interrupted.")
            # In a session of its own: a terminal's Ctrl-C reaches this process alone, which passes one
            # signal on. A training takes a second one as the wish to end at once.
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
            self._processes.add(process)
        status = process.wait()
        self._processes.discard(process)
        if status < 0:
            name = signal.Signals(-status).name
            raise RuntimeError(f"{name} ended it; the same command resumes it.")
        if status:
            log.seek(0)
            raise RuntimeError((log.read().strip().splitlines() or ["Nothing was printed."])[-1])

    def stop(self):
        """Lets the trainings write their states; a second Ctrl-C ends them at once."""
        with self._lock:
            self._stopped = True
        for _ in range(2):
            for process in [*self._processes]:
                process.terminate()
            with contextlib.suppress(KeyboardInterrupt):
                for process in [*self._processes]:
                    process.wait()
                return


@functools.cache
def code_version() -> dict:
    """Returns the version of tfdp, its commit, and whether it was changed since.

    It is read once in a process: what was committed since is not what runs.
    """
    found = {"tfdp": tfdp.__version__, "commit": None, "changed": None}
    git = functools.partial(subprocess.run, capture_output=True, text=True, check=True, cwd=ROOT)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        found["commit"] = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        # Only the code counts: pages and records are written while trainings run.
        changed = git(["git", "status", "--porcelain", "tfdp", "train.py"]).stdout
        found["changed"] = bool(changed.strip())
    return found
