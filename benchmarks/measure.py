"""Runs one measurement in a separate process, with limits on time and memory."""

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.environments import environment_variables
from benchmarks.subjects import Family

_POLL_SECONDS = 0.05
# Largest ratio of the fixed computation's time beside a measurement to its least time, and the number
# of repetitions of a measurement until it is met.
STEADY, _TRIES = 1.1, 3


def fixed_ms() -> float:
    """Times a fixed plain computation of some milliseconds, which shows the speed of the machine.

    The least of three times counts, since the end of a process may disturb one of them.
    """
    matrix = np.full((512, 512), 2.0**-9, np.float32)  # its own square
    least = math.inf
    for _ in range(3):
        product = matrix
        began = time.perf_counter()
        for _ in range(20):
            product = product @ matrix
        least = min(least, time.perf_counter() - began)
    return round(1000 * least, 2)


def steadily(run: Callable[[], dict], least_ms: float) -> dict:
    """Repeats a measurement, a limited number of times, while the machine is slower than before.

    Args:
        run: A function that measures and returns a record.
        least_ms: Least time of the fixed computation so far. Infinite if unknown.

    Returns:
        The record of the steadiest measurement, with the fixed computation's times before and after
        it under "fixed_ms".
    """
    found = []
    for _ in range(_TRIES):
        before = fixed_ms()
        found.append(run() | {"fixed_ms": [before, fixed_ms()]})
        least_ms = min(least_ms, *found[-1]["fixed_ms"])
        if "step_ms" not in found[-1] or max(found[-1]["fixed_ms"]) <= STEADY * least_ms:
            return found[-1]
    return min(found, key=lambda record: max(record["fixed_ms"]))


def measure(
    python: Path,
    family: Family,
    spec: dict,
    points: list[dict],
    *,
    timeout: float,
    memory_gib: float,
    variables: dict[str, str] | None = None,
) -> list[dict]:
    """Runs the measured program of a framework on some points, in one process.

    Args:
        python: The interpreter of the framework's environment.
        family: The framework.
        spec: The input of the program; see `peers/protocol.py`.
        points: The entries that each point adds to `spec`.
        timeout: Seconds after which the process is killed.
        memory_gib: Resident memory, in GiB, above which the process is killed.
        variables: Environment variables of the process. By default those of the framework.

    Returns:
        A record for each point, up to the last that was begun. It has either statistics of the step
        times, such as "step_ms" (their median), or a reason under "unsupported", "skipped" or "failed".
    """
    load = os.getloadavg()[0]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [str(python), str(family.path), json.dumps({**spec, "points": points})],
            stdout=out,
            stderr=err,
            env=environment_variables(family) if variables is None else variables,
            start_new_session=True,
        )
        try:
            ended = _wait(process, timeout, memory_gib)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        records = [_record(answer) | {"load": round(load, 2)} for answer in _objects(out.read())]
        if len(records) < len(points):
            if ended is not None:
                records.append({"skipped": ended})
            else:
                err.seek(0)
                lines = [line for line in err.read().splitlines() if line.strip()] or ["no output"]
                words = f"exit code {process.returncode}: {_short(lines[-1])}"
                records.append({"failed": words})
    return records


def _wait(process, timeout, memory_gib):
    """Waits for the process to end. Returns None, or the reason why it must be killed."""
    deadline = time.monotonic() + timeout
    while process.poll() is None:
        if time.monotonic() > deadline:
            return f"not done within {timeout:.0f} s, compilation included"
        if _resident_gib(process.pid) > memory_gib:
            return f"needs more than {memory_gib:.0f} GiB"
        time.sleep(_POLL_SECONDS)
    return None


def _resident_gib(pid):
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def _objects(text):
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def _record(answer):
    for reason in ("unsupported", "skipped", "failed"):
        if reason in answer:
            return {reason: _short(answer[reason])}
    durations = answer.get("durations")
    if not durations:
        return {"failed": "no step was timed"}
    milliseconds = [1000 * d for d in durations]
    return {
        "step_ms": round(statistics.median(milliseconds), 4),
        "mean_ms": round(statistics.fmean(milliseconds), 4),
        "min_ms": round(min(milliseconds), 4),
        "max_ms": round(max(milliseconds), 4),
        "times": len(durations),
        "first_step_seconds": round(answer["first_step_seconds"], 3),
        "start_mib": round(answer["start_mib"], 1),
        "peak_mib": round(answer["peak_mib"], 1),
        "versions": answer.get("versions", {}),
    }


def _short(text, length=160):
    """Shortens an error to one line without paths, since reasons are published."""
    lines = [line.strip() for line in str(text).splitlines() if line.strip()] or ["unknown"]
    # TensorFlow puts the traceback of traced code into the message.
    line = lines[-1] if lines[0].endswith("in user code:") else lines[0]
    words = [Path(word).name if word.count("/") > 1 else word for word in line.split()]
    line = " ".join(words)
    return line if len(line) <= length else line[: length - 1] + "…"
