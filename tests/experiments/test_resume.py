"""An interrupted training resumes, and its statement covers the planned steps."""

import errno
import os
import subprocess
import sys

import pytest

from tests.experiments.result_helpers import Crash, after_step, names
from tfdp.accounting import describe, proven
from tfdp.experiments import Experiment, RunFolder, read_record, run_into
from tfdp.experiments.run_folder import ResultError

STEPS = 8  # lots of 479 out of 1,437 examples: two epochs and two steps


def settings(mechanism="dpsgd", **changes):
    fields = {
        "dpsgd": {"sampling": "cyclic"},
        "matrix": {"sampling": "cyclic", "optimizer": "sgd"},
        "si_dpsgd": {"sampling": "cyclic", "learning_rate": 0.05, "release": "theta"},
        "none": {"sampling": "shuffle"},
    }[mechanism]
    if mechanism != "none":
        fields["noise_multiplier"] = 4.0
    fields |= {"mechanism": mechanism, "model": "linear", "batch_size": 479, "steps": STEPS}
    return Experiment(**fields | {"seed": 1} | changes)


def train(folder, of, crash=None, every=2):
    """Runs an experiment, which fails after so many steps."""
    options = {"verbose": 0, "checkpoint_every": every}
    with RunFolder(folder, of) as opened:
        if crash is None:
            return run_into(opened, **options)
        with pytest.raises(Crash), after_step(crash):
            run_into(opened, **options)
    return None


def check_crashes(folder, mechanism, crashes):
    for crash in crashes:
        train(folder / "r", settings(mechanism), crash)
    result = train(folder / "r", settings(mechanism))
    record = read_record(folder / "r")
    assert names(folder) == ["r"]
    assert record["steps"] == result.run.steps == STEPS
    assert record["training"]["restarts"] == len(crashes)
    # At most the steps since the last state, and none where they are simply taken again.
    assert record["training"]["lost_steps"] <= 2 * len(crashes) * (mechanism != "none")
    # The end of an epoch may be lost.
    assert all(3 - len(crashes) <= len(values) <= 3 for values in result.history.values())
    assert record["test_accuracy"] > 0.3
    if mechanism == "none":
        return
    assert len(result.model.privacy.ledger.runs) == 1
    if mechanism == "dpsgd":
        planned = describe(
            mechanism="dpsgd", sampling="cyclic", num_examples=1437, lot_size=479, steps=STEPS,
            noise_multiplier=4.0,
        )  # fmt: skip
        assert record["proven"]["epsilon"] == pytest.approx(proven(planned, 1e-5).epsilon)


@pytest.mark.parametrize("mechanism", ["dpsgd", "matrix", "none"])
def test_a_crash_changes_no_statement(tmp_path, mechanism):
    check_crashes(tmp_path, mechanism, (4,))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dpsgd", "matrix", "si_dpsgd", "none"])
@pytest.mark.parametrize("crashes", [(1,), (6,), (4, 1)])
def test_a_crash_in_any_part_of_a_training_changes_no_statement(tmp_path, mechanism, crashes):
    check_crashes(tmp_path, mechanism, crashes)


def full(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.keras")


def test_a_training_that_has_ended_only_writes_its_result(tmp_path, monkeypatch):
    """The disk was full at the end: the trained model is not lost."""

    with monkeypatch.context() as patch, pytest.raises(ResultError, match="same command"):
        patch.setattr("tfdp.experiments.saving.export", full)
        train(tmp_path / "r", settings())
    with after_step(1):  # no step is taken again
        train(tmp_path / "r", settings())
    assert read_record(tmp_path / "r")["steps"] == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "interrupt"])
@pytest.mark.parametrize("kind", ["private", "plain", "overwrite", "sweep"])
def test_a_training_survives_signals_at_random_moments(tmp_path, kind, action):
    command = [sys.executable, "-m", "tests.experiments.random_kills", tmp_path / "kills"]
    done = subprocess.run(
        [*command, kind, action, "2"], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
