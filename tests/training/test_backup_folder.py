"""The folder of an unfinished training: whole at any moment, for one process at a time."""

import contextlib
import os
import signal
import time

import numpy as np
import pytest

from tfdp.training.backup_folder import BackupError, BackupFolder


@pytest.fixture
def folder(tmp_path):
    made = BackupFolder(tmp_path / "b")
    made.enter()
    yield made
    made.leave()


def test_a_state_comes_back_with_what_was_reserved_since(folder):
    assert folder.read() is None
    folder.write({"run_id": "a", "steps": 3}, {"x": np.arange(3)})
    folder.reserve("a", 9)
    folder.write({"run_id": "a", "steps": 7}, {"x": np.arange(7)})
    about, arrays, reserved = folder.read()
    assert (about["steps"], arrays["x"].tolist(), reserved) == (7, [*range(7)], 9)
    folder.write({"run_id": "b"}, {})  # of another run nothing is reserved yet
    assert folder.read() == ({"run_id": "b"}, {}, 0)


@pytest.mark.parametrize("name", ["state", "steps"])
@pytest.mark.parametrize("damage", ["changed", "cut", "emptied"])
def test_a_state_that_was_cut_or_changed_is_an_error(name, damage, folder, tmp_path):
    folder.write({"run_id": "a"}, {"x": np.arange(99)})
    folder.reserve("a", 12)
    path = tmp_path / "b" / name
    content = bytearray(path.read_bytes())
    content[2 if name == "steps" else 300] ^= 1
    with open(path, "r+b") as file:
        if damage == "changed":
            file.write(content)
        else:
            file.truncate(0 if damage == "emptied" else len(content) // 2)
    with pytest.raises(BackupError):
        folder.read()


def test_a_write_that_fails_keeps_the_state_and_its_reservations(folder, monkeypatch, tmp_path):
    folder.write({"run_id": "a", "steps": 0}, {})
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(os, "replace", lambda *names: os.open(tmp_path / "missing", os.O_RDONLY))
        folder.write({"run_id": "a", "steps": 1}, {})
    folder.reserve("a", 5)
    assert folder.read() == ({"run_id": "a", "steps": 0}, {}, 5)


def test_it_is_for_its_owner_and_one_process_at_a_time(folder, tmp_path):
    other = os.fork()
    if not other:
        try:
            BackupFolder(tmp_path / "b").enter()
        except BackupError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 7
    assert (tmp_path / "b").stat().st_mode & 0o077 == 0


def test_workers_that_a_kill_leaves_do_not_hold_the_lock(folder, tmp_path):
    """A process that was forked off does not share the lock of its parent."""
    read, write = os.pipe()
    worker = os.fork()
    if not worker:
        os.write(write, b"forked")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(read, 6)
        folder.leave()  # as the kernel does at a kill
        other = BackupFolder(tmp_path / "b")
        other.enter()
        other.leave()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def test_only_its_own_files_are_removed(folder, tmp_path):
    folder.write({}, {})
    (tmp_path / "b" / "state.partial").write_bytes(b"half")
    (tmp_path / "b" / "best.keras").write_text("theirs")
    folder.clear()
    assert os.listdir(tmp_path / "b") == ["best.keras"]
    (tmp_path / "b" / "best.keras").unlink()
    folder.leave()
    folder.enter()
    folder.clear()
    assert not [*tmp_path.iterdir()]


# -- kills between file operations -------------------------------------------------------------------


class Killed(BaseException):
    pass


@contextlib.contextmanager
def dying(folder, at):
    """Context in which the process dies at file operation number `at`, and changes no file any more.

    Operations are those on names that begin with `folder`, and those on open files. Yields a list with
    the number of operations.
    """
    count, names = [0], ("open", "replace", "unlink", "rmdir", "fsync", "pwrite", "mkdir")
    originals = {name: getattr(os, name) for name in names}

    def patched(name):
        def operation(target, *arguments, **options):
            original = originals[name]
            ours = isinstance(target, int) or str(target).startswith(str(folder))
            if ours or "dir_fd" in options:
                count[0] += 1
                if at is not None and count[0] >= at:
                    raise Killed(f"{name} {target}")
            return None if name == "fsync" else original(target, *arguments, **options)

        return operation

    with contextlib.ExitStack() as patches:
        patches.callback(lambda: [setattr(os, name, f) for name, f in originals.items()])
        for name in names:
            setattr(os, name, patched(name))
        yield count


class Counter:
    """A program that counts to 12 with a backup folder, in the order of operations of a training."""

    def __init__(self, path):
        self.path, self.begun = path, []

    def run(self):
        folder = BackupFolder(self.path)
        try:
            folder.enter()
            found = folder.read()
            steps = reserved = 0 if found is None else max(found[0]["steps"], found[2])
            assert steps >= max(self.begun, default=0)
            folder.write({"run_id": "a", "steps": steps}, {"array": np.arange(3)})
            for step in range(steps + 1, 13):
                if step > reserved:
                    reserved = min(step + 1, 12)
                    folder.reserve("a", reserved)
                self.begun.append(step)
                if step % 3 == 0:
                    folder.write({"run_id": "a", "steps": step}, {"array": np.arange(3)})
            folder.clear()
        finally:
            folder.leave()


def test_no_kill_between_file_operations_spends_unseen(tmp_path):
    with dying(tmp_path, None) as count:
        Counter(tmp_path / "whole" / "b").run()
    assert count[0] > 40
    for at in range(1, count[0] + 1):
        for again in (None, 5, 14, 33):
            program = Counter(tmp_path / f"{at} {again}" / "b")
            for number in (at, again, None):
                if program.begun and not os.path.exists(f"{program.path}/state"):
                    break  # it has ended, and a further run is another training
                with dying(program.path, number), contextlib.suppress(Killed):
                    program.run()
            # No step was begun twice.
            assert program.begun and program.begun == sorted(set(program.begun))
