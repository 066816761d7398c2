"""Every private step is counted before it updates the weights, and the budget always holds."""

import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, sgd, si_dpsgd, steps, weights

import tfdp
from tests.accounting.varying import vary
from tests.rounding import FUNCTION, assert_close
from tests.training.small import small, train
from tfdp.accounting import BudgetExhausted, Ledger, describe, proven
from tfdp.data import make_lots
from tfdp.entry import Entry
from tfdp.session import Session

DELTA = 1e-5
RUN = describe(
    mechanism="dpsgd",
    num_examples=8,
    lot_size=8,
    steps=4,
    sampling="cyclic",
    noise_multiplier=1.0,
    l2_norm_clip=1.0,
)


def lots():
    return make_lots("cyclic", *data(8), lot_size=4)


def whole(model, count, **kwargs):
    """Trains `count` steps, each on a lot that is the whole data set."""
    lots = make_lots("cyclic", *data(8), lot_size=8)
    return model.fit(lots, steps_per_epoch=count, verbose=0, **kwargs)


def budget_for(allowed):
    """Returns a budget for exactly `allowed` steps of `whole`."""
    return tfdp.PrivacyBudget(proven(vary(RUN, steps=allowed), DELTA).epsilon * 1.0001, DELTA)


def entries(model):
    return [run.steps for run in model.privacy.ledger.runs]


# -- an entry by itself ------------------------------------------------------------------------------


def entry_with(allowed=None, planned=4):
    """An entry whose training is planned; a budget allows so many steps."""
    ledger = Ledger()
    if allowed is not None:
        ledger.add_budget(budget_for(allowed))
    made = Entry(ledger, RUN)
    made.plan(planned)
    return made


def counted(entry):
    """(steps counted, steps taken, whether nobody knows the plan) in the ledger."""
    entry.record()
    run = entry.ledger.entries[entry.run_id]
    return run.steps, run.steps if run.taken is None else run.taken, run.open_plan


def test_the_host_allows_steps_up_to_the_limit():
    entry = entry_with(allowed=2)
    assert entry.authorize(1) == 1 and entry.authorize(3) == 1
    with pytest.raises(BudgetExhausted, match=r"2 step\(s\)"):
        entry.authorize(1)
    assert entry.taken == 2 and entry.left == 0


def test_a_closed_entry_allows_no_step():
    entry = entry_with()
    entry.authorize(1)
    entry.close()
    with pytest.raises(RuntimeError, match="closed"):
        entry.authorize(1)
    assert counted(entry) == (4, 1, False)


def test_steps_that_never_began_are_taken_back():
    entry = entry_with(planned=1)
    session = Session(entry, None, [], entry.run)
    entry.authorize(2)
    session.begin_step()
    assert int(session.place) == 0
    session.take_back()
    assert counted(entry) == (1, 1, False)


def test_planned_steps_count_as_far_as_the_budget_allows_them():
    entry = entry_with(allowed=2)
    entry.authorize(1)
    assert counted(entry) == (2, 1, False) and entry.so_far == 1
    entry.ledger.budget = budget_for(3)  # in the middle of a training
    entry.authorize(1)
    assert counted(entry) == (3, 2, False)
    entry.end_plan()
    entry.ledger.budget = None  # too late for a plan that ended
    assert entry.left == np.inf and counted(entry) == (3, 2, False)
    assert not entry.is_settled  # further steps would hide among those left out


def test_a_plan_of_which_no_step_ran_is_withdrawn():
    entry = entry_with()
    entry.withdraw_plan()
    assert counted(entry) == (0, 0, False)
    entry.plan(2)
    entry.authorize(2)
    entry.end_plan()
    entry.plan(9, declared=9)
    entry.withdraw_plan()
    assert counted(entry) == (2, 2, False) and entry.is_settled and entry.declared == 0


def test_an_unknown_plan_counts_as_infinite_until_it_is_known():
    entry = entry_with(planned=np.inf)
    entry.authorize(3)
    assert counted(entry) == (3, 3, True)
    assert proven(entry.ledger.runs[0], DELTA).epsilon == np.inf
    copy = Ledger.from_json(entry.ledger.to_json())
    entry.plan(6)
    assert counted(entry) == (6, 3, False)
    copy.merge(entry.ledger)
    assert copy.entries == entry.ledger.entries
    entry.plan(np.inf)
    entry.end_plan()
    assert entry.closed and entry.ledger.entries[entry.run_id].open_plan


def test_further_trainings_carry_out_a_declared_plan():
    entry = entry_with()
    entry.plan(4, declared=4)
    entry.authorize(2)
    entry.end_plan()
    assert counted(entry) == (4, 2, False) and entry.is_settled
    entry.plan(entry.taken + 3)
    assert counted(entry) == (5, 2, False)


def test_steps_that_do_not_fit_into_a_declared_plan_come_on_top():
    entry = entry_with()
    entry.plan(10, declared=10)
    entry.authorize(4)
    entry.end_plan()
    assert [entry.surplus(6), entry.surplus(7), entry.surplus(np.inf)] == [0, 6, 6]


def test_a_declared_plan_outlives_a_budget_that_cut_it():
    entry = entry_with(allowed=2, planned=0)
    entry.plan(4, declared=4)
    entry.authorize(1)
    entry.end_plan()
    assert counted(entry) == (2, 1, False)
    entry.ledger.budget = None
    entry.plan(entry.taken + 1)
    assert counted(entry) == (4, 1, False)


def test_an_entry_goes_on_in_another_process_with_its_plan():
    first = entry_with(planned=4)
    first.authorize(3)
    first.close()
    ledger = Ledger.from_json(first.ledger.to_json())
    entry = Entry(ledger, RUN, first.run_id)
    assert entry.is_settled and entry.taken == 3
    entry.plan(3 + 1)
    entry.authorize(1)
    assert counted(entry) == (4, 4, False)


def test_more_steps_in_a_file_that_is_loaded_meanwhile_count():
    entry = entry_with(planned=2)
    entry.authorize(1)
    other = Ledger.from_json(entry.ledger.to_json())
    other.record(entry.run_id, 7)
    entry.ledger.merge(other)
    assert counted(entry)[0] == 7 and entry.so_far == 7


@pytest.fixture
def session():
    entry = entry_with()
    return Session(entry, None, [], entry.run)


def test_rows_beyond_the_largest_lot_weigh_nothing(session):
    weight = session.admitted(tf.constant([0.0, *[1.0] * 9]))
    np.testing.assert_array_equal(weight, [0.0, *[1.0] * 7, 0.0, 0.0])


# -- the ledger --------------------------------------------------------------------------------------


def test_whole_fits_go_on_in_one_entry_and_interrupted_epochs_open_another():
    model, same = small(), lots()
    for _ in range(2):
        model.fit(same, verbose=0)
    assert entries(model) == [4]
    model.fit(same, steps_per_epoch=1, verbose=0)
    assert entries(model) == [5]
    model.fit(same, verbose=0)  # starts at the first lot again, in the middle of an epoch
    assert entries(model) == [5, 2]
    model.fit(lots(), verbose=0)  # another order, perhaps
    assert entries(model) == [5, 2, 2]


def test_compiling_again_forgets_nothing():
    model = small()
    train(model)
    model.compile(sgd(noise=2.0), loss=LOSS, run_eagerly=True)
    assert steps(model) == 2
    train(model)
    model.optimizer = sgd(noise=3.0)
    train(model)
    found = {run.mechanism.noise_multiplier: run.steps for run in model.privacy.ledger.runs}
    assert found == {1.0: 2, 2.0: 2, 3.0: 2}


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path):
    first, second = small(), small()
    train(first)
    saved = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "a"))
    second.optimizer.build(second.trainable_variables)
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(saved).expect_partial()
    with pytest.raises(ValueError, match="ledger counts only 0"):
        train(second)
    second.privacy.ledger.merge(first.privacy.ledger)
    train(second)
    assert steps(second) == 4


def test_steps_that_were_left_out_account_for_no_others(tmp_path):
    """An old ledger with a plan of many steps, and newer numbers of a checkpoint."""
    first, second = small(), small()
    first.privacy.plan(steps=9)
    train(first)
    old = first.privacy.ledger.to_json()
    train(first)
    saved = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "a"))
    second.optimizer.build(second.trainable_variables)
    second.privacy.ledger.merge(Ledger.from_json(old))
    tf.train.Checkpoint(model=second, optimizer=second.optimizer).restore(saved).expect_partial()
    with pytest.raises(ValueError, match="ledger counts only 2"):
        second.privacy.spent(DELTA)


def taken(model, rows=8):
    model.train_on_batch(*data(rows))
    return entries(model)


def test_other_settings_open_another_entry():
    model = small()
    assert [taken(model), taken(model), taken(model, rows=4)] == [[1], [2], [2, 1]]
    model.privacy.configure(physical_batch_size=2)
    assert taken(model, rows=4) == [2, 1, 1]
    model.layers[0].bias.trainable = False
    bias = model.layers[0].bias.numpy()
    assert taken(model, rows=4) == [2, 1, 1, 1]
    np.testing.assert_array_equal(model.layers[0].bias.numpy(), bias)
    model.optimizer = sgd()  # an equal one
    assert taken(model, rows=4) == [2, 1, 1, 1, 1]


def test_a_forked_process_opens_another_entry_and_does_not_go_on_in_the_middle(monkeypatch):
    class Forks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            monkeypatch.setattr(os, "getpid", lambda: -2)

    model = small()
    taken(model)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert taken(model) == [1, 1]
    with pytest.raises(RuntimeError, match="forked"):
        train(model, callbacks=[Forks()])
    assert entries(model) == [1, 1, 2]  # its plan


def test_train_on_batch_has_no_end(monkeypatch):
    monkeypatch.setattr("tfdp.training.describe.OPEN_ENDED", 2)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.9)
    model = small(si_dpsgd(rate=schedule))
    for _ in range(5):
        taken(model)
    (run,) = model.privacy.ledger.runs
    assert_close(run.schedule("learning_rates"), 0.5 * 0.9 ** np.arange(5), 2 * FUNCTION * 5)


# -- the budget --------------------------------------------------------------------------------------


def test_fit_stops_at_the_budget_and_says_so():
    model = small(budget=budget_for(3))
    with pytest.raises(BudgetExhausted, match=r"3 step\(s\)"):
        whole(model, 9)
    before = weights(model)
    assert steps(model) == 3 and model.privacy.steps_left == 0
    for again in (lambda: whole(model, 1), lambda: taken(model)):
        with pytest.raises(BudgetExhausted):
            again()
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 3
    assert model.privacy.spent(DELTA).epsilon <= budget_for(3).epsilon


def test_the_budget_holds_within_an_execution_of_several_steps():
    several = {"steps_per_execution": 3, "run_eagerly": False}
    model = small(budget=budget_for(4), compiled=several)
    with pytest.raises(BudgetExhausted):
        whole(model, 6)
    assert steps(model) == 4  # the second execution has one step, not three


def test_a_loop_hears_of_a_budget_that_cuts_its_last_execution():
    model = small(budget=budget_for(4), compiled={"steps_per_execution": 3, "run_eagerly": False})
    with pytest.raises(BudgetExhausted):
        for _ in model.privacy.steps(make_lots("cyclic", *data(8), lot_size=8), steps_per_epoch=6):
            pass
    assert steps(model) == 4


def test_a_budget_that_is_given_later_counts_what_was_spent():
    model, other = small(), small()
    whole(model, 3)
    other.privacy.ledger.merge(model.privacy.ledger)
    for each in (model, other):
        each.privacy.configure(budget=budget_for(4))
        with pytest.raises(BudgetExhausted):
            whole(each, 3)
        assert steps(each) == 4


# -- who may take a step -----------------------------------------------------------------------------


def test_only_fit_and_train_on_batch_feed_a_step():
    model = small(compiled={"run_eagerly": False})
    x, y = data(8)
    dataset = tf.data.Dataset.from_tensors((x, y, np.ones(8, "float32"))).repeat()
    model.train_on_batch(x, y)
    before = weights(model)
    for way in (
        lambda: model.train_step((x, y)),
        lambda: tf.function(lambda: model.train_step((x, y)), autograph=False)(),
        lambda: model.train_function(iter(dataset)),
        lambda: keras.Model.fit(model, x, y, batch_size=8, verbose=0),
    ):
        with pytest.raises(RuntimeError, match="fit"):
            way()
    np.testing.assert_array_equal(weights(model), before)
    assert steps(model) == 1
