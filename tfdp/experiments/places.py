"""What is at the place of a result, and whether a result may be put there.

This module does not import TensorFlow.
"""

import contextlib
import os
import stat

from tfdp.experiments.partial_folder import ResultError
from tfdp.experiments.result_files import RECORD, is_result, strange_entry


def look(path) -> str | None:
    """Returns what is at a path: None for nothing, "empty" for an empty folder, or "result".

    Raises:
        ResultError: something else is at the path.
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
    """Returns an entry that no result has, or what is wrong with run.json; None for a result."""
    return strange_entry(folder) or (None if is_result(folder) else f"no {RECORD} with digests")


def check_outside(target) -> None:
    """Refuses a place inside a folder that belongs to another result: it would spoil that result."""
    folder = target
    while True:
        kind = None
        if folder.endswith((".partial", ".secret")):
            kind = "a folder beside a result, for unfinished files or secrets"
        elif folder != target and _is_result(folder):
            kind = "a finished result"
        if kind:
            raise ResultError(
                f"Expected a place outside the folders of other results. Found {target} in {folder}, "
                f"{kind}. Choose another folder."
            )
        if folder == (folder := os.path.dirname(folder)):
            return


def _is_result(folder) -> bool:
    with contextlib.suppress(OSError):  # nothing is written into a folder that cannot be read
        return os.path.isfile(os.path.join(folder, RECORD)) and is_result(folder)
    return False


def check_replaceable(target) -> None:
    """Refuses, before the training, a folder that the system could not replace after it."""
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
