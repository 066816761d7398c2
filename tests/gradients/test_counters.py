"""Variables that count without looking at the data are advanced; all others are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.helpers import private, sgd, steps

ROWS = 8
X, Y = np.ones((24, 3), "float32"), np.ones((24, 1), "float32")


class Counts(layers.Layer):
    """Assigns what `new(counter, inputs)` gives to a variable, and scales its inputs by it."""

    def __init__(self, new, **kwargs):
        super().__init__(**kwargs)
        self._new = new
        self.counter = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.counter.assign(self._new(self.counter, inputs))
        return inputs * ops.cast(self.counter + 1, inputs.dtype)


def network(new):
    return keras.Sequential([keras.Input((3,)), Counts(new, name="counts"), layers.Dense(1)])


def compiled(new, run_eagerly=False, **kwargs):
    options = {"loss": "mse", "metrics": [], "run_eagerly": run_eagerly}
    return private(sgd(noise=0.0), network(new), options, **kwargs)


def calls(n, x):
    return n + 1


@pytest.mark.parametrize(
    ("new", "options"),
    [
        (calls, {"engine": "auto"}),
        (calls, {"engine": "vectorized"}),
        (calls, {"physical_batch_size": 2}),
        (calls, {"run_eagerly": True}),
        (lambda n, x: ops.minimum(0.5 * n + 0.5, 2), {}),
    ],
    ids=["auto", "vectorized", "chunks", "eager", "formula"],
)
def test_counters_advance_once_for_each_lot_as_in_keras(new, options):
    plain = network(new)
    plain.compile("sgd", "mse")
    plain.fit(X, Y, batch_size=ROWS, verbose=0)
    model = compiled(new, **options)
    model.fit(X, Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == plain.layers[0].counter.numpy() > 0
    assert model.privacy.steps_taken == 3


@pytest.mark.parametrize(
    "new",
    [
        lambda n, x: n + ops.sum(x),
        lambda n, x: n + ops.cast(tf.shape(x)[0], "float32"),
        lambda n, x: n + (x.shape[0] or 0),
    ],
    ids=["data", "rows at run time", "static rows"],
)
def test_a_variable_that_may_keep_something_of_the_data_is_refused(new):
    model = compiled(new)
    with pytest.raises(ValueError, match="counts/variable"):
        model.fit(X, Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == 0
    assert steps(model) == 0
