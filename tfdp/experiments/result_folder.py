"""The files of a result, which can be checked:

    python -m tfdp.experiments.result_folder check runs/digits_si_dpsgd_001

run.json has the SHA-256 digests of the model and the card, which show that the files belong together.
`run_folder.py` makes the folder. This module does not import TensorFlow.
"""

import hashlib
import json
import os
import sys

MODEL, RECORD, CARD, LOG = "model.keras", "run.json", "model_card.md", "tensorboard"
DIGESTS = {"model_sha256": MODEL, "model_card_sha256": CARD}


class ResultError(ValueError):
    """A result cannot be written or was not written, or a folder does not hold a whole result.

    Example:
        >>> from tfdp.experiments import check
        >>> check("no_such_folder")
        Traceback (most recent call last):
        ...
        tfdp.experiments.result_folder.ResultError: There is no result in no_such_folder.
    """


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
        >>> from tfdp.experiments import RunFolder, check
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> with RunFolder("runs/a") as folder:
        ...     folder.begin({"steps": 3})
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
