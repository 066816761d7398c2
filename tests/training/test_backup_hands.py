"""Backups in careless hands: files that are exchanged, removed or added, and other programs."""

import os
import shutil
import signal

import keras
import numpy as np
import pytest

import tfdp
from tests.training.test_backup import STEPS, L, N, Training, data, killed, matrix, options
from tfdp import account
from tfdp.accounting.guarantee import format_epsilon
from tfdp.training.backup_folder import BackupError, BackupFolder


def test_restored_weights_bring_their_ledger_to_another_model(tmp_path, monkeypatch):
    """As in the process that trained them: what is seen again is accounted again."""
    steps = []
    for _ in range(2):
        # A new process knows nothing of what another one has trained.
        monkeypatch.setattr(account, "_TRAINED_HERE", {})
        first = Training(tmp_path / "b", delete_checkpoint=False).run()
        other = Training(tmp_path / "c")
        model = tfdp.make_private(keras.models.clone_model(first))
        model.compile(other.make(), "mse")
        model.set_weights(first.get_weights())
        other.run(model=model)
        steps.append([run.steps for run in model.privacy.ledger.runs])
    assert steps == [[STEPS, STEPS]] * 2


@pytest.mark.parametrize("optimizer", ["adam", "sgd with momentum"])
def test_another_update_rule_is_refused(tmp_path, optimizer):
    make = {
        "adam": lambda: tfdp.DPKerasAdamOptimizer(**options()),
        "sgd with momentum": lambda: tfdp.DPKerasSGDOptimizer(**options(momentum=0.5)),
    }
    rival = {
        "adam": lambda: tfdp.DPKerasAdamWOptimizer(**options()),
        "sgd with momentum": lambda: tfdp.optimizers.DPKerasLionOptimizer(**options()),
    }
    Training(tmp_path / "b", make[optimizer]).crash(7)
    with pytest.raises(BackupError, match="of another optimizer"):
        Training(tmp_path / "b", rival[optimizer]).run()


def test_other_sampling_is_named(tmp_path):
    Training(tmp_path / "b", sampling="cyclic").crash(7)
    with pytest.raises(BackupError, match="lots that are drawn otherwise"):
        Training(tmp_path / "b", sampling="poisson").run()


@pytest.mark.parametrize(
    "make", [matrix, lambda: tfdp.DPKerasSGDOptimizer(**options())], ids=["matrix", "dpsgd"]
)
def test_an_earlier_state_is_refused(tmp_path, make, monkeypatch):
    """Its key is not the one that the noise of the later steps came from."""
    killed(monkeypatch)
    training = Training(tmp_path / "b", make)
    training.crash(5)
    shutil.copy(tmp_path / "b" / "state.npz", tmp_path / "old")
    training.crash(13)
    shutil.copy(tmp_path / "b" / "state.npz", tmp_path / "new")
    shutil.copy(tmp_path / "old", tmp_path / "b" / "state.npz")
    with pytest.raises(BackupError, match="an earlier one: it was exchanged"):
        training.run()
    shutil.copy(tmp_path / "new", tmp_path / "b" / "state.npz")
    (run,) = training.run().privacy.ledger.runs
    assert run.steps == STEPS


def test_processes_that_die_before_their_first_state_leave_the_one_before(tmp_path, monkeypatch):
    training = Training(tmp_path / "b")
    training.crash(5)
    written = BackupFolder.write

    class Killed(BaseException):
        pass

    def dies(self, about, arrays):
        raise Killed

    for _ in range(3):
        monkeypatch.setattr(BackupFolder, "write", dies)
        with pytest.raises(Killed):
            training.run()
    monkeypatch.setattr(BackupFolder, "write", written)
    (run,) = training.run().privacy.ledger.runs
    assert run.steps == STEPS


def test_a_removed_lock_ends_the_training(tmp_path):
    class Removes(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                os.unlink(tmp_path / "b" / "lock")

    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.DPKerasSGDOptimizer(**options()), "mse")
    backup = tfdp.callbacks.BackupAndRestore(tmp_path / "b", save_freq=1)
    with pytest.raises(BackupError, match="removed or replaced, so another process may train"):
        model.fit(*data(), batch_size=L, epochs=4, verbose=0, callbacks=[backup, Removes()])
    assert model.privacy.steps_taken <= 2 * N // L + 1


def test_a_folder_with_other_things_is_refused_and_keeps_what_is_put_into_it(tmp_path):
    (tmp_path / "b").mkdir(mode=0o700)
    (tmp_path / "b" / "thesis").mkdir()
    (tmp_path / "b" / "old.partial.csv").write_text("1")
    with pytest.raises(BackupError, match=r"a folder of its own.*Found old\.partial\.csv, thesis"):
        Training(tmp_path / "b").run()
    assert sorted(os.listdir(tmp_path / "b")) == ["old.partial.csv", "thesis"]

    class Saves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            (tmp_path / "c" / "best.keras").write_text(str(epoch))

    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.DPKerasSGDOptimizer(**options()), "mse")
    backup = tfdp.callbacks.BackupAndRestore(tmp_path / "c")
    model.fit(*data(), batch_size=L, epochs=2, verbose=0, callbacks=[backup, Saves()])
    assert os.listdir(tmp_path / "c") == ["best.keras"]
    assert sorted(os.listdir(tmp_path)) == ["b", "c"]


def test_callbacks_behind_the_backup_change_the_weights_that_are_kept(tmp_path):
    """As `EarlyStopping(restore_best_weights=True)`: the same program ends with the same weights."""

    class Zeros(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            for variable in self.model.trainable_variables:
                variable.assign(keras.ops.ones_like(variable) * 0.5)

    found = []
    for _ in range(2):
        model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        model.compile(tfdp.DPKerasSGDOptimizer(**options()), "mse")
        backup = tfdp.callbacks.BackupAndRestore(tmp_path / "b", delete_checkpoint=False)
        callbacks = [backup] if found else [backup, Zeros()]
        model.fit(*data(), batch_size=L, epochs=2, verbose=0, callbacks=callbacks)
        found.append(model.get_weights())
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("delete", [True, False])
def test_a_signal_while_callbacks_hear_of_the_end_keeps_the_state(tmp_path, delete):
    def train(raises):
        model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        model.compile(tfdp.DPKerasSGDOptimizer(**options()), "mse")
        backup = tfdp.callbacks.BackupAndRestore(tmp_path / "b", delete_checkpoint=delete)
        end = keras.callbacks.LambdaCallback(
            on_train_end=lambda logs: raises and os.kill(os.getpid(), signal.SIGINT)
        )
        model.fit(*data(), batch_size=L, epochs=2, verbose=0, callbacks=[backup, end])
        return model

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as interruption:
            train(True)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert "goes on from there" in interruption.value.__notes__[1]
    (run,) = train(False).privacy.ledger.runs
    assert run.steps == 2 * N // L


def test_an_interruption_states_the_epsilon_of_the_asked_adjacency(tmp_path):
    def stopped(folder, budget=None, **backup):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model = tfdp.make_private(model, budget=budget)
        model.compile(tfdp.DPKerasSGDOptimizer(**options()), "mse")
        kill = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: epoch and os.kill(os.getpid(), signal.SIGINT)
        )
        lots = tfdp.data.make_lots("cyclic", *data(), lot_size=L)
        callbacks = [kill, tfdp.callbacks.BackupAndRestore(tmp_path / folder, **backup)]
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt) as interruption:
                model.fit(lots, epochs=2, verbose=0, callbacks=callbacks)
        finally:
            signal.signal(signal.SIGINT, previous)
        return interruption.value.__notes__[0], model

    for folder, kinds in (
        ("a", {"budget": tfdp.PrivacyBudget(20.0, 1e-5, adjacency="replace_one")}),
        ("b", {"delta": 1e-5, "adjacency": "replace_one"}),
    ):
        said, model = stopped(folder, **kinds)
        spent = model.privacy.spent(1e-5, adjacency="replace_one").epsilon
        assert spent > 1.5 * model.privacy.spent(1e-5).epsilon
        assert f"epsilon {format_epsilon(spent)} at delta 1e-05, adjacency replace_one" in said


def test_a_kill_beside_the_files_of_others_goes_on(tmp_path):
    training = Training(tmp_path / "b")
    training.crash(5)
    (tmp_path / "b" / "best.weights.h5").write_text("theirs")
    (run,) = training.run().privacy.ledger.runs
    assert run.steps == STEPS
    assert os.listdir(tmp_path / "b") == ["best.weights.h5"]


def test_a_full_disk_that_passes_leaves_a_state_to_go_on_from(tmp_path, monkeypatch):
    """The first state of a second fit is not written, a later one is, and then the process dies."""
    folder = BackupFolder(tmp_path / "b")
    folder.enter()
    folder.reserve("run", 0, opening=True)
    folder.write({"steps": 0}, {})
    folder.reserve("run", 5)
    folder.reserve("run", 5, opening=True)  # the second fit, whose first state has no room
    folder.reserve("run", 9)
    assert folder.read()[0]["steps"] == 0
    folder.write({"steps": 7}, {})
    folder.leave()
    other = BackupFolder(tmp_path / "b")
    other.enter()
    assert other.read()[0]["steps"] == 7 and other.reserved("run") == 9
    other.leave()


def test_clearing_leaves_the_training_of_another_process(tmp_path):
    folder = BackupFolder(tmp_path / "b")
    folder.enter()
    os.unlink(tmp_path / "b" / "lock")
    other = BackupFolder(tmp_path / "b")
    other.enter()
    other.reserve("run", 0, opening=True)
    other.write({"steps": 0}, {})
    with pytest.raises(BackupError, match="another process may train"):
        folder.clear()
    assert other.read()[0] == {"steps": 0}
    folder.leave()
    other.leave()
