"""`model.privacy.steps`: a loop of one's own takes and accounts the steps that `fit` would."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import plain, weights

import tfdp
from tfdp.accounting import BudgetExhausted
from tfdp.data import make_lots

N, L, EPOCHS = 24, 6, 3


def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, 3)).astype("float32"), rng.integers(0, 2, N)


def private(seed=5, **compiled):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((3,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(2)]
    model = tfdp.make_private(keras.Sequential(layers), seed=seed)
    model.compile(
        tfdp.DPKerasSGDOptimizer(
            l2_norm_clip=1.0, noise_multiplier=1.0, learning_rate=0.5, seed=seed
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **compiled,
    )
    return model


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}, {"jit_compile": True}])
def test_the_steps_are_those_of_fit(compiled):
    x, y = data()
    by_fit, by_loop = private(**compiled), private(**compiled)
    history = by_fit.fit(x, y, batch_size=L, epochs=EPOCHS, verbose=0).history
    logs = list(by_loop.privacy.steps(x, y, batch_size=L, epochs=EPOCHS))
    np.testing.assert_array_equal(weights(by_loop), weights(by_fit))
    assert by_loop.privacy.current_run == by_fit.privacy.current_run
    assert by_loop.privacy.steps_taken == by_fit.privacy.steps_taken == EPOCHS * N // L
    ends = logs[N // L - 1 :: N // L]
    for name in ("loss", "accuracy"):
        np.testing.assert_allclose([each[name] for each in ends], history[name], rtol=1e-6)
    assert all(isinstance(value, float) for each in logs for value in each.values())


@pytest.mark.parametrize("kind", ["lots", "dataset", "dataset of lots"])
def test_other_data_are_accounted_as_by_fit(kind):
    x, y = data()

    def given():
        if kind == "dataset":
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(L, drop_remainder=True)
        lots = make_lots("fixed_size", x, y, lot_size=L)
        return lots if kind == "lots" else lots.as_dataset()

    by_fit, by_loop = private(seed=None), private(seed=None)
    steps = {} if kind != "dataset of lots" else {"steps_per_epoch": N // L}
    by_fit.fit(given(), epochs=2, verbose=0, **steps)
    assert len(list(by_loop.privacy.steps(given(), epochs=2, **steps))) == 2 * N // L
    assert by_loop.privacy.ledger.runs == by_fit.privacy.ledger.runs


def test_only_steps_that_were_taken_are_spent():
    model = private(seed=None)
    for taken, _ in enumerate(model.privacy.steps(*data(), batch_size=L, epochs=EPOCHS), 1):
        if taken == 5:
            break
    (run,) = model.privacy.ledger.runs
    assert (run.steps, run.sampling_name) == (5, "poisson")
    gc.collect()
    model.fit(*data(), batch_size=L, verbose=0)  # the loop has ended
    assert model.privacy.ledger.runs[0].steps == 5 + N // L


def test_making_a_loop_spends_nothing():
    model = private()
    model.privacy.steps(*data(), batch_size=L)
    assert model.privacy.ledger.runs == []


def test_the_step_beyond_the_budget_is_refused():
    model = private(seed=None)
    spent = []
    model.privacy.budget = tfdp.PrivacyBudget(3.0, 1e-3)
    with pytest.raises(BudgetExhausted, match="allows"):
        for _ in model.privacy.steps(*data(), batch_size=L, epochs=100):
            spent.append(model.privacy.spent().epsilon)
    assert 0 < len(spent) < 400
    assert spent[-1] <= 3.0 and model.privacy.steps_taken == len(spent)


def test_another_training_inside_the_loop_is_refused():
    model = private()
    for _ in model.privacy.steps(*data(), batch_size=L):
        for start in (
            lambda: model.fit(*data(), batch_size=L, verbose=0),
            lambda: next(model.privacy.steps(*data(), batch_size=L)),
            lambda: model.train_on_batch(*data()),
        ):
            with pytest.raises(RuntimeError, match="Another training"):
                start()


def test_a_loop_that_was_made_during_another_is_refused_when_it_begins():
    model = private()
    first = model.privacy.steps(*data(), batch_size=L)
    second = model.privacy.steps(*data(), batch_size=L)
    next(first)
    with pytest.raises(RuntimeError, match="Another training"):
        next(second)


def test_weights_that_the_loop_changes_leave_nothing_proven():
    model = private(seed=None)
    for taken, _ in enumerate(model.privacy.steps(*data(), batch_size=L)):
        if taken == 1:
            kernel = model.trainable_variables[0]
            kernel.assign(kernel + 0.1)
    assert model.privacy.spent(delta=1e-3).epsilon == np.inf


def test_the_learning_rate_may_change_between_steps():
    model = private(seed=None)
    for _ in model.privacy.steps(*data(), batch_size=L):
        model.optimizer.learning_rate = 0.5 * float(model.optimizer.learning_rate)
        model.evaluate(*data(), verbose=0)
    assert np.isfinite(model.privacy.spent(delta=1e-3).epsilon)


def test_a_model_that_the_loop_compiles_anew_is_another_training():
    model = private(seed=None)
    loop = model.privacy.steps(*data(), batch_size=L)
    next(loop)
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=9.0, noise_multiplier=0.1), model.loss)
    with pytest.raises(RuntimeError, match="ledger entry of this training is closed"):
        next(loop)
    (run,) = model.privacy.ledger.runs
    assert (run.steps, run.noise_multiplier) == (1, 1.0)


def test_several_steps_in_one_execution_are_all_counted():
    model = private(seed=None, steps_per_execution=2)
    options = {"epochs": 2, "batch_size": L, "steps_per_epoch": 3}
    assert len(list(model.privacy.steps(*data(), **options))) == 4
    assert model.privacy.steps_taken == 6  # the second execution of an epoch has one step left


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "Expected epochs"),
        ({"epochs": 1.5}, ValueError, "Expected epochs"),
        ({"callbacks": []}, TypeError, "callbacks"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        private().privacy.steps(*data(), batch_size=L, **arguments)


def test_a_model_without_a_private_optimizer_is_refused():
    model = tfdp.make_private(plain())
    with pytest.raises(ValueError, match="needs a private optimizer"):
        model.privacy.steps(*data(), batch_size=L)
