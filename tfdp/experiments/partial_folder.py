"""The folder `NAME.partial`, in which one process at a time makes the result `NAME`.

    NAME.partial/lock       locked while the process lives; its text identifies the process
    NAME.partial/result/    the unfinished result, which one renaming turns into NAME
    NAME.partial/previous/  the replaced result, on systems that cannot swap two names

The kernel holds the lock (flock) and releases it when the process ends, however the process ends. A
process that gets the lock therefore knows that everything in the folder was left over by a process
that has ended, and clears the folder. Only TensorBoard's log of a training that can go on stays
(`unfinished.py`), which that training then goes on with.
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
from tfdp.experiments.result_files import LOG, RECORD, digest, strange_entry
from tfdp.experiments.unfinished import Unfinished

_LOCK, _RESULT, _PREVIOUS = "lock", "result", "previous"
_PROGRAM = "tfdp"
_HOLDER_BYTES = 512
# How often the folder is made again if another process removes it while this one opens the lock.
_ATTEMPTS = 100


class ResultError(ValueError):
    """A result cannot be written or was not written, or a folder does not hold a whole result.

    Example:
        >>> from tfdp.experiments import check
        >>> check("no_such_folder")
        Traceback (most recent call last):
        ...
        tfdp.experiments.partial_folder.ResultError: Expected the folder of a result. Found nothing in
        no_such_folder.
    """


class ResultBusy(ResultError):
    """Another process is making this result."""


class PartialFolder:
    """Exclusive use of `NAME.partial`, from `acquire` to `release`.

    Args:
        target: absolute path of the result, `NAME`.
        resume: whether a training that can go on keeps its log.
    """

    def __init__(self, target: str, resume: bool = True):
        self.target = target
        self.unfinished = Unfinished(target)
        self._resume = resume
        self.path = f"{target}.partial"
        self.result = os.path.join(self.path, _RESULT)
        self.previous = os.path.join(self.path, _PREVIOUS)
        self._lock_path = os.path.join(self.path, _LOCK)
        self._lock = None
        self._replacement = None  # the digest of run.json in the result that replaces `previous`
        self._pid = None  # of the process that took the lock
        self._ours = False  # whether the content of the folder may be cleared
        self._made = []  # folders that this object made, parents first

    def acquire(self, make: bool = True) -> None:
        """Takes the lock, and clears what a process that has ended left in the folder.

        Args:
            make: whether to make the folder if it does not exist, and an empty result in it.

        Raises:
            ResultBusy: another process has the lock.
            ResultError: the folder holds something that tfdp did not write, or cannot be locked.
            OSError: the folder cannot be made or written.
        """
        self._pid = os.getpid()
        try:
            self._lock = self._locked(make)
            self._check_entries()
            self._ours = True
            self._write_holder()
            self._recover()
            if make:
                with contextlib.suppress(FileExistsError):  # with the log of what goes on
                    os.mkdir(self.result)
                sync_folder(self.path)
        except BaseException:
            self.release()
            raise

    def check_held(self) -> None:
        """Raises ResultError if the folder on the disk is not the one that this process locked."""
        if not _same_file(self._lock, self._lock_path):
            raise ResultError(
                f"Expected {self.path} to stay in its place during the run. Found that somebody "
                "removed or moved it; the result was not put in place."
            )

    def move_previous(self) -> None:
        """Moves the earlier result from the target to `previous`.

        The lock file says from then on by which result it is to be replaced, so that a later run
        knows whether `previous` may be cleared.
        """
        self._replacement = digest(os.path.join(self.result, RECORD))
        self._write_holder()
        os.rename(self.target, self.previous)

    def release(self, made_one: bool = False) -> None:
        """Clears the folder and releases the lock.

        A process that was forked while the lock was held only closes its handle: the folder, and
        the lock, are those of the process that took it.

        Args:
            made_one: whether the new result is in its place. If it is, the replaced result is
                removed. If not, the replaced result stays, and the parent folders that `acquire`
                made are removed.
        """
        mine = os.getpid() == self._pid
        self._resume = True  # what was not discarded until now stays
        if self._lock is not None:
            if self._ours and mine:
                self._clear_if_held(made_one)
            os.close(self._lock)
        if mine and not made_one:
            for folder in reversed(self._made):
                with contextlib.suppress(OSError):  # another process may use the folder by now
                    os.rmdir(folder)
        self._lock, self._ours, self._made = None, False, []

    def _clear_if_held(self, made_one):
        """Clears, unless the folder is not this process's any more, or holds files of others."""
        if not _same_file(self._lock, self._lock_path):
            logging.warning("Somebody removed or moved %s. It was not cleared.", self.path)
            return
        with contextlib.suppress(OSError):  # what cannot be looked at stays, for the next run
            if strange := self._strange_file():
                logging.warning("%s was not cleared, because it holds %s.", self.path, strange)
            else:
                self._clear(made_one)

    def _clear(self, made_one):
        with contextlib.suppress(OSError):
            self._clear_result()
        if made_one:
            shutil.rmtree(self.previous, ignore_errors=True)
        # The lock file proves that the other entries are tfdp's. Therefore it is removed last, and
        # stays if any other entry stays. The next run clears what cannot be removed now.
        with contextlib.suppress(OSError):
            if _entries(self.path) == {_LOCK}:
                os.unlink(self._lock_path)
                os.rmdir(self.path)

    def _locked(self, make):
        """Opens and locks the lock file; returns its handle."""
        for _ in range(_ATTEMPTS):
            try:
                if make:
                    self._make_folders()
                self._check_folder()
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                handle = os.open(self._lock_path, flags, 0o644)
            except FileNotFoundError:
                continue  # the process that had the lock has just removed the folder
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _holder(handle)
                os.close(handle)
                raise self._not_locked(error, holder) from error
            # If the file was removed between opening and locking, the lock protects nothing.
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
            with contextlib.suppress(FileExistsError):  # another process started at the same time
                os.mkdir(folder)
                self._made.append(folder)

    def _check_folder(self):
        """Refuses a folder that is not tfdp's before the lock file is created in it."""
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
        """Refuses, with the lock held, a folder whose content tfdp may not clear."""
        names = _entries(self.path)
        if foreign := names - {_LOCK, _RESULT, _PREVIOUS}:
            raise self._foreign(f"a folder with {', '.join(sorted(foreign)[:3])}")
        # A process writes into the lock file before it makes anything else, so an empty lock file
        # is tfdp's only if nothing lies beside it.
        untouched = names == {_LOCK} and not os.fstat(self._lock).st_size
        if not untouched and _content(self._lock).get("program") != _PROGRAM:
            raise self._foreign("the lock file of another program")
        if strange := self._strange_file():
            raise self._foreign(f"a folder with {strange}")
        if _PREVIOUS in names:
            self._replacement = _content(self._lock).get("replacement")
            self._check_previous()

    def _check_previous(self):
        """Refuses to go on if the only copy of an earlier result is in `previous`, and must stay.

        It may be cleared only if what is now at the target is the result that was to replace it.
        """
        if os.path.lexists(self.target) and not self._is_replaced():
            raise ResultError(
                f"Expected nothing at {self.target}: a run that was to replace it has ended early, and "
                f"the result that was there is in {self.previous}. Found something else there. Move "
                "one of both away."
            )

    def _is_replaced(self) -> bool:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return digest(os.path.join(self.target, RECORD)) == self._replacement
        return False

    def _strange_file(self) -> str | None:
        """Returns the path of a file that lies among the files of a result and is none of them."""
        for folder in (self.result, self.previous):
            if os.path.lexists(folder) and (strange := strange_entry(folder, unfinished=True)):
                return os.path.join(folder, strange)
        return None

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
        if self._replacement is not None:
            holder["replacement"] = self._replacement
        # The text has a fixed length, so that one write replaces all that an earlier process wrote.
        os.pwrite(self._lock, f"{json.dumps(holder):<{_HOLDER_BYTES - 1}}\n".encode(), 0)
        os.fsync(self._lock)

    def _recover(self):
        """Restores the earlier result of a process that died while replacing it, and clears."""
        if os.path.lexists(self.previous) and not os.path.lexists(self.target):
            os.rename(self.previous, self.target)
            sync_folder(os.path.dirname(self.target))
            logging.warning(
                "A run that was to replace %s was killed. The result that was there is back.",
                self.target,
            )
        elif os.path.lexists(self.previous):
            self._check_previous()  # the target may have appeared since the entries were checked
        if os.path.lexists(self.previous):
            shutil.rmtree(self.previous)
        self._clear_result()

    def _clear_result(self):
        """Removes the unfinished result, but for the log of a training that can go on."""
        if self._resume and self.unfinished.holds_state and not self.unfinished.is_over:
            for name in _entries(self.result) - {LOG}:
                os.unlink(os.path.join(self.result, name))
        elif os.path.lexists(self.result):
            shutil.rmtree(self.result)


def clear_leftovers(folder: str, prefix: str) -> None:
    """Clears the `.partial` folders of killed runs in `folder`, of names that begin with `prefix`.

    Folders that a living process uses, and folders with files that may not be tfdp's, stay.
    """
    for name in sorted(_entries(folder)):
        if name.startswith(prefix) and name.endswith(".partial"):
            leftover = PartialFolder(os.path.join(folder, name.removesuffix(".partial")))
            try:
                leftover.acquire(make=False)
                leftover.release(made_one=True)
            except ResultBusy:
                pass
            except (ResultError, OSError) as error:
                logging.warning("A folder that a run may have left was not cleared: %s", error)


def _entries(folder):
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def _same_file(handle, path):
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
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
        return "another process"  # it has the lock, but has not written its identity yet
    return f"process {content['pid']} on {content['host']} (since {content['since']})"
