"""A result appears whole or not at all, is replaced with overwrite only, and can be resumed."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.experiments.killed_commits import FAILED, KILLED, REFUSED
from tests.experiments.result_helpers import EXPERIMENT, Crash, keep_state, make, names, state
from tfdp.experiments import Experiment
from tfdp.experiments.run_folder import (
    ResultError,
    ResultExists,
    RunFolder,
    check_sweep_folder,
)

# -- whole or not at all -------------------------------------------------------------------------


def disturbed(folder, mode, action, stride=1, count=0):
    """Returns (path of the result, status of the process) for every disturbed process."""
    folder.mkdir(exist_ok=True)
    script = pathlib.Path(__file__).with_name("killed_commits.py")
    command = [sys.executable, script, folder, mode, action, str(stride), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = sorted((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    return [(p / "runs" / "r", int((p / "code").read_text())) for p in found]


def check_kills(folder, mode, stride):
    """The old result is there, then the new one, and the next run clears what is left over."""
    scenarios = disturbed(folder, mode, "kill", stride)
    assert [code for _, code in scenarios] == [KILLED] * (len(scenarios) - 1) + [1]
    before, seen = "old" if mode == "over" else None, []
    for target, _ in scenarios:
        seen.append(state(target))
        if mode == "over" and seen[-1] is None:  # between two renames
            with pytest.raises(Crash), RunFolder(target, EXPERIMENT, overwrite=True):
                raise Crash
            seen[-1] = state(target)  # the next process brought it back
        resumable = RunFolder(target, EXPERIMENT).resumable
        # Before the training began, or after its result was put in place, there is nothing to resume.
        assert not (resumable and seen[-1] == "new")
        make(target, "new", overwrite=True)
        assert state(target) == "new" and names(target.parent) == ["r"]
    assert [which for k, which in enumerate(seen) if not k or which != seen[k - 1]] == [
        before,
        "new",
    ]
    assert seen.count(before) > 30 / stride


def test_a_kill_leaves_the_old_or_the_new_result(tmp_path):
    check_kills(tmp_path, "over", 9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["new", "over"])
def test_a_kill_at_any_operation_leaves_the_old_or_the_new_result(tmp_path, mode):
    check_kills(tmp_path, mode, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["new", "over"])
def test_a_full_disk_at_any_operation_leaves_the_old_or_the_new_result(tmp_path, mode):
    count = len(disturbed(tmp_path / "kill", mode, "kill"))
    scenarios = disturbed(tmp_path / "fail", mode, "fail", count=count)
    assert {code for _, code in scenarios} <= {0, REFUSED, FAILED}
    before = "old" if mode == "over" else None
    for target, code in scenarios:
        assert state(target) == ("new" if code == 0 else before)
        make(target, "new", overwrite=True)
        assert state(target) == "new" and names(target.parent) == ["r"]


@pytest.mark.parametrize("earlier", [False, True])
def test_a_block_that_raises_leaves_what_was_there(tmp_path, earlier):
    target = tmp_path / "r"
    if earlier:
        make(target, "old")
    with pytest.raises(Crash), RunFolder(target, EXPERIMENT, overwrite=True):
        raise Crash
    assert names(tmp_path) == (["r"] if earlier else [])
    assert state(target) == ("old" if earlier else None)


def test_an_interruption_waits_until_the_result_is_in_place(tmp_path, monkeypatch):
    make(tmp_path / "r", "old")
    rename = os.rename

    def interrupted(source, target):
        rename(source, target)
        if target.endswith("previous"):  # the second renaming is still to come
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("tfdp.experiments.run_folder.os.rename", interrupted)
        make(tmp_path / "r", "new", overwrite=True)
    assert state(tmp_path / "r") == "new" and names(tmp_path) == ["r"]


def test_a_finished_result_needs_overwrite(tmp_path):
    make(tmp_path / "r", "old")
    with pytest.raises(ResultExists, match="--overwrite"):
        RunFolder(tmp_path / "r", EXPERIMENT).__enter__()
    with pytest.raises(ResultError, match="--epsilon=3") as other:
        RunFolder(tmp_path / "r", Experiment(epsilon=3.0)).__enter__()
    assert not isinstance(other.value, ResultExists)
    make(tmp_path / "r", "new", overwrite=True)
    assert state(tmp_path / "r") == "new" and names(tmp_path) == ["r"]


def test_a_folder_that_is_no_result_is_not_replaced(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name in ("project", "file"):
        with pytest.raises(ResultError):
            RunFolder(tmp_path / name, EXPERIMENT, overwrite=True).__enter__()
    assert names(tmp_path) == ["file", "project"] and names(tmp_path / "project") == ["thesis.tex"]


def test_a_result_is_not_replaced_with_what_else_its_folder_holds(tmp_path):
    make(tmp_path / "r", "old")
    make(tmp_path / "r" / "seed=2", "point of a sweep")
    with pytest.raises(ResultError, match="seed=2"):
        RunFolder(tmp_path / "r", EXPERIMENT, overwrite=True).__enter__()
    assert state(tmp_path / "r" / "seed=2") == "point of a sweep"


def test_what_was_put_there_meanwhile_is_not_replaced(tmp_path):
    refused = pytest.raises(ResultError, match=r"not a result.*Move it elsewhere")
    with refused, RunFolder(tmp_path / "r", EXPERIMENT) as folder:
        folder.begin()
        keep_state(folder, "new")
        make(tmp_path / "r" / "seed=2", "other")
        folder.commit({}, "card", lambda name: pathlib.Path(name).touch())
    assert state(tmp_path / "r" / "seed=2") == "other"
    (tmp_path / "r").rename(tmp_path / "moved")
    make(tmp_path / "r", "new")
    assert state(tmp_path / "r") == "new"


def test_a_sweep_has_a_folder_of_its_own(tmp_path):
    make(tmp_path / "sweep" / "seed=1", "point")
    check_sweep_folder(tmp_path / "sweep")
    check_sweep_folder(tmp_path / "new")
    make(tmp_path / "finished", "new")
    leave(tmp_path / "unfinished")
    for name in ("finished", "unfinished"):
        with pytest.raises(ResultError, match="single training"):
            check_sweep_folder(tmp_path / name)


def test_one_process_at_a_time_makes_a_result(tmp_path):
    folder = RunFolder(tmp_path / "r", EXPERIMENT)
    with folder, pytest.raises(ResultError, match="Another process"):
        RunFolder(tmp_path / "r", EXPERIMENT).__enter__()
    make(tmp_path / "r", "new")
    assert state(tmp_path / "r") == "new"


# -- unfinished trainings ------------------------------------------------------------------------


def leave(path):
    """Leaves what a training leaves that fails after its first state."""
    with pytest.raises(Crash), RunFolder(path, EXPERIMENT) as folder:
        folder.begin()
        keep_state(folder, "new")
        raise Crash


def test_a_training_that_fails_is_resumed_and_leaves_no_secrets(tmp_path):
    leave(tmp_path / "r")
    leave(tmp_path / "r")
    assert (tmp_path / "r.unfinished").stat().st_mode & 0o777 == 0o700
    with RunFolder(tmp_path / "r", EXPERIMENT) as folder:
        assert folder.resumable and names(folder.log_dir) == ["events.out.tfevents.1"]
        folder.begin()
        assert folder.restarts == 2
    make(tmp_path / "r", "new")
    assert names(tmp_path) == ["r"]
    with RunFolder(tmp_path / "r", EXPERIMENT, overwrite=True) as folder:
        assert not folder.resumable


def test_a_training_that_fails_before_it_begins_leaves_nothing(tmp_path):
    with pytest.raises(Crash), RunFolder(tmp_path / "r", EXPERIMENT):
        raise Crash
    assert names(tmp_path) == []


def test_a_training_can_be_discarded(tmp_path):
    leave(tmp_path / "r")
    with RunFolder(tmp_path / "r", EXPERIMENT) as folder:
        folder.begin()
        folder.discard()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [("epsilon", {"epsilon": 3.0}), ("insecure_seed", {"insecure_seed": 7})],
)
def test_a_training_is_resumed_with_its_own_settings_only(tmp_path, name, changes):
    leave(tmp_path / "r")
    others = Experiment(**{"epsilon": 2.0} | changes)
    with pytest.raises(ResultError, match=f"--{name}="):
        RunFolder(tmp_path / "r", others).__enter__()
    with RunFolder(tmp_path / "r", EXPERIMENT) as folder:  # nothing is lost
        assert folder.resumable


def test_a_training_is_resumed_with_the_same_files_and_version_only(tmp_path, monkeypatch):
    weights = tmp_path / "model.keras"
    weights.write_text("the")
    of = Experiment(epsilon=2.0, initial_weights=str(weights))
    with pytest.raises(Crash), RunFolder(tmp_path / "r", of) as folder:
        folder.begin()
        raise Crash
    monkeypatch.setattr("tfdp.__version__", "99")
    with pytest.raises(ResultError, match="version of tfdp"):
        RunFolder(tmp_path / "r", of).__enter__()
    monkeypatch.undo()
    weights.write_text("another")
    with pytest.raises(ResultError, match="SHA-256"):
        RunFolder(tmp_path / "r", of).__enter__()
