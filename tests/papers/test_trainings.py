"""What the catalogue asks of train.py, and reads of its results."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from papers import records, running
from papers.catalogue import cells, tables

ROOT = Path(__file__).resolve().parents[2]
TRAINED = [cell for table in tables() for cell in table.trained if not cell.computed]


def asked_for_help(cell):
    """Whether train.py takes the flags of a cell; it prints their help without training."""
    words = [sys.executable, "train.py", "--flagfile=papers/no_recipe.cfg", *cell.flags, "--help"]
    if cell.start:
        words.append(f"--initial_weights={__file__}")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "cell",
    [
        *TRAINED[::120],
        *(pytest.param(table.trained[-1], marks=pytest.mark.slow) for table in tables()
          if table.trained and not table.computed),
    ],
    ids=lambda cell: cell.name,
)  # fmt: skip
def test_train_py_takes_the_flags_of_cells(cell):
    right, said = asked_for_help(cell)
    assert right, said


@pytest.mark.slow
def test_a_cell_is_trained_by_train_py(tmp_path):
    (cell,) = cells(["batch_norm.digits_running.none.3"])
    ended = running.run([cell], tmp_path, records.read())
    assert ended["done"] == [cell.name]
    found = records.collect(tmp_path, [cell])
    theirs = records.measured(cell, records.read())
    mine = records.measured(cell, found)
    assert abs(mine.mean - theirs.mean) < 5 * math.hypot(mine.error, theirs.error)
    assert mine.epsilon("proven") == pytest.approx(theirs.epsilon("proven"), rel=1e-3)
