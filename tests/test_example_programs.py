"""The programs in `examples/` run, each by itself in an empty folder."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow  # a process with TensorFlow for each; `.ci/run` runs them from the wheel
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program(program, tmp_path):
    if program.stem == "tuning" and importlib.util.find_spec("keras_tuner") is None:
        pytest.skip("KerasTuner is no dependency")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "epsilon" in ended.stdout
