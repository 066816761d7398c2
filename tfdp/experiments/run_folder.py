"""The folder of a result, which appears only when it is complete, and of its unfinished training.

    NAME/               model.keras, run.json, model_card.md, privacy.png, tensorboard/
    NAME.unfinished/    the training that makes NAME; only its owner may enter it
        lock            locked while a process trains (the kernel always releases it)
        settings.json   the settings of the training, and the number of restarts
        backup/         its state, with un-noised values: a secret
        result/         becomes NAME by one rename
        previous/       the result that is being replaced

`result/` is created when the training begins. If it exists, the same command resumes. Otherwise the
training never began, or its result is already in place, and the next process discards
`NAME.unfinished`. An earlier result in `previous/` is moved back if NAME is missing.

This module imports neither TensorFlow nor Keras.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from absl import logging

import tfdp
from tfdp._files import replaced_whole, sync_folder, sync_tree
from tfdp._interruptions import Interruptions
from tfdp.experiments.settings import Experiment

UNFINISHED = ".unfinished"
_MODEL, _RECORD, _CARD, _LOG = "model.keras", "run.json", "model_card.md", "tensorboard"
PICTURE = "privacy.png"  # shown by the model card
AUDIT_FILES = ("audit.json", "audit.png")  # added to a finished result by `train.py --audit`
_FILES = {_MODEL, _RECORD, _CARD, _LOG, PICTURE, *AUDIT_FILES}
_LOCK, _SETTINGS, _RESULT, _PREVIOUS = "lock", "settings.json", "result", "previous"


class ResultError(ValueError):
    """Error for a result that cannot be, or was not, written."""


class ResultExists(ResultError):
    """Error for a finished result with the same settings, which is already there."""


def read_record(folder: str | os.PathLike) -> dict:
    """Reads run.json, the record of a training, from the folder of its result.

    The record has the settings, the steps, the test accuracy and both guarantees.

    Args:
        folder: Path of the folder of a result, which `train.py` or `run_into` wrote.

    Returns:
        The content of run.json. An empty dictionary if the file does not exist.

    Example:
        >>> from tfdp.experiments import read_record
        >>> read_record("no_such_folder")
        {}
    """
    try:
        return json.loads(Path(folder, _RECORD).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}


def check_sweep_folder(folder: str | os.PathLike) -> None:
    """Raises ResultError if a folder belongs to one training, finished or not."""
    if read_record(folder) or os.path.isdir(f"{folder}{UNFINISHED}"):
        raise ResultError(
            f"{folder} is the folder of a single training. Choose another one for a sweep."
        )


class RunFolder:
    """A context manager for the folder of one result, from the first step to the complete files.

    `with RunFolder(path, experiment) as folder: run_into(folder)` trains and writes a result. After a
    crash the same code resumes the training. The folder appears only when the result is complete.

    Entering locks the folder `NAME.unfinished` for this process. Leaving without `commit` keeps a
    training that has begun, and does not change an earlier result.

    Args:
        path: Path of the folder of the finished result.
        experiment: The settings of the training.
        overwrite: Whether to replace an earlier result. Other folders are never replaced. False by
            default.

    Attributes:
        path: Absolute path of the folder of the result.
        experiment: The settings of the training.
        restarts: Number of times that the training was resumed, set by `begin`.

    Raises:
        ResultError: If a result or an unfinished training has other settings, another process is
            writing the result, or a file cannot be written. Entering, `begin` and `commit` raise it.
        ResultExists: If there is a finished result with the same settings. Entering raises it.

    Example:
        >>> import keras
        >>> from tfdp.experiments import Experiment, RunFolder, read_record
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> with RunFolder("runs/a", Experiment(epsilon=2.0)) as folder:
        ...     folder.begin()
        ...     folder.commit({"steps": 3}, card="# A model", save_model=model.save)
        >>> read_record("runs/a")["steps"]
        3
    """

    def __init__(self, path: str | os.PathLike, experiment: Experiment, *, overwrite: bool = False):
        self.path = os.path.abspath(path)
        self.experiment = experiment
        self.restarts = 0
        self._overwrite = overwrite
        self._settings: dict = {}
        self._lock: int | None = None  # descriptor of the locked file

    @property
    def unfinished(self) -> str:
        """The folder of the unfinished training."""
        return f"{self.path}{UNFINISHED}"

    @property
    def backup(self) -> str:
        """The folder for the state of the training."""
        return self._in("backup")

    @property
    def log_dir(self) -> str:
        """The folder of TensorBoard's log, until `commit` moves it with the result."""
        return self._in(_RESULT, _LOG)

    @property
    def resumable(self) -> bool:
        """Whether an unfinished training exists, which `begin` resumes."""
        return os.path.isdir(self._in(_RESULT))

    def begin(self) -> None:
        """Begins the training, or resumes the unfinished one. Call it before the first step."""
        try:
            if self.resumable:
                self.restarts = self._about()["restarts"] + 1
                for name in set(os.listdir(self._in(_RESULT))) - {_LOG}:  # left by a failed commit
                    os.unlink(self._in(_RESULT, name))
            about = {"settings": self._resumed, "restarts": self.restarts}
            with replaced_whole(self._in(_SETTINGS)) as partial:
                Path(partial).write_text(json.dumps(about))
            os.makedirs(self._in(_RESULT), exist_ok=True)
            sync_folder(self.unfinished)
        except OSError as error:
            raise self.not_written(error) from error

    def discard(self) -> None:
        """Discards the unfinished training. Nothing of it may be released afterwards."""
        self._restore_previous()
        for name in (_RESULT, *os.listdir(self.unfinished)):  # `result`, the mark, first
            path = self._in(name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif name != _LOCK and os.path.lexists(path):
                os.unlink(path)

    def commit(self, record: Mapping, card: str, save_model: Callable[[str], object]) -> None:
        """Writes the result of a training that has begun, and moves it into place by one rename.

        `run_into` calls it. The state of the training is discarded when the folder is left.

        Args:
            record: The JSON-safe content of run.json, without the settings.
            card: The text of model_card.md.
            save_model: A function that writes the model to a given path.
        """
        try:
            save_model(self._in(_RESULT, _MODEL))
            Path(self._in(_RESULT, _CARD)).write_text(card, encoding="utf-8")
            text = json.dumps({**record, "settings": self._settings}, indent=2, allow_nan=False)
            Path(self._in(_RESULT, _RECORD)).write_text(f"{text}\n")
            sync_tree(self._in(_RESULT))
            self._check_target()  # something may have been created there since the training began
            with Interruptions() as interruptions:
                self._put_in_place()
                if interruptions.number is not None:
                    interruptions.end(f"The result is complete: {self.path}.")
        except OSError as error:
            raise self.not_written(error) from error

    def not_written(self, error: Exception) -> ResultError:
        """Returns the error for a file that could not be written."""
        then = ""
        if self.resumable:
            then = " The training is saved. Correct this, then the same command resumes it."
        return ResultError(f"The result {self.path} could not be written: {error}.{then}")

    def __enter__(self):
        try:
            self._settings = _identity(self.experiment)
            self._lock = _locked(self.unfinished)
            try:
                self._restore_previous()
                self._check_target()
                if self.resumable:
                    self._check_unfinished()
                else:
                    self.discard()
            except BaseException:
                self._release()
                raise
        except OSError as error:
            raise self.not_written(error) from error
        return self

    def __exit__(self, *exception):
        try:
            self._release()
        except OSError as error:
            logging.warning("%s could not be removed: %s", self.unfinished, error)

    def _release(self):
        handle, self._lock = self._lock, None
        try:
            if not self.resumable:
                self.discard()
                os.unlink(self._in(_LOCK))
                with contextlib.suppress(OSError):  # the next process already has the folder
                    os.rmdir(self.unfinished)
        finally:
            os.close(handle)

    def _check_target(self):
        """Raises ResultError if something at the final path must not be replaced."""
        if os.path.isdir(self.path) and not os.listdir(self.path):
            return
        if not os.path.lexists(self.path):
            return
        record = read_record(self.path)
        if not record or not os.path.isfile(os.path.join(self.path, _MODEL)):
            remedy = "Choose another folder."
            if self.resumable:
                remedy = f"Move it elsewhere. The same command then resumes {self.unfinished}."
            raise ResultError(f"{self.path} is not a result, so it is not replaced. {remedy}")
        if self._overwrite and (others := {*os.listdir(self.path)} - _FILES):
            raise ResultError(
                f"{self.path} contains {', '.join(sorted(others))} besides a result, so it is not "
                "replaced. Move these elsewhere, or choose another folder."
            )
        if not self._overwrite:
            remedy = "Choose another folder, or pass --overwrite (in Python: overwrite=True)."
            before = record.get("settings", {})
            self._compare(f"The result in {self.path}", before, self._settings, remedy)
            also = " An unfinished training would replace it." if self.resumable else ""
            raise ResultExists(f"There is a finished result in {self.path}.{also} {remedy}")

    def _check_unfinished(self):
        """Raises ResultError if the unfinished training is not this one."""
        remedy = (
            "Resume it with its settings, choose another folder, or delete it without releasing any "
            "part of it."
        )
        what, before = f"The unfinished training in {self.unfinished}", self._about()["settings"]
        self._compare(what, before, self._resumed, remedy)

    @staticmethod
    def _compare(what, before, now, remedy):
        """Raises ResultError if an earlier training has different settings."""
        if names := [name for name in {**before, **now} if before.get(name) != now.get(name)]:
            theirs, ours = (", ".join(f"--{n}={s.get(n)}" for n in names) for s in (before, now))
            raise ResultError(f"{what} has {theirs}, but this command has {ours}. {remedy}")

    def _put_in_place(self):
        if os.path.lexists(self.path):
            os.rename(self.path, self._in(_PREVIOUS))
        try:
            os.rename(self._in(_RESULT), self.path)
        except BaseException:
            self._restore_previous()
            raise
        with contextlib.suppress(OSError):  # it is in place, and will be on disk eventually
            sync_folder(os.path.dirname(self.path))

    def _restore_previous(self):
        if os.path.lexists(self._in(_PREVIOUS)) and not os.path.lexists(self.path):
            os.rename(self._in(_PREVIOUS), self.path)
            sync_folder(os.path.dirname(self.path))

    @property
    def _resumed(self) -> dict:
        """Facts that must not change when a training is resumed."""
        return self._settings | {"version of tfdp": tfdp.__version__}

    def _about(self) -> dict:
        return json.loads(Path(self._in(_SETTINGS)).read_bytes())

    def _in(self, *names) -> str:
        return os.path.join(self.unfinished, *names)


class FollowedFolder(RunFolder):
    """The folder of a result that another machine, the chief, writes. This process only reads it."""

    def begin(self) -> None:
        """Does nothing: the chief begins the training."""

    def __enter__(self):
        self._check_target()
        return self

    def __exit__(self, *exception):
        """Does nothing: the folder stays as it is."""


def is_chief() -> bool:
    """Whether this process is the chief of the machines in TF_CONFIG, as TensorFlow chooses it."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    task, cluster = config.get("task", {}), config.get("cluster", {})
    if "chief" in cluster:
        return task.get("type") == "chief"
    return task.get("index", 0) == 0


def _identity(experiment: Experiment) -> dict:
    """Returns facts that are equal if one training may resume, or replace, the other.

    These are the recorded settings, the content of the initial weights, and whether the noise has a
    seed. The seed itself is never written.
    """
    same = experiment.recorded()
    if (weights := experiment.initial_weights) is not None:
        content = Path(weights).expanduser().read_bytes()
        same["initial_weights (SHA-256)"] = hashlib.sha256(content).hexdigest()
    return same | ({} if experiment.insecure_seed is None else {"insecure_seed": "secret"})


def _locked(folder) -> int:
    """Creates a folder and locks it for this process. Returns the descriptor of the lock."""
    while True:
        os.makedirs(folder, 0o700, exist_ok=True)
        path = os.path.join(folder, _LOCK)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            name = folder.removesuffix(UNFINISHED)
            raise ResultError(
                f"Another process is writing {name}. Wait for it, or choose another folder."
            ) from error
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # the file was removed before it was locked
