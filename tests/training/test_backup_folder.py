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


def test_a_reservation_that_was_being_written_does_not_count(folder, tmp_path):
    assert folder.reserved("a") == 0
    path = tmp_path / "b" / "reserved"
    contents = [path.read_bytes()]
    for count, steps in enumerate((5, 9, 14, 11), 1):
        folder.reserve("a", steps)
        assert (folder.reserved("a"), folder.reserved("b")) == (steps, 0)
        before, after = contents[-1], path.read_bytes()
        contents.append(after)
        # The first copy is being written; nothing was begun with it.
        torn = bytearray(before)
        at = 1024 * (count % 2)
        torn[at : at + 100] = after[at : at + 100]
        path.write_bytes(torn)
        assert folder.reserved("a") == (0, 5, 9, 14)[count - 1]
        path.write_bytes(after)


def test_the_run_in_the_state_stays_known_until_the_state_is_replaced(folder):
    folder.reserve("a", 0, opening=True)
    assert folder.read() is None  # killed before the first state: the training begins
    folder.write({"run_id": "a"}, {})
    for steps in (5, 9):
        folder.reserve("a", steps)
    folder.reserve("b", 2, opening=True)
    assert (folder.reserved("a"), folder.reserved("b")) == (9, 2)
    folder.write({"run_id": "b"}, {"x": np.arange(3)})
    folder.reserve("b", 4)
    about, arrays = folder.read()
    assert about["run_id"] == "b" and arrays["x"].tolist() == [0, 1, 2]
    assert folder.reserved("b") == 4


def test_it_is_for_its_owner_and_one_process_at_a_time(folder, tmp_path):
    with pytest.raises(BackupError, match="another process"):
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


def test_what_was_being_written_or_removed_is_tidied_away(folder, tmp_path):
    folder.reserve("a", 0, opening=True)
    folder.write({}, {})
    folder.leave()
    (tmp_path / "b" / "state.0123456789abcdef.partial.npz").write_bytes(b"half")
    (tmp_path / "b.0123456789abcdef.ended").mkdir()
    folder.enter()
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    assert not [*(tmp_path / "b").glob("*partial*")]
    folder.clear()
    assert not [*tmp_path.iterdir()]


def test_a_folder_with_other_things_is_refused_and_keeps_what_is_put_into_it(tmp_path):
    (tmp_path / "b").mkdir(mode=0o700)
    (tmp_path / "b" / "thesis").mkdir()
    with pytest.raises(BackupError, match="thesis"):
        BackupFolder(tmp_path / "b").enter()
    assert os.listdir(tmp_path / "b") == ["thesis"]
    folder = BackupFolder(tmp_path / "c")
    folder.enter()
    (tmp_path / "c" / "best.keras").write_text("theirs")
    folder.clear()
    folder.leave()
    assert os.listdir(tmp_path / "c") == ["best.keras"]


# -- kills between file operations -------------------------------------------------------------------


class Killed(BaseException):
    pass


@contextlib.contextmanager
def dying(folder, at):
    """Context in which the process dies at file operation number `at`, and changes no file any more.

    Operations are those on names that begin with `folder`, and those on open files. A write in place
    dies in its middle. Yields a list with the number of operations.
    """
    count, names = [0], ("open", "replace", "rename", "unlink", "rmdir", "fsync", "pwrite", "mkdir")
    originals = {name: getattr(os, name) for name in names}

    def patched(name):
        def operation(target, *arguments, **options):
            original = originals[name]
            ours = isinstance(target, int) or str(target).startswith(str(folder))
            if ours or "dir_fd" in options:
                count[0] += 1
                if at is not None and count[0] == at and name == "pwrite":
                    original(target, arguments[0][: len(arguments[0]) // 3], arguments[1])
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
            steps = 0
            if found is not None:
                steps = max(found[0]["steps"], folder.reserved("run"))
                assert folder.reserved("run") >= found[0]["steps"]
            assert steps >= max(self.begun, default=0)
            folder.reserve("run", steps, opening=True)
            folder.write({"steps": steps}, {"array": np.arange(3)})
            reserved = steps
            for step in range(steps + 1, 13):
                if step > reserved:
                    reserved = min(step + 1, 12)
                    folder.reserve("run", reserved)
                self.begun.append(step)
                if step % 3 == 0:
                    folder.write({"steps": step}, {"array": np.arange(3)})
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
                if program.begun and not os.path.exists(program.path):
                    break  # it has ended, and a further run is another training
                with dying(program.path, number), contextlib.suppress(Killed):
                    program.run()
            # No step was begun twice.
            assert program.begun and program.begun == sorted(set(program.begun))
            left = [*program.path.parent.iterdir()]
            assert not left or (len(left) == 1 and left[0].suffix == ".ended")
