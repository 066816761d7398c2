"""The folder of a result, which appears whole, and the unfinished training beside it.

    NAME/               model.keras, run.json, model_card.md, tensorboard/
    NAME.unfinished/    the training that makes NAME; only its owner may enter it
        lock            locked while a process trains (the kernel releases it, however that ends)
        settings.json   the settings of the training, and how often it was resumed
        backup/         its state, with un-noised values: a secret
        result/         becomes NAME by one renaming
        previous/       the result that is being replaced

`result/` is made when the training begins. With it, the same command resumes. `NAME.unfinished` without
it has never begun, or its result is in place already: the next process discards it. An earlier result
in `previous/` goes back to NAME as long as nothing is there.

run.json has the SHA-256 digests of the model and the card, which show that the files belong together:

    python -m tfdp.experiments.result_folder check runs/digits_si_dpsgd_001

This module does not import TensorFlow.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping

from absl import logging

from tfdp._files import replaced_whole, sync_folder, sync_tree
from tfdp._interruptions import Interruptions

MODEL, RECORD, CARD, LOG = "model.keras", "run.json", "model_card.md", "tensorboard"
DIGESTS = {"model_sha256": MODEL, "model_card_sha256": CARD}
UNFINISHED = ".unfinished"
_LOCK, _SETTINGS, _RESULT, _PREVIOUS = "lock", "settings.json", "result", "previous"
_NEVER = "discard it with --resume=never: nothing of it may be released then"


class ResultError(ValueError):
    """A result cannot be written or was not written, or a folder does not hold a whole result.

    Example:
        >>> from tfdp.experiments import check
        >>> check("no_such_folder")
        Traceback (most recent call last):
        ...
        tfdp.experiments.result_folder.ResultError: There is no result in no_such_folder.
    """


class ResultBusy(ResultError):
    """Another process is making this result."""


class ResultFolder:
    """Makes one result: `with ResultFolder(path) as folder: ... folder.commit(...)`.

    Entering locks `NAME.unfinished` for this process. Leaving without `commit` keeps a training that
    has begun, and leaves an earlier result as it was.

    Args:
        path: the folder of the finished result.
        overwrite: whether the result may replace an earlier result. No other folder is ever replaced.
        numbered: whether to use a new folder `path`_001, `path`_002, ... instead, with the number
            after the largest one in use.

    Attributes:
        path: absolute path of the result; None until entered, if the folder is numbered.
        restarts: how often the training was resumed, from `begin` on.

    Raises:
        ResultError: entering, `begin` or `commit` is refused, or fails; `ResultBusy` is a subclass.

    Example:
        >>> import keras
        >>> from tfdp.experiments import ResultFolder, check
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> with ResultFolder("runs/a") as folder:
        ...     folder.begin({"steps": 3})
        ...     folder.commit({"steps": 3}, card="# A model", save_model=model.save)
        >>> check("runs/a")["steps"]
        3
    """

    def __init__(self, path: str | os.PathLike, *, overwrite: bool = False, numbered: bool = False):
        if overwrite and numbered:
            raise ResultError("--overwrite needs the name of a folder (--model_dir).")
        self._base = os.path.abspath(path)
        self._overwrite, self._numbered = overwrite, numbered
        self._lock: int | None = None
        self.path = None if numbered else self._base
        self.restarts = 0

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
        return self._in(_RESULT, LOG)

    @property
    def resumable(self) -> bool:
        """Whether there is an unfinished training, which `begin` resumes."""
        return os.path.isdir(self._in(_RESULT))

    def check_settings(self, settings: Mapping) -> None:
        """Raises ResultError if there is an unfinished training with other settings."""
        if not self.resumable:
            return
        before, now = self._about()["settings"], json.loads(json.dumps(settings))
        if names := [n for n in {**before, **now} if before.get(n) != now.get(n)]:
            theirs, ours = (", ".join(f"{n}={s.get(n)}" for n in names) for s in (before, now))
            raise ResultError(
                f"The unfinished training in {self.unfinished} has other settings: {theirs}. Found "
                f"{ours}. Give its settings to resume it, choose another folder, or {_NEVER}."
            )

    def begin(self, settings: Mapping) -> None:
        """Begins a training, or resumes the unfinished one; call it before the first step.

        Args:
            settings: JSON-safe values by name, which have to stay the same when it is resumed.

        Raises:
            ResultError: the unfinished training has other settings, or nothing can be written.
        """
        self.check_settings(settings)
        try:
            self._check_lock(self._lock)
            if self.resumable:
                self.restarts = self._about()["restarts"] + 1
                for name in set(os.listdir(self._in(_RESULT))) - {LOG}:  # of a commit that failed
                    os.unlink(self._in(_RESULT, name))
            with replaced_whole(self._in(_SETTINGS)) as partial, open(partial, "w") as file:
                json.dump({"settings": dict(settings), "restarts": self.restarts}, file)
            os.makedirs(self._in(_RESULT), exist_ok=True)
            sync_folder(self.unfinished)
        except OSError as error:
            raise self._not_written(error) from error

    def discard(self) -> None:
        """Discards the unfinished training, of which nothing may be released then."""
        self._restore_previous()
        _remove(self._in(_RESULT))
        for name in set(os.listdir(self.unfinished)) - {_LOCK}:
            _remove(self._in(name))

    def commit(self, record: Mapping, card: str, save_model: Callable[[str], object]) -> None:
        """Writes the result of a training that has begun, and moves it to its place by one renaming.

        The state of the training is discarded when the folder is left.

        Args:
            record: the content of run.json, JSON-safe; the digests are added to it.
            card: the text of model_card.md.
            save_model: a function that writes the model to the path that it is given.

        Raises:
            ResultError: the result could not be written. A training that has begun can be resumed, and
                an earlier result is as it was.
        """
        try:
            self._check_lock(self._lock)
            save_model(self._in(_RESULT, MODEL))
            with open(self._in(_RESULT, CARD), "w", encoding="utf-8") as file:
                file.write(card)
            digests = {key: digest(self._in(_RESULT, n)) for key, n in DIGESTS.items()}
            with open(self._in(_RESULT, RECORD), "w") as file:
                json.dump({**record, **digests}, file, indent=2, allow_nan=False)
                file.write("\n")
            sync_tree(self._in(_RESULT))
            with Interruptions() as interruptions:
                self._put_in_place()
                if interruptions.number is not None:
                    interruptions.end(f"The result is in its place: {self.path}.")
        except OSError as error:
            raise self._not_written(error) from error

    def __enter__(self):
        try:
            if self._numbered:
                self._enter_numbered()
            else:
                self._enter(self._base)
        except OSError as error:
            raise ResultError(
                f"No result can be written to {self.path or self._base}: {error}. Choose another "
                "folder."
            ) from error
        return self

    def __exit__(self, *exception):
        try:
            self._release()
        except (OSError, ResultError) as error:
            logging.warning("What is left in %s was not removed: %s", self.unfinished, error)

    def _enter(self, path):
        self.path = path
        self._check_target()
        self._lock = _locked(self.unfinished)
        try:
            self._restore_previous()
            self._check_target()  # another process may have finished meanwhile
            if not self.resumable:
                self.discard()
        except BaseException:
            self._release()
            raise

    def _release(self):
        handle, self._lock = self._lock, None
        try:
            self._check_lock(handle)
            if not self.resumable:
                self.discard()
                os.unlink(self._in(_LOCK))
                with contextlib.suppress(OSError):  # the next process has the folder already
                    os.rmdir(self.unfinished)
        finally:
            os.close(handle)

    def _enter_numbered(self):
        parent, name = os.path.split(self._base)
        pattern = re.compile(rf"{re.escape(name)}_(\d+)({re.escape(UNFINISHED)})?")
        names = os.listdir(parent) if os.path.isdir(parent) else []
        found = [*filter(None, map(pattern.fullmatch, names))]
        for match in found:
            _discard_leftovers(os.path.join(parent, match[0].removesuffix(UNFINISHED)))
        number = max((int(match[1]) for match in found), default=0)
        while self._lock is None:
            number += 1
            with contextlib.suppress(ResultError):
                self._enter(f"{self._base}_{number:03}")

    def _check_target(self):
        """Raises ResultError if there is something at the final place that may not be replaced."""
        path = self.path
        if not os.path.lexists(path) or (_is_empty_folder(path) and not self._numbered):
            return
        if not (self._numbered or (is_result(path) and not os.path.islink(path))):
            raise ResultError(f"{path} is no result, and is never replaced. Choose another folder.")
        if not self._overwrite:
            _discard_leftovers(path)
            raise ResultError(
                f"There is a finished result in {path}. Choose another folder, or say --overwrite (in "
                "Python: overwrite=True) to replace it."
            )

    def _check_lock(self, handle):
        if not _is_file(handle, self._in(_LOCK)):
            raise ResultError(f"{self.unfinished} was removed or replaced while it was in use.")

    def _put_in_place(self):
        self._check_lock(self._lock)
        self._check_target()
        if os.path.lexists(self.path) and not _is_empty_folder(self.path):
            os.rename(self.path, self._in(_PREVIOUS))
        try:
            os.rename(self._in(_RESULT), self.path)
        except BaseException:
            self._restore_previous()
            raise
        with contextlib.suppress(OSError):  # it is in its place, and on the disk sooner or later
            sync_folder(os.path.dirname(self.path))

    def _restore_previous(self):
        if os.path.lexists(self._in(_PREVIOUS)) and not os.path.lexists(self.path):
            os.rename(self._in(_PREVIOUS), self.path)
            sync_folder(os.path.dirname(self.path))

    def _about(self) -> dict:
        try:
            with open(self._in(_SETTINGS)) as file:
                return json.load(file)
        except (OSError, ValueError) as error:
            raise ResultError(
                f"{self._in(_SETTINGS)}: {error}. Restore it, or {_NEVER}."
            ) from error

    def _not_written(self, error) -> ResultError:
        then = ""
        if self.resumable:
            then = " The training is kept: mend that, and run the same command again to resume it."
        return ResultError(f"The result {self.path} could not be written: {error}.{then}")

    def _in(self, *names) -> str:
        return os.path.join(self.unfinished, *names)


def _locked(folder) -> int:
    """Makes a folder and locks it for this process; returns the descriptor of the lock."""
    while True:
        os.makedirs(folder, 0o700, exist_ok=True)
        path = os.path.join(folder, _LOCK)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:  # another process has just removed the folder
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if not isinstance(error, BlockingIOError):
                raise
            name = folder.removesuffix(UNFINISHED)
            raise ResultBusy(
                f"Another process is making {name}. Wait for it, or choose another folder."
            ) from error
        if _is_file(handle, path):  # else it was removed before it was locked
            return handle
        os.close(handle)


def _discard_leftovers(path):
    """Discards what a process left that died right after it had put a result in its place."""
    left = ResultFolder(path)
    if os.path.isdir(left.unfinished) and not left.resumable:
        with contextlib.suppress(ResultBusy):
            left._lock = _locked(left.unfinished)
            left._release()


def _is_file(handle, path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _is_empty_folder(path) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)


def _remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def new_folder(path: str | os.PathLike) -> str:
    """Makes a new empty folder `path`_001, `path`_002, ... for several results; returns its path.

    Raises:
        ResultError: the folder cannot be made.
    """
    with ResultFolder(path, numbered=True) as claimed:
        os.mkdir(claimed.path)
    return claimed.path


def is_result(folder: str | os.PathLike) -> bool:
    """Whether a folder has the record of a finished result."""
    return read_record(folder).keys() >= DIGESTS.keys()


def read_record(folder: str | os.PathLike) -> dict:
    """Returns the content of run.json; an empty dictionary if there is none."""
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            record = json.load(file)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(folder: str | os.PathLike) -> dict:
    """Checks that the files of a result are whole and belong together; returns run.json's content.

    Raises:
        ResultError: a file is missing, was changed, or belongs to another result.

    Example:
        >>> import keras
        >>> from tfdp.experiments import ResultFolder, check
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> with ResultFolder("runs/a") as folder:
        ...     folder.commit({"steps": 3}, card="# A model", save_model=model.save)
        >>> with open("runs/a/model_card.md", "a") as file:
        ...     _ = file.write("Edited.")
        >>> check("runs/a")
        Traceback (most recent call last):
        ...
        tfdp.experiments.result_folder.ResultError: runs/a/model_card.md was changed, ...
    """
    if not is_result(folder):
        raise ResultError(f"There is no result in {os.fspath(folder)}.")
    record = read_record(folder)
    for key, name in DIGESTS.items():
        path = os.path.join(folder, name)
        try:
            found = digest(path)
        except OSError as error:
            raise ResultError(f"The result is not whole: {error}.") from error
        if found != record[key]:
            raise ResultError(
                f"{path} was changed, or belongs to another result: it has not the SHA-256 digest that "
                f"{RECORD} names. Train again, or take a copy."
            )
    return record


def main(arguments: list[str]) -> int:
    """Runs `check FOLDER...`; returns 0 if all results are whole, 1 if not, 2 for wrong usage."""
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
