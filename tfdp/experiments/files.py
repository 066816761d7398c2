"""The public files that settings name, and the settings that a resumed training has to share.

This module imports neither TensorFlow nor Keras.
"""

import hashlib
import os
from typing import Any

from tfdp.experiments.rules import DRAWN_EMBEDDINGS
from tfdp.experiments.settings import Experiment


def digest(path: str | os.PathLike) -> str:
    """Returns the SHA-256 digest of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def paths(experiment: Experiment) -> dict[str, str]:
    """Returns the files that settings name, by the names of the settings."""
    named = {"initial_weights": experiment.initial_weights}
    if experiment.embeddings not in DRAWN_EMBEDDINGS:
        named["embeddings"] = experiment.embeddings
    return {name: os.path.expanduser(path) for name, path in named.items() if path is not None}


def check(experiment: Experiment) -> None:
    """Raises ValueError if a file or folder that a setting names does not exist."""
    for name, path in paths(experiment).items():
        if not os.path.isfile(path):
            also = f" Or pass {' or '.join(DRAWN_EMBEDDINGS)}." if name == "embeddings" else ""
            raise ValueError(f"--{name}={path} is not a file. Name one, or leave it out.{also}")
    folder = experiment.data_dir
    if folder is not None and not os.path.isdir(os.path.expanduser(folder)) and "://" not in folder:
        raise ValueError(
            f"--data_dir={folder} is not a folder. Name the one that holds the data, or make it: data "
            "are downloaded to it."
        )


def identity(experiment: Experiment) -> dict[str, Any]:
    """Returns what two trainings have in common if one may resume, or stand for, the other.

    These are the recorded settings, the digests of the files that they name, and whether there is a
    seed of the noise, which itself is never written.
    """
    same = experiment.recorded()
    same |= {f"{name} (SHA-256)": digest(path) for name, path in paths(experiment).items()}
    return same | ({} if experiment.insecure_seed is None else {"insecure_seed": "secret"})
