"""Starts pytest on Keras' own test files, with the plugin, and counts what became of the cases."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import keras

from tests.keras_suite import expected
from tests.keras_suite.counts import Counts

# What of Keras' tests is run: everything that trains, saves or changes models.
FOLDERS = ("trainers", "callbacks", "saving", "models")
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_KERAS = pathlib.Path(keras.__file__).parent / "src"


MISSING = (
    f"The package of Keras {keras.__version__} in {_KERAS} has no test files. Some wheels leave them "
    "out. Expected those of the source in the same folders: pip download --no-deps --no-binary keras "
    f"keras=={keras.__version__}"
)


def has_tests() -> bool:
    """Whether the installed package of Keras has its test files; some wheels leave them out."""
    return (_KERAS / "trainers" / "trainer_test.py").is_file()


def _files(cases) -> list[str]:
    """Returns the files of cases that this version of Keras has."""
    named = {case.partition("::")[0] for case in cases}
    return sorted(name for name in named if (_KERAS / name).is_file())


@dataclasses.dataclass(frozen=True)
class Done:
    """A run that has ended.

    Attributes:
        code: exit status of pytest.
        output: what pytest printed.
        counts: the counts of the cases.
    """

    code: int
    output: str
    counts: Counts


def run(arguments: list[str] = ()) -> Done:
    """Runs cases in a process of their own.

    Args:
        arguments: options of pytest and of the plugin; files, folders and cases, relative to Keras'
            source folder. Without any of the latter, `FOLDERS` are run.

    Raises:
        RuntimeError: the package of Keras has no test files.
    """
    if not has_tests():
        raise RuntimeError(MISSING)
    options = [argument for argument in arguments if argument.startswith("-")]
    what = [argument for argument in arguments if not argument.startswith("-")]
    if not what and "--short" in options:
        what = _files(expected.load().short)
    elif not what:
        what, options = FOLDERS, [*options, "--whole"]
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(folder, "results.jsonl")
        command = [
            *(sys.executable, "-m", "pytest", "-c", str(_ROOT / "tests/keras_suite/suite.ini")),
            *(f"--rootdir={_KERAS}", f"--results={results}"),
            *options,
            *(str(_KERAS / each) for each in what),
        ]
        # Not in Keras' folder, whose modules have the names of modules of Python.
        ended = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        lines = results.read_text().splitlines() if results.exists() else []
    counts = Counts.of(keras.__version__, [json.loads(line) for line in lines])
    return Done(ended.returncode, ended.stdout + ended.stderr, counts)
