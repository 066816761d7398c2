"""The private model classes, and their members about privacy."""

import keras
import numpy as np
import pytest
from helpers import LOSS, fit, private, sgd, steps
from keras import layers

import tfdp
from tfdp.accounting import proven

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
