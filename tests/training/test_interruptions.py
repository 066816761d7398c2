"""Ctrl-C and SIGTERM, clocks that jump, and what a training tells of its interruptions."""

import os
import pathlib
import random
import signal
import sys

import keras
import numpy as np
import pytest

import tfdp
from tfdp._interruptions import Interruptions
from tfdp.training import backup as backup_module

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

N, L, EPOCHS = 60, 10, 4
STEPS = N // L * EPOCHS


def data():
    x = np.random.default_rng(0).normal(size=(N, 3)).astype("float32")
    return x, x[:, :1]


def train(folder, at=None, number=signal.SIGINT, budget=None, **options):
    """Trains; after step `at`, a signal arrives. Returns (model, history, callback)."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model = tfdp.make_private(model, budget=budget)
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0), "mse")
    backup = tfdp.callbacks.BackupAndRestore(folder, save_freq=100, **options)

    def after(batch, logs):
        if model.privacy.steps_taken == at:
            os.kill(os.getpid(), number)

    lots = tfdp.data.make_lots("cyclic", *data(), lot_size=L)
    history = model.fit(
        lots, epochs=EPOCHS, verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=after), backup],
    )  # fmt: skip
    return model, history, backup


@pytest.mark.parametrize("at", [1, 6, 9, STEPS - 1, STEPS])
def test_ctrl_c_loses_nothing_at_any_step(tmp_path, at):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as interruption:
        train(tmp_path / "b", at, delta=1e-5)
    assert signal.getsignal(signal.SIGINT) is before
    spent, where = interruption.value.__notes__
    assert spent.startswith(f"Stopped after step {at} of {STEPS} (proven epsilon ")
    assert (
        spent.endswith(" at delta 1e-05, adjacency zero_out).")
        and "the same program goes on from there" in where
    )
    model, history, backup = train(tmp_path / "b")
    assert (backup.restarts, backup.lost_steps) == (1, 0)
    assert [run.steps for run in model.privacy.ledger.runs] == [STEPS]
    # The epochs of both processes; of one that was cut into two, the second part.
    assert history.epoch == list(range(EPOCHS)) and len(history.history["loss"]) == EPOCHS
    assert not (tmp_path / "b").exists()


def test_an_interruption_names_no_epsilon_without_a_delta(tmp_path):
    with pytest.raises(KeyboardInterrupt) as interruption:
        train(tmp_path / "b", 3)
    assert interruption.value.__notes__[0] == f"Stopped after step 3 of {STEPS}."
    with pytest.raises(KeyboardInterrupt) as interruption:
        train(tmp_path / "c", 3, budget=tfdp.PrivacyBudget(10.0, 1e-3))
    assert "at delta 0.001" in interruption.value.__notes__[0]


def test_sigterm_calls_the_handler_that_was_there(tmp_path):
    class Asked(Exception):
        pass

    def handler(number, frame):
        raise Asked

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Asked) as asked:
            train(tmp_path / "b", 3, signal.SIGTERM)
        assert asked.value.__notes__[0].startswith("Stopped after step 3")
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_without_a_handler_ends_the_process_with_a_word(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        train(tmp_path / "b", 3, signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err.startswith("Stopped after step 3 of 24. The state is in ")


def test_an_ignored_signal_stays_ignored(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        model, _, _ = train(tmp_path / "b", 3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert model.privacy.ledger.runs[0].steps == STEPS


def test_a_signal_is_not_lost_if_something_else_fails():
    with pytest.raises(KeyboardInterrupt) as interruption, Interruptions():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError
    assert isinstance(interruption.value.__context__, ValueError)


def test_a_training_that_ends_early_has_no_more_steps(tmp_path):
    """Its planned steps are counted, whatever was reserved, and a second program takes none."""

    def early(folder):
        model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0), "mse")

        def stop(epoch, logs):
            model.stop_training = epoch == 1

        history = model.fit(
            tfdp.data.make_lots("cyclic", *data(), lot_size=L), epochs=2000, verbose=0,
            callbacks=[
                tfdp.callbacks.BackupAndRestore(folder, delete_checkpoint=False),
                keras.callbacks.LambdaCallback(on_epoch_end=stop),
            ],
        )  # fmt: skip
        assert history.epoch == [0, 1]  # twelve steps
        return model.privacy.ledger.runs

    (run,) = early(tmp_path / "b")
    assert run.steps == 12_000
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0), "mse")
    backup = tfdp.callbacks.BackupAndRestore(tmp_path / "b", delete_checkpoint=False)
    lots = tfdp.data.make_lots("cyclic", *data(), lot_size=L)
    model.fit(lots, epochs=2, verbose=0, callbacks=[backup])
    assert [run.steps for run in model.privacy.ledger.runs] == [12_000] and backup.lost_steps == 0


def test_no_step_beyond_the_budget_is_reserved(tmp_path, monkeypatch):
    budget = tfdp.PrivacyBudget(3.0, 1e-3)
    reserved = []
    reserve = backup_module.BackupFolder.reserve

    def noted(self, run_id, steps, opening=False):
        reserved.append(steps)
        reserve(self, run_id, steps, opening)

    monkeypatch.setattr(backup_module.BackupFolder, "reserve", noted)
    monkeypatch.setattr(backup_module, "_AHEAD", 1e9)
    with pytest.raises(tfdp.accounting.BudgetExhausted):
        train(tmp_path / "b", budget=budget)
    assert max(reserved) < STEPS


def test_another_mechanism_is_refused_by_name(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", 3)
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.SIDPSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0), "mse")
    lots = tfdp.data.make_lots("cyclic", *data(), lot_size=L)
    backup = tfdp.callbacks.BackupAndRestore(tmp_path / "b")
    with pytest.raises(ValueError, match=r"of 'dpsgd'\. Found one of 'si_dpsgd'"):
        model.fit(lots, epochs=EPOCHS, verbose=0, callbacks=[backup])


def test_a_second_interruption_ends_at_once():
    with Interruptions() as noted:
        os.kill(os.getpid(), signal.SIGINT)
        assert noted.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_full_disk_at_an_interruption_is_told(tmp_path, monkeypatch):
    written = backup_module.BackupFolder.write

    def full(self, about, arrays):
        if about["steps"]:
            raise OSError(28, "No space left on device")
        written(self, about, arrays)

    monkeypatch.setattr(backup_module.BackupFolder, "write", full)
    with pytest.raises(KeyboardInterrupt) as interruption:
        train(tmp_path / "b", 5)
    assert "No space left on device. The one before it is kept." in interruption.value.__notes__[1]
    monkeypatch.undo()
    model, _, backup = train(tmp_path / "b")
    assert backup.lost_steps == 5 and [r.steps for r in model.privacy.ledger.runs] == [STEPS]


@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_jumps_changes_no_count(tmp_path, monkeypatch, seed):
    """Back and forth by years: only how often states are written depends on it."""
    rng = random.Random(seed)

    class Clock:
        @staticmethod
        def monotonic():
            return rng.uniform(-1e9, 1e9)

    with pytest.raises(KeyboardInterrupt):
        monkeypatch.setattr(backup_module, "time", Clock)
        train(tmp_path / "b", 9)
    model, _, backup = train(tmp_path / "b")
    assert [run.steps for run in model.privacy.ledger.runs] == [STEPS]
    assert (backup.restarts, backup.lost_steps) == (1, 0)


def test_a_plain_model_is_refused(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Expected a model of tfdp\.make_private"):
        model.fit(*data(), verbose=0, callbacks=[tfdp.callbacks.BackupAndRestore(tmp_path / "b")])


def test_a_fit_that_ended_early_is_not_gone_on_with(tmp_path):
    """As by EarlyStopping: the same program gives the trained weights; more epochs train more."""

    def program(epochs, stop_at=1):
        keras.utils.set_random_seed(1)
        model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
        model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0), "mse")

        def stop(epoch, logs):
            model.stop_training = epoch == stop_at

        model.fit(
            tfdp.data.make_lots("poisson", *data(), lot_size=L), epochs=epochs, verbose=0,
            callbacks=[
                tfdp.callbacks.BackupAndRestore(tmp_path / "b", delete_checkpoint=False),
                keras.callbacks.LambdaCallback(on_epoch_end=stop),
            ],
        )  # fmt: skip
        return [run.steps for run in model.privacy.ledger.runs], model.get_weights()

    steps, weights = program(5)
    again, same = program(5)
    assert steps == again == [30]  # planned; twelve were taken
    for one, other in zip(weights, same, strict=True):
        np.testing.assert_array_equal(one, other)
    assert program(6, stop_at=None)[0] == [36]


def test_steps_are_reserved_no_further_than_states_are_asked_for(tmp_path, monkeypatch):
    reserved = []
    reserve = backup_module.BackupFolder.reserve

    def noted(self, run_id, steps, opening=False):
        reserved.append(steps)
        reserve(self, run_id, steps, opening)

    monkeypatch.setattr(backup_module.BackupFolder, "reserve", noted)
    monkeypatch.setattr(backup_module, "_AHEAD", 1e9)
    model = tfdp.make_private(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]))
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=2.0), "mse")
    lots = tfdp.data.make_lots("cyclic", *data(), lot_size=L)
    backup = tfdp.callbacks.BackupAndRestore(tmp_path / "b", save_freq=3)
    model.fit(lots, epochs=EPOCHS, verbose=0, callbacks=[backup])
    assert max(np.diff(reserved)) <= 3
