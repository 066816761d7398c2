"""Writes and reads a secret file, which only its owner may read, and only once."""

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np


def write_secret(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a new file that only its owner may read; a failed write leaves no file.

    Args:
        path: name of a file that does not exist.
        arrays: the arrays by name.

    Raises:
        FileExistsError: a file of that name exists.
    """
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(path)
        raise


@contextlib.contextmanager
def read_once(path: str | os.PathLike) -> Iterator[dict[str, np.ndarray]]:
    """Context that gives the arrays of a file and deletes the file at its end.

    If the block raises, the file is put back. The file is renamed first, so that of two processes
    that read it only one succeeds.

    Args:
        path: a file that `write_secret` wrote.

    Raises:
        FileNotFoundError: there is no such file, or it was read already.
        ValueError: the file does not hold arrays.
    """
    path = os.fspath(path)
    claimed = f"{path}.{os.urandom(8).hex()}.taken"
    os.rename(path, claimed)
    try:
        try:
            with np.load(claimed, allow_pickle=False) as content:
                arrays = dict(content)
        except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"Expected a file of saved arrays. Found {path!r}: {error}") from error
        yield arrays
    except BaseException:
        os.rename(claimed, path)
        raise
    os.unlink(claimed)
