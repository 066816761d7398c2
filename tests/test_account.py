"""What was spent on weights stays with them, however they are loaded, compiled or copied."""

import copy
import json
import os
import pathlib
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import LOSS, data, sgd, steps
from keras import layers

import tfdp
from tests.training.small import linear, small, train
from tfdp.accounting import BudgetExhausted
from tfdp.optimizers import make_dp_optimizer_class

DELTA = 1e-5
BUDGET = tfdp.PrivacyBudget(3.0, DELTA)


class Own(keras.optimizers.Adam):
    """An optimizer of a user's own, which another process imports by its name."""


def spent(model):
    return model.privacy.spent(DELTA).epsilon


def plain_fit(model):
    model.compile(keras.optimizers.SGD(0.1), loss=LOSS, run_eagerly=True)
    model.fit(*data(8), verbose=0)
    return model


def go_on(model):
    """Takes one more step, which costs almost no privacy."""
    model.privacy.configure(engine="loop")
    model.compile(sgd(noise=100.0), loss=LOSS, run_eagerly=True)
    model.train_on_batch(*data(8))
    return model


# -- files, in another process -----------------------------------------------------------------------


def compiled(model, optimizer):
    model.compile(optimizer, LOSS)
    return model


def loaded(model, path):
    model.load_weights(path)
    return model


def uncompiled():
    return tfdp.make_private(linear(5))


def frozen_part(model):
    (layer,) = model.layers
    layer.trainable = False
    return keras.Sequential([keras.Input((4,)), layer, layers.Dense(3)])


def load(folder):
    return keras.models.load_model(folder / "m.keras")


# All ways to make a private model from the files of another one, without its optimizer if possible.
WAYS = {
    "pickle": lambda f: pickle.loads((f / "m.pickle").read_bytes()),
    "model": lambda f: tfdp.make_private(load(f)),
    "model, compiled anew": lambda f: tfdp.make_private(compiled(load(f), sgd(noise=9.0))),
    "weights before compile": lambda f: loaded(uncompiled(), f / "m.weights.h5"),
    "weights after compile": lambda f: loaded(compiled(uncompiled(), sgd()), f / "m.weights.h5"),
    "weights of a model": lambda f: loaded(uncompiled(), f / "m.keras"),
    "shards": lambda f: loaded(uncompiled(), f / "m.weights.json"),
    "layers": lambda f: tfdp.make_private(keras.Sequential([keras.Input((4,)), *load(f).layers])),
    "a frozen layer": lambda f: tfdp.make_private(frozen_part(load(f))),
}


def look(folder):
    """Prints, for each way, the steps and the budget that another process finds."""
    found = {}
    make_dp_optimizer_class(Own)  # files and pickles hold its name only
    for name, way in WAYS.items():
        model = way(pathlib.Path(folder))
        found[name] = [steps(model), model.privacy.budget.epsilon]
    print(json.dumps(found))


def test_another_process_finds_what_was_spent(tmp_path):
    optimizer = make_dp_optimizer_class(Own)(l2_norm_clip=1.0, noise_multiplier=5.0)
    model = small(optimizer, budget=BUDGET)
    train(model)
    model.save(tmp_path / "m.keras")
    model.save_weights(tmp_path / "m.weights.h5")
    model.save_weights(tmp_path / "m.weights.json", max_shard_size=1e-6)
    (tmp_path / "m.pickle").write_bytes(pickle.dumps(model))
    program = f"from tests.test_account import look; look({str(tmp_path)!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert json.loads(done.stdout) == {name: [2, 3.0] for name in WAYS}


# -- in one process ----------------------------------------------------------------------------------


def test_copies_bring_ledger_and_budget():
    model = small(sgd(noise=10.0), budget=BUDGET)
    made = copy.deepcopy(model)  # before the first step, and after it
    assert steps(made) == 0 and made.privacy.budget == BUDGET
    train(model)
    made = copy.deepcopy(model)
    assert made.privacy.ledger == model.privacy.ledger and made.privacy.budget == BUDGET
    made.compile(sgd(noise=0.01), loss=LOSS, run_eagerly=True)
    with pytest.raises(BudgetExhausted):
        train(made)
    assert (steps(made), steps(model)) == (2, 2)


def test_a_model_that_is_frozen_keeps_it_in_its_file(tmp_path):
    model = small()
    train(model)
    for compiled_anew in (False, True):
        model.trainable = False
        if compiled_anew:
            model.compile(sgd(), LOSS)
        model.save(tmp_path / "m.keras")
        assert steps(tfdp.make_private(load(tmp_path))) == 2


def test_weights_of_a_chosen_epoch_may_be_loaded_after_an_interrupt(tmp_path):
    class Interrupts(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    best = keras.callbacks.ModelCheckpoint(
        tmp_path / "m.weights.h5", save_weights_only=True, save_best_only=True
    )
    model = small()
    with pytest.raises(KeyboardInterrupt):
        train(model, epochs=5, validation_data=data(8, seed=3), callbacks=[best, Interrupts()])
    model.load_weights(tmp_path / "m.weights.h5")
    assert steps(model) == 10  # all that were planned: held-out data chose among them
    train(model)
    assert spent(model) < np.inf


def test_models_that_share_a_layer_share_what_was_spent():
    model = small()
    train(model)
    other = small(model=keras.Sequential([keras.Input((4,)), *model.layers, layers.Dense(3)]))
    assert steps(other) == 2
    train(other)
    train(model)  # the other model's steps used the shared layer, too
    assert steps(other) == steps(model) == 6


def test_models_that_meet_in_a_layer_have_the_sum():
    one, two = small(start="public"), small()
    for model in (one, two):
        train(model)
    inputs = keras.Input((4,))
    both = keras.Model(inputs, layers.Add()([m.layers[0](inputs) for m in (one, two)]))
    assert steps(tfdp.make_private(both)) == 4
    assert both.privacy.account.start == "assumed"  # of two, one was declared


# -- training that nobody accounted ------------------------------------------------------------------


@pytest.mark.parametrize("order", ["compile first", "inside another model"])
def test_a_plain_fit_before_leaves_nothing_proven(order):
    model = plain_fit(linear())
    if order == "compile first":
        model.compile(model.optimizer, LOSS)
    else:
        model = keras.Sequential([keras.Input((4,)), model, layers.Dense(3)])
    model = go_on(tfdp.make_private(model))
    guarantee = model.privacy.spent(DELTA)
    assert guarantee.epsilon == np.inf and "start='public'" in guarantee.reason


def test_a_plain_fit_on_public_data_may_be_declared():
    model = go_on(tfdp.make_private(plain_fit(linear()), start="public"))
    assert 0 < spent(model) < 1
    assert "declared" in model.privacy.statement(DELTA)


def test_a_declaration_is_about_the_weights_as_they_are():
    model = small(model=plain_fit(linear()), start="public")
    train(model)
    again = plain_fit(keras.Model(model.inputs, model.outputs))
    assert spent(tfdp.make_private(again)) == np.inf


def test_a_plain_checkpoint_of_tensorflow_leaves_nothing_proven(tmp_path):
    trained, model = plain_fit(linear()), linear()
    saved = tf.train.Checkpoint(model=trained, optimizer=trained.optimizer).save(tmp_path / "c")
    model.compile(keras.optimizers.SGD(0.1), LOSS)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(saved).expect_partial()
    assert spent(tfdp.make_private(model)) == np.inf


def test_a_plain_fit_may_be_declared_later(tmp_path):
    model = go_on(tfdp.make_private(plain_fit(linear())))
    model.save(tmp_path / "m.keras")
    for made in (copy.deepcopy(model), load(tmp_path), model):
        assert spent(made) == np.inf
        tfdp.make_private(made, start="public")
        assert 0 < spent(made) < 1
        assert "declared" in made.privacy.statement(DELTA)


def test_nothing_spent_is_said_with_what_it_assumes():
    model = small(budget=tfdp.PrivacyBudget(3.0, DELTA, adjacency="replace_one"))
    for start, words in (("assumed", "tfdp did not check this"), ("public", "declared")):
        tfdp.make_private(model, start=start)
        guarantee = model.privacy.spent()
        assert (guarantee.epsilon, guarantee.adjacency) == (0.0, "replace_one")
        assert words in guarantee.assumptions[0] and words in model.privacy.statement(full=True)


def test_weights_that_are_loaded_after_a_declaration_are_declared(tmp_path):
    plain_fit(linear()).save_weights(tmp_path / "m.weights.h5")
    model = tfdp.make_private(linear(), start="public")
    model.load_weights(tmp_path / "m.weights.h5")
    assert spent(go_on(model)) < 1


# -- post-processing ---------------------------------------------------------------------------------


def averaged(model):
    for variable in model.trainable_variables:
        variable.assign(0.5 * variable + 0.5)


class Pruning(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        averaged(self.model)


POST_PROCESSING = {
    "assign": averaged,
    "set_weights": lambda model: model.set_weights([w > 0 for w in model.get_weights()]),
    "quantize": lambda model: model.quantize("int8"),
}


@pytest.mark.parametrize("kind", POST_PROCESSING)
def test_post_processing_costs_nothing(kind):
    model = small()
    train(model)
    before = spent(model)
    POST_PROCESSING[kind](model)
    assert spent(model) == before < np.inf


def quantized(model):
    model.quantize("int8")  # makes new variables
    return keras.Sequential([keras.Input((4,)), model.layers[0], layers.Dense(3)])


def with_normalization(model, public=None):
    stack = [keras.Input((4,)), *model.layers, layers.BatchNormalization(), layers.Dense(3)]
    return tfdp.fix(keras.Sequential(stack), public)


def with_public_normalization(model):
    return with_normalization(model, data(5)[0])


@pytest.mark.parametrize("made", [quantized, with_normalization, with_public_normalization])
def test_layers_keep_it_in_what_is_made_of_them(made):
    model = small(model=keras.Sequential([keras.Input((4,)), layers.Dense(3, use_bias=False)]))
    train(model)
    assert spent(tfdp.make_private(made(model))) == spent(model) > 0


@pytest.mark.parametrize("public", [None, data(5)[0]])
def test_a_fixed_copy_knows_of_plain_training(public):
    model = linear()
    model.add(layers.BatchNormalization())
    model.compile("sgd", "mse")
    model.train_on_batch(data(5)[0], np.zeros((5, 3)))
    fixed = tfdp.make_private(tfdp.fix(model, public))
    assert spent(fixed) == np.inf
    assert spent(tfdp.make_private(fixed, start="public")) == 0


def test_private_models_inside_of_others_are_private_in_files(tmp_path):
    inputs = keras.Input((4,))
    model = small(model=keras.Model(inputs, layers.Dense(3)(tfdp.make_private(linear())(inputs))))
    train(model)
    model.save(tmp_path / "m.keras")
    found = keras.models.load_model(tmp_path / "m.keras")
    assert spent(found) == spent(found.layers[1]) == spent(model)
    np.testing.assert_array_equal(found(data(4)[0]), model(data(4)[0]))


def test_a_callback_may_change_the_weights():
    model, same = small(), small()
    train(model, callbacks=[Pruning()])
    train(same)
    assert spent(model) == spent(same) < np.inf


def test_what_keras_itself_does_to_the_weights_is_no_unaccounted_training(tmp_path):
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=0, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "m.keras"),
        keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    ]
    averaged = sgd(use_ema=True, ema_overwrite_frequency=2)
    for optimizer, given in ((averaged, []), (sgd(use_ema=True), callbacks)):
        model = small(optimizer)
        for epochs in (2, 1):
            train(model, epochs=epochs, callbacks=given, validation_data=data(8, seed=3))
        assert spent(model) < np.inf


# -- budgets and formats -----------------------------------------------------------------------------


def test_formats_without_a_ledger_are_refused(tmp_path):
    model = small()
    for save in (model.save, model.save_weights):
        with pytest.raises(ValueError, match=r"ledger|must end in"):
            save(tmp_path / "m.h5")


def test_a_model_without_an_optimizer_saves_it_too(tmp_path):
    model = small(sgd(noise=10.0), budget=BUDGET)
    train(model)
    model = tfdp.make_private(keras.Sequential([keras.Input((4,)), *model.layers]))
    model.save(tmp_path / "m.keras")
    found = load(tmp_path)
    assert steps(found) == 2 and found.privacy.budget == BUDGET


def test_all_budgets_hold_and_none_is_raised_by_the_way():
    model = small(budget=tfdp.PrivacyBudget(20.0, DELTA))
    tfdp.make_private(model, physical_batch_size=4)
    assert model.privacy.budget.epsilon == 20
    model.privacy.configure(budget=tfdp.PrivacyBudget(50.0, DELTA))
    assert model.privacy.budget.epsilon == 20
    other = small(model=keras.Sequential([keras.Input((4,)), *model.layers]))
    other.privacy.configure(budget=tfdp.PrivacyBudget(9.0, DELTA, "claimed"))
    assert len(model.privacy.ledger.budgets) == 2
    with pytest.raises(BudgetExhausted):
        train(model, epochs=100)
    assert 0 < spent(model) <= 20.0


def test_a_budget_that_comes_in_the_middle_of_an_epoch_holds_at_once():
    class Sets(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.privacy.ledger.budget = tfdp.PrivacyBudget(0.1, DELTA)

    model = small()
    with pytest.raises(BudgetExhausted):
        train(model, callbacks=[Sets()])
    assert steps(model) == 1
