"""The folder `NAME.partial`, in which one process at a time makes the result `NAME`.

    NAME.partial/lock       locked for as long as the process lives; says which process that is
    NAME.partial/result/    what becomes NAME, by one renaming
    NAME.partial/previous/  the result that was there before, where two names cannot be swapped

The lock is the kernel's (flock): it ends with the process, however that ends. So whoever gets the lock
knows that what lies there is left over from a process that is gone, and clears it.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import shutil
import socket
import stat

from absl import logging

from tfdp._files import sync_folder

_LOCK, _RESULT, _PREVIOUS = "lock", "result", "previous"
_PROGRAM = "tfdp"
_HOLDER_BYTES = 512
# A folder that another process removes while this one opens its lock is made again.
_ATTEMPTS = 100


class ResultError(ValueError):
    """A result cannot be written, or was not; or a folder does not hold a whole one."""


class ResultBusy(ResultError):
    """Another process is making this result."""


class PartialFolder:
    """Exclusive use of `NAME.partial`, from `acquire` to `release`.

    Args:
        target: absolute path of the result, `NAME`.
    """

    def __init__(self, target: str):
        self.target = target
        self.path = f"{target}.partial"
        self.result = os.path.join(self.path, _RESULT)
        self.previous = os.path.join(self.path, _PREVIOUS)
        self._lock_path = os.path.join(self.path, _LOCK)
        self._lock = None
        self._ours = False  # whether what is in it may be cleared
        self._made = []  # folders that were not there

    def acquire(self, make: bool = True) -> None:
        """Takes the lock, and clears what a process that is gone has left.

        Args:
            make: whether to make the folder where there is none.

        Raises:
            ResultBusy: another process has the lock.
            ResultError: there is something that is not ours.
            OSError: it cannot be made.
        """
        try:
            self._lock = self._locked(make)
            self._check_entries()
            self._ours = True
            self._write_holder()
            self._recover()
            if make:
                os.mkdir(self.result)
                sync_folder(self.path)
        except BaseException:
            self.release()
            raise

    def release(self, made_one: bool = False) -> None:
        """Removes what is left there, and gives the lock back.

        Args:
            made_one: whether the result is in its place; otherwise folders that were made for it
                go, too, and an earlier result stays.
        """
        if self._lock is not None:
            if self._ours:
                self._clear(made_one)
            os.close(self._lock)
        if not made_one:
            for folder in reversed(self._made):
                with contextlib.suppress(OSError):  # somebody else uses it by now
                    os.rmdir(folder)
        self._lock, self._ours, self._made = None, False, []

    def _clear(self, made_one):
        shutil.rmtree(self.result, ignore_errors=True)
        if made_one:
            shutil.rmtree(self.previous, ignore_errors=True)
        # The lock goes last, and stays where anything else does: it says that the rest is ours. What
        # cannot be removed now is left to the next run.
        with contextlib.suppress(OSError):
            if _entries(self.path) == {_LOCK}:
                os.unlink(self._lock_path)
                os.rmdir(self.path)

    def _locked(self, make):
        """A handle of the lock file, locked."""
        for _ in range(_ATTEMPTS):
            try:
                if make:
                    self._make_folders()
                self._check_folder()
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                handle = os.open(self._lock_path, flags, 0o644)
            except FileNotFoundError:
                continue  # whoever had it has just removed the folder
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(handle)
                os.close(handle)
                raise self._not_locked(error, holder) from error
            # The file may have been removed between opening and locking: then this locks nothing.
            if _same_file(handle, self._lock_path):
                return handle
            os.close(handle)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)

    def _not_locked(self, error, holder):
        if isinstance(error, BlockingIOError):
            return ResultBusy(
                f"Expected {self.target} to be made by one process at a time. Found {holder}, which "
                "is making it. Wait for it, or choose another folder."
            )
        return ResultError(
            f"Expected a file system with locks for {self.path}. Found: {error.strerror}. Choose a "
            "folder on another one."
        )

    def _make_folders(self):
        missing, folder = [self.path], os.path.dirname(self.path)
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):  # two processes that start together
                os.mkdir(folder)
                self._made.append(folder)

    def _check_folder(self):
        """Looks before anything is opened: nothing is put into a folder that is not ours."""
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(found.st_mode):
            raise self._foreign("no folder")
        if os.geteuid() not in (0, found.st_uid):
            raise self._foreign(f"a folder of user {found.st_uid}")
        names = _entries(self.path)
        if names and _LOCK not in names:
            raise self._foreign(f"a folder with {', '.join(sorted(names)[:3])}")

    def _check_entries(self):
        """With the lock: only what is certainly ours may be cleared."""
        names = _entries(self.path)
        if foreign := names - {_LOCK, _RESULT, _PREVIOUS}:
            raise self._foreign(f"a folder with {', '.join(sorted(foreign)[:3])}")
        # The first process writes into the lock file before it makes anything else.
        untouched = names == {_LOCK} and not os.fstat(self._lock).st_size
        if not untouched and _content(self._lock).get("program") != _PROGRAM:
            raise self._foreign("the lock file of another program")
        if names >= {_RESULT, _PREVIOUS} and os.path.lexists(self.target):
            # The new result has not been moved, so what is at the target came from elsewhere.
            raise ResultError(
                f"Expected nothing at {self.target}: a run that was to replace it was killed, and the "
                f"result that was there is in {self.previous}. Found something else there. Move one "
                "of both away."
            )

    def _foreign(self, found):
        return ResultError(
            f"Expected {self.path} to be free, or left over from a run that has ended. Found {found}. "
            "Move it away, or choose another folder."
        )

    def _write_holder(self):
        holder = {
            "program": _PROGRAM,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        # Of one length, so that one write replaces what an earlier process wrote.
        os.pwrite(self._lock, f"{json.dumps(holder):<{_HOLDER_BYTES - 1}}\n".encode(), 0)
        os.fsync(self._lock)

    def _recover(self):
        """Brings an earlier result back, if a process died while it was being replaced."""
        if os.path.lexists(self.previous) and not os.path.lexists(self.target):
            os.rename(self.previous, self.target)
            sync_folder(os.path.dirname(self.target))
            logging.warning(
                "A run that was to replace %s was killed. The result that was there is back.",
                self.target,
            )
        for leftover in (self.previous, self.result):
            if os.path.lexists(leftover):
                shutil.rmtree(leftover)


def clear_leftovers(folder: str, prefix: str) -> None:
    """Clears what killed runs have left in `folder`, of results whose name begins with `prefix`.

    What a living process is making, and what is not certainly ours, stays.
    """
    for name in sorted(_entries(folder)):
        if name.startswith(prefix) and name.endswith(".partial"):
            leftover = PartialFolder(os.path.join(folder, name.removesuffix(".partial")))
            with contextlib.suppress(ResultError, OSError):
                leftover.acquire(make=False)
                leftover.release(made_one=True)


def _entries(folder):
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _same_file(handle, path):
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _content(handle) -> dict:
    try:
        content = json.loads(os.pread(handle, _HOLDER_BYTES, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _holder(handle) -> str:
    content = _content(handle)
    if content.keys() < {"pid", "host", "since"}:
        return "another process"  # it has the lock, and has not said yet who it is
    return f"process {content['pid']} on {content['host']} (since {content['since']})"
