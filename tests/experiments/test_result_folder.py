"""A result is whole or absent, whichever operation fails, and other people's files stay."""

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
from tfdp.experiments import result_folder
from tfdp.experiments.result_folder import (
    ResultBusy,
    ResultError,
    ResultExists,
    ResultFolder,
    check,
    main,
)

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from killed_commits import FAILED, KILLED, REFUSED
from result_helpers import FILES, ROOT, make, names, python, state

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
        # The next run clears what is left over, and restores the earlier result.
        with ResultFolder(target, overwrite=True):
            assert state(target) == (seen[-1] or before)
        assert state(target) == (seen[-1] or before)
        if target.parent.exists():
            assert set(names(target.parent)) <= {"r"}
    # First the earlier state, then the new result; between them none if names cannot be swapped.
    order = ["old", None, "new"] if mode == "aside" else [before, "new"]
    assert [w for k, w in enumerate(seen) if k == 0 or w != seen[k - 1]] == order
    assert seen.count(before) > 30  # counted operations before the renaming
    if mode == "over":
        assert seen.count("new") > 5  # operations that remove the old result


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
    assert str(tmp_path) in synced[swapped[0] :]  # the renaming is synced, too
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
    swap, rename, swaps = _files.exchange, os.rename, []

    def late(source, target):
        swaps.append(target)
        if not aside and len(swaps) == 1:
            (tmp_path / "r" / "thesis.tex").touch()
        return not aside and swap(source, target)

    def late_rename(source, target):
        if "previous" in target:
            (tmp_path / "r" / "thesis.tex").touch()
        rename(source, target)

    with ResultFolder(tmp_path / "r", overwrite=True) as folder, monkeypatch.context() as patch:
        # The first swap finds the new file; the second swap undoes the first one.
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


def test_a_place_inside_another_result_is_refused(tmp_path):
    make(tmp_path / "r", "old")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    for place in ("r/x", "r/deep/x", "w.partial/x", "w.secret/deep/x", "w.partial", "w.secret"):
        for options in ({}, {"overwrite": True}, {"numbered": True}):
            if place in ("w.partial", "w.secret") and "numbered" in options:
                continue  # the number is the end of the name, which is no ending of ours any more
            with pytest.raises(ResultError, match=r"outside the folders of other results\. Found "):
                ResultFolder(tmp_path / place, **options).__enter__()
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "run.json").write_text("[]")  # the record of another program
    make(tmp_path / "other" / "x", "new")
    assert state(tmp_path / "other" / "x") == "new"


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
    with tempfile.TemporaryDirectory() as folder:  # other users cannot enter tmp_path
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
