"""`model.privacy.steps`: a loop of one's own takes and accounts the steps that `fit` would."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import data, sgd, steps, weights

import tfdp
from tests.rounding import FUNCTION, assert_close
from tests.training.small import small
from tfdp.accounting import BudgetExhausted

X, Y = data(12)
L, EPOCHS = 4, 2  # three steps in an epoch


def loop(model, **options):
    return model.privacy.steps(X, Y, **{"batch_size": L} | options)


def test_the_steps_are_those_of_fit():
    compiled = {"metrics": ["accuracy"], "run_eagerly": False}
    by_fit, by_loop = (small(sgd(seed=5), seed=5, compiled=compiled) for _ in range(2))
    history = by_fit.fit(X, Y, batch_size=L, epochs=EPOCHS, verbose=0).history
    logs = list(loop(by_loop, epochs=EPOCHS))
    np.testing.assert_array_equal(weights(by_loop), weights(by_fit))
    assert by_loop.privacy.current_run == by_fit.privacy.current_run
    assert by_loop.privacy.steps_taken == by_fit.privacy.steps_taken == 6
    for name in ("loss", "accuracy"):
        assert_close([logs[2][name], logs[5][name]], history[name], EPOCHS * L + FUNCTION)
    assert all(isinstance(value, float) for each in logs for value in each.values())


def test_a_loop_that_is_left_counts_its_plan_and_the_next_training_comes_on_top():
    model = small()
    loop(model)
    assert model.privacy.ledger.runs == []
    for taken, _ in enumerate(loop(model, epochs=EPOCHS), 1):
        # The learning rate of DP-SGD, and looking at the model, are free between steps.
        model.optimizer.learning_rate = 0.1 / taken
        model.evaluate(X, Y, verbose=0)
        if taken == 2:
            break
    (run,) = model.privacy.ledger.runs
    assert (run.taken, run.steps, run.sampling.name) == (2, 3 * EPOCHS, "poisson")
    assert np.isfinite(model.privacy.spent(1e-3).epsilon)
    model.fit(X, Y, batch_size=12, verbose=0)  # the loop has ended
    assert steps(model) == 3 * EPOCHS + 1


def test_the_step_beyond_the_budget_is_refused(caplog):
    model, taken = small(), 0
    model.privacy.budget = tfdp.PrivacyBudget(3.0, 1e-3)
    with pytest.raises(BudgetExhausted):
        for _ in loop(model, epochs=100):
            taken += 1
    assert 0 < taken == model.privacy.steps_taken < 300
    assert f"allows {taken} of the 300 planned steps" in caplog.text
    assert model.privacy.spent().epsilon <= 3.0


def test_another_training_inside_the_loop_is_refused():
    model = small()
    second = loop(model)  # which is refused when it begins
    for _ in loop(model, steps_per_epoch=1):
        for start in (
            lambda: model.fit(X, Y, batch_size=L, verbose=0),
            lambda: next(second),
            lambda: model.train_on_batch(X, Y),
        ):
            with pytest.raises(RuntimeError, match="Another training"):
                start()


def test_a_model_that_the_loop_compiles_anew_is_another_training():
    model = small()
    begun = loop(model)
    next(begun)
    model.compile(sgd(noise=0.1, clip=9.0), model.loss, run_eagerly=True)
    with pytest.raises(RuntimeError, match="optimizer"):
        next(begun)
    (run,) = model.privacy.ledger.runs
    assert (run.taken, run.mechanism.noise_multiplier) == (1, 1.0)


def test_several_steps_in_one_execution_are_all_counted():
    model = small(compiled={"steps_per_execution": 2})
    assert len(list(loop(model, steps_per_epoch=3))) == 2
    assert model.privacy.steps_taken == 3  # the second execution has one step left


@pytest.mark.parametrize("arguments", [{"epochs": 0}, {"epochs": 1.5}, {"callbacks": []}])
def test_wrong_arguments_are_refused_at_once(arguments):
    with pytest.raises((ValueError, TypeError), match=next(iter(arguments))):
        loop(small(), **arguments)


class Subclassed(keras.Model):
    """Has no weights before its first data; TensorFlow's functions need real tensors."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(tf.reshape(inputs["a"], [-1, 4]))


def test_an_unbuilt_model_is_built_for_the_shapes_of_the_data():
    found = small(model=Subclassed())
    found.train_on_batch({"a": X}, Y)
    assert len(list(found.privacy.steps({"a": X}, Y, batch_size=12))) == 1
    assert [tuple(w.shape) for w in found.trainable_variables] == [(4, 3), (3,)]
    assert steps(found) == 2


def test_an_unbuilt_model_that_does_not_fit_the_data_is_refused():
    found = small(model=keras.Sequential([keras.layers.Conv2D(3, 3)]))
    with pytest.raises(ValueError):
        loop(found)
    assert not found.privacy.ledger.runs
