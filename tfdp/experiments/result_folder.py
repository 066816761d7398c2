"""The folder of a result: model.keras, run.json, model_card.md and TensorBoard's log.

A result appears by one renaming of one folder. If the process is killed, at whatever moment, its
final place holds the whole earlier result, the whole new result, or nothing. run.json holds the
SHA-256 digests of the model and the card, which show that the three files belong together:

    python -m tfdp.experiments.result_folder check runs/digits_si_dpsgd_001

The digests detect mixed and damaged files. They do not detect an editor who changes a file and its
digest.

While the result `NAME` is being made, it is in the folder `NAME.partial` (`partial_folder.py`). Files
that must never be in the result are in the folder `NAME.secret`: the state of the training, with which
it goes on after a crash (`unfinished.py`). This module does not import TensorFlow.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Mapping

from absl import logging

from tfdp._files import secret_folder, sync_folder, sync_tree
from tfdp._interruptions import Interruptions
from tfdp.experiments.partial_folder import PartialFolder, ResultBusy, ResultError, clear_leftovers
from tfdp.experiments.places import check_outside, check_replaceable, look
from tfdp.experiments.result_files import (
    CARD,
    DIGESTS,
    LOG,
    MODEL,
    RECORD,
    digest,
    read_record,
)
from tfdp.experiments.unfinished import UnfinishedError

# Bytes for everything but the model: record, card and log of the digits take 17 kB together.
_SMALL = 2**20


class ResultExists(ResultError):
    """A finished result exists already."""


class ResultFolder:
    """Makes one result: `with ResultFolder(path) as folder: ... folder.commit(...)`.

    Entering reserves the place for this process, and refuses if a result could not be written there
    or would overwrite another one. Files are written into `NAME.partial`. Leaving without `commit`
    removes `NAME.partial`, and an earlier result stays as it was. If the training has left a state
    (`checkpoints`), its log stays in `NAME.partial`, and whoever enters next can go on.

    Args:
        path: the folder of the finished result.
        overwrite: whether the result may replace an earlier result. Nothing else is ever replaced.
        numbered: whether to use a new folder `path`_001, `path`_002, ... instead, with the number
            after the largest one in use. Processes that start together get different numbers.
        resume: whether a training that has left a state goes on; if not, it is discarded.

    Attributes:
        path: absolute path of the result; None until entered, if the folder is numbered.

    Raises:
        ResultError: entering or `commit` is refused, or fails. `ResultBusy` and `ResultExists` are
            subclasses.

    Example:
        >>> import keras
        >>> from tfdp.experiments import ResultFolder, check
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> with ResultFolder("runs/a") as folder:
        ...     _ = folder.commit({"steps": 3}, card="# A model", save_model=model.save)
        >>> check("runs/a")["steps"]
        3
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        overwrite: bool = False,
        numbered: bool = False,
        resume: bool = True,
    ):
        if overwrite and numbered:
            raise ResultError(
                "Expected `overwrite` with the name of a folder. Found it without: a numbered folder "
                "is always new."
            )
        path = os.path.abspath(path)
        self._base = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        self._overwrite, self._numbered, self._resume = overwrite, numbered, resume
        self._partial = None
        self._committed = False
        self._training_id = None
        self.path = None if numbered else self._base

    @property
    def log_dir(self) -> str:
        """TensorBoard's log: in the partial folder until `commit`, and then in the result."""
        return os.path.join(self.path if self._committed else self._open().result, LOG)

    def secrets(self) -> str:
        """Returns the path of `NAME.secret`, a folder that only its owner may enter.

        The folder is made if it does not exist. It is the place for checkpoints, keys and
        recordings, which must never be part of a result.

        Raises:
            ValueError: the path is not a folder, or other users may enter it.
        """
        return secret_folder(f"{self._open().target}.secret")

    def checkpoints(self, settings: Mapping) -> str:
        """Returns the path of a folder for the state of this training.

        The folder is inside of `secrets()`. It holds the state of an unfinished training that is to go
        on, or is empty. `commit` removes it. Without `commit`, a state in it stays.

        Args:
            settings: the settings of the training, JSON-safe. A training goes on with its own only.

        Raises:
            ResultError: the unfinished training is damaged, or has other settings.
        """
        unfinished = self._open().unfinished
        try:
            if not self._resume:
                unfinished.discard()
            self.secrets()
            self._training_id = unfinished.take_up(settings)
        except UnfinishedError as error:
            raise ResultError(str(error)) from error
        except OSError as error:
            raise ResultError(
                f"Expected a place for the state of the training in {unfinished.path}. Found: "
                f"{_words(error)}. Mend that, or choose another folder."
            ) from error
        return unfinished.backup_dir

    def abandon(self) -> None:
        """Removes the state of the training, which nobody shall go on with."""
        self._open().unfinished.discard()

    @property
    def holds_state(self) -> bool:
        """Whether there is a state that the next process can go on from."""
        return self._partial is not None and self._partial.unfinished.holds_state

    @property
    def is_in_place(self) -> bool:
        """Whether `commit` has put the result in its place."""
        return self._committed

    @property
    def goes_on(self) -> bool:
        """Whether this process will go on with an unfinished training."""
        return self._resume and self.holds_state and not self._partial.unfinished.is_over

    def check_space(self, model_bytes: int) -> None:
        """Raises ResultError if the disk has less free space than the model and the rest need.

        Args:
            model_bytes: a lower bound on the size of the model's file in bytes.
        """
        free, needed = shutil.disk_usage(self._open().path).free, model_bytes + _SMALL
        if not free >= needed:
            raise ResultError(
                f"Expected {needed / 2**20:,.1f} MiB of free space for {self.path}. Found "
                f"{free / 2**20:,.1f} MiB. Make room, or choose a folder on another disk."
            )

    def commit(
        self, record: Mapping, card: str, save_model: Callable[[str], None]
    ) -> Mapping[str, str]:
        """Writes the result and moves it whole to its final place.

        Args:
            record: the content of run.json, JSON-safe; the digests are added to it.
            card: the text of model_card.md.
            save_model: a function that writes the model to the path that it is given.

        Returns:
            The digests, by their names in run.json.

        Raises:
            ResultExists: another result has appeared at the final place meanwhile.
            ResultError: the result could not be written. Nothing of it remains, and what was at the
                final place before is unchanged, or where the message says.
        """
        work = self._open().result
        try:
            self._partial.check_held()
            if self._training_id is not None:
                record = {
                    **record,
                    "training": {"id": self._training_id, **record.get("training", {})},
                }
            digests = _write(work, record, card, save_model, self._partial.check_held)
            with Interruptions() as interruptions:
                self._put_in_place()
                self._committed = True
                self._clear_state()
                if interruptions.number is not None:
                    interruptions.end(f"The result is in its place: {self.path}.")
        except OSError as error:
            raise ResultError(
                f"Expected to write the result to {self.path}. Found: {_words(error)}. {self._lost()} "
                f"{self._remedy()}"
            ) from error
        except ResultError as error:
            raise type(error)(f"{error} {self._lost()}") from error
        return digests

    def _clear_state(self):
        with _warned(f"The result is in {self.path}, but may not be on the disk yet"):
            sync_folder(os.path.dirname(self.path))
        if self._training_id is not None:
            secrets = self._partial.unfinished
            with _warned(
                f"The result is in {self.path}. Its training's state could not be removed from "
                f"{secrets.path}, which holds values without noise. Remove it, or run the command again"
            ):
                secrets.discard()

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
        partial, self._partial = self._partial, None
        if self._training_id is not None and not self._committed:
            with contextlib.suppress(OSError):
                partial.unfinished.discard_unbegun()
        partial.release(made_one=self._committed)

    def _enter(self, target):
        check_outside(target)
        try:
            # Refuses a target that cannot be replaced before a folder is made.
            self._checked(target)
        except ResultExists:
            _clear_finished(target)
            raise
        partial = PartialFolder(target, resume=self._resume)
        partial.acquire()
        try:
            # The target is checked again: a run that ended meanwhile may have put a result there,
            # or `acquire` may have restored an earlier one.
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
        """Returns the state of the target as `_look` does; refuses one that may not be replaced."""
        if self._numbered and os.path.lexists(target):
            raise ResultExists(f"Expected a new folder. Found {target} there already.")
        state = look(target)
        if state == "result" and not self._overwrite:
            raise ResultExists(
                f"Expected a new folder for the result. Found a finished one in {target}. Choose "
                "another folder, or say --overwrite (in Python: overwrite=True) to replace it."
            )
        if state is not None:
            check_replaceable(target)
        return state

    def _lost(self) -> str:
        before = "is as it was"
        if os.path.lexists(previous := self._partial.previous):
            before = f"is in {previous} (the next run of this name brings it back)"
        lost = "is lost"
        if self.holds_state:
            lost = f"is kept, as the state of a training in {self._partial.unfinished.path}"
        return (
            f"Nothing of it is there, what was there before {before}, and the model that was trained "
            f"{lost}."
        )

    def _remedy(self) -> str:
        if self.holds_state:
            return "Mend that, and run the same command again: it goes on from there."
        return "Mend that, or choose another folder, and train again."

    def _put_in_place(self):
        partial = self._partial
        state = self._checked(partial.target)
        partial.check_held()
        if state != "result":
            try:
                # The system lets a folder replace nothing but an empty folder.
                os.rename(partial.result, partial.target)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    self._checked(partial.target)
                raise
        else:
            _move_aside(partial)


def _clear_finished(target) -> None:
    """Clears what is left beside a result if its process died after it had put it in place."""
    partial = PartialFolder(target)
    left = partial.unfinished.is_left
    if not (left and partial.unfinished.is_over) and (left or not os.path.lexists(partial.path)):
        return
    try:
        partial.acquire()
        partial.unfinished.discard()
        partial.release(made_one=True)
    except ResultBusy:
        pass
    except (ResultError, OSError) as error:
        logging.warning("What is left beside %s was not cleared: %s", target, error)


def new_folder(path: str | os.PathLike) -> str:
    """Makes a new empty folder `path`_001, `path`_002, ... for several results.

    Returns:
        The absolute path of the folder.

    Raises:
        ResultError: the folder cannot be made.
    """
    with ResultFolder(path, numbered=True) as claimed:
        os.mkdir(claimed.path)
    return claimed.path


def check(folder: str | os.PathLike) -> dict:
    """Checks that the files of a result are whole and belong together.

    Returns:
        The content of run.json.

    Raises:
        ResultError: a file is missing, was changed, or belongs to another result.

    Example:
        >>> import keras
        >>> from tfdp.experiments import ResultFolder, check
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> with ResultFolder("runs/a") as folder:
        ...     _ = folder.commit({"steps": 3}, card="# A model", save_model=model.save)
        >>> with open("runs/a/model_card.md", "a") as file:
        ...     _ = file.write("Edited.")
        >>> check("runs/a")
        Traceback (most recent call last):
        ...
        tfdp.experiments.partial_folder.ResultError: Expected runs/a/model_card.md to have the SHA-256
        digest of run.json, ...
    """
    folder = os.fspath(folder)
    if look(folder) != "result":
        raise ResultError(f"Expected the folder of a result. Found nothing in {folder}.")
    record = read_record(folder)
    for key, name in DIGESTS.items():
        path = os.path.join(folder, name)
        try:
            found = digest(path)
        except OSError as error:
            raise ResultError(f"Expected {path}. Found: {_words(error)}.") from error
        if found != record.get(key):
            raise ResultError(
                f"Expected {path} to have the SHA-256 digest of {RECORD}, {record.get(key)}. Found "
                f"{found}: it was changed, or belongs to another result. Train again, or take a copy."
            )
    return record


def _write(work, record, card, save_model, check_held):
    """Writes all files, run.json last, and waits until they are on the disk; returns the digests."""
    save_model(os.path.join(work, MODEL))
    check_held()
    with open(os.path.join(work, CARD), "x", encoding="utf-8") as file:
        file.write(card)
    digests = {key: digest(os.path.join(work, name)) for key, name in DIGESTS.items()}
    # If the folder is not this process's any more, the digests may be those of another run's files.
    check_held()
    with open(os.path.join(work, RECORD), "x") as file:
        json.dump({**record, **digests}, file, indent=2, allow_nan=False)
        file.write("\n")
    sync_tree(work)
    return digests


def _move_aside(partial):
    """Replaces an earlier result.

    If the process dies between the two renamings, nothing is at the target, and the earlier result
    is in `NAME.partial/previous`. The next run restores it.
    """
    partial.move_previous()
    try:
        look(partial.previous)
        sync_folder(partial.path)
        os.rename(partial.result, partial.target)
    except BaseException:
        os.rename(partial.previous, partial.target)
        raise


def _last_number(folder, name) -> int:
    """Returns the largest number in use; 0 if none is.

    The `.secret` folder of a run without a result counts as well, so that no later run shares it.
    """
    pattern = re.compile(re.escape(name) + r"_(\d+)(\.partial|\.secret)?")
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return 0
    return max((int(found[1]) for found in map(pattern.fullmatch, names) if found), default=0)


def _words(error: OSError) -> str:
    return f"{error.strerror or error} ({error.filename})" if error.filename else str(error)


@contextlib.contextmanager
def _warned(words):
    """Turns an OSError into a warning: the result is in its place already, and stays there."""
    try:
        yield
    except OSError as error:
        logging.warning("%s. Found: %s", words, error)


def main(arguments: list[str]) -> int:
    """Runs `check FOLDER...`.

    Returns:
        The exit status: 0 if all results are whole, 1 if one is not, and 2 for wrong arguments.
    """
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
