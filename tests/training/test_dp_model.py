"""The private model classes and their clones."""

import keras
import numpy as np
import pytest
from helpers import LOSS, sgd, steps
from keras import layers

import tfdp
from tests.training.small import linear, small, train
from tfdp.training.dp_model import PrivateTraining


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
        model.compile(sgd(), loss=LOSS, run_eagerly=True)
        train(model)
        assert steps(model) == 2 and isinstance(model, tfdp.DPModel)

    class Wrong(tfdp.DPModel):
        pass

    with pytest.raises(TypeError, match="DPFunctional"):
        Wrong(inputs=x, outputs=layers.Dense(3)(x))


@pytest.mark.parametrize("kind", [keras.Sequential, keras.Model, tfdp.DPSequential, tfdp.DPModel])
def test_clones_of_private_models_are_private_and_have_a_ledger_of_their_own(kind):
    x, dense = keras.Input((4,)), layers.Dense(3)
    sequential = issubclass(kind, keras.Sequential)
    model = kind([x, dense]) if sequential else kind(x, dense(x))
    model = small(model=model, engine="vectorized", physical_batch_size=4)
    train(model)
    clone = keras.models.clone_model(model)
    assert isinstance(clone, PrivateTraining)
    assert (clone._privacy.engine, clone._privacy.physical_batch_size) == ("vectorized", 4)
    assert clone.privacy.ledger.runs == []
    if not clone.compiled:
        clone.compile(sgd(), loss=LOSS, run_eagerly=True)
    train(clone, epochs=2)
    assert (steps(clone), steps(model)) == (4, 2)


def test_clones_of_plain_models_stay_plain():
    assert type(keras.models.clone_model(linear())) is keras.Sequential
