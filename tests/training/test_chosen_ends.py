"""Where results decide when training ends, or what is kept, all planned steps are counted."""

import keras
import numpy as np
import pytest
from helpers import data, fit, plain, private, steps

import tfdp
from tfdp.accounting import Strategy, proven

DELTA = 1e-5
PLANNED = 30  # ten epochs of three steps


class StopsAfter(keras.callbacks.Callback):
    """Ends training after an epoch, as if what it saw had decided so."""

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


class Never(keras.callbacks.EarlyStopping):
    """Sees the best validation loss at once, and worse ones after it."""

    def __init__(self):
        super().__init__(monitor="val_loss", patience=2)

    def get_monitor_value(self, logs):
        self.seen = getattr(self, "seen", 0) + 1
        return float(self.seen)


def steps_in(path):
    return sum(run.steps for run in keras.saving.load_model(path).optimizer.ledger.runs)


def epsilon_of(model, number):
    (run,) = model.privacy.ledger.runs
    return proven(run.with_(steps=number), DELTA).epsilon


def test_early_stopping_counts_the_plan():
    model = private()
    fit(model, epochs=10, callbacks=[Never()], validation_data=data(8, seed=1))
    assert model.privacy.steps_taken == 9
    assert steps(model) == PLANNED
    spent = model.privacy.spent(DELTA).epsilon
    assert spent == epsilon_of(model, PLANNED) > epsilon_of(model, 9)


@pytest.mark.parametrize("stop", [(0, None), (0, 1), (4, None), (9, 2)])
def test_any_callback_that_ends_training(stop):
    model = private()
    fit(model, epochs=10, callbacks=[StopsAfter(*stop)])
    assert model.privacy.steps_taken == stop[0] * 3 + (3 if stop[1] is None else stop[1] + 1)
    assert steps(model) == PLANNED


def test_a_training_that_ends_by_its_plan_counts_its_steps():
    model = private()
    fit(model, epochs=2, callbacks=[StopsAfter(1)])
    fit(model, epochs=1)
    assert steps(model) == 9


def test_the_next_training_comes_on_top():
    model = private()
    fit(model, epochs=10, callbacks=[StopsAfter(0)])
    fit(model, epochs=2)
    assert [run.steps for run in model.privacy.ledger.runs] == [PLANNED, 6]
    assert model.privacy.steps_taken == 6


def test_a_budget_bounds_what_is_counted():
    """The steps beyond a budget would not have been taken."""
    budget = tfdp.PrivacyBudget(epsilon=20.0, delta=DELTA)
    model = private(budget=budget)
    fit(model, epochs=1000, callbacks=[StopsAfter(0)])
    assert 3 < steps(model) < 3000
    assert 19 < model.privacy.spent(DELTA).epsilon <= 20
    model = private(budget=budget)
    fit(model, epochs=1000, callbacks=[tfdp.callbacks.StopAtBudget()])
    assert steps(model) == model.privacy.steps_taken


def test_data_of_unknown_length_count_the_epochs_that_were_planned():
    def batches():
        x, y = data()
        for start in range(0, 24, 8):
            yield x[start : start + 8], y[start : start + 8]

    class Again(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            x, y = data()
            return x[8 * index :][:8], y[8 * index :][:8]

    model = private()
    model.fit(Again(), epochs=10, callbacks=[StopsAfter(1)], verbose=0)
    assert model.privacy.steps_taken == 6
    assert steps(model) == PLANNED
    model = private()
    model.fit(batches(), epochs=1, callbacks=[StopsAfter(0, 1)], verbose=0)
    assert (
        steps(model) == model.privacy.steps_taken == 2
    )  # the one epoch that was planned has begun


def test_the_best_file_counts_the_plan(tmp_path):
    path = tmp_path / "best.keras"
    held = data(8, seed=1)

    class Stops(keras.callbacks.Callback):
        """Reads the file in the middle of the training."""

        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                counted.append(steps_in(path))

    counted = []
    best = keras.callbacks.ModelCheckpoint(path, monitor="val_loss", save_best_only=True)
    each = keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras")
    model = private()
    fit(model, epochs=10, callbacks=[best, Stops()], validation_data=held)
    assert counted == [PLANNED]
    assert steps(model) == steps_in(path) == PLANNED
    model = private()
    fit(model, epochs=10, callbacks=[each])
    assert steps_in(tmp_path / "2.keras") == 6


def test_the_best_of_an_unknown_number_is_refused(tmp_path):
    best = keras.callbacks.ModelCheckpoint(
        tmp_path / "best.keras", monitor="val_loss", save_best_only=True
    )
    batches = ((x, y) for x, y in [data(8)] * 3)
    model = private()
    with pytest.raises(ValueError, match=r"counts all planned steps.*steps_per_epoch"):
        model.fit(batches, epochs=2, callbacks=[best], validation_data=data(8, seed=1), verbose=0)
    assert steps(model) == 0


def test_what_was_counted_goes_with_the_weights():
    model, other = private(), private(model=plain(1))
    fit(model, epochs=10, callbacks=[StopsAfter(0)])
    other.set_weights(model.get_weights())
    fit(other, epochs=1)
    assert steps(other) == PLANNED + 3


def test_what_was_counted_goes_into_files(tmp_path):
    model = private()
    fit(model, epochs=10, callbacks=[StopsAfter(0)])
    model.save(tmp_path / "m.keras")
    assert steps_in(tmp_path / "m.keras") == PLANNED


def test_a_loop_counts_what_it_leaves_out():
    model = private()
    with pytest.raises(RuntimeError, match=r"Expected a training.*Found none"):
        model.privacy.count_left_out(1)
    for _ in model.privacy.steps(*data(), batch_size=8, epochs=10):
        break
    model.privacy.count_left_out(29)
    assert steps(model) == PLANNED
    with pytest.raises(ValueError, match="steps"):
        model.privacy.count_left_out(-1)


def test_no_step_belongs_to_a_training_that_was_left():
    model = private()
    generator = model.privacy.steps(*data(), batch_size=8, epochs=10)
    next(generator)
    model.privacy.count_left_out(29)
    with pytest.raises(Exception, match=r"planned for|closed"):
        next(generator)


@pytest.mark.parametrize(
    "mechanism", [tfdp.DPKerasSGDOptimizer, tfdp.SIDPSGDOptimizer, tfdp.MatrixDPSGDOptimizer]
)
def test_a_backup_of_a_training_that_was_left_counts_all(tmp_path, mechanism):
    """Its state goes on, with another run of the program, and nothing counted is forgotten."""

    def model():
        options = {"l2_norm_clip": 1.0, "noise_multiplier": 4.0, "learning_rate": 0.1}
        if mechanism is tfdp.MatrixDPSGDOptimizer:
            coefficients = (1.0, 0.5, 0.25)
            options["strategy"] = Strategy(name="banded_toeplitz", coefficients=coefficients)
        return private(mechanism(**options))

    first = model()
    lots = tfdp.data.make_lots("cyclic", *data(), lot_size=8)
    kept = tfdp.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    first.fit(lots, epochs=10, callbacks=[kept, StopsAfter(0)], verbose=0)
    assert steps(first) == PLANNED
    again = model()
    kept = tfdp.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    lots = tfdp.data.make_lots("cyclic", *data(), lot_size=8)
    again.fit(lots, epochs=10, callbacks=[kept], verbose=0)
    assert steps(again) >= PLANNED
    assert np.allclose(again.get_weights()[0], first.get_weights()[0])
    assert kept.lost_steps == 0
