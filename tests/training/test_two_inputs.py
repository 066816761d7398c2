"""Two inputs without targets mean the same in private training as in Keras, however they are passed."""

import functools

import keras
import pytest
import tensorflow as tf
from helpers import data, sgd, weights

import tfdp
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.data import make_lots


class Distance(keras.Model):
    """Takes two inputs and no targets."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        first, second = inputs
        return self.dense(first) - self.dense(second)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(y_pred**2)


class Pairs(keras.utils.PyDataset):
    def __init__(self, pair, **options):
        super().__init__(**options)
        self.pair = pair

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (tuple(each[4 * index : 4 * index + 4] for each in self.pair),)


IN_ORDER = {"batch_size": 4, "shuffle": False, "verbose": 0}
OF_PAIRS = {
    "tuple": lambda m, pair: m.fit(pair, **IN_ORDER),
    "list": lambda m, pair: m.fit([*pair], **IN_ORDER),
    "validation": lambda m, pair: m.fit(pair, validation_data=(pair,), **IN_ORDER),
    "dataset": lambda m, pair: m.fit(
        tf.data.Dataset.from_tensor_slices((pair,)).batch(4), verbose=0
    ),
    "PyDataset": lambda m, pair: m.fit(Pairs(pair), shuffle=False, verbose=0),
    "generator": lambda m, pair: m.fit((Pairs(pair)[i] for i in (0, 1)), verbose=0),
    "lots": lambda m, pair: m.fit(make_lots("cyclic", (pair,), lot_size=4), verbose=0),
    "lots of examples": lambda m, pair: m.fit(
        make_lots("cyclic", tf.data.Dataset.from_tensor_slices((pair,)), lot_size=4), verbose=0
    ),
    "mapped lots": lambda m, pair: m.fit(
        make_lots("cyclic", (pair,), lot_size=4).map(lambda x: x), verbose=0
    ),
    "batches": lambda m, pair: [m.train_on_batch(Pairs(pair)[i][0]) for i in (0, 1)],
}


X = data(8)[0]
PAIR = X, X[::-1].copy()


def built():
    seed_keras(0)
    model = Distance()
    model(PAIR)
    return model


@functools.cache
def after_keras():
    model = built()
    model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
    model.fit(PAIR, **IN_ORDER)
    return weights(model)


@pytest.mark.parametrize("kind", OF_PAIRS)
def test_two_inputs_without_targets_are_those_of_keras(kind):
    model = tfdp.make_private(built(), engine="loop")
    model.compile(sgd(noise=0.0, clip=1e9, rate=0.1), run_eagerly=True)
    OF_PAIRS[kind](model, PAIR)
    assert_close(weights(model), after_keras(), terms_of(model, 4, steps=2, length=4))


def test_two_inputs_are_evaluated_and_calibrated_for():
    model, optimizer, _ = tfdp.make_private_with_epsilon(
        built(), "sgd", (PAIR,), batch_size=4, epochs=1, epsilon=4.0, delta=1e-3
    )
    model.compile(optimizer, run_eagerly=True)
    loss = model.evaluate(PAIR, verbose=0)
    assert_close(loss, float(model.compute_loss(y_pred=model(PAIR))), terms_of(model, 8, length=8))
