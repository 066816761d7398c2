"""Results that are there already, so that a sweep that was interrupted trains the other points only.

This module imports neither TensorFlow nor Keras.
"""

import json
import os

from tfdp.experiments.correlation import complete
from tfdp.experiments.partial_folder import ResultError
from tfdp.experiments.result_files import is_result
from tfdp.experiments.result_folder import check
from tfdp.experiments.settings import Experiment


def finished(folder: str | os.PathLike, experiment: Experiment) -> dict | None:
    """Returns the content of run.json of a result of these settings; None if there is no result.

    Args:
        folder: the folder of the result.
        experiment: the settings that were asked for.

    Raises:
        ResultError: the result is damaged, or has other settings.
    """
    folder = os.fspath(folder)
    if not (os.path.isdir(folder) and is_result(folder)):
        return None
    record = check(folder)
    wanted = json.loads(json.dumps(complete(experiment, record["num_examples"]).recorded()))
    found = record["settings"]
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if names:
        raise ResultError(
            f"Expected the result in {folder} to have the settings of this point: "
            f"{_flags(names, wanted)}. Found {_flags(names, found)}. Choose another folder, or say "
            "--overwrite."
        )
    return record


def _flags(names, values) -> str:
    return ", ".join(f"--{name}={values.get(name)}" for name in names)
