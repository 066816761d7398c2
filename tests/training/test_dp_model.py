"""The private model classes and their clones."""

import keras
import numpy as np
import pytest
from helpers import LOSS, data, sgd, steps
from keras import layers

import tfdp
from tests.training.small import small, train


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
        model.privacy.configure(engine="loop")
        model.compile(sgd(), loss=LOSS, run_eagerly=True)
        train(model)
        assert steps(model) == 2 and isinstance(model, tfdp.DPModel)

    class Wrong(tfdp.DPModel):
        pass

    with pytest.raises(TypeError, match="DPFunctional"):
        Wrong(inputs=x, outputs=layers.Dense(3)(x))


def test_a_clone_has_fresh_weights_and_a_ledger_of_its_own():
    model = small(model=tfdp.DPSequential([keras.Input((4,)), layers.Dense(3)]))
    train(model)
    clone = tfdp.make_private(keras.models.clone_model(model), engine="loop")
    assert clone.privacy.ledger.runs == []
    clone.compile(sgd(), loss=LOSS, run_eagerly=True)
    clone.train_on_batch(*data(8))
    assert (steps(clone), steps(model)) == (1, 2)
