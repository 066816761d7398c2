"""Only one process at a time makes a result, and only what killed processes left is cleared."""

import errno
import os
import pathlib
import shutil
import sys

import pytest

from tfdp import _files
from tfdp.experiments import partial_folder, result_folder
from tfdp.experiments.result_folder import (
    ResultBusy,
    ResultError,
    ResultExists,
    ResultFolder,
    new_folder,
)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from result_helpers import make, names, python, state

# -- one process at a time -------------------------------------------------------------------------

HOLD = """
import sys
from tfdp.experiments.result_folder import ResultFolder
with ResultFolder(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.readline()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    process = python(HOLD, tmp_path / "r")
    assert process.stdout.readline() == "in\n"
    (tmp_path / "r.partial" / "result" / "model.0.partial.keras").touch()
    words = rf"Found process {process.pid} on \S+ \(since 20\S+\), which is making it"
    with pytest.raises(ResultBusy, match=words):
        ResultFolder(tmp_path / "r").__enter__()
    assert names(tmp_path / "r.partial" / "result") == ["model.0.partial.keras"]
    process.kill()  # after that, nothing needs to be removed by hand
    process.communicate(timeout=60)
    assert names(tmp_path) == ["r.partial"]
    make(tmp_path / "r", "new")
    assert state(tmp_path / "r") == "new"
    assert names(tmp_path) == ["r"]


def test_a_holder_that_has_not_said_who_it_is_is_respected(tmp_path, monkeypatch):
    with ResultFolder(tmp_path / "r"):
        (tmp_path / "r.partial" / "lock").write_text("")
        with pytest.raises(ResultBusy, match="another process"):
            ResultFolder(tmp_path / "r").__enter__()


def test_a_lock_on_a_file_that_is_gone_is_no_lock(tmp_path, monkeypatch):
    """Before the lock, another process removes the file, and a third process makes a new one."""
    flock, others = _files.fcntl.flock, []

    def late(handle, how):
        if not others:
            others.append(handle)
            shutil.rmtree(tmp_path / "r.partial")
            others.append(ResultFolder(tmp_path / "r"))
            others[1].__enter__()
        flock(handle, how)

    monkeypatch.setattr(_files.fcntl, "flock", late)
    with pytest.raises(ResultBusy):
        ResultFolder(tmp_path / "r").__enter__()
    others[1].__exit__(None, None, None)


def remove(partial):
    shutil.rmtree(partial)


def move(partial):
    partial.rename(partial.with_name("elsewhere"))


def written(which, then=None):
    """Returns a function that writes the model `which`, and does something else before it ends."""

    def save_model(path):
        pathlib.Path(path).write_text(f"model {which}")
        if then is not None:
            then()

    return save_model


@pytest.mark.parametrize("take", [remove, move])
@pytest.mark.parametrize("moment", ["before", "while writing", "at the digests", "at the renaming"])
def test_a_folder_that_was_taken_away_is_not_committed_or_cleared(
    tmp_path, monkeypatch, caplog, take, moment
):
    others = []

    def taken():
        take(tmp_path / "r.partial")
        others.append(ResultFolder(tmp_path / "r"))
        others[0].__enter__()
        for name in ("model.keras", "model_card.md"):
            (tmp_path / "r.partial" / "result" / name).write_text("of the other run")
        if moment == "at the renaming":
            (tmp_path / "r.partial" / "result" / "run.json").write_text("of the other run")

    with ResultFolder(tmp_path / "r") as folder, monkeypatch.context() as patch:
        if moment == "before":
            taken()
        if moment == "at the renaming":
            patch.setattr(result_folder, "sync_tree", lambda work: taken())
        if moment == "at the digests":
            patch.setattr(result_folder, "digest", lambda path: others or taken() or "")
        then = taken if moment == "while writing" else None
        with pytest.raises(ResultError, match=r"removed or moved it; the result was not put in"):
            folder.commit({}, "card", written("first", then))
    assert "was not cleared" in caplog.text
    assert not (tmp_path / "r").exists()
    of_other = tmp_path / "r.partial" / "result"
    assert (of_other / "model.keras").read_text() == "of the other run"
    assert (of_other / "run.json").exists() == (moment == "at the renaming")
    others[0].__exit__(None, None, None)
    assert names(tmp_path) == (["elsewhere"] if take is move else [])


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def none(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(_files.fcntl, "flock", none)
    with pytest.raises(ResultError, match="file system with locks"):
        ResultFolder(tmp_path / "r").__enter__()


def test_a_folder_is_entered_once(tmp_path):
    with ResultFolder(tmp_path / "r") as folder, pytest.raises(ResultError, match="once"):
        folder.__enter__()


FORK = """
import os, sys
from tfdp.experiments.result_folder import ResultFolder
child = None
with ResultFolder(sys.argv[1]):
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        print(*os.listdir(sys.argv[1] + ".partial"), flush=True)
        sys.stdin.readline()
"""


def test_a_forked_child_leaves_the_folder_and_the_lock_to_its_parent(tmp_path):
    process = python(FORK, tmp_path / "runs" / "r")
    assert set(process.stdout.readline().split()) == {"lock", "result"}
    with pytest.raises(ResultBusy, match=f"process {process.pid} "):
        ResultFolder(tmp_path / "runs" / "r").__enter__()
    _, errors = process.communicate("\n", timeout=60)
    assert process.returncode == 0, errors
    assert names(tmp_path) == []


# -- leftovers -------------------------------------------------------------------------------------


def foreign_file(partial):
    partial.mkdir()
    (partial / "thesis.tex").touch()


def foreign_beside_lock(partial):
    partial.mkdir()
    (partial / "lock").write_text('{"program": "tfdp"}')
    (partial / "thesis.tex").touch()


def foreign_lock(partial):
    partial.mkdir()
    (partial / "lock").write_text("4711")
    (partial / "result").mkdir()


def empty_lock_beside_a_folder(partial):
    partial.mkdir()
    (partial / "lock").touch()
    (partial / "result").mkdir()


def foreign_in(*place):
    def put(partial):
        partial.joinpath(*place).parent.mkdir(parents=True)
        (partial / "lock").write_text('{"program": "tfdp"}')
        partial.joinpath(*place).touch()

    return put


def only_a_file(partial):
    partial.touch()


def link(partial):
    partial.with_name("elsewhere").mkdir()
    partial.symlink_to(partial.with_name("elsewhere"))


@pytest.mark.parametrize(
    "put",
    [
        foreign_file,
        foreign_beside_lock,
        foreign_lock,
        empty_lock_beside_a_folder,
        foreign_in("result", "thesis.tex"),
        foreign_in("result", "tensorboard", "notes.txt"),
        foreign_in("previous", "thesis.tex"),
        foreign_in("result"),
        only_a_file,
        link,
    ],
)
def test_what_is_not_certainly_ours_is_not_cleared(tmp_path, put):
    put(tmp_path / "r.partial")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(ResultError, match=r"r\.partial to be free"):
        ResultFolder(tmp_path / "r").__enter__()
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    with ResultFolder(tmp_path / "r", numbered=True):  # a numbered folder does not use this place
        pass


def test_files_that_appear_during_a_run_stay_and_are_named(tmp_path, caplog):
    with ResultFolder(tmp_path / "r_007") as folder:
        thesis = pathlib.Path(folder.log_dir).with_name("thesis.tex")
        thesis.touch()
    assert f"was not cleared, because it holds {thesis}" in caplog.text
    caplog.clear()
    with ResultFolder(tmp_path / "r", numbered=True) as folder:
        assert folder.path == str(tmp_path / "r_008")
    assert f"was not cleared: Expected {thesis.parents[1]} to be free" in caplog.text
    assert thesis.exists()


def test_an_unfinished_model_is_cleared(tmp_path):
    foreign_in("result", "model.0.partial.keras")(tmp_path / "r.partial")
    with ResultFolder(tmp_path / "r"):
        assert names(tmp_path / "r.partial" / "result") == []
    assert names(tmp_path) == []


def test_a_leftover_of_another_user_is_not_cleared(tmp_path, monkeypatch):
    (tmp_path / "r.partial").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ResultError, match=f"a folder of user {os.getuid()}"):
        ResultFolder(tmp_path / "r").__enter__()
    assert names(tmp_path) == ["r.partial"]


def moved_aside(tmp_path):
    """Makes what a process leaves if it dies between the two renamings."""
    make(tmp_path / "r", "old")
    partial = tmp_path / "r.partial"
    (partial / "result").mkdir(parents=True)
    (partial / "lock").write_text('{"program": "tfdp"}')
    (tmp_path / "r").rename(partial / "previous")
    return partial


def test_an_earlier_result_that_was_aside_comes_back_with_a_word(tmp_path, caplog):
    moved_aside(tmp_path)
    with pytest.raises(ResultExists), caplog.at_level("WARNING"):
        ResultFolder(tmp_path / "r").__enter__()
    assert "killed" in caplog.text and "is back" in caplog.text
    assert state(tmp_path / "r") == "old"
    assert names(tmp_path) == ["r"]


@pytest.mark.parametrize("left", [True, False], ids=["with result", "without result"])
def test_an_earlier_result_that_is_aside_is_not_lost_to_somebody_elses_folder(tmp_path, left):
    partial = moved_aside(tmp_path)
    if not left:
        (partial / "result").rmdir()
    make(tmp_path / "x", "new")
    (tmp_path / "x").rename(tmp_path / "r")
    with pytest.raises(ResultError, match=r"the result that was there is in .*previous"):
        ResultFolder(tmp_path / "r", overwrite=True).__enter__()
    assert state(partial / "previous") == "old"
    assert state(tmp_path / "r") == "new"


def test_an_earlier_result_stays_aside_if_it_cannot_be_moved_back(tmp_path, monkeypatch):
    make(tmp_path / "r", "old")
    make(tmp_path / "x", "other")
    rename, previous = os.rename, tmp_path / "r.partial" / "previous"

    def once(source, target):
        if target == str(tmp_path / "r"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    with ResultFolder(tmp_path / "r", overwrite=True) as folder, monkeypatch.context() as patch:
        patch.setattr(result_folder, "exchange", lambda *names: False)
        patch.setattr(os, "rename", once)
        with pytest.raises(ResultError, match=f"what was there before is in {previous} "):
            folder.commit({}, "card", written("new"))
    assert state(previous) == "old"
    (tmp_path / "x").rename(tmp_path / "r")
    with pytest.raises(ResultError, match=f"the result that was there is in {previous}"):
        ResultFolder(tmp_path / "r", overwrite=True).__enter__()
    assert (state(previous), state(tmp_path / "r")) == ("old", "other")
    (tmp_path / "r").rename(tmp_path / "x")
    with ResultFolder(tmp_path / "r", overwrite=True):
        assert state(tmp_path / "r") == "old"
    assert names(tmp_path) == ["r", "x"]


def test_an_earlier_result_that_was_replaced_is_cleared(tmp_path, monkeypatch):
    make(tmp_path / "r", "old")
    monkeypatch.setattr(result_folder, "exchange", lambda *names: False)
    with monkeypatch.context() as patch:  # as if the process was killed after the renaming
        patch.setattr(partial_folder.PartialFolder, "_clear", lambda *arguments: None)
        make(tmp_path / "r", "new", overwrite=True)
    assert state(tmp_path / "r.partial" / "previous") == "old"
    with ResultFolder(tmp_path / "r", overwrite=True):
        assert not (tmp_path / "r.partial" / "previous").exists()
    assert state(tmp_path / "r") == "new"
    assert names(tmp_path) == ["r"]


# -- numbers ---------------------------------------------------------------------------------------

NUMBERED = """
import sys
sys.path.insert(0, "tests/experiments")
from result_helpers import make
print("ready", flush=True)
sys.stdin.readline()
make(sys.argv[1], "new", numbered=True)
"""


def test_every_run_gets_a_number_of_its_own(tmp_path):
    (tmp_path / "runs").mkdir()
    processes = [python(NUMBERED, tmp_path / "runs" / "a") for _ in range(6)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # let all start at the same time
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    found = names(tmp_path / "runs")
    assert len(found) == 6
    assert all(state(tmp_path / "runs" / name) == "new" for name in found)


def test_numbers_go_on_after_the_largest_that_is_taken(tmp_path):
    for name in ("a", "a_2_b", "ab_007", "b_009"):
        (tmp_path / name).mkdir()
    with ResultFolder(tmp_path / "a", numbered=True) as first:
        assert first.path == str(tmp_path / "a_001")
        with ResultFolder(tmp_path / "a", numbered=True) as second:
            assert second.path == str(tmp_path / "a_002")
    (tmp_path / "a_041").mkdir()  # empty, but not made by tfdp
    (tmp_path / "a_120.secret").mkdir()  # secrets of a run without a result
    make(tmp_path / "a", "new", numbered=True)
    assert state(tmp_path / "a_121") == "new"
    with pytest.raises(ResultError, match="always new"):
        ResultFolder(tmp_path / "a", numbered=True, overwrite=True)


def test_a_folder_for_several_results_has_a_number_too(tmp_path):
    base = tmp_path / "runs" / "a"
    assert new_folder(base) == f"{base}_001"
    with ResultFolder(base, numbered=True) as folder:
        assert folder.path == f"{base}_002"
        assert new_folder(base) == f"{base}_003"
    assert names(tmp_path / "runs") == ["a_001", "a_003"]
    assert not names(f"{base}_001") and not names(f"{base}_003")
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="Not a directory"):
        new_folder(tmp_path / "file" / "a")


def test_leftovers_of_killed_runs_are_cleared_and_living_ones_are_not(tmp_path):
    process = python(HOLD, tmp_path / "a_003")
    assert process.stdout.readline() == "in\n"
    process.kill()
    process.communicate(timeout=60)
    foreign_file(tmp_path / "a_004.partial")
    with ResultFolder(tmp_path / "a_005"), ResultFolder(tmp_path / "a", numbered=True) as folder:
        assert folder.path == str(tmp_path / "a_006")
        assert names(tmp_path) == ["a_004.partial", "a_005.partial", "a_006.partial"]
