"""Variables that count without looking at the data are advanced; all others are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfdp
from tfdp.gradients.forward import Forward
from tfdp.gradients.state_writes import refuse_writes

ROWS = 8
X, Y = np.ones((24, 3), "float32"), np.ones((24, 1), "float32")


class Counts(layers.Layer):
    """Assigns what `new(counter, inputs)` gives to a variable, and scales its inputs by it."""

    def __init__(self, new, dtype="float32", **kwargs):
        super().__init__(**kwargs)
        self._new = new
        self.counter = self.add_weight(shape=(), initializer="zeros", dtype=dtype, trainable=False)

    def call(self, inputs):
        self.counter.assign(self._new(self.counter, inputs))
        return inputs * ops.cast(self.counter + 1, inputs.dtype)


def compiled(new, engine="auto", dtype="float32", **options):
    model = keras.Sequential(
        [keras.Input((3,)), Counts(new, dtype, name="counts"), layers.Dense(1)]
    )
    tfdp.make_private(model, engine=engine)
    model.compile(
        tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.0), "mse", **options
    )
    return model


KEPT = {
    "calls": lambda n, x: n + 1,
    "half": lambda n, x: 0.5 * n + 0.5,
    "limited": lambda n, x: ops.minimum(n + 1, 2),
    "stopped": lambda n, x: tf.where(n < 2.0, n + 1, tf.stop_gradient(n)),
}
LEAKS = {
    "data": lambda n, x: n + ops.sum(x),
    "shape at run time": lambda n, x: n + ops.cast(tf.shape(x)[0], "float32"),
    "static shape": lambda n, x: n + (x.shape[0] or 0),
    "random": lambda n, x: n + tf.random.uniform(()),
    "a count of positive entries": lambda n, x: n + tf.math.count_nonzero(x > 0, dtype="float32"),
}


@pytest.mark.parametrize(
    ("new", "engine"),
    [*((new, "auto") for new in KEPT.values()), (KEPT["calls"], "vectorized")],
    ids=[*KEPT, "vectorized"],
)
def test_counters_advance_once_for_each_lot_as_in_keras(new, engine):
    plain = keras.Sequential([keras.Input((3,)), Counts(new), layers.Dense(1)])
    plain.compile("sgd", "mse")
    plain.fit(X, Y, batch_size=ROWS, verbose=0)
    model = compiled(new, engine)
    model.fit(X, Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == plain.layers[0].counter.numpy() > 0
    assert model.privacy.steps_taken == 3


@pytest.mark.parametrize("options", [{"run_eagerly": True}, {"jit_compile": True}])
def test_counters_advance_in_every_mode(options):
    model = compiled(KEPT["calls"], **options)
    model.fit(X, Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == 3


def test_chunks_of_a_lot_count_once():
    model = keras.Sequential([keras.Input((3,)), Counts(KEPT["calls"], "int32"), layers.Dense(1)])
    tfdp.make_private(model, physical_batch_size=2)
    model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=0.0), "mse")
    model.fit(X, Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == 3


@pytest.mark.parametrize("new", LEAKS.values(), ids=LEAKS)
def test_whatever_may_keep_something_of_the_data_is_refused(new):
    model = compiled(new)
    with pytest.raises(
        ValueError, match=r"counts/variable.*without any noise|counts.*RandomUniform"
    ):
        model.fit(X, Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == 0
    assert not any(run.steps for run in model.privacy.ledger.runs)


@pytest.mark.parametrize("engine", ["auto", "vectorized"])
def test_a_branch_that_is_only_executed_keeps_nothing(engine):
    """The inspected graph has static rows, and the executed one need not."""

    def new(n, x):
        return ops.sum(x) if x.shape[0] is None else n + 1

    model = compiled(new, engine)
    model.train_on_batch(7 * X[:ROWS], Y[:ROWS])
    assert model.layers[0].counter.numpy() == 1
    model.fit(7 * X, Y, batch_size=ROWS, verbose=0)
    assert model.layers[0].counter.numpy() == 4


def test_a_variable_that_takes_its_value_from_weights_is_refused():
    class Averages(layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.average = self.add_weight(shape=self.kernel.shape, trainable=False)

        def call(self, inputs):
            self.average.assign(0.9 * self.average + 0.1 * self.kernel)
            return super().call(inputs)

    model = keras.Sequential([keras.Input((3,)), Averages(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="without any noise"):
        refuse_writes(Forward(model), X[:ROWS], Y[:ROWS])


def test_only_the_inspection_permits_assignments():
    model = compiled(KEPT["calls"])
    forward = Forward(model)
    values = [tf.convert_to_tensor(v) for v in forward.variables]
    with pytest.raises(ValueError, match="without any noise"):
        forward.outputs(values, forward.state(), X[:ROWS])
    refuse_writes(forward, X[:ROWS], Y[:ROWS])
    forward.outputs(values, forward.state(), X[:ROWS])


def test_a_trace_permits_nothing_afterwards():
    model = compiled(LEAKS["data"])
    forward = Forward(model)
    with pytest.raises(ValueError, match="without any noise"):
        refuse_writes(forward, X[:ROWS], Y[:ROWS])
    assert not forward.may_assign(model.layers[0].counter)
