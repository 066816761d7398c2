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
from tfdp.experiments.result_files import content_digest, digest, read_record

_ABOUT, _BACKUP = "training.json", "backup"
# The name in `tfdp.training.backup_folder`, which is not imported because that imports TensorFlow.
STATE = "state"
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
            return not self.holds_state
        with contextlib.suppress(UnfinishedError, OSError):
            training = read_record(self._target).get("training")
            return isinstance(training, dict) and self._read()["id"] == training.get("id")
        return False

    @property
    def is_left(self) -> bool:
        """Whether there is anything of a training."""
        return os.path.isdir(self.path) and (
            not os.listdir(self.path) or any(map(_is_ours, os.listdir(self.path)))
        )

    def take_up(self, settings: Mapping) -> str:
        """Returns the id of the training that goes on, or of a new one; the folder has to exist.

        Args:
            settings: the settings that were asked for, JSON-safe.

        Raises:
            UnfinishedError: the folder is damaged, or its training has other settings.
            OSError: the folder cannot be read or written.
        """
        if self.holds_state and not self.is_over:
            about = self._read()
            _check_same(about, json.loads(json.dumps(settings)), self.path)
            return about["id"]
        self._clear()
        os.mkdir(self.backup_dir, 0o700)
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

    def discard_unbegun(self) -> None:
        """Removes a training that has no state, and so has not taken a step."""
        if not self.holds_state:
            self.discard()

    def _clear(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.backup_dir, STATE))  # first: what is left is no training
        for name in os.listdir(self.path):
            if _is_ours(name):
                path = os.path.join(self.path, name)
                is_folder = os.path.isdir(path) and not os.path.islink(path)
                shutil.rmtree(path) if is_folder else os.unlink(path)

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
        about = json.loads(text)
        if not isinstance(about, dict) or about.keys() < {"id", "tfdp", "settings"}:
            raise UnfinishedError(
                f"Expected {self._about} to say which training is beside it. Found something else. "
                f"Restore it, {_NEVER}."
            )
        return about


def settings_of(experiment) -> dict:
    """The settings that have to stay the same when a training of an `Experiment` goes on."""
    # A seed of the noise is never written, but whether there is one has to stay the same.
    found = experiment.recorded() | {"insecure_seed": experiment.insecure_seed is not None}
    return found | {f"{name} (SHA-256)": found for name, found in digests_of(experiment).items()}


def digests_of(experiment) -> dict[str, str]:
    """Returns the SHA-256 digests of the files that settings name, by the names of the settings."""
    return _digests_of(experiment, digest)


def contents_of(experiment) -> dict[str, str]:
    """Returns digests of what these files say, which stay the same where one is saved again."""
    return _digests_of(experiment, content_digest)


def _digests_of(experiment, of) -> dict[str, str]:
    found = {}
    for name in ("initial_weights", "vocabulary", "embeddings"):
        path = os.path.expanduser(getattr(experiment, name) or "")
        if os.path.isfile(path):
            found[name] = of(path)
    return found


def _is_ours(name) -> bool:
    """Whether a name in the folder of secrets is that of a file or folder of a training."""
    return name in (_ABOUT, _BACKUP) or (name.startswith("training.") and ".partial" in name)


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
