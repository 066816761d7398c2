"""Results that are there already, and the settings that a training has to have to be the same one.

This module imports neither TensorFlow nor Keras.
"""

import json
import os
from typing import Any

import tfdp
from tfdp.experiments.correlation import complete
from tfdp.experiments.result_folder import ResultError, digest, is_result, read_record
from tfdp.experiments.settings import Experiment


def settings_of(experiment: Experiment) -> dict[str, Any]:
    """Returns what has to stay the same when a training is resumed, by flags."""
    # A seed of the noise is never written, but whether there is one has to stay the same.
    settings = experiment.recorded() | {"insecure_seed": experiment.insecure_seed is not None}
    same = {f"--{name}": value for name, value in settings.items()}
    same |= {f"SHA-256 of --{name}": found for name, found in digests_of(experiment).items()}
    return same | {"version of tfdp": tfdp.__version__}


def digests_of(experiment: Experiment) -> dict[str, str]:
    """Returns the SHA-256 digests of the files that settings name, by the names of the settings."""
    names = ("initial_weights", "vocabulary", "embeddings")
    paths = {name: os.path.expanduser(getattr(experiment, name) or "") for name in names}
    return {name: digest(path) for name, path in paths.items() if os.path.isfile(path)}


def finished(folder: str | os.PathLike, experiment: Experiment) -> dict | None:
    """Returns the content of run.json of a result of these settings; None if there is no result.

    Args:
        folder: the folder of the result.
        experiment: the settings that were asked for.

    Raises:
        ResultError: the result has other settings.
    """
    if not is_result(folder):
        return None
    record = read_record(folder)
    wanted = json.loads(json.dumps(complete(experiment, record["num_examples"]).recorded()))
    wanted["insecure_seed"] = experiment.insecure_seed is not None
    found = record["settings"] | {"insecure_seed": record["insecure_seed"]}
    for settings, digests in (
        (wanted, digests_of(experiment)),
        (found, record["digests_of_settings"]),
    ):
        settings |= {f"{name} (SHA-256)": value for name, value in digests.items()}
    if names := [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]:
        theirs, ours = (", ".join(f"--{n}={s.get(n)}" for n in names) for s in (found, wanted))
        raise ResultError(
            f"The result in {os.fspath(folder)} has other settings: {theirs}. Found {ours}. Choose "
            "another folder, remove it, or say --overwrite."
        )
    return record
