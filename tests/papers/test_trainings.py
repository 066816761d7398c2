"""What the catalogue asks of train.py, and reads of its results."""

import math

import pytest
from absl import flags
from absl.testing import flagsaver

from papers import records, running
from papers.catalogue import ROOT, cells, tables
from papers.records import Measured
from tfdp.experiments import command, main  # noqa: F401, main defines its flags


def test_train_py_takes_the_command_of_the_last_cell_of_every_table(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    flags.FLAGS(["train.py"])
    for table in tables():
        cell = [cell for cell in table.cells if cell.seeds][-1]
        if not table.computed:
            words = running.command(cell, cell.seeds, tmp_path)
            for word in words:  # train.py looks whether the weights are there
                if word.startswith("--initial_weights="):
                    words[words.index(word)] = f"--initial_weights={__file__}"
            with flagsaver.flagsaver():
                command.parse(words[1:])
                assert len(command.points(words[1:])) == len(cell.seeds), cell.name


@pytest.mark.slow
def test_a_cell_is_trained_by_train_py(tmp_path):
    (cell,) = cells(["batch_norm.digits_running.none.3"])
    mine = Measured(tuple(running.run(cell, tmp_path).seeds.values()))
    theirs = Measured(tuple(records.runs_of(cell, records.read()).values()))
    assert abs(mine.mean - theirs.mean) < 5 * math.hypot(mine.error, theirs.error)
    assert mine.epsilon("proven") == pytest.approx(theirs.epsilon("proven"), rel=1e-3)
