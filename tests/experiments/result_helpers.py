"""Small results for tests, made without TensorFlow, and trainings that end early."""

import contextlib
import os
import sys

from tfdp._files import replaced_whole
from tfdp.experiments.run_folder import RunFolder, read_record
from tfdp.experiments.settings import Experiment

EXPERIMENT = Experiment(epsilon=2.0)
FILES = {"model.keras", "run.json", "model_card.md", "tensorboard"}


class Crash(Exception):
    """Ends a training as an error of the machine would."""


def make(path, which, **options):
    """Writes the result named `which` to `path` as a training does: resumed, or from the beginning."""

    def save_model(name):
        with open(name, "w") as file:
            file.write(f"model {which[0]}")
            file.flush()
            sys.audit("test")
            file.write(which[1:])

    with RunFolder(path, EXPERIMENT, **options) as folder:
        folder.begin()
        try:
            keep_state(folder, which)
        except OSError as error:
            raise Crash from error
        folder.commit({"which": which}, f"card {which}", save_model)


def keep_state(folder, which):
    """Writes a state and a log, or finds the state of this training."""
    state = os.path.join(folder.backup, "state")
    os.makedirs(folder.backup, exist_ok=True)
    if os.path.exists(state):
        with open(state) as file:
            assert file.read() == which
    with replaced_whole(state) as partial, open(partial, "w") as file:
        file.write(which)
    os.makedirs(folder.log_dir, exist_ok=True)
    with open(os.path.join(folder.log_dir, "events.out.tfevents.1"), "w") as file:
        file.write(f"log {which}")


def state(path):
    """Returns the name of the whole result at `path`, or None for nothing; anything else fails."""
    if not os.path.lexists(path) or not os.listdir(path):
        return None
    which = read_record(path)["which"]
    assert set(os.listdir(path)) == FILES
    assert (path / "model.keras").read_text() == f"model {which}"
    assert (path / "model_card.md").read_text() == f"card {which}"
    assert (path / "tensorboard" / "events.out.tfevents.1").read_text() == f"log {which}"
    return which


def names(folder):
    return sorted(os.listdir(folder))


@contextlib.contextmanager
def after_step(number, action=None):
    """Context that calls `action`, by default a crash, at the end of its training step `number`."""
    import keras
    import pytest

    steps, ended = [], keras.callbacks.CallbackList.on_train_batch_end

    def ending(self, batch, logs=None):
        steps.append(batch)
        if len(steps) == number:
            if action is None:
                raise Crash
            action()
        ended(self, batch, logs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.callbacks.CallbackList, "on_train_batch_end", ending)
        yield
