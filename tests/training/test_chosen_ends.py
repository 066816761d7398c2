"""Where results decide when training ends, or what is kept, all planned steps are counted."""

import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, fit, plain, private, sgd, steps

import tfdp
from tfdp.accounting import Strategy, proven
from tfdp.training.backup_folder import BackupFolder

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


def of_unknown_length():
    """Three batches in an epoch, which the data do not say."""
    x, y = data()

    def batches():
        for start in range(0, 24, 8):
            yield x[start : start + 8], y[start : start + 8]

    kinds = (tf.TensorSpec([None, 4]), tf.TensorSpec([None], y.dtype))
    return tf.data.Dataset.from_generator(batches, output_signature=kinds)


def test_data_of_unknown_length_count_the_epochs_that_were_planned():
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
    for stop in [(0, None), (1, 0), (1, 1), (2, None)]:
        model = private()
        model.fit(of_unknown_length(), epochs=10, callbacks=[StopsAfter(*stop)], verbose=0)
        assert steps(model) == PLANNED


def test_an_end_in_the_first_epoch_of_an_unknown_length_proves_nothing():
    """Nobody knows how many steps were planned, unless a budget bounds them."""
    model = private()
    model.fit(of_unknown_length(), epochs=10, callbacks=[StopsAfter(0, 1)], verbose=0)
    assert model.privacy.spent(DELTA).epsilon == np.inf
    budget = tfdp.PrivacyBudget(epsilon=20.0, delta=DELTA)
    model = private(budget=budget)
    model.fit(of_unknown_length(), epochs=10, callbacks=[StopsAfter(0, 1)], verbose=0)
    assert 19 < model.privacy.spent(DELTA).epsilon <= 20
    model = private()
    model.fit(
        of_unknown_length(), epochs=10, steps_per_epoch=3, callbacks=[StopsAfter(0, 1)], verbose=0
    )
    assert steps(model) == PLANNED


def test_epochs_of_earlier_processes_say_how_long_an_unknown_one_is(tmp_path):
    def train(*callbacks):
        model = private()
        backup = tfdp.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False, save_freq=1)
        model.fit(of_unknown_length(), epochs=10, callbacks=[backup, *callbacks], verbose=0)
        return model

    with pytest.raises(KeyboardInterrupt):
        train(Interrupts(5))
    assert steps(train(StopsAfter(1))) == PLANNED


class Interrupts(keras.callbacks.Callback):
    """Ctrl-C after so many steps."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_train_batch_end(self, batch, logs=None):
        if self.model.privacy.steps_taken == self.at:
            signal.raise_signal(signal.SIGINT)


def test_files_that_are_written_between_the_decision_and_the_end_count_the_plan(tmp_path):
    class Saves(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            self.model.save(tmp_path / "end.keras")
            self.spent = self.model.privacy.spent(DELTA).epsilon

    last, saves = keras.callbacks.ModelCheckpoint(tmp_path / "last.keras"), Saves()
    model = private()
    fit(model, epochs=10, callbacks=[StopsAfter(1), last, saves])
    assert steps_in(tmp_path / "last.keras") == steps_in(tmp_path / "end.keras") == PLANNED
    assert saves.spent == model.privacy.spent(DELTA).epsilon == epsilon_of(model, PLANNED)


@pytest.mark.parametrize("hook", ["on_train_end", "on_epoch_end"])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_error_after_the_decision_changes_nothing(tmp_path, hook, error):
    def fail(*arguments):
        if model.stop_training:
            raise error

    model = private()
    failing = keras.callbacks.LambdaCallback(**{hook: fail})
    with pytest.raises(error):
        fit(model, epochs=10, callbacks=[StopsAfter(1), failing])
    assert steps(model) == PLANNED
    model.save(tmp_path / "m.keras")
    assert steps_in(tmp_path / "m.keras") == PLANNED
    fit(model, epochs=1)  # another run: its steps do not hide among those that were left out
    assert steps(model) == PLANNED + 3


def test_a_decision_that_is_taken_back_leaves_the_plan(tmp_path):
    class Wavers(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True
            self.model.save(tmp_path / f"{epoch}.keras")
            self.model.stop_training = False

    model = private()
    fit(model, epochs=10, callbacks=[Wavers()])
    assert steps(model) == steps_in(tmp_path / "2.keras") == PLANNED == model.privacy.steps_taken


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


@pytest.mark.parametrize("lost", [1, 2, 5, 22])
def test_lost_steps_of_an_unknown_length_go_over_the_ends_of_epochs(tmp_path, lost):
    """A crash after step 4 of 30, with later ones reserved, in epochs of three steps."""

    def hear(batch, logs):
        heard.append(logs["loss"])

    def train(at=None):
        model = private()
        backup = tfdp.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False, save_freq=1)
        hears = keras.callbacks.LambdaCallback(on_train_batch_end=hear)
        callbacks = [backup, hears] if at is None else [backup, hears, Interrupts(at)]
        history = model.fit(of_unknown_length(), epochs=10, callbacks=callbacks, verbose=0)
        return model, backup, history

    heard = []
    with pytest.raises(KeyboardInterrupt):
        train(4)
    folder = BackupFolder(tmp_path)
    folder.enter()
    (run_id,) = {each["run_id"] for each in folder._reservations()}
    folder.read()  # whose states these are
    folder.reserve(run_id, 4 + lost)
    folder.leave()
    heard.clear()
    model, backup, history = train()
    assert backup.lost_steps == lost and len(heard) == PLANNED - 4 - lost
    assert steps(model) == PLANNED
    lengths = {len(values) for values in history.history.values()}
    assert lengths == {len(history.epoch)} and history.epoch[-1] == 9


@pytest.mark.parametrize("length", [3, None])
def test_an_end_that_is_decided_at_the_beginning_of_a_broken_epoch(tmp_path, length):
    """Keras then leaves after the first step, which lies behind, so that there are no metrics."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.stop_training = True

    def train(callback):
        model = private()
        backup = tfdp.callbacks.BackupAndRestore(tmp_path, save_freq=1)
        lots = tfdp.data.make_lots("cyclic", *data(), lot_size=8) if length else of_unknown_length()
        model.fit(lots, epochs=10, callbacks=[backup, callback], verbose=0)
        return model

    with pytest.raises(KeyboardInterrupt):
        train(Interrupts(5))
    assert steps(train(Stops())) == PLANNED


def stops_at(hook):
    """A callback that decides to end in a hook, as if what it saw had decided so."""

    class Stops(keras.callbacks.Callback):
        pass

    setattr(
        Stops, hook, lambda self, *arguments, **more: setattr(self.model, "stop_training", True)
    )
    return Stops()


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin", "on_train_batch_begin"])
def test_an_end_that_is_decided_before_the_first_step(hook):
    """The session is opened anew at the first step, and stays the same."""
    model = private(budget=tfdp.PrivacyBudget(18.0, DELTA))
    fit(model, epochs=10, callbacks=[stops_at(hook)])
    assert [run.steps for run in model.privacy.ledger.runs] == [PLANNED]


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin"])
def test_an_end_that_is_decided_between_a_crash_and_the_next_step(tmp_path, hook):
    def train(*callbacks):
        model = private(budget=tfdp.PrivacyBudget(18.0, DELTA))
        backup = tfdp.callbacks.BackupAndRestore(tmp_path, save_freq=1)
        lots = tfdp.data.make_lots("cyclic", *data(), lot_size=8)
        model.fit(lots, epochs=10, callbacks=[backup, *callbacks], verbose=0)
        return model

    with pytest.raises(KeyboardInterrupt):
        train(Interrupts(6))
    model = train(stops_at(hook))
    assert [run.steps for run in model.privacy.ledger.runs] == [PLANNED]


def test_an_end_is_not_taken_back_when_training_is_over():
    def compiles(logs):
        model.compile(sgd(), "sparse_categorical_crossentropy")

    def resets(logs):
        model.stop_training = False

    for hook in (compiles, resets):
        model = private()
        over = keras.callbacks.LambdaCallback(on_train_end=hook)
        fit(model, epochs=10, callbacks=[StopsAfter(2), over])
        assert steps(model) == PLANNED
        fit(model, epochs=2)
        assert [run.steps for run in model.privacy.ledger.runs] == [PLANNED, 6]


def test_iterations_that_come_with_weights_are_no_steps_of_the_fit(tmp_path):
    other, path = private(), tmp_path / "other.weights.h5"
    fit(other, epochs=20)
    other.save_weights(path)
    model = private()
    loads = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: model.load_weights(path))
    fit(model, epochs=10, callbacks=[loads, StopsAfter(2)])
    assert sorted(run.steps for run in model.privacy.ledger.runs) == [PLANNED, 60]
    # Back to an earlier moment of the same fit.
    model, path = private(), tmp_path / "own.weights.h5"

    def back_and_forth(epoch, logs):
        if epoch == 0:
            model.save_weights(path)
        if epoch == 4:
            model.load_weights(path)

    goes_back = keras.callbacks.LambdaCallback(on_epoch_end=back_and_forth)
    fit(model, epochs=10, callbacks=[goes_back, StopsAfter(6)])
    assert steps(model) == PLANNED


def test_an_end_with_the_plan_leaves_the_training_open():
    """Nothing is left out where the last planned step was taken, and the next fit goes on."""
    model = private()
    for epochs in (3, 3):
        model.fit(of_unknown_length(), epochs=epochs, callbacks=[StopsAfter(2)], verbose=0)
    model.train_on_batch(*data(8))
    assert steps(model) == model.privacy.steps_taken == 19
    model = private()
    with pytest.raises(KeyboardInterrupt):
        fit(model, epochs=20, callbacks=[Interrupts(6)])
    fit(model, epochs=3, callbacks=[StopsAfter(2)])
    fit(model, epochs=3)
    assert steps(model) == 24


def test_copies_of_weights_count_the_plan_as_soon_as_it_is_decided(tmp_path):
    model, other = private(), private(model=plain(1))

    def copies(logs):
        other.set_weights(model.get_weights())
        other.save(tmp_path / "other.keras")

    fit(
        model,
        epochs=10,
        callbacks=[StopsAfter(2), keras.callbacks.LambdaCallback(on_train_end=copies)],
    )
    assert steps_in(tmp_path / "other.keras") == PLANNED
    assert other.privacy.spent(DELTA) == model.privacy.spent(DELTA)


@pytest.mark.parametrize("known", [True, False])
def test_epochs_that_decisions_break_off_count_whole(known):
    """As soon as an epoch is over the decision is taken back, so that the next one begins."""

    def sets(value):
        return lambda *arguments, **more: setattr(model, "stop_training", value)

    class Breaks(keras.callbacks.Callback):
        on_train_batch_end, on_epoch_end = sets(True), sets(False)

    model = private()
    if known:
        fit(model, epochs=10, callbacks=[Breaks()])
        assert steps(model) == PLANNED
    else:
        model.fit(of_unknown_length(), epochs=10, callbacks=[Breaks()], verbose=0)
        assert model.privacy.spent(DELTA).epsilon == np.inf


def test_a_crash_after_a_decision_that_was_taken_back_loses_nothing(tmp_path):
    class Wavers(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True
            self.model.privacy.spent(DELTA)
            self.model.stop_training = False

    def train(*callbacks):
        model = private()
        backup = tfdp.callbacks.BackupAndRestore(tmp_path, save_freq=1)
        lots = tfdp.data.make_lots("cyclic", *data(), lot_size=8)
        model.fit(lots, epochs=10, callbacks=[backup, Wavers(), *callbacks], verbose=0)
        return model, backup

    with pytest.raises(KeyboardInterrupt):
        train(Interrupts(7))
    model, backup = train()
    assert steps(model) == PLANNED and backup.lost_steps == 0
    assert int(model.optimizer.iterations.numpy()) == PLANNED
    assert model.history.epoch == [*range(10)]
