"""Tested versions are accepted, and others are refused or named."""

import configparser
import os
import pathlib
import re
import subprocess
import venv
import warnings

import pytest

import tfdp._compat as versions

ROOT = pathlib.Path(__file__).parents[2]
# What borrows from Keras and TensorFlow, what trains in each of the ways, and data sets.
WITH_OLDEST = (
    *("_compat", "data", "layers", "optimizers", "gradients/test_lot.py", "gradients/test_uses.py"),
    *("gradients/engines/test_exact.py", "gradients/engines/test_recurrent.py"),
    *("training/test_files.py", "training/test_private_training.py", "training/test_step.py"),
    "test_train_script.py",
)


def test_tested_versions_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("3.13.0", "3.15.0rc1", "3.14"):
            versions.check("keras", version)


@pytest.mark.parametrize(
    ("package", "version"),
    [("keras", "2.15.0"), ("keras", "3.12.4"), ("tensorflow", "2.19.1")],
)
def test_older_versions_are_refused(package, version):
    with pytest.raises(ImportError, match=version):
        versions.check(package, version)


def test_newer_versions_give_a_warning():
    with pytest.warns(UserWarning, match="keras 3.16.0.dev20260101"):
        versions.check("keras", "3.16.0.dev20260101")


def requirements() -> list[str]:
    """The requirements of setup.cfg, with those of the tests."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    found = settings["options"]["install_requires"], settings["options.extras_require"]["test"]
    return [line for line in "\n".join(found).splitlines() if line and line[0] != "#"]


def test_requirements_are_the_tested_versions():
    for package, (first, beyond) in versions.TESTED.items():
        assert f"{package}>={first[0]}.{first[1]},<{beyond[0]}.{beyond[1]}" in requirements()


@pytest.mark.slow
def test_the_oldest_versions_pass(tmp_path):
    """Tests pass in an environment with exactly the first version of every requirement."""
    venv.create(tmp_path, with_pip=True)

    def python(*arguments):
        python = [tmp_path / "bin" / "python", "-m", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(python, capture_output=True, text=True, cwd=ROOT, env=environment)

    if python("pip", "index", "versions", "absl-py").returncode:
        pytest.skip("The package index cannot be reached.")
    oldest = [re.sub(r">=([^,]*).*", r"==\1", line) for line in requirements()]
    installed = python("pip", "install", "--quiet", *oldest)
    assert installed.returncode == 0, installed.stderr[-2000:]
    tests = [f"tests/{name}" for name in WITH_OLDEST]
    passed = python("pytest", "-n", "0", "-q", "-p", "no:cacheprovider", *tests)
    assert passed.returncode == 0, passed.stdout[-4000:]
