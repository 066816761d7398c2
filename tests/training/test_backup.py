"""Trainings that are interrupted go on: in the same run, with nothing spent unseen."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.accounting import Strategy, proven
from tfdp.training import backup as backup_module
from tfdp.training.backup_folder import BackupError, BackupFolder

ROOT = pathlib.Path(__file__).resolve().parents[2]
N, L, EPOCHS = 60, 10, 4
STEPS = N // L * EPOCHS


class Crash(Exception):
    pass


def data():
    x = np.random.default_rng(0).normal(size=(N, 3)).astype("float32")
    return x, x @ np.array([[1.0], [-2.0], [0.5]], "float32")


def options(**more):
    return {"l2_norm_clip": 1.0, "noise_multiplier": 2.0, "learning_rate": 0.1} | more


def matrix(**more):
    strategy = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.25))
    return tfdp.MatrixDPSGDOptimizer(**options(strategy=strategy, **more))


def langevin(kind, **more):
    return lambda: kind(**options(**more))


MECHANISMS = {
    "dpsgd": lambda: tfdp.DPKerasSGDOptimizer(**options(momentum=0.9)),
    "adam": lambda: tfdp.DPKerasAdamOptimizer(**options()),
    "adaptive": lambda: tfdp.DPKerasSGDOptimizer(**options(clipping="adaptive")),
    "si_dpsgd": lambda: tfdp.SIDPSGDOptimizer(**options(momentum=0.5)),
    "matrix": matrix,
    "dp_dropout": langevin(tfdp.DPDropoutOptimizer),
    "sgld": langevin(tfdp.SGLDOptimizer, num_examples=N),
    "discrete_sgd": langevin(tfdp.DiscreteSGDOptimizer, noise="student_t", denoise=False),
}
SAMPLINGS = {
    "poisson": {}, "cyclic": {}, "shuffle": {}, "fixed_size": {}, "with_replacement": {},
    "cyclic_poisson": {"groups": 3},
}  # fmt: skip


class Training:
    """A program that trains, and that is run again after a crash.

    Attributes:
        seen: what each execution of the program saw after its steps: (steps counted, weights).
    """

    def __init__(self, folder, make=MECHANISMS["dpsgd"], sampling="cyclic", **backup):
        self.folder, self.make, self.sampling = folder, make, sampling
        self.backup, self.seen = {"save_freq": 1} | backup, []

    def run(self, crash_after=None, model=None, epochs=EPOCHS):
        keras.utils.set_random_seed(3)
        if model is None:
            network = [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)]
            model = tfdp.make_private(keras.Sequential(network))
            model.compile(self.make(), "mse")
        seen = []

        def after(batch, logs):
            assert "loss" in logs  # steps that were passed by would have none
            seen.append((model.privacy.steps_taken, model.get_weights()))
            if model.privacy.steps_taken == crash_after:
                raise Crash

        self.seen.append(seen)
        self.lots = tfdp.data.make_lots(
            self.sampling, *data(), lot_size=L, **SAMPLINGS[self.sampling]
        )
        model.fit(
            self.lots, epochs=epochs, verbose=0,
            callbacks=[
                tfdp.callbacks.BackupAndRestore(self.folder, **self.backup),
                keras.callbacks.LambdaCallback(on_train_batch_end=after),
            ],
        )  # fmt: skip
        return model

    def crash(self, after, **more):
        with pytest.raises(Crash):
            self.run(after, **more)


# Every mechanism and every sampling once; the other pairs are slow tests.
QUICK = {
    "dpsgd": "fixed_size", "adam": "with_replacement", "adaptive": "poisson", "si_dpsgd": "shuffle",
    "matrix": "cyclic_poisson", "dp_dropout": "cyclic", "sgld": "poisson", "discrete_sgd": "poisson",
}  # fmt: skip
PAIRS = [
    pytest.param(m, s, marks=[] if QUICK[m] == s else [pytest.mark.slow])
    for m in MECHANISMS
    for s in SAMPLINGS
    # Nothing is proven about correlated noise with these lots.
    if (m, s) not in {("matrix", "fixed_size"), ("matrix", "with_replacement")}
]


@pytest.mark.parametrize(("mechanism", "sampling"), PAIRS)
def test_every_mechanism_goes_on(mechanism, sampling, tmp_path):
    training = Training(tmp_path / "b", MECHANISMS[mechanism], sampling)
    training.crash(7)
    training.crash(15)
    model = training.run()
    (run,) = model.privacy.ledger.runs
    assert run.steps == STEPS == int(model.optimizer.iterations.numpy())
    # Nothing is lost where a state follows each step and steps that were not begun are given back.
    assert [[n for n, _ in seen] for seen in training.seen] == [
        [*range(1, 8)], [*range(8, 16)], [*range(16, STEPS + 1)],
    ]  # fmt: skip
    whole = Training(tmp_path / "c", MECHANISMS[mechanism], sampling).run()
    assert model.privacy.spent(1e-5).epsilon == whole.privacy.spent(1e-5).epsilon
    assert not (tmp_path / "b").exists()


def test_a_seeded_training_goes_on_with_the_same_numbers(tmp_path):
    """With noise from a seed, the weights are those of a training without a crash, bit by bit."""
    weights = []
    for crashes in ((), (5, 13)):
        make = lambda: tfdp.DPKerasSGDOptimizer(**options(momentum=0.9, seed=1))  # noqa: E731
        training = Training(tmp_path / str(len(crashes)), make)
        for step in crashes:
            training.crash(step)
        weights.append(training.run().get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def killed(monkeypatch, ahead=0.0):
    """As by SIGKILL: nothing is given back. Steps are reserved for so many seconds."""
    monkeypatch.setattr(backup_module, "_AHEAD", ahead)
    monkeypatch.setattr(backup_module, "_SHARE", float("inf"))  # however slow the disk is
    monkeypatch.setattr(tfdp.callbacks.BackupAndRestore, "_give_back", lambda *_: None)


def test_steps_that_are_lost_stay_counted(tmp_path, monkeypatch):
    killed(monkeypatch)
    training = Training(tmp_path / "b", save_freq=5)
    training.crash(9)  # after the fifth step a state; steps 6 to 9 are lost
    folder = BackupFolder(tmp_path / "b")
    about, arrays = folder.read()
    assert about["steps"] == 5 and folder.reserved(about["run_id"]) == 9
    kept = [arrays[f"model.{i}"] for i in range(4)]
    for one, other in zip(kept, training.seen[0][4][1], strict=True):
        np.testing.assert_array_equal(one, other)
    model = training.run()
    assert [n for n, _ in training.seen[1]] == [*range(10, STEPS + 1)]
    (run,) = model.privacy.ledger.runs
    assert run.steps == STEPS


@pytest.mark.parametrize("sampling", ["cyclic", "shuffle"])
def test_no_example_takes_part_twice_in_an_epoch(sampling, tmp_path, monkeypatch):
    killed(monkeypatch)
    seen = []
    original = tfdp.data.Lots._gather

    def spy(self, indices):
        # The pipeline is ahead of the training, and draws more lots than are used, some of them after
        # the crash: they belong to the process that made the pipeline.
        own = seen[-1]

        def note(members):
            own.append(sorted(members.tolist()))

        with tf.control_dependencies([tf.numpy_function(note, [indices], [])]):
            return original(self, tf.identity(indices))

    monkeypatch.setattr(tfdp.data.Lots, "_gather", spy)
    training = Training(tmp_path / "b", sampling=sampling, save_freq=4)
    for after in (8, 15, None):
        seen.append([])
        if after is None:
            training.run()
        else:
            training.crash(after)
    taken = [[n for n, _ in steps] for steps in training.seen]
    assert taken == [[*range(1, 9)], [*range(9, 16)], [*range(16, STEPS + 1)]]
    # Step s is lot (s - 1) mod 6 of its epoch, in whichever process it was.
    by_epoch = {}
    for steps, lots in zip(training.seen, seen, strict=True):
        for (step, _), lot in zip(steps, lots, strict=False):
            by_epoch.setdefault((step - 1) // 6, []).append(lot)
    assert [len(lots) for lots in by_epoch.values()] == [6, 6, 6, 6]
    for lots in by_epoch.values():
        assert sorted(i for lot in lots for i in lot) == [*range(N)]
    if sampling == "cyclic":
        assert by_epoch[0] == [sorted(part.tolist()) for part in np.split(np.arange(N), 6)]
    else:
        assert len({str(lots) for lots in by_epoch.values()}) == EPOCHS


def test_correlated_noise_goes_on_behind_lost_steps(tmp_path, monkeypatch):
    """The noise of steps before and after a crash has the covariance of one training."""
    killed(monkeypatch)
    drawn = []
    original = tfdp.optimizers.matrix.CorrelatedNoise.correlate

    def spy(self, fresh):
        made = original(self, fresh)

        tf.numpy_function(
            lambda n, *ys: drawn.append((int(n), np.concatenate([y.ravel() for y in ys]))),
            [self._steps, *made], [],
        )  # fmt: skip
        return made

    monkeypatch.setattr(tfdp.optimizers.matrix.CorrelatedNoise, "correlate", spy)
    training = Training(tmp_path / "b", lambda: matrix(seed=5), save_freq=6)
    training.crash(11)
    before = dict(drawn)
    drawn.clear()
    training.run()
    after = dict(drawn)
    both = sorted(before.keys() & after.keys())
    assert len(both) >= 2  # the noise of lost steps was made again
    for step in both:
        np.testing.assert_allclose(before[step], after[step], rtol=1e-4, atol=1e-5)
    assert sorted(before.keys() | after.keys()) == [*range(1, STEPS + 1)]


def test_means_go_on_without_velocity_behind_lost_steps(tmp_path, monkeypatch):
    make = lambda: tfdp.SIDPSGDOptimizer(**options(momentum=0.5))  # noqa: E731
    for lost in (False, True):
        training = Training(tmp_path / str(lost), make, save_freq=1 if not lost else 4)
        with monkeypatch.context() as patch:
            if lost:
                killed(patch)
            training.crash(7)
        folder = BackupFolder(training.folder)
        _, arrays = folder.read()
        velocities = {n: a for n, a in arrays.items() if n.startswith("secret.velocity")}
        assert velocities and all(np.any(v) for v in velocities.values())
        began = []

        class Look(tfdp.SIDPSGDOptimizer):
            found = began
            mechanism = tfdp.SIDPSGDOptimizer.mechanism

            def take_up_secrets(self, *arguments):
                super().take_up_secrets(*arguments)
                self.found.extend(v.numpy() for v in self._hidden.velocities)

        training.make = lambda: Look(**options(momentum=0.5))
        training.run()
        assert all(np.any(v) != lost for v in began) and began


def test_other_trainings_are_refused(tmp_path):
    training = Training(tmp_path / "b")
    training.crash(5)
    for make, words in (
        (lambda: tfdp.DPKerasSGDOptimizer(**options(momentum=0.9, noise_multiplier=3.0)), "noise"),
        (MECHANISMS["adam"], "other model or optimizer|another model"),
    ):
        training.make = make
        with pytest.raises(ValueError, match=words):
            training.run()
    training.make = MECHANISMS["dpsgd"]
    training.sampling = "poisson"
    with pytest.raises(ValueError, match=r"other data|other settings"):
        training.run()
    training.sampling = "cyclic"
    assert training.run().privacy.steps_taken == STEPS


def test_other_data_are_refused(tmp_path, monkeypatch):
    training = Training(tmp_path / "b")
    training.crash(5)
    x, y = data()
    monkeypatch.setitem(globals(), "data", lambda: (x[::-1], y))
    with pytest.raises(BackupError, match="same order"):
        training.run()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The folder of a training that was interrupted after step 5."""
    folder = tmp_path_factory.mktemp("interrupted") / "b"
    Training(folder).crash(5)
    return folder


DAMAGES = [
    "cut", "changed", "foreign", "no state", "reservation", "blank", "cut reservation",
    "no reservation", "old reservation", "mode",
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_backups_are_refused(damage, tmp_path, interrupted):
    shutil.copytree(interrupted, tmp_path / "b")
    training = Training(tmp_path / "b")
    state, reserved = tmp_path / "b" / "state.npz", tmp_path / "b" / "reserved"
    content = bytearray(state.read_bytes())
    if damage == "cut":
        state.write_bytes(content[:-100])
    elif damage == "changed":
        content[len(content) // 2] ^= 1
        state.write_bytes(content)
    elif damage == "foreign":
        np.savez(state, a=1)
    elif damage == "no state":
        state.unlink()
    elif damage == "reservation":
        reserved.write_bytes(b"x" * 2048)
    elif damage == "blank":
        reserved.write_bytes(b" " * 2048)
    elif damage == "cut reservation":
        reserved.write_bytes(b"")
    elif damage == "no reservation":
        reserved.unlink()
    elif damage == "old reservation":
        other = BackupFolder(tmp_path / "c")
        other.enter()
        other.reserve(BackupFolder(tmp_path / "b").read()[0]["run_id"], 4)
        shutil.copy(tmp_path / "c" / "reserved", reserved)
    else:
        (tmp_path / "b").chmod(0o755)
    with pytest.raises(BackupError, match="Expected"):
        training.run()


def test_a_reservation_that_was_being_written_does_not_count(tmp_path):
    folder = BackupFolder(tmp_path / "b")
    folder.enter()
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
    folder.leave()


@pytest.mark.parametrize("copy", range(4))
def test_damage_to_one_copy_of_a_reservation_changes_nothing(copy, tmp_path):
    folder = BackupFolder(tmp_path / "b")
    folder.enter()
    for steps in (5, 9, 14):
        folder.reserve("a", steps)
    path = tmp_path / "b" / "reserved"
    whole = bytearray(path.read_bytes())
    whole[512 * copy + 100] ^= 1
    path.write_bytes(whole)
    assert folder.reserved("a") == 14
    whole[512 * (copy ^ 1) + 100] ^= 1  # the other copy of the same half
    path.write_bytes(whole)
    with pytest.raises(BackupError, match="cut, changed or removed"):
        folder.reserved("a")
    folder.leave()


def test_the_run_in_the_state_stays_known_until_the_state_is_replaced(tmp_path):
    folder = BackupFolder(tmp_path / "b")
    folder.enter()
    folder.reserve("a", 0, opening=True)
    assert folder.read() is None  # killed before the first state: the training begins
    folder.write({"run_id": "a"}, {})
    for steps in (5, 9):
        folder.reserve("a", steps)
    folder.reserve("b", 2, opening=True)
    assert (folder.reserved("a"), folder.reserved("b")) == (9, 2)
    folder.leave()


def test_what_a_killed_process_left_is_removed(tmp_path, monkeypatch):
    for name in ("b", "c"):
        BackupFolder(tmp_path / name).enter()
    (tmp_path / "b" / "state.0123456789abcdef.partial.npz").write_bytes(b"half")
    monkeypatch.setattr(shutil, "rmtree", lambda path: None)
    BackupFolder(tmp_path / "b").clear()
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.undo()
    BackupFolder(tmp_path / "b").enter()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]
    (tmp_path / "b" / "state.0123456789abcdef.partial.npz").write_bytes(b"half")
    BackupFolder(tmp_path / "c").clear()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b"]


def test_one_process_at_a_time(tmp_path):
    folder = BackupFolder(tmp_path / "b")
    folder.enter()
    with pytest.raises(BackupError, match="another process"):
        BackupFolder(tmp_path / "b").enter()
    folder.leave()
    assert (tmp_path / "b").stat().st_mode & 0o077 == 0


def test_a_full_disk_loses_no_count(tmp_path, monkeypatch):
    """States cannot be written any more; reservations can, since their file has its size."""
    killed(monkeypatch)
    written = []

    def full(self, about, arrays):
        written.append(about["steps"])
        if len(written) > 1:
            raise OSError(28, "No space left on device")
        return original(self, about, arrays)

    original = BackupFolder.write
    with monkeypatch.context() as patch:
        patch.setattr(BackupFolder, "write", full)
        training = Training(tmp_path / "b")
        training.crash(9)
    model = training.run()
    (run,) = model.privacy.ledger.runs
    assert run.steps == STEPS and training.seen[1][0][0] > 9


# -- kills between file operations ---------------------------------------------------------------


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
        for again in (None, 1, 5, 9, 14, 20, 26, 33, 41):
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


def kill_at(training, number):
    """Runs a training that dies at a file operation; returns whether it did."""
    with dying(training.folder, number):
        try:
            training.run()
        except Killed:
            return True
    return False


def check_kill_between_file_operations(folder, number, mechanism, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(backup_module, "_AHEAD", 0.0)
        training = Training(folder / "b", MECHANISMS[mechanism], "shuffle", save_freq=3)
        died = kill_at(training, number)
        if not died or (training.seen[0] and not training.folder.exists()):
            return died  # it had ended
        model = training.run()
    (run,) = model.privacy.ledger.runs
    assert run.steps == STEPS == int(model.optimizer.iterations.numpy())
    steps = [n for seen in training.seen for n, _ in seen]
    assert steps == sorted(set(steps))
    return True


@pytest.mark.parametrize("number", [3, 14, 40])
def test_a_kill_between_file_operations(number, tmp_path, monkeypatch):
    assert check_kill_between_file_operations(tmp_path, number, "dpsgd", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dpsgd", "si_dpsgd", "matrix"])
def test_a_kill_between_any_two_file_operations(mechanism, tmp_path, monkeypatch):
    # Every third operation, from another one for each mechanism.
    number = {"dpsgd": 1, "si_dpsgd": 2, "matrix": 3}[mechanism]
    while check_kill_between_file_operations(
        tmp_path / str(number), number, mechanism, monkeypatch
    ):
        number += 3
    assert number > 90


# -- kills of processes --------------------------------------------------------------------------

PROGRAM = """
import sys, time
import numpy as np
sys.path[:0] = {path!r}
import keras
import tfdp
from tests.training import test_backup
made = test_backup.MECHANISMS[{mechanism!r}]
training = test_backup.Training({folder!r}, made, {sampling!r}, save_freq=3, delete_checkpoint=False)
class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        sys.stdout.write(f"step {{self.model.privacy.steps_taken}}\\n")  # whole, or not at all
        sys.stdout.flush()
        time.sleep({pause})
original = keras.callbacks.LambdaCallback
keras.callbacks.LambdaCallback = lambda **_: Slow()
model = training.run(epochs={epochs})
(run,) = model.privacy.ledger.runs
spent = model.privacy.spent(1e-5).epsilon
print("done", run.steps, int(model.optimizer.iterations.numpy()), spent, flush=True)
"""


def program(folder, mechanism, sampling, epochs=EPOCHS, pause=0):
    text = PROGRAM.format(
        path=[str(ROOT)],
        folder=str(folder),
        mechanism=mechanism,
        sampling=sampling,
        epochs=epochs,
        pause=pause,
    )
    return subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mechanism", "sampling", "number"),
    [
        ("dpsgd", "poisson", signal.SIGKILL),
        ("si_dpsgd", "shuffle", signal.SIGTERM),
        pytest.param("dpsgd", "cyclic", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_killed_program_goes_on(mechanism, sampling, number, tmp_path):
    process = program(tmp_path / "b", mechanism, sampling)
    last = 0
    for line in process.stdout:
        if line.startswith("step"):
            last = int(line.split()[1])
            if last == 8:
                process.send_signal(number)
    error = process.stderr.read()
    code = process.wait()
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert "Stopped after step" in error and code in (1, 130, 143, -number), error
    ended = program(tmp_path / "b", mechanism, sampling)
    out, error = ended.communicate()
    assert f"done {STEPS} {STEPS}" in out, error
    first = int(out.split()[1])
    # What the first process showed is behind the second one, and after a signal nothing is lost.
    assert first > last or last == STEPS
    if number != signal.SIGKILL:
        assert first == last + 1


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kills_at_random_moments(mechanism, tmp_path):
    """A program is killed several times; the last execution ends with all steps in one run."""
    rng, last, epochs, kills = np.random.default_rng(), 0, 40, 0
    sampling = {"matrix": "cyclic", "si_dpsgd": "shuffle"}.get(mechanism, QUICK[mechanism])
    # The third kill may come before the first step, so it counts from the start of the program.
    delays = [*rng.uniform(0.0, 1.5, 2), rng.uniform(0.0, 8.0), rng.uniform(0.0, 1.5), 1e6]
    for number, delay in enumerate(delays):
        process = program(tmp_path / "b", mechanism, sampling, epochs, 0.02)
        killer = threading.Timer(delay, process.kill)
        if number == 2:
            killer.start()
        first, done = None, None
        for line in process.stdout:
            word, *numbers = line.split()
            if word == "done":
                done = numbers
            elif word == "step":
                if first is None:
                    first = int(numbers[0])
                    assert first > last, (delays, first, last)
                    if number != 2:
                        killer.start()
                last = int(numbers[0])
        error = process.stderr.read()
        process.wait()
        killer.cancel()
        if done is not None:
            break
        assert process.returncode == -signal.SIGKILL, error
        kills += 1
    total = epochs * N // L
    assert kills and done[:2] == [str(total)] * 2, (done, error)
    assert os.listdir(tmp_path) == ["b"]
    assert sorted(os.listdir(tmp_path / "b")) == ["lock", "reserved", "state.npz"]
    whole = Training(tmp_path / "c", MECHANISMS[mechanism], sampling).run(epochs=epochs)
    assert whole.privacy.spent(1e-5).epsilon == float(done[2])


def test_the_statement_says_the_same_as_without_a_crash(tmp_path):
    training = Training(tmp_path / "b")
    training.crash(10)
    model = training.run()
    (run,) = model.privacy.ledger.runs
    assert proven(run, 1e-5).epsilon == model.privacy.spent(1e-5).epsilon
    assert json.loads(model.privacy.ledger.to_json())


def test_user_batches_go_on_behind_those_that_were_taken(tmp_path):

    x, y = data()
    taken = []

    def train(stop=None):
        model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        model.compile(MECHANISMS["dpsgd"](), "mse")
        batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(L)

        def after(batch, logs):
            taken.append(model.privacy.steps_taken)
            if model.privacy.steps_taken == stop:
                raise Crash

        model.fit(batches, epochs=2, verbose=0, callbacks=[
            tfdp.callbacks.BackupAndRestore(tmp_path / "b", save_freq=1),
            keras.callbacks.LambdaCallback(on_train_batch_end=after)])  # fmt: skip
        return model

    with pytest.raises(Crash):
        train(4)
    model = train()
    assert model.privacy.steps_taken == 12 and max(taken) == 12


def test_a_second_fit_with_the_same_folder_begins_anew(tmp_path):
    training = Training(tmp_path / "b")
    model = training.run()
    training.run(model=model)
    assert sum(run.steps for run in model.privacy.ledger.runs) == 2 * STEPS


def test_the_state_of_a_finished_training_can_be_kept(tmp_path):
    training = Training(tmp_path / "b", delete_checkpoint=False)
    first = training.run()
    again = training.run()
    (run,) = again.privacy.ledger.runs
    assert run.steps == STEPS and not training.seen[1]
    for one, other in zip(first.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_executions_of_several_steps(tmp_path):
    training = Training(tmp_path / "b")
    original = keras.Model.compile

    def several(stop=None):
        model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        model.compile(MECHANISMS["dpsgd"](), "mse", steps_per_execution=4)
        return model

    training.crash(10, model=several())  # the second execution of the second epoch: 4, 2, 4
    model = training.run(model=several())
    assert model.privacy.steps_taken == STEPS and original is keras.Model.compile


def test_two_backups_are_refused(tmp_path):
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(MECHANISMS["dpsgd"](), "mse")
    two = [tfdp.callbacks.BackupAndRestore(tmp_path / name) for name in "ab"]
    with pytest.raises(ValueError, match="at most one"):
        model.fit(*data(), verbose=0, callbacks=two)
    assert os.listdir(tmp_path) == []


def test_a_run_whose_state_is_left_goes_on_from_there_only(tmp_path):
    """Steps that nobody reserves are another run, so no two trainings go on from one state."""
    training = Training(tmp_path / "b", matrix)
    network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model = tfdp.make_private(network)
    model.compile(matrix(), "mse")
    training.crash(7, model=model)
    model.fit(training.lots, epochs=1, verbose=0)
    assert sorted(run.steps for run in model.privacy.ledger.runs) == [6, 7]
    other = training.run()
    (run,) = other.privacy.ledger.runs
    assert run.steps == STEPS


def test_workers_that_a_kill_leaves_do_not_hold_the_lock(tmp_path):
    """A process that was forked off shares the lock of its parent, and lets go of it."""
    folder = BackupFolder(tmp_path / "b")
    folder.enter()
    heard, tells = os.pipe()
    worker = os.fork()
    if not worker:
        os.write(tells, b"x")
        time.sleep(60)
        os._exit(0)
    try:
        os.read(heard, 1)
        with pytest.raises(BackupError, match="another process"):
            BackupFolder(tmp_path / "b").enter()
        folder.leave()  # as the kernel does at a kill
        other = BackupFolder(tmp_path / "b")
        other.enter()
        other.leave()
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
