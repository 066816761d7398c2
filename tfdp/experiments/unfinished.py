"""An unfinished training, in the folder `NAME.secret` beside the result `NAME` that is being made.

    NAME.secret/training.json   which training it is: an id, the settings, the version of tfdp
    NAME.secret/backup/         its state (`tfdp/training/backup_folder.py`)

The record of a finished result names the id of its training. So an unfinished training whose id the
result has is over: its process died between putting the result in place and clearing this folder.
This module does not import TensorFlow.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping

import tfdp
from tfdp._files import replaced_whole, sync_folder
from tfdp.experiments.result_files import read_record

_ABOUT, _BACKUP = "training.json", "backup"
# The name of `tfdp.training.backup_folder`, which is not imported because that imports TensorFlow.
STATE = "state.npz"
_NEVER = "or --resume=never to begin anew: nothing of the old training may be released then"


class UnfinishedError(ValueError):
    """An unfinished training is damaged, or is another one than was asked for."""


class Unfinished:
    """The unfinished training of a result.

    Args:
        target: absolute path of the result, `NAME`.
    """

    def __init__(self, target: str):
        self._target, self.path = target, f"{target}.secret"
        self.backup_dir = os.path.join(self.path, _BACKUP)
        self._about = os.path.join(self.path, _ABOUT)

    @property
    def holds_state(self) -> bool:
        """Whether there is a state that a training could go on from."""
        return os.path.lexists(os.path.join(self.backup_dir, STATE))

    @property
    def is_over(self) -> bool:
        """Whether the result of this training is in its place already, or nothing is left of it."""
        if not os.path.lexists(self._about):
            return not os.path.lexists(self.backup_dir)
        with contextlib.suppress(UnfinishedError, OSError):
            return self._read()["id"] == read_record(self._target).get("training", {}).get("id")
        return False

    def take_up(self, settings: Mapping) -> str:
        """Returns the id of the training that goes on, or of a new one; the folder has to exist.

        Args:
            settings: the settings that were asked for, JSON-safe.

        Raises:
            UnfinishedError: the folder is damaged, or its training has other settings.
        """
        if self.is_over or not os.path.lexists(self.backup_dir):
            self._clear()
        if os.path.lexists(self.backup_dir):
            about = self._read()
            _check_same(about, json.loads(json.dumps(settings)), self.path)
            return about["id"]
        about = {"id": os.urandom(16).hex(), "tfdp": tfdp.__version__, "settings": settings}
        text = json.dumps(about)
        with replaced_whole(self._about) as partial, open(partial, "w") as file:
            file.write(f"{_digest(text)}\n{text}\n")
        return about["id"]

    def discard(self) -> None:
        """Removes the training; other files in the folder stay."""
        if os.path.isdir(self.path):
            self._clear()
            if not os.listdir(self.path):
                os.rmdir(self.path)
                sync_folder(os.path.dirname(self.path))

    def _clear(self):
        for name in sorted(os.listdir(self.path)):  # "backup" is before "training.json"
            path = os.path.join(self.path, name)
            if name == _BACKUP or (name.startswith(f"{_BACKUP}.") and name.endswith(".ended")):
                shutil.rmtree(path)
            elif name == _ABOUT or (name.startswith("training.") and ".partial" in name):
                os.unlink(path)

    def _read(self) -> dict:
        try:
            with open(self._about) as file:
                digest, _, text = file.read().partition("\n")
        except (OSError, ValueError) as error:
            raise UnfinishedError(
                f"Expected {self._about}, which says whose state is beside it. Found: {error}. Restore "
                f"it, {_NEVER}."
            ) from error
        text = text.rstrip("\n")
        if _digest(text) != digest:
            raise UnfinishedError(
                f"Expected {self._about} to have the SHA-256 digest that it names. Found another: it "
                f"was cut or changed. Restore it, {_NEVER}."
            )
        return json.loads(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_same(about, settings, path) -> None:
    if about["tfdp"] != tfdp.__version__:
        raise UnfinishedError(
            f"Expected tfdp {about['tfdp']}, which began the training in {path}. Found tfdp "
            f"{tfdp.__version__}. Go on with that version, {_NEVER}."
        )
    before, now = about["settings"], settings
    names = [n for n in {**before, **now} if before.get(n) != now.get(n)]
    if names:
        told = ", ".join(f"--{name}={before.get(name)}" for name in names)
        found = ", ".join(f"--{name}={now.get(name)}" for name in names)
        raise UnfinishedError(
            f"Expected the settings of the unfinished training in {path}: {told}. Found {found}. Give "
            f"the same settings to go on, name another folder, {_NEVER}."
        )
