"""How an experiment is kept safe from crashes: the callback for private and for plain trainings."""

import contextlib
import dataclasses
import time

import keras
from absl import logging

from tfdp._interruptions import Interruptions
from tfdp._validate import finite, whole
from tfdp.callbacks import BackupAndRestore
from tfdp.training.backup_folder import BackupError, BackupFolder
from tfdp.training.backup_state import arrays_of, assign_arrays, shapes_of

# The time that states take from a plain training is at most this share of it.
_SHARE = 0.005
_VERSION = "plain 1"


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Where an experiment keeps its state, and how often.

    Attributes:
        folder: the folder, a secret; it is left as it is at the end of the training.
        steps: a state is written after so many steps; None writes them by time.
        seconds: time between two states.
    """

    folder: str
    steps: int | None = None
    seconds: float = 10.0

    def __post_init__(self):
        whole("steps", self.steps, 1, optional=True)
        finite("seconds", self.seconds, 0)

    def callback(self, experiment, total_steps: int):
        """The callback for a training of an experiment with so many steps."""
        if experiment.private:
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
        return PlainBackup(self)


class PlainBackup(keras.callbacks.Callback):
    """Keeps the state of a training without privacy.

    What came after the last state is done again. Lots are drawn afresh after a restart, so the epoch
    that was interrupted may draw some examples twice.

    Args:
        checkpoints: where, and how often.

    Attributes:
        restarts, lost_steps, earlier_seconds: as for `BackupAndRestore`; no step is counted and lost.
    """

    def __init__(self, checkpoints: Checkpoints):
        super().__init__()
        self.restarts, self.lost_steps, self.earlier_seconds = 0, 0, 0.0
        self._since = time.monotonic()
        self._settings, self._folder = checkpoints, BackupFolder(checkpoints.folder)
        self._interruptions = Interruptions()
        self._steps, self._saved_steps, self._saved_at, self._cost = 0, 0, time.monotonic(), 0.0
        self._warned, self._total = False, 0
        self.epochs = {}  # for each epoch that has ended, its logs

    @contextlib.contextmanager
    def attached(self, model, total: int):
        """Context of a training, which gives the number of steps that lie behind.

        Args:
            model: a compiled model that is built.
            total: number of steps of the training.
        """
        self._total = total
        self.set_model(model)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._folder.enter()
        try:
            found = self._folder.read()
            if found is not None:
                self._give(model, *found[:2])
            self._save()
            with self._interruptions:
                yield self._steps
                self._save()
                if self._interruptions.number is not None:
                    self._stop()
        finally:
            self._folder.leave()

    def _give(self, model, about, arrays):
        if about.get("version") != _VERSION or about["shapes"] != shapes_of(model):
            raise BackupError(
                f"Expected the state of this model in {self._folder.path}. Found that of another "
                "training. Use the settings of that training, or another folder."
            )
        assign_arrays(model, arrays)
        self._steps = self._saved_steps = about["steps"]
        self.earlier_seconds = about["seconds"]
        self.restarts = about["restarts"] + 1
        self.epochs = {int(epoch): logs for epoch, logs in about["epochs"]}

    def on_train_batch_begin(self, batch, logs=None):
        if self._interruptions.number is not None:
            self._stop()

    def on_train_batch_end(self, batch, logs=None):
        self._steps += 1
        every = self._settings.steps
        if every is not None:
            due = self._steps - self._saved_steps >= every
        else:
            passed = time.monotonic() - self._saved_at
            due = passed >= max(self._settings.seconds, self._cost / _SHARE)
        if due:
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs[epoch] = {name: float(value) for name, value in (logs or {}).items()}

    def _save(self) -> bool:
        started = time.monotonic()
        model = self.model
        about = {
            "version": _VERSION,
            "steps": self._steps,
            "restarts": self.restarts,
            "seconds": self.earlier_seconds + time.monotonic() - self._since,
            "epochs": list(self.epochs.items()),
            "shapes": shapes_of(model),
        }
        try:
            self._folder.write(about, arrays_of(model))
        except OSError as error:
            if not self._warned:
                logging.warning("The state of the training could not be written: %s.", error)
            self._warned = True
            return False
        finally:
            self._saved_steps, self._saved_at = self._steps, time.monotonic()
            self._cost = self._saved_at - started
        return True

    def _stop(self):
        where = "could not be written; the one before it is kept"
        if self._save():
            where = f"is in {self._folder.path}"
        self._interruptions.end(
            f"Stopped after step {self._steps:,} of {self._total:,}.",
            f"The state {where}: the same program goes on from there.",
        )


def parts(steps: int, per_epoch: int, behind: int = 0):
    """Yields the fits of a training: (first epoch, number of epochs, steps of each).

    The rest of an epoch that was interrupted, whole epochs, and one short epoch for what is left.

    Args:
        steps: number of steps of the training.
        per_epoch: number of steps of an epoch.
        behind: number of steps that lie behind.
    """
    epoch, step = divmod(behind, per_epoch)
    if step:
        end = min(per_epoch, steps - epoch * per_epoch)
        if end > step:
            yield epoch, 1, end - step
        epoch += 1
    whole_epochs, rest = divmod(steps, per_epoch)
    if whole_epochs > epoch:
        yield epoch, whole_epochs - epoch, per_epoch
    if rest and epoch <= whole_epochs:
        yield whole_epochs, 1, rest
