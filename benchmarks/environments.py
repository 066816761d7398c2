"""Makes the virtual environments of the families, once each, in a cache folder."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from absl import logging

from benchmarks.subjects import HERE, Family


class NoEnvironment(Exception):
    """Error for an environment that cannot be made. The message says why."""


def interpreter(family: Family, cache: Path) -> Path:
    """Returns the Python of a family's environment, and makes the environment if it is missing.

    Args:
        family: The framework.
        cache: The folder of the environments.

    Raises:
        NoEnvironment: If there is no fitting Python, or the installation failed.
    """
    if not family.own_environment:
        return Path(sys.executable)
    requirements = family.requirements.read_text()
    digest = hashlib.sha256(requirements.encode()).hexdigest()[:10]
    folder = cache.resolve() / f"{family.name}-{digest}"
    python = folder / "bin" / "python"
    finished = folder / "finished"
    if finished.exists():
        return python
    base = _base_python(family)
    logging.info("Making the environment of %s (once; some minutes).", family.name)
    shutil.rmtree(folder, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    _run([base, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "--quiet", "-r", str(family.requirements)])
    finished.touch()
    return python


def environment_variables(family: Family) -> dict[str, str]:
    """Returns the environment variables of a measured program.

    Only the program of tfdp can import the packages in this repository.
    """
    variables = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "KERAS_BACKEND")}
    variables["TF_CPP_MIN_LOG_LEVEL"] = "3"
    # PyTorch's threads wait actively by default. Beside any other load, active waiting makes its
    # steps up to fifty times slower, which would favour all other frameworks.
    variables.setdefault("OMP_WAIT_POLICY", "passive")
    if not family.own_environment:
        variables["PYTHONPATH"] = str(HERE.parent)
    return variables


def _base_python(family: Family) -> str:
    if family.python is None or platform.python_version().startswith(f"{family.python}."):
        return sys.executable
    found = shutil.which(f"python{family.python}")
    if found is None:
        raise NoEnvironment(f"needs Python {family.python}, which was not found")
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NoEnvironment("; ".join(errors[-2:]) or f"{command[1:4]} failed")
