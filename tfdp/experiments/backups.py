"""How an experiment survives crashes: a callback for private and one for plain trainings."""

import json
import os
import time

import keras
import numpy as np

from tfdp._files import replaced_whole
from tfdp.callbacks import BackupAndRestore
from tfdp.experiments.rules import interval
from tfdp.experiments.settings import Experiment


def backup_of(experiment: Experiment, folder: str, every: str, steps: int):
    """Returns the callback that keeps the state of a training, and resumes it.

    Args:
        experiment: the settings.
        folder: the folder of the state, a secret; it is kept at the end of the training.
        every: how often a private state is written, as for `rules.interval`.
        steps: how many steps the training takes.
    """
    if not experiment.private:
        return EpochBackup(folder)
    number, seconds = interval(every)
    backup = BackupAndRestore(
        folder,
        number,
        seconds=seconds,
        delete_checkpoint=False,
        delta=experiment.delta,
        adjacency=experiment.adjacency,
    )
    backup.planned_steps = steps
    return backup


class EpochBackup(keras.callbacks.Callback):
    """Keeps the state of a plain training after each epoch, in one file that is replaced whole.

    An epoch that was interrupted is trained again. (`keras.callbacks.BackupAndRestore` writes two
    files, between which a kill leaves a state of two epochs, and forgets the logs.)

    Args:
        folder: the folder.

    Attributes:
        epochs, lost_steps, earlier_seconds: as for `tfdp.callbacks.BackupAndRestore`.
        ended: whether a callback ended the training early.
    """

    def __init__(self, folder: str):
        super().__init__()
        os.makedirs(folder, exist_ok=True)
        self._path, self._since = os.path.join(folder, "state.npz"), time.monotonic()
        self.epochs, self.lost_steps, self.earlier_seconds, self.ended = {}, 0, 0.0, False
        self._state = None
        if os.path.exists(self._path):
            with np.load(self._path) as state:
                self._state = dict(state)
            epochs, self.earlier_seconds, self.ended = json.loads(str(self._state["about"]))
            self.epochs = {int(epoch): logs for epoch, logs in epochs.items()}

    def on_train_begin(self, logs=None):
        if self._state is None:
            return
        for number, variable in enumerate(self._variables()):
            variable.assign(self._state[str(number)])
        self._state = None

    def on_epoch_end(self, epoch, logs=None):
        self.epochs[epoch] = {name: float(value) for name, value in (logs or {}).items()}
        seconds = self.earlier_seconds + time.monotonic() - self._since
        about = json.dumps((self.epochs, seconds, bool(self.model.stop_training)))
        arrays = {str(number): v.numpy() for number, v in enumerate(self._variables())}
        with replaced_whole(self._path) as partial:
            np.savez(partial, about=about, **arrays)

    def _variables(self) -> list[keras.Variable]:
        model, optimizer = self.model, self.model.optimizer
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        of_metrics = {id(v) for metric in model.metrics for v in metric.variables}
        return [*optimizer.variables, *(v for v in model.variables if id(v) not in of_metrics)]
