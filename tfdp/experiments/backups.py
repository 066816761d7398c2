"""How an experiment is kept safe from crashes: the callback for private and for plain trainings."""

import dataclasses
import json
import os
import shutil
import time

import keras

from tfdp._files import replaced_whole
from tfdp._interruptions import Interruptions
from tfdp._validate import finite, whole
from tfdp.callbacks import BackupAndRestore
from tfdp.experiments.settings import Experiment


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where an experiment keeps its state, and how often.

    Attributes:
        folder: the folder, a secret; it is left as it is at the end of the training.
        steps: a private state is written after so many steps; None writes them by time.
        seconds: time between two private states. Without privacy, a state is written after each epoch.
    """

    folder: str
    steps: int | None = None
    seconds: float = 10.0

    def __post_init__(self):
        whole("steps", self.steps, 1, optional=True)
        finite("seconds", self.seconds, 0)

    def callback(self, experiment: Experiment, total_steps: int):
        """The callback for a training of an experiment with so many steps."""
        if not experiment.private:
            return PlainBackup(self.folder)
        backup = BackupAndRestore(
            self.folder,
            self.steps,
            seconds=self.seconds,
            delete_checkpoint=False,
            delta=experiment.delta,
            adjacency=experiment.adjacency,
        )
        backup.planned_steps = total_steps
        return backup


class PlainBackup(keras.callbacks.BackupAndRestore):
    """Keras' callback, with the logs of the epochs that have ended.

    An epoch that was interrupted is trained again.

    Args:
        folder: the folder.

    Attributes:
        epochs, lost_steps, earlier_seconds: as for `tfdp.callbacks.BackupAndRestore`.
    """

    def __init__(self, folder: str):
        super().__init__(folder, double_checkpoint=True, delete_checkpoint=False)
        _mend(folder)
        self._about, self._since = os.path.join(folder, "epochs.json"), time.monotonic()
        self.epochs, self.lost_steps, self.earlier_seconds = {}, 0, 0.0
        if os.path.exists(self._about):
            with open(self._about) as file:
                epochs, self.earlier_seconds = json.load(file)
            self.epochs = {int(epoch): logs for epoch, logs in epochs.items()}

    def on_epoch_end(self, epoch, logs=None):
        with Interruptions():  # Ctrl-C would leave a file of a part of the weights
            try:
                self._save(epoch, logs)
            except BaseException:
                shutil.rmtree(self.backup_dir, ignore_errors=True)  # it may be such a file, too
                raise

    def _save(self, epoch, logs):
        super().on_epoch_end(epoch, logs)
        self.epochs[epoch] = {name: float(value) for name, value in (logs or {}).items()}
        seconds = self.earlier_seconds + time.monotonic() - self._since
        with replaced_whole(self._about) as partial, open(partial, "w") as file:
            json.dump((self.epochs, seconds), file)


def _mend(folder):
    """Undoes a save that a kill has cut: of the weights, and then the number of the epoch."""
    weights, about = (
        os.path.join(folder, name) for name in ("latest.weights.h5", "training_metadata.json")
    )
    try:
        with open(about) as file:
            json.load(file)
    except (FileNotFoundError, ValueError):
        if os.path.exists(f"{about}.bkp"):
            for name in (weights, about):
                shutil.copy(f"{name}.bkp", name)
        else:
            shutil.rmtree(folder, ignore_errors=True)
