"""The folder of an unfinished training: its last state, and how far it may have gone since.

Two files, each of which is whole at any moment:

* `state`: what `BackupFolder.write` was given, replaced by renaming, with a SHA-256 digest;
* `reserved`: the number of steps that may have been begun. It has its final size from the beginning and
  is written in place, alternately in two halves, so that it can be written on a full disk, and a half
  that was being written when the process died does not count.

Formal guarantee: `reserve` returns only after the number is on the disk, so a process that reserves
steps before it begins them never begins one that the next reader does not know of. This is about
processes that are killed; a disk that loses what fsync confirmed can lose a reservation.

Everything in the folder is a secret: the state holds the mechanism's un-noised values.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Mapping

import numpy as np

from tfdp._files import replaced_whole, secret_folder, sync_folder

STATE, RESERVED, LOCK = "state.npz", "reserved", "lock"
_MAGIC = b"tfdp training state 1\n"
_HALF = 512


class BackupError(ValueError):
    """A backup cannot be used: it is damaged, of another training, or in use."""


class BackupFolder:
    """A folder in which one process at a time keeps the state of a training.

    Args:
        path: the folder; it is made when it is first entered, for its owner only.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = os.path.abspath(path)
        self._lock, self._file, self._count = None, None, 0

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
        lock = os.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise BackupError(
                f"Expected one training at a time in {self.path}. Found another process that trains "
                "there. Wait for it, or choose another folder."
            ) from error
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock
        for name in os.listdir(self.path):
            if ".partial" in name:  # a state that was being written when its process died
                os.unlink(os.path.join(self.path, name))

    def leave(self) -> None:
        """Gives the folder back; what is in it stays."""
        for handle in (self._file, self._lock):
            if handle is not None:
                os.close(handle)
        self._file = self._lock = None

    def clear(self) -> None:
        """Removes the folder and everything in it."""
        shutil.rmtree(self.path)
        sync_folder(os.path.dirname(self.path))

    def write(self, about: Mapping, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the state.

        Args:
            about: JSON-safe.
            arrays: arrays by name.

        Raises:
            OSError: the state could not be written; the one before is still there.
        """
        content = io.BytesIO()
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        np.savez(content, about=text, **{f"array.{name}": a for name, a in arrays.items()})
        content = content.getbuffer()
        digest = hashlib.sha256(content).hexdigest().encode() + b"\n"
        with replaced_whole(os.path.join(self.path, STATE)) as partial:
            handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.writelines((_MAGIC, digest, content))

    def read(self) -> tuple[dict, dict[str, np.ndarray]] | None:
        """Returns (about, arrays) of the state; None if there is none.

        Raises:
            BackupError: the state is damaged, or not one.
        """
        path = os.path.join(self.path, STATE)
        try:
            with open(path, "rb") as file:
                magic, digest, content = file.readline(), file.readline(), file.read()
        except FileNotFoundError:
            return None
        if magic != _MAGIC:
            raise BackupError(
                f"Expected the state of a training in {path}. Found another file. {_GO}"
            )
        if hashlib.sha256(content).hexdigest().encode() + b"\n" != digest:
            raise BackupError(
                f"Expected {path} to have the SHA-256 digest that it names. Found another: it was "
                f"cut or changed. {_GO}"
            )
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                about = json.loads(bytes(arrays["about"]))
                named = {n.partition(".")[2]: arrays[n] for n in arrays.files if n != "about"}
        except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
            raise BackupError(f"Expected arrays in {path}. Found: {error}. {_GO}") from error
        return about, named

    def reserve(self, run_id: str, steps: int) -> None:
        """Notes on the disk that a run may have taken so many steps.

        Args:
            run_id: id of the run in the ledger.
            steps: number of steps since its beginning.

        Raises:
            OSError: the number could not be written.
        """
        if self._file is None:
            self._file = self._opened()
        self._count += 1
        text = json.dumps({"run_id": run_id, "steps": steps, "count": self._count})
        half = f"{hashlib.sha256(text.encode()).hexdigest()} {text}".ljust(_HALF).encode()
        os.pwrite(self._file, half, _HALF * (self._count % 2))
        os.fsync(self._file)

    def _opened(self):
        path = os.path.join(self.path, RESERVED)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._count = max((found["count"] for found in _halves(handle)), default=0)
            if os.fstat(handle).st_size < 2 * _HALF:
                os.pwrite(handle, b" " * 2 * _HALF, 0)
                os.fsync(handle)
                sync_folder(self.path)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def reserved(self, run_id: str) -> int:
        """Returns the number of steps that a run has reserved; 0 if none.

        Raises:
            BackupError: there is a reservation that cannot be read.
        """
        path = os.path.join(self.path, RESERVED)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return 0
        try:
            halves, size = _halves(handle), os.fstat(handle).st_size
            blank = not os.pread(handle, 2 * _HALF, 0).strip()
        finally:
            os.close(handle)
        if (not halves and not blank) or size != 2 * _HALF:
            raise BackupError(
                f"Expected {path} to say how many steps were begun. Found neither of its halves "
                f"whole. {_GO}"
            )
        last = max(halves, key=lambda half: half["count"], default={"run_id": None})
        return last["steps"] if last["run_id"] == run_id else 0


_GO = (
    "What that training had spent is not known any more. Restore the folder from a copy of the same "
    "moment, or remove it to begin anew with fresh weights, and release nothing of the old training."
)


def _halves(handle) -> list[dict]:
    """The halves of the file of reservations that are whole."""
    found = []
    for number in range(2):
        half = os.pread(handle, _HALF, _HALF * number).decode(errors="replace").strip()
        digest, _, text = half.partition(" ")
        if text and hashlib.sha256(text.encode()).hexdigest() == digest:
            found.append(json.loads(text))
    return found
