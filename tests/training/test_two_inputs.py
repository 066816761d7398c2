"""Two inputs without targets mean the same in private training as in Keras, however they are passed."""

import keras
import pytest
import tensorflow as tf
from helpers import data, sgd, weights

import tfdp
from tests.rounding import assert_close, terms_of
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


@pytest.mark.parametrize("kind", OF_PAIRS)
def test_two_inputs_without_targets_are_those_of_keras(kind):
    x = data(8)[0]
    pair, found = (x, x[::-1].copy()), []
    for private in (False, True):
        keras.utils.set_random_seed(0)
        model = Distance()
        model(pair)
        if private:
            tfdp.make_private(model, engine="loop")
        optimizer = sgd(noise=0.0, clip=1e9, rate=0.1) if private else keras.optimizers.SGD(0.1)
        model.compile(optimizer, run_eagerly=True)
        if private:
            OF_PAIRS[kind](model, pair)
        else:
            model.fit(pair, **IN_ORDER)
        found.append(weights(model))
    assert_close(*found, terms=terms_of(model, 4, steps=2, length=4))
    model.evaluate(pair, verbose=0)
    tfdp.make_private_with_epsilon(
        Distance(), "sgd", (pair,), batch_size=4, epochs=1, epsilon=4.0, delta=1e-3
    )
