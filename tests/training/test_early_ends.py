"""A training that ends before its plan counts all planned steps, and so do files made during one."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, steps

import tfdp
from tests.accounting.varying import vary
from tests.training.small import GRAPH, small, train
from tfdp.accounting import BudgetExhausted, proven
from tfdp.accounting.guarantee import format_epsilon

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


@pytest.mark.parametrize(("stop", "taken"), [((0, 0), 1), ((0, None), 2)])
def test_any_callback_that_ends_training(stop, taken):
    model = small()
    train(model, EPOCHS, callbacks=[StopsAfter(*stop)])
    assert model.privacy.steps_taken == taken and steps(model) == PLANNED
    train(model)  # comes on top
    assert entries(model) == [PLANNED, 2] and model.privacy.steps_taken == 2


def test_an_end_that_is_decided_before_the_first_step():
    model = small(budget=tfdp.PrivacyBudget(30.0, DELTA))
    stops = call(on_train_begin=lambda logs: setattr(model, "stop_training", True))
    train(model, EPOCHS, callbacks=[stops])
    assert entries(model) == [PLANNED]


def test_a_training_that_ends_by_its_plan_counts_its_steps_and_stays_open():
    model = small()
    for epochs in (1, 1):
        lots = tf.data.Dataset.from_tensor_slices(data(8)).batch(4, drop_remainder=True)
        model.fit(lots, epochs=epochs, callbacks=[StopsAfter(epochs - 1)], verbose=0)
    assert entries(model) == [4]


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

    model, wavers = small(compiled=GRAPH), Wavers()
    train(model, EPOCHS, callbacks=[wavers])
    assert entries(model) == [PLANNED] == [model.privacy.steps_taken]


def test_an_exception_after_the_first_step_counts_the_plan():
    model = small()
    with pytest.raises(KeyboardInterrupt):
        train(model, EPOCHS, shuffle=True, callbacks=[Interrupts(1)])
    (run,) = model.privacy.ledger.runs
    assert (run.steps, run.taken) == (PLANNED, 1)
    assert f"1 of {PLANNED} planned steps" in model.privacy.statement(DELTA)
    for _ in range(2):
        train(model, shuffle=True, steps_per_epoch=1)
    assert entries(model) == [PLANNED, 2]  # further steps do not hide among those left out


def test_a_first_execution_that_fails_costs_nothing():
    """As one that runs out of memory: the next attempt has a smaller lot."""
    fails = [True]

    def loss(y, outputs):
        if fails:
            raise MemoryError
        return keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)

    model = small(compiled={"loss": loss})
    for counted in (0, 1):
        fails[:] = [True]
        with pytest.raises(MemoryError):
            model.fit(*data(8), batch_size=8, verbose=0)
        assert steps(model) == counted
        fails.clear()
        model.fit(*data(8), batch_size=8, verbose=0)
        assert entries(model) == [counted + 1]


@pytest.mark.parametrize("inside", ["a loop", "a callback"])
def test_a_training_of_shared_weights_is_refused_while_another_one_runs(inside):
    inputs, body = keras.Input((4,)), keras.layers.Dense(4)
    heads = [keras.Model(inputs, keras.layers.Dense(3)(body(inputs))) for _ in range(2)]
    one, other = (small(model=model) for model in heads)
    with pytest.raises(RuntimeError, match="Another training"):
        if inside == "a callback":
            train(one, 2, callbacks=[call(on_train_batch_end=lambda batch, logs: train(other))])
        else:
            iterator = one.privacy.steps(*data(8), batch_size=4, epochs=2)
            next(iterator)
            train(other)
    if inside != "a callback":
        iterator.close()
    assert entries(one) == [4] and one.privacy.ledger.runs[0].taken == 1
    train(other)
    assert entries(one) == entries(other) == [4, 2]


# -- a plan of several trainings ---------------------------------------------------------------------


def test_a_loop_of_fits_that_stops_by_results_declares_its_plan():
    model, seen = small(), []
    model.privacy.plan(epochs=EPOCHS)
    shows = call(on_epoch_end=lambda epoch, logs: seen.append(model.privacy.spent(DELTA).epsilon))
    for fits in (1, 2):
        model.fit(*data(8), batch_size=8, verbose=0, callbacks=[shows])
        assert entries(model) == [EPOCHS] and model.privacy.steps_taken == fits
    assert seen == [epsilon_of(model, 1), epsilon_of(model, EPOCHS)]
    model.fit(*data(8), batch_size=8, epochs=3, verbose=0)  # does not fit into the rest
    assert entries(model) == [EPOCHS + 3] and model.privacy.steps_taken == 5


def test_a_statement_in_a_callback_counts_the_plan():
    """Somebody may keep the best release with its statement."""
    model, texts = small(compiled=GRAPH), []
    reads = call(on_epoch_end=lambda epoch, logs: texts.append(model.privacy.statement(DELTA)))
    train(model, EPOCHS, callbacks=[reads])
    assert f"2 of {PLANNED} planned steps" in texts[0]
    assert f"epsilon {format_epsilon(epsilon_of(model, PLANNED))} at " in texts[0]


def test_a_plan_of_epochs_and_train_on_batch_is_refused():
    model = small()
    model.privacy.plan(epochs=EPOCHS)
    with pytest.raises(ValueError, match="steps="):
        model.train_on_batch(*data(8))
    assert steps(model) == 0


@pytest.mark.parametrize("way", ["steps", "epochs of unknown length", "another model", "both"])
def test_what_a_declared_plan_counts(way):
    model = small()
    if way == "both":
        with pytest.raises(ValueError, match="either"):
            model.privacy.plan(epochs=1, steps=1)
    elif way == "another model":
        model.privacy.plan(steps=PLANNED)
        model.compile(model.optimizer, loss=model.loss, run_eagerly=True)
        train(model)
        assert entries(model) == [PLANNED]
    elif way == "steps":
        model.privacy.plan(steps=PLANNED)
        for _ in range(2):
            model.train_on_batch(*data(8))
        assert entries(model) == [PLANNED] and model.privacy.steps_taken == 2
    else:
        model.privacy.plan(epochs=EPOCHS)
        model.fit(of_unknown_length(), verbose=0)
        assert entries(model) == [PLANNED] and model.privacy.steps_taken == 2


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
    train(model, 2, callbacks=[best, each, reads], validation_data=data(8, seed=1))
    assert counted == [4] * 2 and steps(model) == 4
    assert steps_in(tmp_path / "1.keras") == 4


@pytest.mark.parametrize("options", [{}, {"steps_per_epoch": 2}])
def test_files_of_the_first_epoch_of_an_unknown_length_prove_nothing(options, tmp_path):
    saves = call(on_train_batch_end=lambda batch, logs: model.save(tmp_path / f"{batch}.keras"))
    model = small()
    data_of_two = of_unknown_length().repeat() if options else of_unknown_length()
    model.fit(data_of_two, epochs=1, callbacks=[saves], verbose=0, **options)
    loaded = keras.saving.load_model(tmp_path / "0.keras")
    guarantee = loaded.privacy.spent(DELTA)
    if options:
        assert steps(loaded) == 2
    else:
        assert guarantee.epsilon == np.inf and "steps_per_epoch" in guarantee.reason
    loaded.privacy.ledger.merge(model.privacy.ledger)
    assert loaded.privacy.spent(DELTA).epsilon == epsilon_of(model, 2) < np.inf


# -- after a crash -----------------------------------------------------------------------------------


def kept(folder, callback, length="known", **options):
    """Trains with a backup; returns (model, backup)."""
    model = small(compiled=GRAPH)
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


@pytest.mark.parametrize(
    "at", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 7))]
)
def test_data_of_unknown_length_are_resumed_at_their_place(at, tmp_path):
    """Also in the process that was interrupted, and at the end of an epoch."""
    model, lots = small(compiled=GRAPH), of_unknown_length()
    ended = []
    for interrupts in (Interrupts(at), call(on_epoch_end=lambda epoch, logs: ended.append(epoch))):
        backup = tfdp.callbacks.BackupAndRestore(tmp_path, save_freq=1)
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(lots, epochs=EPOCHS, callbacks=[backup, interrupts], verbose=0)
        counted = np.inf if at <= 2 and not ended else PLANNED
        assert model.privacy.account.session.entry.if_ended == counted
    assert entries(model) == [PLANNED] == [model.privacy.steps_taken]
    assert ended == [*range(EPOCHS)][-len(ended) :]
    assert model.privacy.spent(DELTA).epsilon < np.inf


def test_a_program_that_resumes_may_have_a_larger_budget(tmp_path):
    lots = tfdp.data.make_lots("cyclic", *data(8), lot_size=4)
    model = small(compiled=GRAPH)
    for epsilon in (8.0, 1000.0):
        model.privacy.budget = tfdp.PrivacyBudget(epsilon, DELTA)
        backup = tfdp.callbacks.BackupAndRestore(tmp_path, save_freq=1)
        with contextlib.suppress(BudgetExhausted):
            model.fit(lots, epochs=2 * EPOCHS, callbacks=[backup], verbose=0)
        assert (model.privacy.steps_taken < 2 * PLANNED) == (epsilon == 8.0)
    assert entries(model) == [2 * PLANNED] and model.privacy.budget.epsilon == 1000.0


def test_an_end_that_is_decided_between_a_crash_and_the_next_step(tmp_path):
    """Keras then leaves after the first step, which lies behind, so that there are no metrics."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.model.stop_training = True

    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, Interrupts(3), "unknown")
    model, _ = kept(tmp_path, Stops(), "unknown")
    assert entries(model) == [PLANNED]
