"""The private model classes, and their members about privacy."""

import keras
import numpy as np
import pytest
from helpers import LOSS, fit, private, sgd, steps
from keras import layers

import tfdp
from tfdp._compat.keras import Trainer
from tfdp.accounting import proven
from tfdp.training.dp_model import PrivateTraining

DELTA = 1e-5


def test_functional_and_subclassed_dp_models_live_together():
    x = keras.Input((4,))
    functional = tfdp.DPModel(x, layers.Dense(3)(x))

    class Mine(tfdp.DPModel):
        def __init__(self):
            super().__init__()
            self.out = layers.Dense(3)

        def call(self, x):
            return self.out(x)

    mine = Mine()
    mine(np.zeros((1, 4)))
    for model in (functional, mine):
        model.compile(sgd(), loss=LOSS)
        fit(model)
        assert steps(model) == 3 and isinstance(model, tfdp.DPModel)

    class Wrong(tfdp.DPModel):
        pass

    with pytest.raises(TypeError, match="DPFunctional"):
        Wrong(inputs=x, outputs=layers.Dense(3)(x))


def test_the_statement_names_both_guarantees():
    model = private()
    fit(model)
    text = model.privacy.statement(DELTA)
    assert "proven" in text.lower() and "claimed" in text.lower()
    assert set(model.privacy.diagnostics()) >= {"fraction_clipped", "median_gradient_norm"}
    assert model.privacy.spent(DELTA).epsilon == proven(model.privacy.current_run, DELTA).epsilon


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", ["sequential", "functional", "DPSequential", "DPModel"])
def test_clones_of_private_models_are_private_and_have_a_ledger_of_their_own(make, compiled):
    x = keras.Input((4,))
    dense = layers.Dense(3)
    if make in ("sequential", "DPSequential"):
        kind = keras.Sequential if make == "sequential" else tfdp.DPSequential
        model = kind([x, dense])
    else:
        kind = keras.Model if make == "functional" else tfdp.DPModel
        model = kind(x, dense(x))
    model = tfdp.make_private(model, engine="vectorized", physical_batch_size=4)
    model.compile(sgd(), loss=LOSS)
    fit(model)
    if not compiled:
        model.compiled = False
    clone = keras.models.clone_model(model)
    assert isinstance(clone, PrivateTraining)
    assert (clone._privacy.engine, clone._privacy.physical_batch_size) == ("vectorized", 4)
    assert clone.privacy.ledger.runs == [] and steps(model) == 3
    if not compiled:
        clone.compile(sgd(), loss=LOSS)
    fit(clone, epochs=2)
    assert (steps(clone), steps(model)) == (6, 3)


def test_clones_of_plain_models_stay_plain():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    assert type(keras.models.clone_model(model)) is keras.Sequential


def test_a_clone_that_shares_layers_shares_the_ledger():
    model = private()
    fit(model)
    clone = keras.models.clone_model(model, clone_function=lambda layer: layer)
    assert steps(clone) == 3


def test_a_layer_with_the_trainer_of_keras_trains_as_keras_own_tests_have_it():
    kinds = [kind for kind in keras.Model.__mro__ if issubclass(kind, Trainer)]
    backend_trainer = kinds[-2]  # before the trainer of all backends

    class Trained(backend_trainer, layers.Dense):
        def __init__(self, units):
            layers.Dense.__init__(self, units)
            backend_trainer.__init__(self)

    model = tfdp.make_private(Trained(3))
    model.compile(sgd(), loss=LOSS)
    fit(model)
    assert model.privacy.steps_taken == 3
    assert [tuple(v.shape) for v in model.trainable_variables] == [(4, 3), (3,)]
    with pytest.raises(TypeError, match=r"Expected a keras\.Model"):
        tfdp.make_private(layers.Dense(3))
