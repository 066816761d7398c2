"""The folder of an unfinished training: its last state, and how far it may have gone since.

Three files, each of which is whole at any moment:

* `state`: what `BackupFolder.write` was given, replaced by renaming, with a SHA-256 digest;
* `begun`: whether a step was ever reserved, so that files that somebody has removed are missed;
* `reserved`: the number of steps that may have been begun. It has its final size from the beginning
  and is written in place, so that it can be written on a full disk: alternately in two halves, each of
  which has two copies. A copy that was being written when the process died does not count. Damage to
  one copy changes nothing, and damage to both copies of a half, which no kill can do, is an error.

Formal guarantee: `reserve` returns only after the number is on the disk, so a process that reserves
steps before it begins them never begins one that the next reader does not know of. This is about
processes that are killed; a disk that loses what fsync confirmed can lose a reservation. A state goes
with the reservations of the fit that wrote it, and an earlier one is refused: the noise of later steps
may depend on what only the later state knows.

Everything in the folder is a secret: the state holds the mechanism's un-noised values.
"""

import hashlib
import io
import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping

import numpy as np

from tfdp import _files as files
from tfdp._files import replaced_whole, secret_folder, sync_folder

STATE, RESERVED, LOCK, BEGUN = "state.npz", "reserved", "lock", "begun"
# What the file `begun` says: whether a step was ever reserved.
_MARKS = (b"0\n", b"1\n")
_MAGIC = b"tfdp training state 1\n"
_WRITER = "writer"
# The names of these files, and of files that `replaced_whole` makes for them.
_OWN = re.compile(
    r"lock|reserved|begun|state\.npz|(reserved|begun|state)\.[0-9a-f]{16}\.partial(\.npz)?"
)
_COPY = 512
_SIZE = 4 * _COPY  # two halves of two copies each


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
        # Who writes states: the fit of the state on the disk, and one that has written none yet.
        self._writer, self._opening = None, None

    def enter(self) -> None:
        """Takes the folder for this process.

        Raises:
            BackupError: another process has it, other users may enter it, or it holds other things.
            OSError: the folder cannot be made or written.
        """
        parent = os.path.dirname(self.path)
        os.makedirs(parent, exist_ok=True)
        others = self._others()
        there = {STATE, RESERVED}.intersection(os.listdir(self.path) if others else ())
        if others and not there:
            raise BackupError(
                f"Expected {self.path} to be a folder of its own, which is removed after training. "
                f"Found {', '.join(sorted(others)[:3])} in it. Name a folder that does not exist yet."
            )
        try:
            secret_folder(self.path)
        except ValueError as error:
            raise BackupError(str(error)) from error
        sync_folder(parent)
        lock = os.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            files.lock(lock)
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
        try:
            self._make_files()
            self._tidy(parent)
        except BaseException:
            self.leave()
            raise

    def _others(self) -> list[str]:
        """The names in the folder that are none of its own."""
        if not os.path.isdir(self.path):
            return []
        return [name for name in os.listdir(self.path) if not _OWN.fullmatch(name)]

    def _tidy(self, parent):
        """Removes what a process that died left behind."""
        for name in os.listdir(self.path):
            if _OWN.fullmatch(name) and name not in (
                STATE,
                RESERVED,
                LOCK,
                BEGUN,
            ):  # was being written
                os.unlink(os.path.join(self.path, name))
        for name in os.listdir(parent):
            if re.fullmatch(
                re.escape(os.path.basename(self.path)) + r"\.[0-9a-f]{16}\.ended", name
            ):
                self._remove(os.path.join(parent, name))  # a folder that was being removed

    def _remove(self, ended):
        """Removes a folder that was renamed; what others have put into it goes back to its place."""
        for name in os.listdir(ended):
            if not _OWN.fullmatch(name):
                os.makedirs(self.path, 0o700, exist_ok=True)
                os.rename(os.path.join(ended, name), os.path.join(self.path, name))
        shutil.rmtree(ended)

    def _make_files(self):
        """Makes the files of a folder that has no state yet; refuses one whose files were removed."""
        mark, path = (os.path.join(self.path, name) for name in (BEGUN, RESERVED))
        missing = not any(
            os.path.lexists(os.path.join(self.path, name)) for name in (STATE, RESERVED)
        )
        if not os.path.lexists(mark) and missing:
            _make_mark(self.path)
        try:
            with open(mark, "rb") as file:
                found = file.read()
        except OSError as error:
            raise BackupError(f"Expected to read {mark}. Found: {error.strerror}. {_GO}") from error
        if found not in _MARKS:
            raise BackupError(
                f"Expected {mark} to say whether training has begun. Found that it was changed. {_GO}"
            )
        if missing and found == _MARKS[1]:
            raise BackupError(
                f"Expected the state of a training in {self.path}. Found that it was removed, although "
                f"steps were begun. {_GO}"
            )
        if missing:
            with replaced_whole(path) as partial:
                _write_new(partial, (b" " * _SIZE,))

    def _mark_begun(self):
        """Notes that a training has begun, so that files that somebody removes are missed."""
        handle = os.open(os.path.join(self.path, BEGUN), os.O_WRONLY)
        try:
            os.pwrite(handle, _MARKS[1], 0)
            os.fsync(handle)
        finally:
            os.close(handle)

    def leave(self) -> None:
        """Gives the folder back; what is in it stays."""
        if self._file is not None:
            os.close(self._file)
        if self._lock is not None:
            files.unlock(self._lock)
        self._file = self._lock = None

    def clear(self) -> None:
        """Removes the folder; a kill leaves all of it, or nothing that counts.

        What others have put into it meanwhile stays.

        Raises:
            BackupError: somebody has taken the folder from this process.
        """
        if self._lock is not None:
            self._check_lock()
        ended = f"{self.path}.{os.urandom(8).hex()}.ended"
        os.rename(self.path, ended)
        sync_folder(os.path.dirname(self.path))
        self._remove(ended)
        self._writer = self._opening = None

    def write(self, about: Mapping, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the state.

        Args:
            about: JSON-safe.
            arrays: arrays by name.

        Raises:
            OSError: the state could not be written; the one before is still there.
            BackupError: somebody has taken the folder from this process.
        """
        self._check_lock()
        writer = self._opening or self._writer
        content = io.BytesIO()
        text = np.frombuffer(json.dumps({**about, _WRITER: writer}).encode(), np.uint8)
        np.savez(content, about=text, **{f"array.{name}": a for name, a in arrays.items()})
        content = content.getbuffer()
        digest = hashlib.sha256(content).hexdigest().encode() + b"\n"
        path = os.path.join(self.path, STATE)
        try:
            with replaced_whole(path) as partial:
                _write_new(partial, (_MAGIC, digest, content))
        except OSError as error:  # those of a write name no file
            raise OSError(error.errno, error.strerror or str(error), path) from error
        self._writer, self._opening = writer, None

    def _check_lock(self):
        """Refuses to write where the lock is not this process's any more."""
        path = os.path.join(self.path, LOCK)
        try:
            found, own = os.stat(path), os.fstat(self._lock)
            same = (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino)
        except FileNotFoundError:
            same = False
        if not same:
            raise BackupError(
                f"Expected {path} to be the lock that this training has taken. Found that it was "
                "removed or replaced, so another process may train from the same state. Release only "
                "one of them, and leave the lock where it is."
            )

    @property
    def holds_state(self) -> bool:
        """Whether there is a state that somebody could go on from."""
        return os.path.exists(os.path.join(self.path, STATE))

    def read(self) -> tuple[dict, dict[str, np.ndarray]] | None:
        """Returns (about, arrays) of the state; None if there is none.

        Raises:
            BackupError: the state is damaged, or not one, or missing although steps were begun.
        """
        path = os.path.join(self.path, STATE)
        try:
            with open(path, "rb") as file:
                magic, digest, content = file.readline(), file.readline(), file.read()
        except FileNotFoundError:
            last = max(self._reservations(), key=lambda each: each["count"], default=None)
            if last is not None and not last["opening"]:
                raise BackupError(
                    f"Expected the state of a training in {path}. Found none, although steps were "
                    f"begun. {_GO}"
                ) from None
            return None
        except OSError as error:
            raise BackupError(
                f"Expected to read the state of a training in {path}. Found: {error.strerror}. {_GO}"
            ) from error
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
        self._check_writer(about.pop(_WRITER, None), path)
        return about, named

    def _check_writer(self, writer, path):
        """Refuses a state of an earlier fit than that of the last reservation."""
        last = max(self._reservations(), key=lambda each: each["count"], default=None)
        # A fit may have died between its first reservation and its first state.
        if last is not None and writer not in (last[_WRITER], last["after"]):
            raise BackupError(
                f"Expected the last state of the training in {path}. Found an earlier one: it was "
                f"exchanged. {_GO}"
            )
        self._writer = writer

    def reserve(self, run_id: str, steps: int, opening: bool = False) -> None:
        """Notes on the disk that a run may have taken so many steps.

        What the run in the state has reserved stays readable until this is called a second time for
        another run, so that the state can be replaced in between.

        Args:
            run_id: id of the run in the ledger.
            steps: number of steps since its beginning.
            opening: whether no state of this run has been written yet.

        Raises:
            OSError: the number could not be written.
            BackupError: somebody has taken the folder from this process.
        """
        self._check_lock()
        try:
            self._reserve(run_id, steps, opening)
        except OSError as error:  # those of a write name no file
            path = os.path.join(self.path, RESERVED)
            raise OSError(error.errno, error.strerror or str(error), path) from error

    def _reserve(self, run_id, steps, opening):
        if opening:
            self._opening = os.urandom(8).hex()
            self._mark_begun()
        if self._file is None:
            count = max((each["count"] for each in self._reservations()), default=0)
            self._file = os.open(os.path.join(self.path, RESERVED), os.O_RDWR)
            self._count = count
            self._repair()
        self._count += 1
        about = {
            "run_id": run_id,
            "steps": steps,
            "count": self._count,
            "opening": opening,
            _WRITER: self._opening or self._writer,
            "after": self._writer,
        }
        text = json.dumps(about)
        copy = f"{hashlib.sha256(text.encode()).hexdigest()} {text}".ljust(_COPY).encode()
        place = 2 * _COPY * (self._count % 2)
        os.pwrite(self._file, copy, place)
        os.fsync(self._file)
        os.pwrite(self._file, copy, place + _COPY)  # only against damage

    def _repair(self):
        """Writes copies again that a kill has cut, so that another kill cannot take the other ones."""
        content = os.pread(self._file, _SIZE, 0)
        for place in (0, 2 * _COPY):
            pair = content[place : place + _COPY], content[place + _COPY : place + 2 * _COPY]
            valid = [bool(_read_copy(copy)) for copy in pair]
            if any(valid) and not all(valid):
                os.pwrite(self._file, pair[valid.index(True)], place + _COPY * valid.index(False))
                os.fsync(self._file)

    def reserved(self, run_id: str) -> int:
        """Returns the number of steps that a run has reserved; 0 if none.

        Raises:
            BackupError: there is no reservation that can be read.
        """
        own = [each for each in self._reservations() if each["run_id"] == run_id]
        return max(own, key=lambda each: each["count"], default={"steps": 0})["steps"]

    def _reservations(self) -> list[dict]:
        """All reservations that can be read."""
        path = os.path.join(self.path, RESERVED)
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = b""
        halves = [content[: _SIZE // 2], content[_SIZE // 2 :]]
        found = [_copies(half) for half in halves]
        last = max((each["count"] for copies in found for each in copies), default=0)
        # The second copy of a half that was not written yet is blank.
        whole = [
            bool(copies) or (last < 2 and not half[_COPY:].strip(b" "))
            for copies, half in zip(found, halves, strict=True)
        ]
        if len(content) != _SIZE or not all(whole):
            raise BackupError(
                f"Expected {path} to say how many steps were begun. Found that it was cut, changed or "
                f"removed. {_GO}"
            )
        return [*found[0], *found[1]]


_GO = (
    "What that training had spent is not known any more. Restore the folder from a copy of the same "
    "moment, or remove it (with train.py: --resume=never) to begin anew with fresh weights, and "
    "release nothing of the old training."
)


def _make_mark(folder) -> None:
    """Makes the file that says that no step of a training was begun."""
    with replaced_whole(os.path.join(folder, BEGUN)) as partial:
        _write_new(partial, (_MARKS[0],))


def _write_new(path, parts):
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.writelines(parts)


def _copies(half: bytes) -> list[dict]:
    """The copies of a reservation that are whole."""
    found = (_read_copy(half[:_COPY]), _read_copy(half[_COPY:]))
    return [each for each in found if each is not None]


def _read_copy(copy: bytes) -> dict | None:
    digest, _, text = copy.decode(errors="replace").strip().partition(" ")
    if text and hashlib.sha256(text.encode()).hexdigest() == digest:
        return json.loads(text)
    return None
