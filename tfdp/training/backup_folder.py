"""The folder of an unfinished training: its last state, and how far it may have gone since.

The file `state` ends in a field of fixed size, the number of steps that may have been begun. The
field is overwritten in place, so it can be written on a full disk. It lies within one sector, so a
kill leaves the old number or the new one. All else in the file is replaced by renaming. The file
`lock` is for one process at a time. A file that was cut or damaged is an error. There is no defence
against somebody who edits, exchanges or removes files.

Formal guarantee: `reserve` returns only after the number is on the disk, so a process that reserves
steps before it begins them never begins one that the next reader does not know of.

Everything in the folder is a secret: the state holds the mechanism's un-noised values.
"""

import contextlib
import hashlib
import io
import json
import os
import threading
import zipfile
from collections.abc import Mapping

import numpy as np

from tfdp import _files as files
from tfdp._files import secret_folder, sync_folder

STATE, LOCK, _PARTIAL = "state", "lock", "state.partial"
_MAGIC = b"tfdp training state 2\n"
_FIELD = (
    64  # bytes; a divisor of the size of a sector, and the place of the field is a multiple of it
)


class BackupError(ValueError):
    """A backup cannot be used: it is damaged, of another training, or in use."""


class BackupFolder:
    """A folder in which one process at a time keeps the state of a training.

    Args:
        path: the folder; it is made when it is first entered, for its owner only.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.path.abspath(path)
        self._lock: int | None = None
        # Descriptor of the state on the disk, place of its field, and the number there.
        self._file, self._place, self._reserved = None, 0, 0
        self._mutex = threading.Lock()  # states are written by a thread beside the reservations
        self._is_named = True  # whether the name of the state is known to be on the disk

    @property
    def holds_state(self) -> bool:
        """Whether there is a state to resume from."""
        return os.path.lexists(self._in(STATE))

    def enter(self) -> None:
        """Takes the folder for this process.

        Raises:
            BackupError: another process has it, or other users may enter it.
            OSError: the folder cannot be made or written.
        """
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        try:
            secret_folder(self.path)
        except ValueError as error:
            raise BackupError(str(error)) from error
        sync_folder(os.path.dirname(self.path))
        lock = os.open(self._in(LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            files.lock(lock)
        except BaseException as error:
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
            raise BackupError(
                f"Another process trains in {self.path}. Wait for it, or choose another folder."
            ) from error
        self._lock = lock
        if not os.fstat(lock).st_nlink:  # the process that had it has just ended and removed it
            self.leave()
            raise BackupError(f"Another process was about to leave {self.path}. Try again.")

    def leave(self) -> None:
        """Gives the folder back; what is in it stays."""
        self._use(None)
        if self._lock is not None:
            files.unlock(self._lock)
            self._lock = None

    def clear(self) -> None:
        """Removes the folder; a kill leaves the whole state or none. Files of others stay."""
        for name in (STATE, _PARTIAL, LOCK):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._in(name))
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
        sync_folder(os.path.dirname(self.path))

    def read(self) -> tuple[dict, dict[str, np.ndarray], int] | None:
        """Returns (about, arrays, number of reserved steps) of the state; None if there is none.

        Raises:
            BackupError: the state is damaged, or not one.
            OSError: it cannot be read.
        """
        try:
            handle = os.open(self._in(STATE), os.O_RDWR)
        except FileNotFoundError:
            return None
        self._use(handle)
        with open(handle, "rb", closefd=False) as file:
            magic, digest, rest = file.readline(), file.readline().strip(), file.read()
        content, field = rest[:-_FIELD], rest[-_FIELD:]
        self._place, reserved = os.fstat(handle).st_size - _FIELD, _number(field)
        if (
            magic != _MAGIC
            or digest != hashlib.sha256(content).hexdigest().encode()
            or reserved is None
        ):
            raise BackupError(self._damaged("it was cut or changed, or is another file"))
        self._reserved = reserved
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                about = json.loads(bytes(arrays["about"]))
                named = {n.partition(".")[2]: arrays[n] for n in arrays.files if n != "about"}
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise BackupError(self._damaged(error)) from error
        return about, named, reserved

    def write(
        self, about: Mapping, arrays: Mapping[str, np.ndarray], reserved: int | None = None
    ) -> None:
        """Replaces the state.

        Args:
            about: JSON-safe.
            arrays: arrays by name.
            reserved: number of reserved steps, for the first state of a run; None keeps the number.

        Raises:
            OSError: the state could not be written; the one before is still there.
        """
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        np.savez(content, about=text, **{f"array.{name}": a for name, a in arrays.items()})
        content = content.getbuffer()
        digest = hashlib.sha256(content).hexdigest().encode()
        padding = -(len(_MAGIC) + len(digest) + 1 + len(content)) % _FIELD
        head = _MAGIC + digest + b" " * padding + b"\n"
        partial = self._in(_PARTIAL)
        try:
            handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                with open(handle, "wb", closefd=False) as file:
                    file.writelines((head, content, _field(0)))
                os.fsync(handle)
                place = len(head) + len(content)
                with self._mutex:
                    number = self._reserved if reserved is None else reserved
                    os.pwrite(handle, _field(number), place)
                    os.fsync(handle)
                    self._is_named = False
                    os.replace(partial, self._in(STATE))
                    self._file, handle = handle, self._file
                    self._place, self._reserved = place, number
                    self._sync_name()
            finally:
                if handle is not None:
                    os.close(handle)
        except OSError as error:  # those of a write name no file
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise OSError(error.errno, error.strerror or str(error), self._in(STATE)) from error

    def reserve(self, steps: int) -> None:
        """Notes on the disk that the run of the state may have taken so many steps.

        Args:
            steps: number of steps since the beginning of the run.

        Raises:
            OSError: the number could not be written.
        """
        try:
            with self._mutex:
                self._sync_name()
                os.pwrite(self._file, _field(steps), self._place)
                os.fsync(self._file)
                self._reserved = steps
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), self._in(STATE)) from error

    def _sync_name(self):
        """Without its name on the disk, what is reserved in the file could be lost with it."""
        if not self._is_named:
            sync_folder(self.path)
            self._is_named = True

    def _use(self, handle):
        if self._file is not None:
            os.close(self._file)
        self._file = handle

    def _in(self, name) -> str:
        return os.path.join(self.path, name)

    def _damaged(self, why) -> str:
        return (
            f"The state of the training in {self._in(STATE)} cannot be read: {why}. What the training "
            "has spent is not known any more. Restore the file, or remove the folder (with train.py: "
            "--resume=never) to begin anew with fresh weights, and release nothing of the old training."
        )


def _field(steps: int) -> bytes:
    text = f"steps that may have begun: {steps} "
    return (
        f"{text}{hashlib.sha256(text.encode()).hexdigest()[:8]}".ljust(_FIELD - 1).encode() + b"\n"
    )


def _number(field: bytes) -> int | None:
    """The number in a field; None if it is damaged."""
    for word in field.split()[5:6]:
        if word.isdigit() and _field(int(word)) == field:
            return int(word)
    return None
