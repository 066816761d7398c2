"""A result is whole or not there, whoever dies or fails when; and nobody else's files are touched."""

import errno
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile

import pytest

from tfdp import _files
from tfdp.experiments import partial_folder, result_folder
from tfdp.experiments.result_folder import (
    ResultBusy,
    ResultError,
    ResultExists,
    ResultFolder,
    check,
    main,
)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from killed_commits import FAILED, KILLED, REFUSED, ROOT, make

FILES = {"model.keras", "run.json", "model_card.md", "tensorboard"}


def state(path):
    """Which whole result is there; None where there is nothing. Anything else fails."""
    if not os.path.lexists(path) or not os.listdir(path):
        return None
    which = check(path)["which"]
    assert set(os.listdir(path)) == FILES
    assert (path / "model.keras").read_text() == f"model {which}"
    assert (path / "model_card.md").read_text() == f"card {which}"
    assert (path / "tensorboard" / "events.out.tfevents.1").read_text() == f"log {which}"
    return which


def names(folder):
    return sorted(os.listdir(folder))


def python(code, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


# -- whole or not at all ---------------------------------------------------------------------------


def disturbed(folder, mode, action, *count):
    script = pathlib.Path(__file__).with_name("killed_commits.py")
    done = subprocess.run(
        [sys.executable, script, folder, mode, action, *map(str, count)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = sorted((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    return [(p / "runs" / "r", int((p / "code").read_text())) for p in found], done.stdout


@pytest.mark.parametrize("mode", ["new", "empty", "over", "aside"])
def test_a_kill_at_any_operation_leaves_the_old_or_the_new_result(tmp_path, mode):
    scenarios, _ = disturbed(tmp_path, mode, "kill")
    assert [code for _, code in scenarios] == [KILLED] * (len(scenarios) - 1) + [1]
    before = "old" if mode in ("over", "aside") else None
    seen = []
    for target, _ in scenarios:
        seen.append(state(target))
        if mode == "aside" and seen[-1] is None:
            assert state(target.with_name("r.partial") / "previous") == "old"
        # Whatever is left over, the next run clears it, and an earlier result is in its place.
        with ResultFolder(target, overwrite=True):
            assert state(target) == (seen[-1] or before)
        assert state(target) == (seen[-1] or before)
        if target.parent.exists():
            assert set(names(target.parent)) <= {"r"}
    # First the earlier state, then (only where names cannot be swapped) none, then the new one.
    order = ["old", None, "new"] if mode == "aside" else [before, "new"]
    assert [w for k, w in enumerate(seen) if k == 0 or w != seen[k - 1]] == order
    assert seen.count(before) > 30  # the operations that were counted before the renaming
    if mode == "over":
        assert seen.count("new") > 5  # and those of removing the old one


@pytest.mark.parametrize("mode", ["new", "over", "aside"])
def test_a_failure_at_any_operation_is_one_sentence_and_leaves_the_old_or_the_new(tmp_path, mode):
    (tmp_path / "kill").mkdir()
    (tmp_path / "fail").mkdir()
    count = len(disturbed(tmp_path / "kill", mode, "kill")[0])
    scenarios, said = disturbed(tmp_path / "fail", mode, "fail", count)
    assert len(scenarios) == count
    assert {code for _, code in scenarios} == {0, REFUSED, FAILED}
    before = None if mode == "new" else "old"
    for target, code in scenarios:
        assert state(target) == ("new" if code == 0 else before)
        with ResultFolder(target, overwrite=True):
            pass
        assert state(target) == ("new" if code == 0 else before)
    sentences = [line for line in said.splitlines() if "No space left" in line]
    assert len(sentences) == sum(code == REFUSED for _, code in scenarios)
    assert any("model that was trained is lost" in line for line in sentences)


def test_a_block_that_raises_leaves_nothing_not_even_folders(tmp_path):
    target = tmp_path / "runs" / "deep" / "r"
    with pytest.raises(KeyboardInterrupt), ResultFolder(target) as folder:
        assert names(target.parent) == ["r.partial"]
        assert folder.log_dir == str(target.with_name("r.partial") / "result" / "tensorboard")
        raise KeyboardInterrupt
    assert not names(tmp_path)


def test_a_block_that_raises_leaves_an_earlier_result(tmp_path):
    make(tmp_path / "r", "old")
    with pytest.raises(RuntimeError), ResultFolder(tmp_path / "r", overwrite=True):
        raise RuntimeError
    assert state(tmp_path / "r") == "old"
    assert names(tmp_path) == ["r"]


def test_a_full_disk_at_the_end_says_what_is_lost(tmp_path, monkeypatch):
    make(tmp_path / "r", "old")

    def full(*names):
        raise OSError(errno.ENOSPC, "No space left on device")

    for module, name in ((result_folder, "exchange"), (os, "fsync")):
        with (
            ResultFolder(tmp_path / "r", overwrite=True) as folder,
            monkeypatch.context() as patch,
        ):
            patch.setattr(module, name, full)
            with pytest.raises(ResultError, match=r"No space left.*trained is lost") as raised:
                folder.commit({}, "", lambda path: pathlib.Path(path).write_text("model"))
        assert "\n" not in str(raised.value)
        assert state(tmp_path / "r") == "old"
        assert names(tmp_path) == ["r"]


def test_a_folder_keeps_its_permissions(tmp_path):
    (tmp_path / "r").mkdir(mode=0o700)
    make(tmp_path / "r", "old")
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700
    make(tmp_path / "r", "new", overwrite=True)
    assert stat.S_IMODE((tmp_path / "r").stat().st_mode) == 0o700


def test_the_log_moves_with_the_result(tmp_path):
    with ResultFolder(tmp_path / "r") as folder:
        os.mkdir(folder.log_dir)
        folder.commit({}, "", lambda path: pathlib.Path(path).touch())
        assert folder.log_dir == str(tmp_path / "r" / "tensorboard")
        assert os.path.isdir(folder.log_dir)
        with pytest.raises(ResultError, match="closed"):
            folder.commit({}, "", lambda path: None)
    with pytest.raises(ResultError, match="closed"):
        ResultFolder(tmp_path / "s").secrets()


def test_everything_is_on_the_disk_before_the_renaming(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def noted(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    swapped = []
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(
        result_folder, "exchange", lambda a, b: swapped.append(len(synced)) or _files.exchange(a, b)
    )
    make(tmp_path / "r", "old")
    synced.clear()
    make(tmp_path / "r", "new", overwrite=True)
    work = tmp_path / "r.partial" / "result"
    wanted = {work, *(work / n for n in FILES), work / "tensorboard" / "events.out.tfevents.1"}
    assert set(map(str, wanted)) <= set(synced[: swapped[0]])
    assert str(tmp_path) in synced[swapped[0] :]  # and the renaming itself
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert record.keys() == {"which", "model_sha256", "model_card_sha256"}


def test_where_names_cannot_be_swapped_a_result_is_replaced_too(tmp_path, monkeypatch):
    make(tmp_path / "r", "old")
    monkeypatch.setattr(result_folder, "exchange", lambda *names: False)
    make(tmp_path / "r", "new", overwrite=True)
    assert state(tmp_path / "r") == "new"
    assert names(tmp_path) == ["r"]


# -- digests ---------------------------------------------------------------------------------------


def test_digests_find_a_mixture(tmp_path, capsys):
    make(tmp_path / "a", "old")
    make(tmp_path / "b", "new")
    assert main(["check", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    for name in ("model.keras", "model_card.md"):
        shutil.copytree(tmp_path / "a", tmp_path / name)
        shutil.copy(tmp_path / "b" / name, tmp_path / name / name)
        with pytest.raises(ResultError, match="digest"):
            check(tmp_path / name)
    (tmp_path / "b" / "model.keras").unlink()
    capsys.readouterr()
    assert main(["check", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    output = capsys.readouterr()
    assert "whole" in output.out and "No such file" in output.err
    for folder in ("nowhere", "."):
        assert main(["check", str(tmp_path / folder)]) == 1
    assert main([]) == main(["check"]) == main(["remove", str(tmp_path)]) == 2


def test_the_command_needs_no_tensorflow(tmp_path):
    make(tmp_path / "a", "old")
    code = (
        "import sys, tfdp.experiments.result_folder as r\n"
        "status = r.main(['check', sys.argv[1]])\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
        "sys.exit(status)"
    )
    output, errors = (process := python(code, tmp_path / "a")).communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "whole" in output
    command = [sys.executable, "-m", "tfdp.experiments.result_folder", "check", tmp_path / "a"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# -- what is never replaced ------------------------------------------------------------------------


def test_a_finished_result_needs_overwrite(tmp_path):
    make(tmp_path / "r", "old")
    with pytest.raises(ResultExists, match=r"finished one in .*/r\. .*--overwrite"):
        ResultFolder(tmp_path / "r").__enter__()
    assert names(tmp_path) == ["r"]
    make(tmp_path / "r", "new", overwrite=True)
    assert state(tmp_path / "r") == "new"


def test_a_result_that_appears_meanwhile_is_not_replaced(tmp_path):
    make(tmp_path / "other", "old")
    with ResultFolder(tmp_path / "r") as folder:
        shutil.copytree(tmp_path / "other", tmp_path / "r")
        with pytest.raises(ResultExists, match="lost"):
            folder.commit({}, "", lambda path: pathlib.Path(path).touch())
    assert state(tmp_path / "r") == "old"
    assert names(tmp_path) == ["other", "r"]


def test_a_result_that_appears_at_the_renaming_is_not_replaced(tmp_path, monkeypatch):
    make(tmp_path / "other", "old")
    rename = os.rename

    def late(source, target):
        shutil.copytree(tmp_path / "other", tmp_path / "r")
        rename(source, target)

    with ResultFolder(tmp_path / "r") as folder, monkeypatch.context() as patch:
        patch.setattr(os, "rename", late)
        with pytest.raises(ResultExists, match="finished"):
            folder.commit({}, "", lambda path: pathlib.Path(path).touch())
    assert state(tmp_path / "r") == "old"


@pytest.mark.parametrize("aside", [False, True], ids=["swap", "aside"])
def test_files_that_appear_at_the_swap_are_put_back(tmp_path, monkeypatch, aside):
    make(tmp_path / "r", "old")
    swap, rename = _files.exchange, os.rename

    def late(source, target):
        if not aside:
            (tmp_path / "r" / "thesis.tex").touch()
        return not aside and swap(source, target)

    def late_rename(source, target):
        if "previous" in target:
            (tmp_path / "r" / "thesis.tex").touch()
        rename(source, target)

    with ResultFolder(tmp_path / "r", overwrite=True) as folder, monkeypatch.context() as patch:
        # The first swap finds the file; the second one, back, only swaps.
        patch.setattr(result_folder, "exchange", late)
        if aside:
            patch.setattr(os, "rename", late_rename)
        with pytest.raises(ResultError, match=r"thesis\.tex"):
            folder.commit({}, "", lambda path: pathlib.Path(path).touch())
        (tmp_path / "r" / "thesis.tex").unlink()
    assert state(tmp_path / "r") == "old"
    assert names(tmp_path) == ["r"]


def add_file(folder):
    (folder / "thesis.tex").touch()


def add_to_log(folder):
    (folder / "tensorboard" / "notes.txt").touch()


def link_record(folder):
    (folder / "run.json").rename(folder.parent / "elsewhere")
    (folder / "run.json").symlink_to(folder.parent / "elsewhere")


def link_log(folder):
    shutil.rmtree(folder / "tensorboard")
    (folder / "tensorboard").symlink_to(folder.parent)


def link_in_log(folder):
    (folder / "tensorboard" / "x.tfevents").symlink_to(folder.parent)


def other_record(folder):
    (folder / "run.json").write_text('{"mechanism": "dpsgd"}')


def broken_record(folder):
    (folder / "run.json").write_text('{"mechanism": ')


def no_record(folder):
    (folder / "run.json").unlink()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (add_file, "thesis.tex"),
        (add_to_log, "tensorboard/notes.txt"),
        (link_record, "run.json"),
        (link_log, "tensorboard"),
        (link_in_log, "tensorboard/x.tfevents"),
        (other_record, "no run.json with digests"),
        (broken_record, "no run.json with digests"),
        (no_record, "no run.json with digests"),
    ],
)
def test_a_folder_with_foreign_files_is_refused_even_with_overwrite(tmp_path, change, found):
    make(tmp_path / "r", "old")
    change(tmp_path / "r")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with pytest.raises(ResultError, match=f"Found {found} in "):
        ResultFolder(tmp_path / "r", overwrite=True).__enter__()
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_a_file_or_a_link_is_refused(tmp_path):
    (tmp_path / "file").touch()
    make(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name, words in (
        ("file", "a file"),
        ("link", "symbolic link"),
        ("file/r", "Not a directory"),
    ):
        with pytest.raises(ResultError, match=words):
            ResultFolder(tmp_path / name, overwrite=True).__enter__()
    assert names(tmp_path) == ["file", "link", "real"]
    assert state(tmp_path / "real") == "old"


def test_one_folder_by_two_names_is_one(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with ResultFolder(tmp_path / "real" / "r"), pytest.raises(ResultBusy):
        ResultFolder(tmp_path / "link" / "r").__enter__()
    make(tmp_path / "link" / "r", "new")
    assert state(tmp_path / "real" / "r") == "new"


def test_what_the_system_would_refuse_at_the_end_is_refused_at_once(tmp_path, monkeypatch):
    make(tmp_path / "r", "old")
    cases = [
        (os.path, "ismount", lambda path: True, "mount point"),
        (os, "geteuid", lambda: os.getuid() + 1, "folder of user"),
        (os, "access", lambda path, mode: False, "read-only folder"),
    ]
    for module, name, fake, words in cases:
        with monkeypatch.context() as patch, pytest.raises(ResultError, match=words):
            patch.setattr(module, name, fake)
            ResultFolder(tmp_path / "r", overwrite=True).__enter__()
    monkeypatch.chdir(tmp_path / "r")
    with pytest.raises(ResultError, match="current folder"):
        ResultFolder(".", overwrite=True).__enter__()
    with pytest.raises(ResultError, match=r"mount point|Found .* in /"):
        ResultFolder("/", overwrite=True).__enter__()
    assert names(tmp_path) == ["r"]


@pytest.mark.parametrize("name", ["mkdir", "pwrite", "open", "fsync"])
def test_a_place_that_cannot_be_written_is_refused_and_left(tmp_path, monkeypatch, name):
    function = getattr(os, name)

    def refuse(path, *arguments, **options):
        if name in ("mkdir", "open") and not str(path).startswith(str(tmp_path)):
            return function(path, *arguments, **options)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, refuse)
        with pytest.raises(ResultError, match="Read-only file system"):
            ResultFolder(tmp_path / "runs" / "r").__enter__()
    assert not names(tmp_path)


READ_ONLY = """
import os, pathlib, sys
from tfdp.experiments.result_folder import ResultError, ResultFolder
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(65534)  # permissions do not bind the superuser
os.mkdir("r", 0o555)
for name in ("r/a", "r/deep/a", "r"):
    try:
        ResultFolder(name).__enter__()
    except ResultError as error:
        print(error)
assert not os.listdir("r")
"""


def test_a_read_only_folder_is_refused():
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to other users
        os.chmod(folder, 0o777)
        output, errors = (process := python(READ_ONLY, folder)).communicate(timeout=60)
        assert process.returncode == 0, errors
        assert names(folder) == ["r"]
    new, deep, itself = output.splitlines()
    assert "Permission denied" in new and "Permission denied" in deep
    assert "read-only folder" in itself


def test_too_little_space_is_refused_before_and_left(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    with ResultFolder(tmp_path / "r") as folder:
        folder.check_space(1000)
        with pytest.raises(ResultError, match=r"Expected .* MiB of free space"):
            folder.check_space(usage.total)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(ResultError, match=r"Expected 1\.0 MiB of free space .* Found 0\.0 MiB"):
        ResultFolder(tmp_path / "runs" / "r").__enter__()
    assert not names(tmp_path)


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
    (tmp_path / "r.partial" / "result" / "half").touch()
    words = rf"Found process {process.pid} on \S+ \(since 20\S+\), which is making it"
    with pytest.raises(ResultBusy, match=words):
        ResultFolder(tmp_path / "r").__enter__()
    assert names(tmp_path / "r.partial" / "result") == ["half"]
    process.kill()  # and not even then is there anything to remove by hand
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
    """Between opening and locking, another process removes the file and a third one makes its own."""
    flock, others = partial_folder.fcntl.flock, []

    def late(handle, how):
        if not others:
            others.append(handle)
            shutil.rmtree(tmp_path / "r.partial")
            others.append(ResultFolder(tmp_path / "r"))
            others[1].__enter__()
        flock(handle, how)

    monkeypatch.setattr(partial_folder.fcntl, "flock", late)
    with pytest.raises(ResultBusy):
        ResultFolder(tmp_path / "r").__enter__()
    others[1].__exit__(None, None, None)


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def none(handle, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(partial_folder.fcntl, "flock", none)
    with pytest.raises(ResultError, match="file system with locks"):
        ResultFolder(tmp_path / "r").__enter__()


def test_a_folder_is_entered_once(tmp_path):
    with ResultFolder(tmp_path / "r") as folder, pytest.raises(ResultError, match="once"):
        folder.__enter__()


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
    with ResultFolder(tmp_path / "r", numbered=True):  # a number has its own folder
        pass


def test_a_leftover_of_another_user_is_not_cleared(tmp_path, monkeypatch):
    (tmp_path / "r.partial").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ResultError, match=f"a folder of user {os.getuid()}"):
        ResultFolder(tmp_path / "r").__enter__()
    assert names(tmp_path) == ["r.partial"]


def moved_aside(tmp_path):
    """What a process leaves that dies between the two renamings."""
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


def test_an_earlier_result_that_is_aside_is_not_lost_to_somebody_elses_folder(tmp_path):
    partial = moved_aside(tmp_path)
    make(tmp_path / "x", "new")
    (tmp_path / "x").rename(tmp_path / "r")
    with pytest.raises(ResultError, match=r"the result that was there is in .*previous"):
        ResultFolder(tmp_path / "r", overwrite=True).__enter__()
    assert state(partial / "previous") == "old"
    assert state(tmp_path / "r") == "new"


# -- numbers ---------------------------------------------------------------------------------------

NUMBERED = """
import sys
sys.path.insert(0, "tests/experiments")
from killed_commits import make
print("ready", flush=True)
sys.stdin.readline()
make(sys.argv[1], "new", numbered=True)
"""


def test_every_run_gets_a_number_of_its_own(tmp_path):
    (tmp_path / "runs").mkdir()
    processes = [python(NUMBERED, tmp_path / "runs" / "a") for _ in range(6)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:  # all at once
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
    (tmp_path / "a_041").mkdir()  # empty, but not ours
    (tmp_path / "a_120.secret").mkdir()  # of a run that has no result: its secrets are its own
    make(tmp_path / "a", "new", numbered=True)
    assert state(tmp_path / "a_121") == "new"
    with pytest.raises(ResultError, match="always new"):
        ResultFolder(tmp_path / "a", numbered=True, overwrite=True)


def test_leftovers_of_killed_runs_are_cleared_and_living_ones_are_not(tmp_path):
    process = python(HOLD, tmp_path / "a_003")
    assert process.stdout.readline() == "in\n"
    process.kill()
    process.communicate(timeout=60)
    foreign_file(tmp_path / "a_004.partial")
    with ResultFolder(tmp_path / "a_005"), ResultFolder(tmp_path / "a", numbered=True) as folder:
        assert folder.path == str(tmp_path / "a_006")
        assert names(tmp_path) == ["a_004.partial", "a_005.partial", "a_006.partial"]


# -- secrets ---------------------------------------------------------------------------------------


def test_secrets_lie_beside_the_result_for_their_owner_alone(tmp_path):
    with ResultFolder(tmp_path / "r") as folder:
        path = pathlib.Path(folder.secrets())
        assert path == tmp_path / "r.secret"
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        (path / "key").touch()
        assert folder.secrets() == str(path)
    assert names(tmp_path) == ["r.secret"]
    assert names(path) == ["key"]
