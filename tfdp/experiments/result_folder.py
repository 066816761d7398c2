"""The folder of a result: model.keras, run.json, model_card.md and TensorBoard's log, as one thing.

A result appears by one renaming of one folder, so whatever moment the process is killed, the final
place holds the whole earlier result, the whole new one, or nothing. run.json has the SHA-256 digests
of the other two files, which shows that they belong together:

    python -m tfdp.experiments.result_folder check runs/digits_si_dpsgd_001

A digest guards against mixtures and damage, not against whoever edits both files.

Beside the result `NAME` are `NAME.partial` while it is made (`partial_folder.py`) and `NAME.secret`
for what must never be in it. This module imports no TensorFlow.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Mapping

from absl import logging

from tfdp._files import exchange, secret_folder, sync_folder, sync_tree
from tfdp.experiments.partial_folder import PartialFolder, ResultBusy, ResultError, clear_leftovers

MODEL, RECORD, CARD, LOG = "model.keras", "run.json", "model_card.md", "tensorboard"
_DIGESTS = {"model_sha256": MODEL, "model_card_sha256": CARD}
# Room for everything but the model: record, card and log of the digits take 17 kB together.
_SMALL = 2**20
_LOST = (
    "Nothing of it is there, what was there before is as it was, and the model that was trained is "
    "lost."
)


class ResultExists(ResultError):
    """There is a finished result already."""


class ResultFolder:
    """Makes one result: `with ResultFolder(path) as folder: ... folder.commit(...)`.

    Entering takes the place for this process, and refuses where a result could not be written or
    would overwrite another. What is written goes to `NAME.partial`. Leaving without `commit` removes
    it, and an earlier result is as it was.

    Args:
        path: the folder that the result becomes.
        overwrite: whether it may take the place of an earlier result. Nothing else is ever replaced.
        numbered: whether to take the first free one of `path`_001, `path`_002, ... instead. Processes
            that start together get different ones.

    Attributes:
        path: absolute path of the result; where it is numbered, known once entered.

    Raises:
        ResultError: on entering and in `commit`; `ResultBusy` and `ResultExists` are its kinds.
    """

    def __init__(self, path: str | os.PathLike, *, overwrite: bool = False, numbered: bool = False):
        if overwrite and numbered:
            raise ResultError(
                "Expected `overwrite` with the name of a folder. Found it without: a numbered folder "
                "is always new."
            )
        path = os.path.abspath(path)
        self._base = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        self._overwrite, self._numbered = overwrite, numbered
        self._partial = None
        self._committed = False
        self.path = None if numbered else self._base

    @property
    def log_dir(self) -> str:
        """Where TensorBoard's log is now: in the partial folder, and after `commit` in the result."""
        return os.path.join(self.path if self._committed else self._open().result, LOG)

    def secrets(self) -> str:
        """Makes the folder `NAME.secret`, for its owner alone, or checks it; returns its path.

        Checkpoints, keys and recordings go there: they lie beside the result, never in it.

        Raises:
            ValueError: there is something else, or others may enter it.
        """
        return secret_folder(f"{self._open().target}.secret")

    def check_space(self, model_bytes: int) -> None:
        """Refuses where a model of so many bytes cannot fit on the disk, as far as that is known."""
        free, needed = shutil.disk_usage(self._open().path).free, model_bytes + _SMALL
        if not free >= needed:
            raise ResultError(
                f"Expected {needed / 2**20:,.1f} MiB of free space for {self.path}. Found "
                f"{free / 2**20:,.1f} MiB. Make room, or choose a folder on another disk."
            )

    def commit(
        self, record: Mapping, card: str, save_model: Callable[[str], None]
    ) -> Mapping[str, str]:
        """Writes the result and puts it in its place, whole, with its digests in run.json.

        Args:
            record: what run.json holds, JSON-safe.
            card: the text of model_card.md.
            save_model: writes the model to the path that it is given.

        Returns:
            The digests.

        Raises:
            ResultExists: a result has appeared there meanwhile.
            ResultError: it could not be written; then there is nothing of it, and what was there
                before is as it was.
        """
        work = self._open().result
        try:
            digests = _write(work, record, card, save_model)
            self._put_in_place()
        except OSError as error:
            raise ResultError(
                f"Expected to write the result to {self.path}. Found: {_words(error)}. {_LOST} Make "
                "room, or choose another folder, and train again."
            ) from error
        except ResultError as error:
            raise type(error)(f"{error} {_LOST}") from error
        self._committed = True
        with _warned(self.path):
            sync_folder(os.path.dirname(self.path))
        return digests

    def __enter__(self):
        if self._partial is not None:
            raise ResultError("Expected a folder that is entered once. Found it entered already.")
        try:
            if self._numbered:
                self._enter_numbered()
            else:
                self._enter(self._base)
        except OSError as error:
            raise ResultError(
                f"Expected a place where results can be written. Found {self.path or self._base}: "
                f"{_words(error)}. Choose another folder."
            ) from error
        return self

    def __exit__(self, *exception):
        self._partial.release(made_one=self._committed)
        self._partial = None

    def _enter(self, target):
        self._checked(target)  # before anything is made: it may be read-only
        partial = PartialFolder(target)
        partial.acquire()
        try:
            # A run that ended meanwhile may have put a result there, or an earlier one is back.
            state = self._checked(target)
            if state is not None:
                os.chmod(partial.result, stat.S_IMODE(os.stat(target).st_mode))
            self._partial, self.path = partial, target
            self.check_space(0)
        except BaseException:
            self._partial = None
            partial.release()
            raise

    def _enter_numbered(self):
        folder, name = os.path.split(self._base)
        clear_leftovers(folder, f"{name}_")
        number = _last_number(folder, name)
        while self._partial is None:
            number += 1
            with contextlib.suppress(ResultBusy, ResultExists):
                self._enter(f"{self._base}_{number:03}")

    def _open(self) -> PartialFolder:
        if self._partial is None or self._committed:
            raise ResultError(
                "Expected a folder that is open: `with ResultFolder(path) as folder:`, up to "
                "`folder.commit`. Found it closed."
            )
        return self._partial

    def _checked(self, target):
        """What is at the target, "empty" or "result"; None where there is nothing."""
        if self._numbered and os.path.lexists(target):
            raise ResultExists(f"Expected a new folder. Found {target} there already.")
        state = _look(target)
        if state == "result" and not self._overwrite:
            raise ResultExists(
                f"Expected a new folder for the result. Found a finished one in {target}. Choose "
                "another folder, or say --overwrite (in Python: overwrite=True) to replace it."
            )
        if state is not None:
            _check_replaceable(target)
        return state

    def _put_in_place(self):
        partial = self._partial
        if self._checked(partial.target) != "result":
            try:
                # Replaces nothing, or an empty folder; the system refuses anything else.
                os.rename(partial.result, partial.target)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    self._checked(partial.target)
                raise
        elif exchange(partial.result, partial.target):
            # What was there lies in the partial folder now, where it will be removed.
            try:
                _look(partial.result)
            except BaseException:
                exchange(partial.result, partial.target)
                raise
        else:
            _move_aside(partial)


def new_folder(path: str | os.PathLike) -> str:
    """Makes an empty folder for several results, the first free one of `path`_001, `path`_002, ...

    Raises:
        ResultError: it cannot be made.
    """
    with ResultFolder(path, numbered=True) as claimed:
        os.mkdir(claimed.path)
    return claimed.path


def check(folder: str | os.PathLike) -> dict:
    """The record of a result, whose files are whole and belong together.

    Raises:
        ResultError: a file is missing, changed, or not of this result.
    """
    folder = os.fspath(folder)
    if _look(folder) != "result":
        raise ResultError(f"Expected the folder of a result. Found nothing in {folder}.")
    record = _record(folder)
    for key, name in _DIGESTS.items():
        path = os.path.join(folder, name)
        try:
            found = _digest(path)
        except OSError as error:
            raise ResultError(f"Expected {path}. Found: {_words(error)}.") from error
        if found != record.get(key):
            raise ResultError(
                f"Expected {path} to have the SHA-256 digest of {RECORD}, {record.get(key)}. Found "
                f"{found}: it was changed, or belongs to another result. Train again, or take a copy."
            )
    return record


def _write(work, record, card, save_model):
    """Writes all files, run.json last, and brings them to the disk."""
    save_model(os.path.join(work, MODEL))
    with open(os.path.join(work, CARD), "x", encoding="utf-8") as file:
        file.write(card)
    digests = {key: _digest(os.path.join(work, name)) for key, name in _DIGESTS.items()}
    with open(os.path.join(work, RECORD), "x") as file:
        json.dump({**record, **digests}, file, indent=2, allow_nan=False)
        file.write("\n")
    sync_tree(work)
    return digests


def _move_aside(partial):
    """Replaces an earlier result where two names cannot be swapped.

    A process that dies between the two renamings leaves nothing at the target, and the earlier
    result in `NAME.partial/previous`; the next run brings it back.
    """
    os.rename(partial.target, partial.previous)
    try:
        _look(partial.previous)
        sync_folder(partial.path)
        os.rename(partial.result, partial.target)
    except BaseException:
        os.rename(partial.previous, partial.target)
        raise


def _look(path) -> str | None:
    """None where there is nothing, "empty" for an empty folder, "result" for a result of ours.

    Raises:
        ResultError: there is anything else.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        raise ResultError(
            f"Expected a folder. Found a symbolic link: {path}. Name the folder that it points to."
        )
    if not stat.S_ISDIR(found.st_mode):
        raise ResultError(f"Expected a folder. Found a file: {path}. Choose another name.")
    if not os.listdir(path):
        return "empty"
    if foreign := _foreign(path):
        raise ResultError(
            f"Expected a result, or an empty folder. Found {foreign} in {path}. Such a folder is never "
            "replaced: choose another one, or move it away."
        )
    return "result"


def _foreign(folder) -> str | None:
    """A file that no result has, or the reason why there is no record; None for a result."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name == LOG and entry.is_dir(follow_symlinks=False):
                if strange := _strange_event_file(entry.path):
                    return strange
            elif entry.name not in (MODEL, RECORD, CARD) or not entry.is_file(
                follow_symlinks=False
            ):
                return entry.name
    record = _record(folder)
    return None if record.keys() >= _DIGESTS.keys() else f"no {RECORD} with digests"


def _strange_event_file(folder) -> str | None:
    for inner, folders, names in os.walk(folder):
        for name in sorted(names + folders):
            path = os.path.join(inner, name)
            if os.path.islink(path) or (name in names and "tfevents" not in name):
                return os.path.relpath(path, os.path.dirname(folder))
    return None


def _record(folder) -> dict:
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            record = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _digest(path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_replaceable(target) -> None:
    """Refuses before training what the system would refuse at the end."""
    found = os.stat(target)
    if os.path.ismount(target):
        problem, remedy = "a mount point", "Choose a folder in it"
    elif os.path.samestat(found, os.stat(os.curdir)):
        problem, remedy = "the current folder", "Choose a folder in it"
    elif os.geteuid() not in (0, found.st_uid):
        problem, remedy = f"a folder of user {found.st_uid}", "Choose another one"
    elif not os.access(target, os.W_OK | os.X_OK):
        problem, remedy = "a read-only folder", "Choose another one"
    else:
        return
    raise ResultError(
        f"Expected a folder that a result can take the place of. Found {problem}: {target}. {remedy}."
    )


def _last_number(folder, name) -> int:
    """The largest number that is taken, be it by secrets of a run that has no result."""
    pattern = re.compile(re.escape(name) + r"_(\d+)(\.partial|\.secret)?")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    return max((int(found[1]) for found in map(pattern.fullmatch, names) if found), default=0)


def _words(error: OSError) -> str:
    return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)


@contextlib.contextmanager
def _warned(path):
    """The result is in its place; a system that fails afterwards does not take it back."""
    try:
        yield
    except OSError as error:
        logging.warning("The result is in %s, but may not be on the disk yet: %s", path, error)


def main(arguments: list[str]) -> int:
    """`check FOLDER...`; 0 where all are whole, 1 where one is not, 2 for another request."""
    if len(arguments) < 2 or arguments[0] != "check":
        print("usage: python -m tfdp.experiments.result_folder check FOLDER...", file=sys.stderr)
        return 2
    status = 0
    for folder in arguments[1:]:
        try:
            check(folder)
            print(f"{folder}: whole. {MODEL} and {CARD} are those of {RECORD}.")
        except (ResultError, OSError) as error:
            print(f"{folder}: {error}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
