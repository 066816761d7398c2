"""A result appears whole or not at all, is replaced with overwrite only, and can be resumed."""

import pathlib
import subprocess
import sys

import pytest

from tests.experiments.killed_commits import FAILED, KILLED, REFUSED
from tests.experiments.result_helpers import Crash, keep_state, make, names, state
from tfdp.experiments import Experiment
from tfdp.experiments.result_folder import (
    ResultBusy,
    ResultError,
    ResultExists,
    ResultFolder,
    new_folder,
)
from tfdp.experiments.unfinished import settings_of

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
        if mode == "state" and seen[-1] is None:
            with ResultFolder(target) as opened:
                assert opened.goes_on
        if mode == "over" and seen[-1] is None:  # between two renames
            with pytest.raises(KeyboardInterrupt), ResultFolder(target, overwrite=True):
                raise KeyboardInterrupt
            seen[-1] = state(target)  # the next process brought it back
        make(target, "new", overwrite=True, stateful=mode == "state")
        assert state(target) == "new" and names(target.parent) == ["r"]
    assert [which for k, which in enumerate(seen) if not k or which != seen[k - 1]] == [
        before,
        "new",
    ]
    assert seen.count(before) > 30 / stride


def test_a_kill_leaves_the_old_or_the_new_result(tmp_path):
    check_kills(tmp_path, "over", 9)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["new", "over", "state"])
def test_a_kill_at_any_operation_leaves_the_old_or_the_new_result(tmp_path, mode):
    check_kills(tmp_path, mode, 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["new", "over", "state"])
def test_a_full_disk_at_any_operation_leaves_the_old_or_the_new_result(tmp_path, mode):
    count = len(disturbed(tmp_path / "kill", mode, "kill"))
    scenarios = disturbed(tmp_path / "fail", mode, "fail", count=count)
    assert {code for _, code in scenarios} <= {0, REFUSED, FAILED}
    before = "old" if mode == "over" else None
    for target, code in scenarios:
        assert state(target) == ("new" if code == 0 else before)
        make(target, "new", overwrite=True, stateful=mode == "state")
        assert state(target) == "new"


@pytest.mark.parametrize("earlier", [False, True])
def test_a_block_that_raises_leaves_what_was_there(tmp_path, earlier):
    target = tmp_path / "r"
    if earlier:
        make(target, "old")
    with pytest.raises(KeyboardInterrupt), ResultFolder(target, overwrite=True):
        raise KeyboardInterrupt
    assert names(tmp_path) == (["r"] if earlier else [])
    assert state(target) == ("old" if earlier else None)


def test_a_finished_result_needs_overwrite(tmp_path):
    make(tmp_path / "r", "old")
    with pytest.raises(ResultExists, match="--overwrite"):
        ResultFolder(tmp_path / "r").__enter__()
    make(tmp_path / "r", "new", overwrite=True)
    assert state(tmp_path / "r") == "new" and names(tmp_path) == ["r"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name in ("project", "file"):
        with pytest.raises(ResultError):
            ResultFolder(tmp_path / name, overwrite=True).__enter__()
    assert names(tmp_path) == ["file", "project"] and names(tmp_path / "project") == ["thesis.tex"]


def test_one_process_at_a_time_makes_a_result(tmp_path):
    with ResultFolder(tmp_path / "r"), pytest.raises(ResultBusy):
        ResultFolder(tmp_path / "r").__enter__()
    make(tmp_path / "r", "new")
    assert state(tmp_path / "r") == "new"


def test_too_little_space_is_refused_before_the_training(tmp_path):
    with ResultFolder(tmp_path / "r") as folder:
        folder.check_space(1000)
        with pytest.raises(ResultError, match="free space"):
            folder.check_space(10**18)


def test_numbers_continue_after_the_largest_that_is_taken(tmp_path):
    for name in ("a_2_b", "ab_007"):
        (tmp_path / name).mkdir()
    assert new_folder(tmp_path / "a") == str(tmp_path / "a_001")
    leave(tmp_path / "a", numbered=True)  # its state is kept under the number 2
    (tmp_path / "a_041").mkdir()
    folders = [ResultFolder(tmp_path / "a", numbered=True) for _ in range(2)]
    with folders[0], folders[1]:
        assert [folder.path for folder in folders] == [
            str(tmp_path / f"a_{n:03}") for n in (42, 43)
        ]
    with ResultFolder(tmp_path / "a_002") as folder:
        assert folder.goes_on


# -- unfinished trainings ------------------------------------------------------------------------


def leave(path, **options):
    """Leaves what a training leaves that fails after its first state."""
    with pytest.raises(Crash), ResultFolder(path, **options) as folder:
        keep_state(folder, "new")
        (pathlib.Path(folder.log_dir)).mkdir()
        (pathlib.Path(folder.log_dir) / "events.out.tfevents.0").touch()
        raise Crash


def test_a_training_that_fails_is_resumed_and_leaves_no_secrets(tmp_path):
    leave(tmp_path / "r")
    assert (tmp_path / "r.secret").stat().st_mode & 0o777 == 0o700
    with ResultFolder(tmp_path / "r") as folder:
        assert folder.goes_on and names(folder.log_dir) == ["events.out.tfevents.0"]
    make(tmp_path / "r", "new", stateful=True)
    assert names(tmp_path) == ["r"]
    with ResultFolder(tmp_path / "r", overwrite=True) as folder:
        assert not folder.goes_on


def test_a_training_that_fails_before_its_first_state_leaves_nothing(tmp_path):
    with pytest.raises(Crash), ResultFolder(tmp_path / "r") as folder:
        folder.checkpoints({})
        raise Crash
    assert names(tmp_path) == []


def test_a_training_can_be_discarded(tmp_path):
    leave(tmp_path / "r")
    with ResultFolder(tmp_path / "r", resume=False) as folder:
        folder.checkpoints({"which": "other"})
        assert not (folder.goes_on or folder.holds_state)
    leave(tmp_path / "s")
    with ResultFolder(tmp_path / "s") as folder:
        folder.checkpoints({"which": "new"})
        folder.abandon()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("noise_multiplier", {"noise_multiplier": 2.0}),
        ("batch_size", {"batch_size": 64}),
        ("insecure_seed", {"insecure_seed": 7}),
    ],
)
def test_a_training_is_resumed_with_its_own_settings_only(tmp_path, name, changes):
    settings = settings_of(Experiment(noise_multiplier=4.0))
    with pytest.raises(Crash), ResultFolder(tmp_path / "r") as folder:
        backup = folder.checkpoints(settings)
        (pathlib.Path(backup) / "state").touch()
        raise Crash
    others = settings_of(Experiment(**{"noise_multiplier": 4.0} | changes))
    with (
        pytest.raises(ResultError, match=f"--{name}="),
        ResultFolder(tmp_path / "r") as folder,
    ):
        folder.checkpoints(others)
    with ResultFolder(tmp_path / "r") as folder:  # nothing is lost
        folder.checkpoints(settings)
        assert folder.goes_on


def test_another_version_does_not_resume(tmp_path, monkeypatch):
    leave(tmp_path / "r")
    monkeypatch.setattr("tfdp.__version__", "99")
    with pytest.raises(ResultError, match="99"), ResultFolder(tmp_path / "r") as folder:
        keep_state(folder, "new")
