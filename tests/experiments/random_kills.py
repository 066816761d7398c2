"""Ends trainings at random moments, continues each with the same command, and checks what is left.

    python -m tests.experiments.random_kills FOLDER KIND {kill,interrupt} COUNT

KIND is private, plain, overwrite or sweep. The script forks trainings until COUNT of them were ended by
a signal, and prints how often which state was seen. After every signal, the folder holds nothing, the
whole earlier result or the whole new one; a private result counts at least the steps that were taken.
TensorFlow is imported once, before the forks.
"""

import collections
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import time
import traceback
import zipfile

FILES = {"model.keras", "run.json", "model_card.md", "tensorboard"}
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}
STEPS = 60
COMMON = [
    "--model=linear", "--dataset=digits", "--sampling=cyclic", "--batch_size=479", f"--steps={STEPS}",
]  # fmt: skip
PRIVATE = ["--mechanism=dpsgd", "--noise_multiplier=20", "--checkpoint_every=7", *COMMON]
COMMANDS = {
    "private": PRIVATE,
    "plain": ["--mechanism=none", *COMMON],
    "overwrite": [*PRIVATE, "--overwrite"],
    "sweep": [*PRIVATE, f"--sweep=seed={','.join(map(str, range(12)))}"],
}


def start(command: list[str], folder: pathlib.Path) -> int:
    """Forks a process that runs train.py, with a byte in `taken` for each step; returns its number."""
    process = os.fork()
    if process:
        return process
    try:
        os.setsid()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        _count_steps(os.open(folder / "taken", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        from tfdp.experiments import command as commands
        from tfdp.experiments import console, main

        sys.argv = ["train.py", *command, f"--model_dir={folder / 'r'}"]
        words = commands.parse(sys.argv)
        console.guarded(functools.partial(main.main, words))
    except SystemExit as end:
        os._exit(end.code or 0)
    except BaseException:
        traceback.print_exc()
    os._exit(99)


def _count_steps(file):
    import keras

    ended = keras.callbacks.CallbackList.on_train_batch_end
    before = []

    def ending(self, batch, logs=None):
        now = int(self._model.optimizer.iterations.numpy())
        # Keras calls this for the absent steps of a resumed epoch, too.
        if [now] != before and now:
            os.write(file, b".")
        before[:] = [now]
        ended(self, batch, logs)

    keras.callbacks.CallbackList.on_train_batch_end = ending


def finish(process: int, after: float = 0.0, number: int | None = None) -> int:
    """Sends a signal after some seconds; returns the exit status, negative for a signal."""
    until = time.monotonic() + after
    while number is not None:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            os.kill(process, number)
            break
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def result(path: pathlib.Path) -> dict | None:
    """Returns run.json of a whole result, or None for nothing; anything else fails."""
    if not path.exists():
        return None
    assert set(os.listdir(path)) >= FILES, os.listdir(path)
    with zipfile.ZipFile(path / "model.keras") as archive:
        assert archive.testzip() is None
    record = json.loads((path / "run.json").read_text())
    picture = {"privacy.png"} if record["settings"]["mechanism"] != "none" else set()
    assert set(os.listdir(path)) == FILES | picture, os.listdir(path)
    return record


def end_one(kind: str, number: int, folder: pathlib.Path, old, seconds: float, seen) -> int:
    """Ends one training at one to three random moments and continues it; returns how often it ended."""
    folder.mkdir()
    if old is not None:
        shutil.copytree(old, folder / "r")
    before, ended = result(folder / "r"), 0
    for _ in range(random.randint(1, 3)):
        status = finish(start(COMMANDS[kind], folder), random.uniform(0, seconds), number)
        ended += status < 0 or status == 128 + signal.SIGINT
        found = result(folder / "r")
        if found is None and before is not None:
            earlier = folder / "r.unfinished" / "previous"
            assert result(earlier) == before, "the earlier result is lost"
            seen["between the renames"] += 1
        seen["earlier result" if found == before and before else "new" if found else "nothing"] += 1
        if found not in (None, before):
            break
    if found in (None, before):
        assert finish(start(COMMANDS[kind], folder)) == 0, (folder / "log").read_text()[-2000:]
        found = result(folder / "r")
        assert not (folder / "r.unfinished").exists()
    taken = (folder / "taken").stat().st_size
    assert found["steps"] == STEPS and found != before
    if kind == "plain":
        assert taken >= STEPS
    else:
        lost = found["training"]["lost_steps"]
        assert STEPS - lost <= taken <= STEPS, (taken, lost)
        seen["trainings with lost steps"] += lost > 0
    seen["finished trainings"] += 1
    return ended


def end_sweep(number: int, folder: pathlib.Path, seconds: float, seen) -> int:
    """Ends a sweep twice at random moments and continues it; no finished point is trained again."""
    folder.mkdir()
    finished, ended = {}, 0
    for round in range(3):
        after = random.uniform(0, 0.5 * seconds * 12)
        status = finish(start(COMMANDS["sweep"], folder), after, number if round < 2 else None)
        ended += status < 0 or status == 128 + signal.SIGINT
        now = {path: path.read_bytes() for path in folder.glob("r/*/run.json")}
        for path in now:
            result(path.parent)
        assert finished.items() <= now.items(), "a finished point was trained again"
        seen[f"points after process {round + 1}: {len(now)}"] += 1
        finished = now
    assert status == 0 and len(finished) == 12, (folder / "log").read_text()[-2000:]
    seen["finished trainings"] += 1
    return ended


def main(folder: str, kind: str, action: str, count: str) -> None:
    import tfdp.experiments.report
    import tfdp.experiments.saving  # noqa: F401

    base, seen, ended = pathlib.Path(folder).absolute(), collections.Counter(), 0
    base.mkdir(parents=True)
    whole = base / "whole"
    whole.mkdir()
    began = time.monotonic()
    assert finish(start(COMMANDS["plain" if kind == "plain" else "private"], whole)) == 0
    seconds = time.monotonic() - began
    old = whole / "r" if kind == "overwrite" else None
    while ended < int(count):
        one = base / f"{seen['finished trainings']}"
        if kind == "sweep":
            ended += end_sweep(SIGNALS[action], one, seconds, seen)
        else:
            ended += end_one(kind, SIGNALS[action], one, old, seconds, seen)
        print(f"{kind}, {action}: {ended} ended; {dict(seen)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
