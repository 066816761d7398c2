"""A training that ends before its plan counts all planned steps, and so do files made during one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, steps

import tfdp
from tests.accounting.varying import vary
from tests.training.small import small, train
from tfdp.accounting import proven

DELTA = 1e-5
EPOCHS, PLANNED = 4, 8  # two steps in an epoch


class StopsAfter(keras.callbacks.Callback):
    """Ends training after an epoch, or in one after a step, as if what it saw had decided so."""

    def __init__(self, epoch, step=None):
        super().__init__()
        self.epoch, self.step, self.now = epoch, step, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch and self.step is None:
            self.model.stop_training = True

    def on_train_batch_end(self, batch, logs=None):
        if (self.now, batch) == (self.epoch, self.step):
            self.model.stop_training = True


class Worse(keras.callbacks.EarlyStopping):
    """Sees the best validation loss at once, and worse ones after it."""

    def __init__(self):
        super().__init__(monitor="val_loss", patience=1, restore_best_weights=True)

    def get_monitor_value(self, logs):
        self.seen = getattr(self, "seen", 0) + 1
        return float(self.seen)


class Interrupts(keras.callbacks.Callback):
    """Ctrl-C after so many steps."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        if self.model.privacy.steps_taken == self.at:
            raise KeyboardInterrupt


def call(**hooks):
    return keras.callbacks.LambdaCallback(**hooks)


def steps_in(path):
    return sum(run.steps for run in keras.saving.load_model(path).privacy.ledger.runs)


def epsilon_of(model, number):
    (run,) = model.privacy.ledger.runs
    return proven(vary(run, steps=number), DELTA).epsilon


def entries(model):
    return [run.steps for run in model.privacy.ledger.runs]


# -- the end -----------------------------------------------------------------------------------------


def test_early_stopping_counts_the_plan_and_fit_says_so(caplog):
    model = small()
    train(model, EPOCHS, callbacks=[Worse()], validation_data=data(8, seed=1))
    assert model.privacy.steps_taken == 4
    assert steps(model) == PLANNED
    spent = model.privacy.spent(DELTA).epsilon
    assert spent == epsilon_of(model, PLANNED) > epsilon_of(model, 4)
    texts = [r.getMessage() for r in caplog.records if "StopAtBudget" in r.getMessage()]
    assert "All planned steps are counted" in texts[0]
    assert f"of {PLANNED} planned steps" in texts[1]


@pytest.mark.parametrize("stop", [(0, 0), (1, None)])
def test_any_callback_that_ends_training(stop):
    model = small()
    train(model, EPOCHS, callbacks=[StopsAfter(*stop)])
    assert model.privacy.steps_taken == stop[0] * 2 + (2 if stop[1] is None else stop[1] + 1)
    assert steps(model) == PLANNED


def test_an_end_that_is_decided_before_the_first_step():
    model = small(budget=tfdp.PrivacyBudget(30.0, DELTA))
    stops = call(on_train_begin=lambda logs: setattr(model, "stop_training", True))
    train(model, EPOCHS, callbacks=[stops])
    assert entries(model) == [PLANNED]


def test_a_training_that_ends_by_its_plan_counts_its_steps_and_stays_open():
    model = small()
    for epochs in (2, 1):
        lots = tf.data.Dataset.from_tensor_slices(data(8)).batch(4, drop_remainder=True)
        model.fit(lots, epochs=epochs, callbacks=[StopsAfter(epochs - 1)], verbose=0)
    assert entries(model) == [6]


def test_the_next_training_comes_on_top():
    model = small()
    train(model, EPOCHS, callbacks=[StopsAfter(0)])
    train(model, 2)
    assert entries(model) == [PLANNED, 4]
    assert model.privacy.steps_taken == 4


def test_a_budget_bounds_what_is_counted():
    """The steps beyond a budget would not have been taken."""
    model = small(budget=tfdp.PrivacyBudget(20.0, DELTA))
    train(model, 1000, callbacks=[StopsAfter(0)])
    assert 2 < steps(model) < 2000
    assert 19 < model.privacy.spent(DELTA).epsilon <= 20


def test_a_decision_that_is_taken_back_leaves_the_plan():
    class Wavers(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True
            self.counted = steps(self.model), self.model.privacy.spent(DELTA).epsilon
            self.model.stop_training = False

    model, wavers = small(), Wavers()
    train(model, EPOCHS, callbacks=[wavers])
    assert entries(model) == [PLANNED] == [model.privacy.steps_taken]


def test_an_exception_after_the_first_step_counts_the_plan():
    model = small()
    with pytest.raises(KeyboardInterrupt):
        train(model, EPOCHS, callbacks=[Interrupts(3)])
    (run,) = model.privacy.ledger.runs
    assert (run.steps, run.taken) == (PLANNED, 3)
    assert f"3 of {PLANNED} planned steps" in model.privacy.statement(DELTA)
    train(model)  # another run: its steps do not hide among those that were left out
    assert entries(model) == [PLANNED, 2]


def test_an_exception_before_the_first_step_counts_none():
    def fail(batch, logs):
        raise KeyboardInterrupt

    model = small()
    with pytest.raises(KeyboardInterrupt):
        train(model, EPOCHS, callbacks=[call(on_train_batch_begin=fail)])
    assert steps(model) == 0


# -- data of unknown length --------------------------------------------------------------------------


def of_unknown_length():
    """Two batches in an epoch, which the data do not say."""
    return tf.data.Dataset.from_tensor_slices(data(8)).batch(4).filter(lambda *_: True)


def test_data_of_unknown_length_count_the_epochs_that_were_planned():
    model = small()
    model.fit(of_unknown_length(), epochs=EPOCHS, callbacks=[StopsAfter(1, 0)], verbose=0)
    assert steps(model) == PLANNED


@pytest.mark.parametrize("known", ["nothing", "a budget", "steps_per_epoch"])
def test_an_end_in_the_first_epoch_of_an_unknown_length_proves_nothing(known):
    """Nobody knows how many steps were planned, unless a budget bounds them."""
    budget = tfdp.PrivacyBudget(20.0, DELTA) if known == "a budget" else None
    model = small(budget=budget)
    options = {"steps_per_epoch": 2} if known == "steps_per_epoch" else {}
    stops = [StopsAfter(0, 0)]
    model.fit(of_unknown_length(), epochs=EPOCHS, callbacks=stops, verbose=0, **options)
    if known == "nothing":
        tfdp.make_private(model, start="public", engine="loop")  # which is not about these steps
        assert model.privacy.spent(DELTA).epsilon == np.inf
    elif known == "a budget":
        assert 19 < model.privacy.spent(DELTA).epsilon <= 20
    else:
        assert steps(model) == PLANNED


# -- files -------------------------------------------------------------------------------------------


def test_files_that_are_written_between_the_decision_and_the_end_count_the_plan(tmp_path):
    last = keras.callbacks.ModelCheckpoint(tmp_path / "last.keras")
    saves = call(on_train_end=lambda logs: model.save(tmp_path / "end.keras"))
    model = small()
    train(model, EPOCHS, callbacks=[StopsAfter(1), last, saves])
    model.save(tmp_path / "after.keras")
    for name in ("last", "end", "after"):
        assert steps_in(tmp_path / f"{name}.keras") == PLANNED


def test_files_that_are_made_during_a_training_count_the_plan(tmp_path):
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "val_loss", save_best_only=True)
    each = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    counted = []
    reads = call(on_epoch_end=lambda epoch, logs: counted.append(steps_in(tmp_path / "best.keras")))
    model = small()
    train(model, EPOCHS, callbacks=[best, each, reads], validation_data=data(8, seed=1))
    assert counted == [PLANNED] * EPOCHS and steps(model) == PLANNED
    assert steps_in(tmp_path / "1.keras") == PLANNED


# -- loops of one's own ------------------------------------------------------------------------------


def test_a_loop_of_train_on_batch_counts_what_it_leaves_out():
    model = small()
    with pytest.raises(RuntimeError, match="steps"):
        model.privacy.count_left_out(1)
    model.train_on_batch(*data(8))
    model.privacy.count_left_out(PLANNED - 3)
    model.privacy.count_left_out(2)  # besides those that are counted
    assert steps(model) == PLANNED and model.privacy.steps_taken == 1
    with pytest.raises(ValueError, match="steps"):
        model.privacy.count_left_out(-1)


# -- after a crash -----------------------------------------------------------------------------------


def kept(folder, callback, length="known", **options):
    """Trains with a backup; returns (model, backup)."""
    model = small()
    backup = tfdp.callbacks.BackupAndRestore(folder, save_freq=1, **options)
    lots = tfdp.data.make_lots("cyclic", *data(8), lot_size=4)
    x = lots if length == "known" else of_unknown_length()
    callbacks = [backup] if callback is None else [backup, callback]
    model.fit(x, epochs=EPOCHS, callbacks=callbacks, verbose=0)
    return model, backup


def test_a_backup_of_a_training_that_was_left_counts_all(tmp_path):
    """Its state goes on, with another run of the program, and nothing counted is forgotten."""
    first, _ = kept(tmp_path, StopsAfter(0), delete_checkpoint=False)
    again, backup = kept(tmp_path, None, delete_checkpoint=False)
    assert steps(first) == steps(again) == PLANNED and backup.lost_steps == 0
    np.testing.assert_array_equal(again.get_weights()[0], first.get_weights()[0])


def test_a_resumed_training_counts_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, Interrupts(3))
    model, _ = kept(tmp_path, None)
    assert entries(model) == [PLANNED] and model.privacy.ledger.runs[0].taken is None


def test_an_end_that_is_decided_between_a_crash_and_the_next_step(tmp_path):
    """Keras then leaves after the first step, which lies behind, so that there are no metrics."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.stop_training = True

    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, Interrupts(3), "unknown")
    model, _ = kept(tmp_path, Stops(), "unknown")
    assert entries(model) == [PLANNED]
