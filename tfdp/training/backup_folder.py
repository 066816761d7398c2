"""The folder of an unfinished training: its last state, and the steps that may have begun since.

`state` is an npz archive, which is replaced as a whole by renaming. `steps` is one line of fixed size:
the run, the number of its steps that may have begun, and a short digest. The line is overwritten in
place, so it can be written on a full disk. It lies within one sector, so a kill leaves the old line or
the new one. The same file is locked, for one process at a time. Damaged files are an error. There is
no defence against somebody who edits, exchanges or removes files.

Formal guarantee: `reserve` returns only after the line is on the disk. So a process that reserves steps
before it begins them never begins one that the next reader does not know of.

Everything in the folder is a secret: the state holds the mechanism's un-noised values.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping

import numpy as np

from tfdp._files import secret_folder, sync_folder

STATE, _STEPS, _PARTIAL = "state", "steps", "state.partial"
_LINE = 128  # bytes; less than a sector
_NO_RUN = "-"
_NOT_ENTERED = -1


class BackupError(ValueError):
    """Error for a backup that cannot be used: it is damaged, of another training, or in use."""


class BackupFolder:
    """A folder in which one process at a time keeps the state of a training.

    It is created when a process first enters it, with access for its owner only.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.path.abspath(path)
        self._steps = _NOT_ENTERED  # descriptor of the locked file

    @property
    def holds_state(self) -> bool:
        """Whether the folder has a state to resume from."""
        return os.path.lexists(self._in(STATE))

    def enter(self) -> None:
        """Locks the folder for this process. Raises BackupError if another process has locked it."""
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        sync_folder(os.path.dirname(secret_folder(self.path)))
        handle = os.open(self._in(_STEPS), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # A lock belongs to a process: a fork, such as one that loads data, does not hold it.
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise BackupError(
                f"Another process trains in {self.path}. Wait for it, or choose another folder."
            ) from error
        self._steps = handle
        if not self.holds_state:
            self.reserve(_NO_RUN, 0)

    def leave(self) -> None:
        """Unlocks the folder. Its files stay."""
        if self._steps != _NOT_ENTERED:
            os.close(self._steps)
            self._steps = _NOT_ENTERED

    def clear(self) -> None:
        """Removes the folder, unless it has other files. A kill leaves the whole state or none."""
        for name in (STATE, _PARTIAL, _STEPS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._in(name))
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def read(self) -> tuple[dict, dict[str, np.ndarray], int] | None:
        """Reads the state. Raises BackupError if it is damaged.

        Returns:
            (about, arrays, number of reserved steps of the run), or None if there is no state.
        """
        if not self.holds_state:
            return None
        line = os.pread(self._steps, _LINE, 0)
        run_id, steps, *_ = [*line.decode("ascii", "replace").split(), "", ""]
        try:
            if _line(run_id, steps) != line:
                raise ValueError("the number of steps beside it was changed")
            with np.load(self._in(STATE), allow_pickle=False) as held:
                about = json.loads(bytes(held["about"]))
                arrays = {name: held[name] for name in held.files if name != "about"}
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise BackupError(
                f"The state of the training in {self._in(STATE)} cannot be read: {error}. So it is "
                "unknown how much was spent. Restore the folder; or remove it (for train.py the whole "
                ".unfinished folder), begin anew with fresh weights, and release nothing of the old "
                "training."
            ) from error
        return about, arrays, int(steps) if run_id == about.get("run_id") else 0

    def write(self, about: Mapping, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the state. If this raises OSError, the previous state is still there.

        Args:
            about: JSON-safe facts, with the `run_id` that `reserve` reserves steps of.
            arrays: Arrays by name.
        """
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        with open(self._in(_PARTIAL), "wb") as file:
            np.savez(file, **{"about": text, **arrays})  # type: ignore[arg-type]  # of NumPy's stub
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._in(_PARTIAL), self._in(STATE))
        sync_folder(self.path)

    def reserve(self, run_id: str, steps: int) -> None:
        """Records on the disk that a run, which has a state, may have taken so many steps."""
        os.pwrite(self._steps, _line(run_id, steps), 0)
        os.fsync(self._steps)

    def _in(self, name) -> str:
        return os.path.join(self.path, name)


class ReadFolder(BackupFolder):
    """The folder of another machine's process. This process only resumes from it, and never writes."""

    _ended = False

    @property
    def holds_state(self) -> bool:
        return super().holds_state and not self._ended

    def enter(self) -> None:
        self._ended = False
        with contextlib.suppress(FileNotFoundError):  # nothing to resume from
            self._steps = os.open(self._in(_STEPS), os.O_RDONLY)

    def clear(self) -> None:
        self._ended = True

    def write(self, about, arrays) -> None:
        """Does nothing: the other process writes."""

    def reserve(self, run_id, steps) -> None:
        """Does nothing: the other process writes."""


def _line(run_id, steps) -> bytes:
    text = f"{run_id} {steps}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text} {digest}".ljust(_LINE - 1).encode() + b"\n"
