"""The private classes of models, and clones of models."""

import keras
import pytest
from helpers import LOSS, data, sgd, steps
from keras import layers

import tfdp
from tests.training.small import small, train


def test_classes_of_ones_own_and_functional_models_live_together():
    x = keras.Input((4,))

    class Mine(keras.Model):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.out = layers.Dense(3)

        def call(self, x):
            return self.out(x)

    for made in (Mine(), keras.Model(x, layers.Dense(3)(x)), Mine()):
        plain, model = type(made), small(model=made)
        train(model, batch_size=8)
        assert steps(model) == 1 and isinstance(model, plain) and type(model) is not plain


def test_a_clone_is_made_private_and_has_a_ledger_of_its_own():
    model = small()
    train(model, batch_size=8)
    clone = keras.models.clone_model(model)
    clone.compile(sgd(), loss=LOSS, run_eagerly=True)
    with pytest.raises(RuntimeError, match=r"not private\. Call tfdp\.make_private"):
        clone.train_on_batch(*data(8))
    tfdp.make_private(clone, engine="loop")
    assert clone.privacy.ledger.runs == []
    clone.compile(sgd(), loss=LOSS, run_eagerly=True)
    clone.train_on_batch(*data(8))
    assert (steps(clone), steps(model)) == (1, 1)


def test_folds_have_an_optimizer_each():
    optimizer = sgd()
    train(small(optimizer), batch_size=8)
    with pytest.raises(ValueError, match="each model with a new optimizer"):
        train(small(optimizer))
    model = small(sgd())
    train(model, batch_size=8)
    assert steps(model) == 1
