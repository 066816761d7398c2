"""A file that holds a secret, for its owner alone, and that can be read once."""

import contextlib
import os
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np


def write_secret(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a new file that only its owner may read; whole or not at all.

    Raises:
        FileExistsError: there is a file of that name.
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
    """Gives the arrays of a file, which is gone when the block ends; a failing block puts it back.

    The file is renamed first, so of two processes that read it one gets it.

    Raises:
        FileNotFoundError: there is no such file, or it was read already.
        ValueError: it was not written by `write_secret`.
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
