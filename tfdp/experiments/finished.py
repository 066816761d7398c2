"""Results that are there already, so that a sweep that was interrupted trains the other points only.

This module imports neither TensorFlow nor Keras.
"""

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

from tfdp.experiments.correlation import complete
from tfdp.experiments.partial_folder import ResultError
from tfdp.experiments.result_files import RECORD, is_result
from tfdp.experiments.result_folder import check
from tfdp.experiments.settings import SETTINGS, Experiment
from tfdp.experiments.unfinished import contents_of, digests_of


def finished(
    folder: str | os.PathLike, experiment: Experiment, by_content: Collection[str] = ()
) -> dict | None:
    """Returns the content of run.json of a result of these settings; None if there is no result.

    Args:
        folder: the folder of the result.
        experiment: the settings that were asked for.
        by_content: settings that name files, of which the content counts and not the name.

    Raises:
        ResultError: the result is damaged, or has other settings.
    """
    folder = os.fspath(folder)
    if not (os.path.isdir(folder) and is_result(folder)):
        path = folder if os.path.islink(folder) else os.path.join(folder, RECORD)
        if os.path.lexists(path):
            raise ResultError(
                f"Expected {path} to be a result, or the record of one. Found it damaged, or a link to "
                "nothing. Put it back, or remove the folder to train anew."
            )
        return None
    record = check(folder)
    has(record, ("num_examples", "settings", "insecure_seed"), folder)
    has(record["settings"], ("dataset", "mechanism"), folder)
    wanted = json.loads(json.dumps(complete(experiment, record["num_examples"]).recorded()))
    wanted["insecure_seed"] = experiment.insecure_seed is not None
    found = record["settings"] | {"insecure_seed": record["insecure_seed"]}
    if names := [name for name in different(wanted, found) if name not in by_content]:
        raise ResultError(
            f"Expected the result in {folder} to have the settings of this point: "
            f"{_flags(names, wanted)}. Found {_flags(names, found)}. Choose another folder, "
            "remove it, or, with train.py, say --overwrite."
        )
    known, said = (record.get(name, {}) for name in ("digests_of_settings", "contents_of_settings"))
    if not (isinstance(known, Mapping) and isinstance(said, Mapping)):
        raise ResultError(
            f"Expected {os.path.join(folder, RECORD)} to name the digests of the files that its "
            "settings name. Found something else: it was changed. Remove the folder to train anew."
        )
    now = digests_of(experiment)
    names = [name for name in now if known.get(name, now[name]) != now[name]]
    if names:  # a file that was saved again says the same; older results do not note what it says
        says = contents_of(experiment)
        names = [name for name in names if said.get(name) != says[name]]
    if names:
        raise ResultError(
            f"Expected the result in {folder} to be made with the files that are there now. Found that "
            f"--{', --'.join(names)} had another content. Choose another folder, remove it, or, "
            "with train.py, say --overwrite."
        )
    return record


def has(record: Any, names: Collection[str], folder: str | os.PathLike) -> None:
    """Checks that the run.json in a folder has what is read of it.

    Raises:
        ResultError: it lacks some of the names.
    """
    found = record if isinstance(record, Mapping) else {}
    lacking = [name for name in names if name not in found]
    if lacking or not isinstance(record, Mapping):
        raise ResultError(
            f"Expected {os.path.join(folder, RECORD)} to have {', '.join(names)}. Found it without "
            f"{', '.join(lacking)}: it was changed, or other code wrote it. Remove the folder to train "
            "anew."
        )


def different(some: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Returns the names of settings that differ in two records of settings.

    A setting that a record does not name has its default: the code had no such setting yet, or the
    collection leaves defaults out.
    """
    usual = {name: known.default for name, known in SETTINGS.items()}
    return [
        name
        for name in {**some, **others}
        if some.get(name, usual.get(name)) != others.get(name, usual.get(name))
    ]


def _flags(names, values) -> str:
    return ", ".join(f"--{name}={values.get(name)}" for name in names)
