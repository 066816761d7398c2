"""Files appear whole or not at all, names are swapped, and folders for secrets exclude others."""

import errno
import os
import pathlib
import stat
import types

import pytest

from tfdp import _files


def names(folder):
    return sorted(os.listdir(folder))


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "a.keras"
    path.write_text("old")
    path.chmod(0o600)
    (tmp_path / "link.keras").symlink_to(path)
    with pytest.raises(RuntimeError), _files.replaced_whole(path) as partial:
        pathlib.Path(partial).write_text("ne")
        raise RuntimeError
    assert path.read_text() == "old"
    with _files.replaced_whole(tmp_path / "link.keras") as partial:
        assert partial.endswith(".keras")
        pathlib.Path(partial).write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(tmp_path) == ["a.keras", "link.keras"]
    assert (tmp_path / "link.keras").is_symlink()


def test_swapping_changes_both_names_or_says_that_it_cannot(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "file").touch()
    if not _files.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this system cannot swap two names")
    assert names(tmp_path / "a") == [] and names(tmp_path / "b") == ["file"]
    with pytest.raises(FileNotFoundError):
        _files.exchange(tmp_path / "a", tmp_path / "c")
    monkeypatch.setattr(_files.ctypes, "CDLL", lambda *arguments, **options: object())
    assert not _files.exchange(tmp_path / "a", tmp_path / "b")
    assert names(tmp_path / "b") == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EINVAL])
def test_a_file_system_that_cannot_swap_names(tmp_path, monkeypatch, number):
    library = types.SimpleNamespace(renameat2=lambda *arguments: -1)
    monkeypatch.setattr(_files.ctypes, "CDLL", lambda *arguments, **options: library)
    monkeypatch.setattr(_files.ctypes, "get_errno", lambda: number)
    assert not _files.exchange(tmp_path / "a", tmp_path / "b")


def test_a_folder_without_fsync_is_taken_and_a_failing_one_is_not(tmp_path, monkeypatch):
    def fails(number):
        def fsync(handle):
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", fails(errno.EINVAL))
    _files.sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fails(errno.EIO))
    with pytest.raises(OSError, match="error"):
        _files.sync_folder(tmp_path)


def test_secrets_are_closed_from_the_first_moment(tmp_path, monkeypatch):
    modes, mkdir = [], os.mkdir
    monkeypatch.setattr(
        os, "mkdir", lambda path, mode=0o777: modes.append(mode) or mkdir(path, mode)
    )
    _files.secret_folder(tmp_path / "s")
    assert modes == [0o700]


def test_secrets_do_not_go_where_others_may_look(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch(mode=0o600)
    for mode in (0o701, 0o710, 0o770, 0o755):
        (tmp_path / f"{mode:o}").mkdir()
        (tmp_path / f"{mode:o}").chmod(mode)
    cases = {"link": "symbolic link", "file": "no folder"}
    cases |= {name: f"mode 0{name}" for name in ("701", "710", "770", "755")}
    for name, words in cases.items():
        with pytest.raises(ValueError, match=words):
            _files.secret_folder(tmp_path / name)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match=f"Found one of user {os.getuid()}"):
        _files.secret_folder(tmp_path / "real")
