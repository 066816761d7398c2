"""The files of a result, which `run_folder.py` makes. This module does not import TensorFlow."""

import hashlib
import json
import os

MODEL, RECORD, CARD, LOG = "model.keras", "run.json", "model_card.md", "tensorboard"


class ResultError(ValueError):
    """A result cannot be written or was not written.

    Example:
        >>> from tfdp.experiments import RunFolder
        >>> open("notes.txt", "w").close()
        >>> RunFolder("notes.txt").__enter__()
        Traceback (most recent call last):
        ...
        tfdp.experiments.result_folder.ResultError: ...notes.txt is no result, and is never replaced...
    """


def is_result(folder: str | os.PathLike) -> bool:
    """Whether a folder has a model and its record."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in (MODEL, RECORD))


def read_record(folder: str | os.PathLike) -> dict:
    """Returns the content of run.json; an empty dictionary if there is none.

    Example:
        >>> from tfdp.experiments import read_record
        >>> read_record("no_such_folder")
        {}
    """
    try:
        with open(os.path.join(folder, RECORD), "rb") as file:
            return json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}


def digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
