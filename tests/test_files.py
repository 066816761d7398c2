"""Files appear whole or not at all, and folders for secrets exclude others."""

import errno
import os
import pathlib
import stat

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


@pytest.mark.parametrize(("number", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_without_fsync_for_folders_is_taken(tmp_path, monkeypatch, number, fails):
    def fsync(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if fails:
        with pytest.raises(OSError):
            _files.sync_folder(tmp_path)
    else:
        _files.sync_folder(tmp_path)


def test_secrets_do_not_go_where_others_may_look(tmp_path):
    made = _files.secret_folder(tmp_path / "secret")
    assert stat.S_IMODE(os.stat(made).st_mode) == 0o700
    assert _files.secret_folder(made) == made
    (tmp_path / "file").touch(mode=0o600)
    for mode in (0o710, 0o755):
        (tmp_path / f"{mode:o}").mkdir()
        (tmp_path / f"{mode:o}").chmod(mode)
    for name, match in {"file": "folder", "710": "0710", "755": "0755"}.items():
        with pytest.raises(ValueError, match=match):
            _files.secret_folder(tmp_path / name)
