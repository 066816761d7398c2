"""Every private step is counted before it updates the weights, and the budget always holds."""

import copy
import os
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, private, sgd, si_dpsgd, steps, weights

import tfdp
from tfdp.accounting import BudgetExhausted, Run, proven
from tfdp.data import make_lots

DELTA = 1e-5


def whole(model, count, **kwargs):
    """Trains `count` steps, each on a lot that is the whole data set."""
    lots = make_lots("cyclic", *data(8), lot_size=8)
    return model.fit(lots, steps_per_epoch=count, verbose=0, **kwargs)


def budget_for(allowed):
    """Returns a budget for exactly `allowed` steps of `whole(private(), allowed)`."""
    run = Run(
        mechanism="dpsgd",
        num_examples=8,
        lot_size=8,
        steps=allowed,
        sampling="cyclic",
        noise_multiplier=1.0,
        l2_norm_clip=1.0,
    )
    return tfdp.PrivacyBudget(proven(run, DELTA).epsilon * 1.0001, DELTA)


# -- the ledger ------------------------------------------------------------------------------------


def test_whole_fits_go_on_in_one_entry_and_interrupted_epochs_open_another():
    lots = make_lots("cyclic", *data(), lot_size=8)
    model = private()
    model.fit(lots, epochs=2, verbose=0)
    model.fit(lots, verbose=0)
    assert [run.steps for run in model.privacy.ledger.runs] == [9]
    model.fit(lots, epochs=1, steps_per_epoch=2, verbose=0)
    assert [run.steps for run in model.privacy.ledger.runs] == [11]
    model.fit(lots, verbose=0)  # starts at the first lot again, in the middle of an epoch
    assert [run.steps for run in model.privacy.ledger.runs] == [11, 3]
    model.fit(make_lots("cyclic", *data(), lot_size=8), verbose=0)  # another order, perhaps
    assert [run.steps for run in model.privacy.ledger.runs] == [11, 3, 3]


def test_an_exception_in_the_middle_leaves_a_true_count():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                raise KeyboardInterrupt

    model = private()
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[Stop()])
    assert steps(model) == 2
    fit(model)
    assert steps(model) == 5


def test_compiling_again_forgets_nothing():
    model = private()
    fit(model)
    for change in ("compile", "assign"):
        spent = steps(model)
        if change == "compile":
            model.compile(sgd(noise=2.0), loss=LOSS)
        else:
            model.optimizer = sgd(noise=3.0)
        assert steps(model) == spent
        fit(model)
        assert steps(model) == spent + 3
    assert {run.noise_multiplier for run in model.privacy.ledger.runs} == {1.0, 2.0, 3.0}


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path, monkeypatch):
    first = private()
    fit(first)
    monkeypatch.setattr("tfdp.account._TRAINED_HERE", {})  # as in another process
    saved = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "a"))
    second = private()
    second.optimizer.build(second.trainable_variables)
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(saved).expect_partial()
    with pytest.raises(ValueError, match="ledger knows of 0"):
        fit(second)
    second.privacy.ledger.merge(first.privacy.ledger)
    fit(second)
    assert steps(second) == 6


def taken(model, rows=8):
    """Trains one step by `train_on_batch`; returns the steps of all entries of the ledger."""
    model.train_on_batch(*data(rows))
    return [run.steps for run in model.privacy.ledger.runs]


def test_other_settings_open_another_entry():
    model = private()
    assert [taken(model), taken(model), taken(model, rows=4)] == [[1], [2], [2, 1]]
    model.privacy.configure(physical_batch_size=2)
    assert taken(model, rows=4) == [2, 1, 1]
    assert model._session.plan.physical_batch_size == 2


def test_an_equal_optimizer_opens_another_entry():
    model = private()
    taken(model)
    model.optimizer = sgd()
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(1)
    assert taken(model) == [1, 1]
    assert int(model.optimizer.iterations.numpy()) == 2


def test_other_trainable_weights_open_another_entry():
    model = private()
    taken(model)
    model.layers[0].trainable = False
    before = model.layers[0].kernel.numpy()
    assert taken(model) == [1, 1]
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), before)


def test_another_process_opens_another_entry(monkeypatch):
    model = private()
    taken(model)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert taken(model) == [1, 1]


def test_iterations_that_were_moved_open_another_entry(monkeypatch):
    monkeypatch.setattr("tfdp.training.private_training.OPEN_ENDED", 10)
    model = private(si_dpsgd(rate=keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)))
    taken(model), taken(model)
    model.optimizer.iterations.assign(0)
    assert taken(model) == [2, 1]
    assert model.privacy.current_run.schedule("learning_rates")[0] == 0.5


# -- the budget ------------------------------------------------------------------------------------


def test_fit_stops_at_the_budget_and_says_so():
    model = private(budget=budget_for(4))
    with pytest.raises(BudgetExhausted, match=r"proven epsilon .* allows 4 steps.*4 were taken"):
        whole(model, 9)
    before = weights(model)
    assert steps(model) == 4 and model.privacy.steps_left == 0
    for again in (lambda: whole(model, 1), lambda: model.train_on_batch(*data(8))):
        with pytest.raises(BudgetExhausted):
            again()
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 4
    assert model.privacy.spent(DELTA).epsilon <= budget_for(4).epsilon


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"run_eagerly": True}])
def test_the_budget_holds_however_the_step_runs(options):
    model = private(budget=budget_for(2), compiled=options)
    with pytest.raises(BudgetExhausted):
        whole(model, 3)
    assert steps(model) == 2


def test_the_budget_holds_within_an_execution_of_several_steps():
    model = private(budget=budget_for(4), compiled={"steps_per_execution": 3})
    with pytest.raises(BudgetExhausted):
        whole(model, 6)
    assert steps(model) == 3  # the second execution would have made it six


def test_a_budget_that_is_given_later_counts_what_was_spent():
    model = private()
    whole(model, 3)
    model.privacy.configure(budget=budget_for(4))
    with pytest.raises(BudgetExhausted):
        whole(model, 3)
    assert steps(model) == 4
    other = private()
    other.privacy.ledger.merge(model.privacy.ledger)
    other.privacy.configure(budget=budget_for(4))
    with pytest.raises(BudgetExhausted):
        whole(other, 1)
    assert steps(other) == 4


def kept_train_function(model):
    """Returns the function that `fit` called for every lot, after that fit has ended."""
    taken = []

    class Take(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            taken.append(self.model.train_function)

    fit(model, callbacks=[Take()])
    return taken[-1]


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"run_eagerly": True}])
def test_only_fit_and_train_on_batch_feed_a_step(options):
    model = private(compiled=options)
    x, y = data(8)
    dataset = tf.data.Dataset.from_tensors((x, y, np.ones(8, "float32"))).repeat()
    with pytest.raises(RuntimeError, match="how lots are drawn"):
        model.train_step((x, y))
    kept = kept_train_function(model)
    model.train_on_batch(x, y)
    ways = [
        lambda: model.train_step((x, y)),
        lambda: tf.function(lambda: model.train_step((x, y)))(),
        lambda: model.train_function(iter(dataset)),
        lambda: model.train_function(iter([(x, y)])),
        lambda: kept(iter(dataset)),
        lambda: keras.Model.fit(model, x, y, batch_size=8, verbose=0),
        lambda: keras.Model.fit(model, dataset, steps_per_epoch=1, verbose=0),
        lambda: keras.Model.train_on_batch(model, x, y),
    ]
    before = weights(model)
    for way in ways:
        with pytest.raises(RuntimeError, match=r"model\.fit\(...\)"):
            way()
        np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 4


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_epoch_begin", "on_train_begin"])
def test_callbacks_feed_no_step_either(moment):
    x, y = data(8)
    dataset = tf.data.Dataset.from_tensors((x, y, np.ones(8, "float32"))).repeat()

    def feed(self, *_, **__):
        self.model.train_function(iter(dataset))

    callback = type("Feeds", (keras.callbacks.Callback,), {moment: feed})()
    model = private()
    with pytest.raises(RuntimeError, match=r"fit\(\) did not draw"):
        fit(model, callbacks=[callback])
    assert steps(model) <= 1


def test_a_restored_ledger_counts_against_the_budget_of_the_fit_that_restores_it(tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)

    whole(private(), 3, callbacks=[backup()])
    model = private(budget=budget_for(4))
    with pytest.raises(BudgetExhausted):
        whole(model, 3, epochs=2, callbacks=[backup()])
    assert steps(model) == 4


def test_train_on_batch_has_no_end(monkeypatch):
    monkeypatch.setattr("tfdp.training.private_training.OPEN_ENDED", 2)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.9)
    model = private(si_dpsgd(rate=schedule))
    for _ in range(5):
        model.train_on_batch(*data(8))
    (run,) = model.privacy.ledger.runs
    assert run.steps == 5
    np.testing.assert_allclose(run.schedule("learning_rates"), 0.5 * 0.9 ** np.arange(5), rtol=1e-6)


# -- found by attacks ------------------------------------------------------------------------------


def test_the_train_function_cannot_be_exchanged():
    class Exchanges(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.train_function = lambda iterator: {}

    model = private()
    with pytest.raises(AttributeError, match="cannot be exchanged"):
        fit(model, callbacks=[Exchanges()])


def test_a_train_function_of_ones_own_is_refused():
    class Mine(tfdp.DPSequential):
        def make_train_function(self, force=False):
            self.train_function = None

    model = Mine([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(sgd(), loss=LOSS)
    with pytest.raises(ValueError, match="make_train_function"):
        fit(model)


@pytest.mark.parametrize("inner", ["fit", "train_on_batch"])
def test_trainings_do_not_nest(inner):
    class Nests(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            getattr(self.model, inner)(*data(8))

    with pytest.raises(RuntimeError, match="one after the other"):
        fit(private(), callbacks=[Nests()])


def test_an_optimizer_that_adds_its_noise_itself_needs_a_mechanism():
    class Silent(tfdp.DPKerasSGDOptimizer):
        def add_noise(self, bounded, session):
            return bounded.sums, 0.0

    made = Silent(l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    with pytest.raises(ValueError, match="mechanism of its own"):
        fit(private(made))


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}, {"jit_compile": True}])
def test_metrics_do_not_write_into_weights(compiled):
    class Keeps(tfdp.DPSequential):
        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self.layers[-1].bias.assign(y_pred[0])
            return super().compute_metrics(x, y, y_pred, sample_weight)

    model = Keeps([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(sgd(), loss=LOSS, metrics=["accuracy"], **compiled)
    with pytest.raises(ValueError, match=r"writes into '.*bias'"):
        fit(model)


@pytest.mark.parametrize(
    "name", ["sampling", "num_examples", "lot_size", "steps_per_epoch", "seeded"]
)
def test_lots_are_what_they_were_made(name):
    lots = make_lots("cyclic", *data(), lot_size=8)
    with pytest.raises(AttributeError, match="cannot be assigned"):
        setattr(lots, name, 1)


def test_lots_are_not_copied_and_no_others_are_trusted():
    lots = make_lots("poisson", *data(), lot_size=8)
    for copies in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="same ones again"):
            copies(lots)

    class Mine(type(lots)):
        pass

    with pytest.raises(ValueError, match="Nothing is known"):
        private().fit(Mine(*data(), 8), verbose=0)


def test_a_traced_step_of_a_closed_session_changes_nothing():
    model = private()
    model.train_on_batch(*data(8))
    model._privacy.feeding = True  # as if fit had traced the step
    step = tf.function(lambda: model.train_step(data(8)))
    step()
    assert model.privacy.steps_taken == 2
    model._account.close_session()
    before = weights(model)
    with pytest.raises(tf.errors.InvalidArgumentError, match="No further step"):
        step()
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 2


def test_no_step_runs_beyond_its_table():
    class More(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                self.model.train_function(iter(self.model._privacy.feed.dataset))

    model = private(sgd(noise=[4.0, 4.0, 4.0]))
    with pytest.raises(BudgetExhausted, match="planned for 3 steps"):
        fit(model, callbacks=[More()])
    assert steps(model) == 3


def test_train_on_batch_permits_one_step():
    x, y = data(8)

    class Steps(keras.metrics.Metric):
        inside = False

        def update_state(self, *_, **__):
            if not self.inside:
                self.inside = True
                model.train_function(iter([(x, y)]))

        def result(self):
            return 0.0

    model = private(compiled={"run_eagerly": True, "metrics": [Steps()]})
    with pytest.raises(RuntimeError, match=r"fit\(\) did not draw"):
        model.train_on_batch(x, y)
    assert steps(model) == 1
