"""Starts pytest on Keras' own test files, with the plugin."""

import os
import pathlib
import subprocess
import sys
import tempfile

import keras

from tests.keras_suite import expected

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


def run(arguments: list[str] = (), **options) -> subprocess.CompletedProcess:
    """Runs cases in a process of their own.

    Args:
        arguments: options of pytest and of the plugin; files, folders and cases, relative to Keras'
            source folder. Without any of the latter, `FOLDERS` are run.
        **options: of `subprocess.run`.

    Raises:
        RuntimeError: the package of Keras has no test files.
    """
    if not has_tests():
        raise RuntimeError(MISSING)
    flags = [argument for argument in arguments if argument.startswith("-")]
    what = [argument for argument in arguments if not argument.startswith("-")]
    if not what and "--short" in flags:
        files = {case.partition("::")[0] for case in expected.load().short}
        what = sorted(name for name in files if (_KERAS / name).is_file())
    elif not what:
        what, flags = FOLDERS, [*flags, "--whole"]
    environment = os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    command = [sys.executable, "-m", "pytest", "-c", str(_ROOT / "tests/keras_suite/suite.ini")]
    command += [f"--rootdir={_KERAS}", *flags, *(str(_KERAS / each) for each in what)]
    # Not in Keras' folder, whose modules have the names of modules of Python.
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, cwd=folder, env=environment, check=False, **options)
