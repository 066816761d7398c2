"""What was spent on weights stays with them, however they are loaded, compiled or copied."""

import copy
import json
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, fit, plain, private, sgd, si_dpsgd, steps, weights
from keras import layers

import tfdp
from tfdp import account
from tfdp.accounting import BudgetExhausted, Ledger

DELTA = 1e-5
BUDGET = tfdp.PrivacyBudget(3.0, DELTA)


def spent(model):
    return model.privacy.spent(DELTA).epsilon


@pytest.fixture
def trained():
    """A private model after nine steps with noise multiplier 1."""
    model = private()
    fit(model, epochs=3)
    return model


@pytest.fixture
def elsewhere(monkeypatch):
    """Returns a function that forgets all weights trained here, as in another process."""

    def forget():
        monkeypatch.setattr("tfdp.account._TRAINED_HERE", {})

    return forget


def go_on(model):
    """Trains some more steps that cost almost no privacy."""
    model.compile(sgd(noise=100.0), loss=LOSS)
    fit(model)
    return model


def load(path):
    return keras.models.load_model(path)


# All ways to make, from the file of a private model, a private model with another optimizer.
WAYS = {
    "load, make private, compile": lambda f: go_on(tfdp.make_private(load(f / "m.keras"))),
    "load, compile, make private": lambda f: go_on(
        tfdp.make_private(compiled(load(f / "m.keras"), sgd(noise=100.0)))
    ),
    "load, compile plainly, make private": lambda f: go_on(
        tfdp.make_private(compiled(load(f / "m.keras"), keras.optimizers.SGD()))
    ),
    "weights before compile": lambda f: go_on(loaded(private_uncompiled(), f / "m.weights.h5")),
    "weights after compile": lambda f: go_on(loaded(private(), f / "m.weights.h5")),
    "weights of a whole model": lambda f: go_on(loaded(private_uncompiled(), f / "m.keras")),
    "shards before compile": lambda f: go_on(loaded(private_uncompiled(), f / "m.weights.json")),
    "layers of a loaded model": lambda f: go_on(
        tfdp.make_private(keras.Sequential([keras.Input((4,)), *load(f / "m.keras").layers]))
    ),
    "one layer of a loaded model": lambda f: go_on(
        tfdp.make_private(
            keras.Sequential([keras.Input((4,)), load(f / "m.keras").layers[0], layers.Dense(3)])
        )
    ),
    "a frozen layer of a loaded model": lambda f: go_on(
        tfdp.make_private(
            keras.Sequential([keras.Input((4,)), frozen(load(f / "m.keras")), layers.Dense(3)])
        )
    ),
}


def compiled(model, optimizer):
    model.compile(optimizer, loss=LOSS)
    return model


def private_uncompiled():
    return tfdp.make_private(plain())


def loaded(model, path):
    model.load_weights(path)
    return model


def frozen(model):
    layer = model.layers[0]
    layer.trainable = False
    return layer


@pytest.mark.parametrize("way", WAYS)
def test_a_file_brings_what_was_spent(way, trained, elsewhere, tmp_path):
    trained.save(tmp_path / "m.keras")
    trained.save_weights(tmp_path / "m.weights.h5")
    trained.save_weights(tmp_path / "m.weights.json", max_shard_size=1e-6)
    elsewhere()
    model = WAYS[way](tmp_path)
    assert sorted(run.steps for run in model.privacy.ledger.runs) == [3, 9]
    assert spent(model) >= spent(trained)


@pytest.mark.parametrize("copies", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("is_compiled", [True, False])
def test_copies_bring_ledger_budget_and_settings(copies, is_compiled, elsewhere):
    model = private(sgd(noise=10.0), budget=BUDGET, engine="vectorized", physical_batch_size=4)
    fit(model)
    if not is_compiled:
        model = tfdp.make_private(keras.Sequential([keras.Input((4,)), *model.layers]))
        model.privacy.configure(physical_batch_size=4)
    elsewhere()
    made = copies(model)
    assert made.privacy.ledger == model.privacy.ledger and made.privacy.ledger.budget == BUDGET
    assert made._privacy.physical_batch_size == 4
    made.compile(sgd(noise=0.01), loss=LOSS)
    with pytest.raises(BudgetExhausted):
        fit(made)


# Ways to copy weights within a process, without a file.
COPIES = {
    "get and set": lambda m, new: new.set_weights(m.get_weights()),
    "clone": lambda m, new: new.set_weights(m.get_weights()),
    "layer by layer": lambda m, new: [
        b.set_weights(a.get_weights()) for a, b in zip(m.layers, new.layers, strict=True)
    ],
    "variable by variable": lambda m, new: [
        b.assign(a) for a, b in zip(m.trainable_variables, new.trainable_variables, strict=True)
    ],
    "one kernel": lambda m, new: new.layers[0].kernel.assign(m.layers[0].kernel),
}


@pytest.mark.parametrize("first", ["private", "plain"])
@pytest.mark.parametrize("way", COPIES)
def test_numbers_that_were_trained_here_bring_their_ledger(way, first, trained):
    new = plain(seed=5)
    if first == "private":
        new = tfdp.make_private(new)
    if way == "clone":
        new = keras.models.clone_model(trained)
    COPIES[way](trained, new)
    model = go_on(tfdp.make_private(new))
    assert sorted(run.steps for run in model.privacy.ledger.runs) == [3, 9]


def test_a_loaded_file_without_an_optimizer_is_known_in_this_process(trained, tmp_path):
    trained.save(tmp_path / "m.keras")
    tfdp.export(trained, tmp_path / "release.keras")
    for name in ("m.keras", "release.keras"):
        model = tfdp.make_private(keras.models.load_model(tmp_path / name, compile=False))
        assert sorted(run.steps for run in go_on(model).privacy.ledger.runs) == [3, 9]


def test_models_that_share_a_layer_share_what_was_spent(trained):
    shared = trained.layers[0]
    other = private(model=keras.Sequential([keras.Input((4,)), shared, layers.Dense(3)]))
    assert steps(other) == 9
    fit(other)
    assert steps(other) == 12
    fit(trained)  # the other model's steps used the shared layer, too
    assert steps(trained) == 15


def test_a_step_of_an_account_that_was_absorbed_is_refused(trained):
    class Meets(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            x = keras.Input((4,))
            parts = [m.layers[1](m.layers[0](x)) for m in (trained, other)]
            tfdp.make_private(keras.Model(x, layers.Concatenate()(parts)))
            self.seen = weights(other)

    other, meets = private(model=plain(seed=4)), Meets()
    with pytest.raises(tf.errors.InvalidArgumentError, match="No further step"):
        fit(other, callbacks=[meets])
    np.testing.assert_array_equal(weights(other), meets.seen)
    assert sorted(run.steps for run in other.privacy.ledger.runs) == [1, 9]


def test_numbers_that_are_set_bring_their_ledger_into_files(trained, tmp_path):
    new = private(model=plain(seed=5))
    fit(new)
    new.set_weights(trained.get_weights())
    new.save_weights(tmp_path / "m.weights.h5")
    found = tfdp.account.ledger_in_file(tmp_path / "m.weights.h5")
    assert sorted(run.steps for run in found.runs) == [3, 9]


def test_numbers_of_the_middle_of_an_epoch_bring_their_ledger():
    class Takes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.taken = self.model.get_weights()

    takes = Takes()
    fit(private(), callbacks=[takes])
    new = private(model=plain(seed=5))
    new.set_weights(takes.taken)
    assert steps(new) == 2


# -- training that nobody accounted ------------------------------------------------------------------


def plain_fit(model):
    model.compile(keras.optimizers.SGD(0.1), loss=LOSS)
    model.fit(*data(), verbose=0)
    return model


def infinite(model):
    guarantee = model.privacy.spent(DELTA)
    assert guarantee.epsilon == float("inf"), guarantee
    assert "start='public'" in guarantee.reason
    return True


@pytest.mark.parametrize("order", ["make private first", "compile first"])
def test_a_plain_fit_before_leaves_nothing_proven(order):
    model = plain_fit(plain())
    if order == "compile first":
        model = compiled(model, model.optimizer)
    model = go_on(tfdp.make_private(model))
    assert infinite(model)


def test_a_plain_fit_on_public_data_may_be_declared():
    model = go_on(tfdp.make_private(plain_fit(plain()), start="public"))
    assert 0 < spent(model) < 1
    assert "declared" in model.privacy.statement(DELTA)


def retrain_layers(model):
    plain_fit(keras.Sequential(model.layers))


def apply_a_tape(model):
    x, y = data()
    with tf.GradientTape() as tape:
        loss = LOSS(y, model(x))
    variables = model.trainable_variables
    keras.optimizers.SGD(0.1).apply(tape.gradient(loss, variables), variables)


@pytest.mark.parametrize("unseen", [retrain_layers, apply_a_tape])
def test_unaccounted_training_is_seen_by_the_statement(unseen, trained):
    unseen(trained)
    assert infinite(trained)
    assert "start='public'" in trained.privacy.statement(DELTA)


def test_a_statement_in_the_middle_of_a_fit_is_no_false_alarm(trained):
    class States(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            assert spent(self.model) < float("inf")

    fit(trained, epochs=2, callbacks=[States()])
    assert spent(trained) < float("inf")


@pytest.mark.parametrize("unseen", [retrain_layers, apply_a_tape])
@pytest.mark.parametrize("then", [fit, lambda m: m.train_on_batch(*data(8))])
def test_unaccounted_training_between_two_private_ones_is_seen(unseen, then, trained):
    unseen(trained)
    then(trained)
    assert infinite(trained)


@pytest.mark.parametrize("optimizer", [sgd, si_dpsgd])
def test_unaccounted_training_by_a_callback_is_seen(optimizer):
    class Steals(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            apply_a_tape(self.model)

    for epochs in (1, 2):
        model = private(optimizer())
        fit(model, epochs=epochs, callbacks=[Steals()])
        fit(model)
        assert infinite(model)


@pytest.mark.parametrize(("moment", "when"), [("on_epoch_begin", 1), ("on_epoch_end", 0)])
def test_unaccounted_training_between_epochs_is_seen(moment, when):
    def steal(self, epoch, logs=None):
        if epoch == when:
            apply_a_tape(self.model)

    model = private()
    callback = type("Steals", (keras.callbacks.Callback,), {moment: steal})()
    fit(model, epochs=3, callbacks=[callback])
    assert infinite(model)


def test_unaccounted_training_exhausts_every_budget(trained):
    trained.privacy.configure(budget=tfdp.PrivacyBudget(100.0, DELTA))
    retrain_layers(trained)
    with pytest.raises(BudgetExhausted):
        fit(trained)


def test_what_keras_itself_does_to_the_weights_is_no_unaccounted_training(tmp_path):
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=0, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "m.keras"),
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
    ]
    averaged = sgd(use_ema=True, ema_overwrite_frequency=2)
    for optimizer, given in (
        (sgd(), callbacks),
        (averaged, []),
        (sgd(use_ema=True), [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]),
    ):
        model = private(optimizer)
        for _ in range(2):
            fit(model, epochs=3, callbacks=given, validation_data=data(8, seed=3))
        assert spent(model) < float("inf")


def test_an_interrupted_fit_is_accounted_for():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model = private()
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[Stop()])
    fit(model)
    assert spent(model) < float("inf")


def test_the_first_assumption_is_about_the_start(trained):
    first = trained.privacy.spent(DELTA).assumptions[0]
    assert "start" in first and "depend" in first


# -- files -----------------------------------------------------------------------------------------


def test_formats_without_a_ledger_are_refused(trained, tmp_path):
    for save in (trained.save, trained.save_weights):
        with pytest.raises(ValueError, match=r"no privacy ledger|must end in"):
            save(tmp_path / "m.h5")


def edited(path, change):
    """Changes the ledger in a file of weights."""
    import h5py

    with h5py.File(path, "r+") as file:
        (name,) = [n for n in _names(file) if n.endswith("tfdp_ledger")]
        text = change(bytes(np.asarray(file[name])).decode())
        del file[name]
        file[name] = np.frombuffer(text.encode(), np.uint8)


def _names(file):
    names = []
    file.visit(names.append)
    return names


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"noise_multiplier": 1.0', '"noise_multiplier": 20.0'),
        lambda text: text.replace('"steps": 9', '"steps": 3'),
    ],
    ids=["noise", "steps"],
)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_edited_ledger_is_refused(change, is_compiled, trained, elsewhere, tmp_path):
    path = tmp_path / "m.weights.h5"
    trained.save_weights(path)
    edited(path, change)
    elsewhere()
    model = private() if is_compiled else private_uncompiled()
    with pytest.raises(ValueError, match="edited"):
        model.load_weights(path)


def test_a_ledger_that_knows_less_than_the_optimizer_is_never_stated(trained, elsewhere):
    elsewhere()
    ledger = Ledger.from_json(trained.privacy.ledger.to_json())
    (run_id,) = ledger.entries
    trained._account.close_session()
    trained._account._ledger._entries[run_id] = ledger.entries[run_id].with_(steps=1)
    for state in (
        lambda: trained.privacy.spent(DELTA),
        lambda: trained.privacy.statement(DELTA),
        lambda: fit(trained),
    ):
        with pytest.raises(ValueError, match="has taken 9 steps, and its ledger knows of 1"):
            state()


def test_a_second_make_private_keeps_the_budget():
    model = private(budget=BUDGET)
    tfdp.make_private(model, physical_batch_size=4)
    assert model.privacy.ledger.budget == BUDGET


def test_a_budget_is_saved_with_the_weights(elsewhere, tmp_path):
    model = private(sgd(noise=10.0), budget=BUDGET)
    fit(model)
    model.save(tmp_path / "m.keras")
    elsewhere()
    model = tfdp.make_private(load(tmp_path / "m.keras"))
    assert model.privacy.ledger.budget == BUDGET
    model.compile(sgd(noise=0.01), loss=LOSS)
    before = weights(model)
    with pytest.raises(BudgetExhausted):
        fit(model)
    np.testing.assert_array_equal(weights(model), before)


# -- found by attacks ------------------------------------------------------------------------------


LOOKS = {
    "get_weights": lambda m, f: m.get_weights(),
    "save": lambda m, f: m.save(f / "m.keras"),
    "save_weights": lambda m, f: m.save_weights(f / "m.weights.h5"),
    "deepcopy": lambda m, f: copy.deepcopy(m),
    "compile": lambda m, f: m.compile(sgd(), loss=LOSS),
    "make_private": lambda m, f: tfdp.make_private(m),
}


@pytest.mark.parametrize("look", LOOKS)
def test_looking_at_weights_does_not_account_for_them(look, trained, tmp_path):
    apply_a_tape(trained)
    LOOKS[look](trained, tmp_path)
    assert infinite(trained)


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_train_batch_begin", "on_test_end"])
def test_unaccounted_training_between_steps_is_seen(moment):
    def steal(self, *_, **__):
        apply_a_tape(self.model)

    callback = type("Steals", (keras.callbacks.Callback,), {moment: steal})()
    model = private()
    fit(model, epochs=2, callbacks=[callback], validation_data=data(8, seed=3))
    assert infinite(model)


def test_a_theft_before_an_exception_is_seen():
    class Steals(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            apply_a_tape(self.model)
            raise KeyboardInterrupt

    model = private()
    with pytest.raises(KeyboardInterrupt):
        fit(model, callbacks=[Steals()])
    assert infinite(model)


def test_averages_do_not_hide_a_theft():
    class Steals(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            apply_a_tape(self.model)

    model = private(sgd(use_ema=True))
    swaps = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    fit(model, callbacks=[swaps, Steals()])
    assert infinite(model)


@pytest.mark.parametrize("way", ["layers", "compiled"])
def test_plain_training_of_a_loaded_model_is_seen(way, trained, elsewhere, tmp_path):
    trained.save(tmp_path / "m.keras")
    elsewhere()
    model = load(tmp_path / "m.keras")
    plain_fit(keras.Sequential([keras.Input((4,)), *model.layers]) if way == "layers" else model)
    assert infinite(go_on(tfdp.make_private(compiled(model, sgd()))))


def test_training_between_make_private_and_the_first_fit_is_seen():
    model = tfdp.make_private(plain())
    apply_a_tape(model)
    assert infinite(go_on(model))


def test_a_declaration_is_about_the_weights_as_they_are(trained):
    apply_a_tape(trained)
    tfdp.make_private(trained, start="public")
    assert spent(trained) < float("inf")
    apply_a_tape(trained)
    assert infinite(trained)


def test_a_file_of_a_model_that_was_compiled_again_holds_the_ledger(trained, elsewhere, tmp_path):
    trained.compile(sgd(noise=50.0), loss=LOSS)
    trained.save(tmp_path / "m.keras")
    elsewhere()
    model = go_on(tfdp.make_private(load(tmp_path / "m.keras")))
    assert sorted(run.steps for run in model.privacy.ledger.runs) == [3, 9]


def test_a_model_without_an_optimizer_does_not_save_half_of_it(trained, tmp_path):
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), *trained.layers]))
    with pytest.raises(ValueError, match="compile"):
        model.save(tmp_path / "m.keras")


def test_what_train_on_batch_trained_is_known_elsewhere_in_the_process():
    model = private()
    for _ in range(3):
        model.train_on_batch(*data(8))
    new = plain(seed=5)
    for a, b in zip(model.trainable_variables, new.trainable_variables, strict=True):
        b.assign(a)
    assert steps(go_on(tfdp.make_private(new))) == 6


def test_all_budgets_hold_and_none_is_raised_by_the_way(trained):
    trained.privacy.configure(budget=tfdp.PrivacyBudget(20.0, DELTA))
    with pytest.raises(ValueError, match="budget of epsilon 20 already"):
        trained.privacy.configure(budget=tfdp.PrivacyBudget(50.0, DELTA))
    other = private(model=keras.Sequential([keras.Input((4,)), *trained.layers]))
    other.privacy.configure(budget=tfdp.PrivacyBudget(9.0, DELTA, "claimed"))
    assert len(trained.privacy.ledger.budgets) == 2
    with pytest.raises(BudgetExhausted):
        fit(trained, epochs=100)
    assert spent(trained) <= 20.0


def test_a_budget_that_comes_in_the_middle_of_an_epoch_holds_at_once():
    class Sets(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.privacy.ledger.budget = tfdp.PrivacyBudget(0.1, DELTA)

    model = private()
    with pytest.raises(BudgetExhausted):
        fit(model, callbacks=[Sets()])
    assert steps(model) == 1


def test_version_1_is_no_way_around_the_checksum(trained):
    content = json.loads(trained.privacy.ledger.to_json()) | {"version": 1}
    with pytest.raises(ValueError, match="version"):
        Ledger.from_json(json.dumps(content))


def test_a_plainly_trained_part_leaves_nothing_proven():
    inner = plain_fit(plain())
    outer = tfdp.make_private(keras.Sequential([keras.Input((4,)), inner, layers.Dense(3)]))
    assert infinite(go_on(outer))


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end"])
@pytest.mark.parametrize("when", ["first", "middle", "last"])
def test_a_change_past_tensorflow_between_steps_is_seen(hook, when):
    class Writes(keras.callbacks.Callback):
        """Writes into the memory of a weight, which TensorFlow does not notice."""

    def write(self, batch, logs=None):
        if batch == ("first", "middle", "last").index(when):
            kernel = tf.convert_to_tensor(self.model.trainable_variables[0])
            kernel.__array__()[0, 0] += 1.0

    setattr(Writes, hook, write)
    model = private()
    fit(model, callbacks=[Writes()])
    assert model.privacy.spent(DELTA).epsilon == float("inf")


def test_a_callback_of_ones_own_costs_two_digests_a_step(monkeypatch):
    model = private()
    counted = []
    sha256 = account.hashlib.sha256
    monkeypatch.setattr(account.hashlib, "sha256", lambda data: counted.append(1) or sha256(data))

    def count(epochs):
        counted.clear()
        own = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
        fit(model, epochs=epochs, callbacks=[own])
        return len(counted)

    count(1)
    per_epoch = count(3) - count(2)
    floats = sum(keras.backend.is_float_dtype(v.dtype) for v in model.weights)
    assert per_epoch <= floats * (2 * 3 + 3)  # three steps, and the ends of the epoch


def test_a_callback_that_gets_a_hook_between_steps_during_fit_is_refused():
    class Late(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.on_train_batch_end = lambda batch, logs=None: None

    with pytest.raises(RuntimeError, match="Callback Late got a hook between steps"):
        fit(private(), callbacks=[Late()])
