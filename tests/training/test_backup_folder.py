"""The folder of an unfinished training: whole at any moment, for one process at a time."""

import concurrent.futures
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


def test_a_state_comes_back_with_what_was_reserved_since(folder, tmp_path):
    assert folder.read() is None
    for size in range(70):  # wherever the field comes to lie
        folder.write({"steps": size}, {"x": np.arange(size, dtype=np.uint8)}, reserved=7)
        folder.reserve(size + 9)
    folder.write({"steps": 70}, {"x": np.arange(3)})
    about, arrays, reserved = folder.read()
    assert (about, arrays["x"].tolist(), reserved) == ({"steps": 70}, [0, 1, 2], 78)
    assert (tmp_path / "b" / "state").stat().st_size % 64 == 0


@pytest.mark.parametrize("place", [0, 30, 100, -70, -60, -37, -30, -1])
def test_a_state_that_was_cut_or_changed_is_an_error(place, folder, tmp_path):
    folder.write({}, {"x": np.arange(99)})
    path = tmp_path / "b" / "state"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[place] ^= 1
    for content in (changed, whole[:place], whole + b" "):
        path.write_bytes(content)
        with pytest.raises(BackupError):
            folder.read()


def test_a_write_that_fails_keeps_the_state_and_its_reservations(folder, monkeypatch, tmp_path):
    folder.write({"steps": 0}, {})
    with monkeypatch.context() as patch, pytest.raises(OSError, match="state"):
        patch.setattr(os, "replace", lambda *names: os.open(tmp_path / "missing", os.O_RDONLY))
        folder.write({"steps": 1}, {}, reserved=1)
    folder.reserve(5)
    assert folder.read() == ({"steps": 0}, {}, 5)
    assert sorted(os.listdir(tmp_path / "b")) == ["lock", "state"]


def test_reservations_and_states_are_written_at_the_same_time(folder):
    folder.write({"steps": 0}, {})
    with concurrent.futures.ThreadPoolExecutor(1) as worker:
        for steps in range(1, 200):
            if steps % 10 == 1:
                written = worker.submit(folder.write, {"steps": steps}, {})
            folder.reserve(steps)
            if steps % 10 == 5:
                written.result()
                assert folder.read()[2] == steps


def test_it_is_for_its_owner_and_one_process_at_a_time(folder, tmp_path):
    with pytest.raises(BackupError, match="Another process"):
        BackupFolder(tmp_path / "b").enter()
    assert (tmp_path / "b").stat().st_mode & 0o077 == 0


def test_workers_that_a_kill_leaves_do_not_hold_the_lock(folder, tmp_path):
    """A process that was forked off shares the lock of its parent, and lets go of it."""
    read, write = os.pipe()
    worker = os.fork()
    if not worker:
        os.write(write, b"forked")  # what a fork has to do first is done
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
            steps = reserved = 0 if found is None else found[2]
            assert steps >= max(self.begun, default=0)
            folder.write({}, {"array": np.arange(3)}, steps)
            for step in range(steps + 1, 13):
                if step > reserved:
                    reserved = min(step + 1, 12)
                    folder.reserve(reserved)
                self.begun.append(step)
                if step % 3 == 0:
                    folder.write({}, {"array": np.arange(3)})
            folder.clear()
        finally:
            folder.leave()


def test_no_kill_between_file_operations_spends_unseen(tmp_path):
    with dying(tmp_path, None) as count:
        Counter(tmp_path / "whole" / "b").run()
    assert count[0] > 50
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
