"""A training that was interrupted stays beside its result until the result is in place."""

import hashlib
import json
import os
import pathlib
import signal
import sys
import zipfile

import keras
import pytest

from tfdp.experiments.result_files import content_digest, digest
from tfdp.experiments.result_folder import ResultError, ResultExists, ResultFolder
from tfdp.experiments.unfinished import BEGUN, STATE, UNBEGUN, Unfinished
from tfdp.training import backup_folder

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from killed_commits import KILLED
from result_helpers import keep_state, make, names, state
from test_result_folder import disturbed


class Crash(Exception):
    pass


def leave(path, which="new", **options):
    """Leaves what a training leaves that fails after its first state."""
    with pytest.raises(Crash), ResultFolder(path, **options) as folder:
        keep_state(folder, which)
        os.makedirs(folder.log_dir, exist_ok=True)
        (pathlib.Path(folder.log_dir) / "events.out.tfevents.0").touch()
        pathlib.Path(folder.log_dir).with_name("model.0.partial.keras").touch()
        raise Crash


def test_the_name_of_the_state_is_that_of_the_backup():
    assert STATE == backup_folder.STATE
    assert BEGUN == backup_folder.BEGUN and backup_folder._MARKS[0] == UNBEGUN


def test_a_training_that_fails_keeps_its_state_and_its_log(tmp_path):
    leave(tmp_path / "r")
    assert names(tmp_path) == ["r.partial", "r.secret"]
    assert names(tmp_path / "r.secret") == ["backup", "training.json"]
    assert (tmp_path / "r.secret").stat().st_mode & 0o777 == 0o700
    assert names(tmp_path / "r.partial") == ["lock", "result"]
    assert names(tmp_path / "r.partial" / "result") == ["tensorboard"]
    with ResultFolder(tmp_path / "r") as folder:
        assert folder.goes_on
        assert names(folder.log_dir) == ["events.out.tfevents.0"]


def test_the_result_takes_the_place_of_the_state(tmp_path):
    leave(tmp_path / "r")
    make(tmp_path / "r", "new", stateful=True, overwrite=True)
    assert names(tmp_path) == ["r"]
    record = json.loads((tmp_path / "r" / "run.json").read_text())
    assert len(record["training"]["id"]) == 32


def test_a_training_that_fails_before_its_first_state_leaves_nothing(tmp_path):
    with pytest.raises(Crash), ResultFolder(tmp_path / "r") as folder:
        folder.checkpoints({})
        raise Crash
    assert names(tmp_path) == []


def test_an_abandoned_training_leaves_nothing(tmp_path):
    with ResultFolder(tmp_path / "r") as folder:
        keep_state(folder, "new")
        folder.abandon()
        assert not folder.goes_on
    assert names(tmp_path) == []


def test_other_settings_are_refused_by_name_and_lose_nothing(tmp_path):
    leave(tmp_path / "r")
    words = "--which=new. Found --which=other. Give the same settings"
    with pytest.raises(ResultError, match=words), ResultFolder(tmp_path / "r") as folder:
        keep_state(folder, "other")
    assert names(tmp_path / "r.secret") == ["backup", "training.json"]
    assert names(tmp_path / "r.partial" / "result") == ["tensorboard"]


def test_another_version_is_refused(tmp_path, monkeypatch):
    leave(tmp_path / "r")
    monkeypatch.setattr("tfdp.__version__", "99")
    with pytest.raises(ResultError, match="Found tfdp 99"), ResultFolder(tmp_path / "r") as folder:
        keep_state(folder, "new")


def test_never_discards_the_training_and_its_log(tmp_path):
    leave(tmp_path / "r")
    with ResultFolder(tmp_path / "r", resume=False) as folder:
        assert not folder.goes_on and not os.path.exists(folder.log_dir)
        assert folder.checkpoints({"which": "other"})[0].endswith("r.secret/backup")
        assert not folder.holds_state


@pytest.mark.parametrize("damage", ["cut", "edited", "missing"])
def test_damaged_settings_are_refused(tmp_path, damage):
    leave(tmp_path / "r")
    path = tmp_path / "r.secret" / "training.json"
    text = path.read_text()
    changed = {"cut": text[:-9], "edited": text.replace("new", "old")}
    path.write_text(changed[damage]) if damage in changed else path.unlink()
    with (
        pytest.raises(ResultError, match=r"training.json.*--resume=never"),
        ResultFolder(tmp_path / "r") as folder,
    ):
        keep_state(folder, "new")
    assert (tmp_path / "r.secret" / "backup" / STATE).exists()


def test_a_finished_result_is_refused_and_what_is_left_beside_it_is_cleared(tmp_path, monkeypatch):
    leave(tmp_path / "r")
    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "discard", lambda self: None)  # a kill after the renaming
        patch.setattr("tfdp.experiments.partial_folder.PartialFolder.release", lambda *a, **k: None)
        make(tmp_path / "r", "new", stateful=True)
    assert names(tmp_path) == ["r", "r.partial", "r.secret"]
    os.close(_lock_of(tmp_path))
    with pytest.raises(ResultExists):
        make(tmp_path / "r", "other", stateful=True)
    assert names(tmp_path) == ["r"] and state(tmp_path / "r") == "new"


def _lock_of(folder):
    """The handle with which this process still holds the lock."""
    lock = os.stat(folder / "r.partial" / "lock")
    for handle in os.listdir("/proc/self/fd"):
        try:
            if os.path.samestat(os.fstat(int(handle)), lock):
                return int(handle)
        except OSError:
            continue
    raise AssertionError("no handle")


def test_a_finished_training_is_not_gone_on_with_when_it_is_overwritten(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "discard", lambda self: None)
        make(tmp_path / "r", "new", stateful=True)
    with ResultFolder(tmp_path / "r", overwrite=True) as folder:
        assert folder.holds_state and not folder.goes_on
        folder.checkpoints({"which": "other"})
        assert not folder.holds_state


def test_a_state_that_was_removed_is_refused_again_and_again(tmp_path):
    """What its training had spent stays unknown, so nothing of the folder may be cleared."""
    leave(tmp_path / "r")
    backup = tmp_path / "r.secret" / "backup"
    (backup / "reserved").write_text('{"steps": 447}')
    (backup / STATE).unlink()
    for _ in range(2):
        with pytest.raises(Crash), ResultFolder(tmp_path / "r") as folder:
            folder.checkpoints({"which": "new"})
            raise Crash  # as reading the state does
        assert names(backup) == ["begun", "reserved"]
    (backup / "reserved").unlink()
    (backup / "begun").unlink()
    for _ in range(2):
        with (
            pytest.raises(ResultError, match="its files, were removed"),
            ResultFolder(tmp_path / "r") as folder,
        ):
            folder.checkpoints({"which": "new"})
    backup.rmdir()
    for _ in range(2):
        with (
            pytest.raises(ResultError, match="were removed"),
            ResultFolder(tmp_path / "r") as folder,
        ):
            folder.checkpoints({"which": "new"})
        assert names(tmp_path / "r.secret") == ["training.json"]


def test_an_interruption_waits_until_the_result_is_in_its_place(tmp_path, monkeypatch):
    moved = os.rename

    def interrupted(source, target):
        if str(target) == str(tmp_path / "r"):
            os.kill(os.getpid(), signal.SIGINT)
        moved(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt) as ended:
        make(tmp_path / "r", "new", stateful=True)
    assert ended.value.__notes__ == [f"The result is in its place: {tmp_path / 'r'}."]
    assert state(tmp_path / "r") == "new" and names(tmp_path) == ["r"]


def test_secrets_beside_a_result_are_cleared_without_a_partial_folder(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Unfinished, "discard", lambda self: None)
        make(tmp_path / "r", "new", stateful=True)
    assert names(tmp_path) == ["r", "r.secret"]
    with pytest.raises(ResultExists):
        make(tmp_path / "r", "other")
    assert names(tmp_path) == ["r"]


@pytest.mark.parametrize("entry", ["backup", "training.json"])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_never_clears_whatever_is_in_the_place_of_a_training(tmp_path, entry, kind):
    secret = tmp_path / "r.secret"
    secret.mkdir(0o700)
    if kind == "file":
        (secret / entry).touch()
    if kind == "folder":
        (secret / entry / "x").mkdir(parents=True)
    if kind == "link":
        (secret / entry).symlink_to(tmp_path)
    make(tmp_path / "r", "new", stateful=True, resume=False)
    assert names(tmp_path) == ["r"]


def test_settings_that_say_nothing_are_refused(tmp_path):
    leave(tmp_path / "r")
    digest = hashlib.sha256(b"[]").hexdigest()
    (tmp_path / "r.secret" / "training.json").write_text(f"{digest}\n[]\n")
    with pytest.raises(ResultError, match="something else"):
        leave(tmp_path / "r")


def test_other_secrets_stay(tmp_path):
    leave(tmp_path / "r")
    (tmp_path / "r.secret" / "key").touch()
    make(tmp_path / "r", "new", stateful=True)
    assert names(tmp_path) == ["r", "r.secret"] and names(tmp_path / "r.secret") == ["key"]


def test_numbers_of_unfinished_trainings_are_not_used_again_and_their_logs_stay(tmp_path):
    leave(tmp_path / "r", numbered=True)
    with ResultFolder(tmp_path / "r", numbered=True) as folder:
        assert folder.path.endswith("r_002")
    assert names(tmp_path) == ["r_001.partial", "r_001.secret"]
    assert names(tmp_path / "r_001.partial" / "result") == ["tensorboard"]


def test_a_kill_at_any_operation_of_a_release_leaves_the_state_or_the_result(tmp_path):
    scenarios, _ = disturbed(tmp_path, "state", "kill")
    assert [code for _, code in scenarios] == [KILLED] * (len(scenarios) - 1) + [1]
    seen = []
    for target, _ in scenarios:
        seen.append(state(target))
        unfinished = Unfinished(str(target))
        if seen[-1] is None:
            assert unfinished.holds_state
            with ResultFolder(target) as folder:
                assert folder.goes_on
            make(target, "new", stateful=True)
        else:
            with pytest.raises(ResultExists):
                make(target, "other", stateful=True)
        # Nothing secret stays beside a result.
        assert state(target) == "new" and names(target.parent) == ["r"]
    assert seen.count(None) > 30 and seen.count("new") > 3


def test_a_failure_at_any_operation_of_a_release_leaves_the_state_or_the_result(tmp_path):
    (tmp_path / "kill").mkdir()
    (tmp_path / "fail").mkdir()
    count = len(disturbed(tmp_path / "kill", "state", "kill")[0])
    scenarios, said = disturbed(tmp_path / "fail", "state", "fail", count)
    assert "goes on from there" in said
    for target, _ in scenarios:
        if state(target) is None:
            assert Unfinished(str(target)).holds_state
            make(target, "new", stateful=True)
        assert state(target) == "new"


def test_weights_that_are_saved_again_have_the_same_content(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="out")])
    paths = [str(tmp_path / f"{i}.keras") for i in range(3)]
    model.save(paths[0])
    with zipfile.ZipFile(paths[0]) as archive, zipfile.ZipFile(paths[1], "w") as again:
        for name in archive.namelist():  # Keras notes the time of saving in one of them
            content = archive.read(name)
            again.writestr(name, b"{}" if name == "metadata.json" else content)
    model.layers[0].kernel.assign_add([[1.0, 0.0]] * 3)
    model.save(paths[2])
    first, again, other = map(content_digest, paths)
    assert first == again != other and digest(paths[0]) != digest(paths[1])
    model.layers[0].kernel.assign_sub([[1.0, 0.0]] * 3)
    renamed = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="another")])
    renamed.set_weights(model.get_weights())
    model.save(paths[0])
    renamed.save(paths[2])  # names of layers are in the file of the weights, too
    weights = [zipfile.ZipFile(path).read("model.weights.h5") for path in (paths[0], paths[2])]
    assert weights[0] != weights[1]
    assert content_digest(paths[2]) == content_digest(paths[0])
    with open(paths[0], "r+b") as file:
        file.truncate(200)
    assert content_digest(paths[0]) == digest(paths[0])
