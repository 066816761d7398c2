"""Small results for tests, made without TensorFlow, and processes that make them."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tfdp._files import replaced_whole  # noqa: E402
from tfdp.experiments.result_folder import ResultFolder, check  # noqa: E402
from tfdp.experiments.unfinished import STATE  # noqa: E402

FILES = {"model.keras", "run.json", "model_card.md", "tensorboard"}


class TrainingFailed(Exception):
    """An error of the training, which the result folder should not explain."""


def make(path, which, stateful=False, **options):
    """Writes the result named `which` to `path`; if `stateful`, like a training that keeps a state."""

    def save_model(name):
        with open(name, "w") as file:
            file.write(f"model {which[0]}")
            file.flush()
            sys.audit("test")
            file.write(which[1:])

    with ResultFolder(path, **options) as folder:
        if stateful:
            keep_state(folder, which)
        try:
            os.makedirs(folder.log_dir, exist_ok=True)
            with open(os.path.join(folder.log_dir, "events.out.tfevents.1"), "w") as file:
                file.write(f"log {which}")
        except OSError as error:
            raise TrainingFailed from error
        folder.commit({"which": which}, f"card {which}", save_model)


def keep_state(folder, which):
    """Does what a training does with its state: goes on from one, or writes one."""
    backup = folder.checkpoints({"which": which})
    if not folder.holds_state:
        os.makedirs(backup, 0o700, exist_ok=True)
        with replaced_whole(os.path.join(backup, STATE)) as partial, open(partial, "w") as file:
            file.write(f"state {which}")


def state(path):
    """Returns the name of the whole result at `path`, or None for nothing; anything else fails."""
    if not os.path.lexists(path) or not os.listdir(path):
        return None
    which = check(path)["which"]
    assert set(os.listdir(path)) == FILES
    assert (path / "model.keras").read_text() == f"model {which}"
    assert (path / "model_card.md").read_text() == f"card {which}"
    assert (path / "tensorboard" / "events.out.tfevents.1").read_text() == f"log {which}"
    return which


def names(folder):
    return sorted(os.listdir(folder))


def python(code, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
