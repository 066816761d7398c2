"""Runs the missing seeds of a cell: by train.py, or by a computation for each seed.

A finished training is not run again, and train.py resumes an interrupted one.
"""

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import tfdp
from papers import computed, records
from papers.catalogue import ROOT, Cell, cells


def run(cell: Cell, results: Path) -> records.Record:
    """Runs the missing seeds of a cell, and before them the cell that it starts from.

    Args:
        cell: The cell.
        results: The folder of all results.

    Returns:
        The record of the cell.

    Raises:
        RuntimeError, ValueError: If something could not be run. The same call resumes it.
    """
    path = records.place(results, cell) / "record.json"
    record = records.own(results, cell) or records.Record(cell.flags, {})
    if not record.is_of(cell):
        raise RuntimeError(
            f"{path.parent} was made with other flags than those in the catalogue now. Remove it, or "
            "choose another folder of --results."
        )
    missing = [seed for seed in cell.seeds if seed not in record.seeds]
    seeds = dict(record.seeds)
    record = dataclasses.replace(record, seeds=seeds)
    records.write(path, {cell.source: record})  # identifies the folder, also after a crash

    def add(seed, run):
        seeds[seed] = {**run, "code": code_version()}
        records.write(path, {cell.source: record})

    if cell.computed:
        for seed in missing:
            started = time.perf_counter()
            values = computed.compute(cell, seed)
            add(seed, {"values": values, "seconds": time.perf_counter() - started})
    elif missing:
        if cell.start:
            (start,) = cells([cell.start])
            run(dataclasses.replace(start, seeds=start.seeds[:1]), results)
        try:
            _train(command(cell, missing, results.resolve()), path.with_name("log.txt"))
        finally:  # finished seeds are recorded even if others fail
            for seed in missing:
                if (made := path.with_name(f"seed={seed}") / "run.json").exists():
                    add(seed, records.kept(json.loads(made.read_text())))
    return record


def command(cell: Cell, seeds: Iterable[int], results: Path) -> list[str]:
    """Returns the command that runs some seeds of a cell, as a list of words."""
    if cell.computed:
        return ["python", "-m", "papers", "run", cell.name]
    if cell.start:
        (start,) = cells([cell.start])
        weights = records.place(results, start) / f"seed={start.seeds[0]}" / "model.keras"
        settings = cell.settings | {"initial_weights": weights.resolve()}
        cell = dataclasses.replace(cell, settings=settings)
    # Without a flag file, train.py would take other settings from a recipe.
    words = ["python", "train.py", "--flagfile=papers/no_recipe.cfg", *cell.flags]
    words.append(f"--sweep=seed={','.join(map(str, seeds))}")
    return [*words, f"--model_dir={records.place(results, cell)}"]


def _train(words, log):
    with open(log, "a") as file:
        # The training has its own session, so a terminal's Ctrl-C reaches only this process, which
        # passes on one signal. A second one would end the training at once.
        process = subprocess.Popen(
            [sys.executable, *words[1:]], cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
        try:
            status = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if status:
        errors = [line for line in log.read_text().splitlines() if "error: " in line]
        raise RuntimeError(f"{errors[-1] if errors else f'status {status}'} (all of it: {log})")


@functools.cache
def code_version() -> dict:
    """Returns the version of tfdp, its commit, and whether it was changed since.

    It is read only once in a process, because later commits are not the code that runs.
    """
    found = {"tfdp": tfdp.__version__, "commit": None, "changed": None}
    git = functools.partial(subprocess.run, capture_output=True, text=True, check=True, cwd=ROOT)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        found["commit"] = git(["git", "rev-parse", "HEAD"]).stdout.strip()
        # Only the code counts: pages and records are written while trainings run.
        changed = git(["git", "status", "--porcelain", "tfdp", "train.py"]).stdout
        found["changed"] = bool(changed.strip())
    return found
