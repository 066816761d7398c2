"""No private data stay in a model: a layer or loss that writes state in training is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.helpers import private, sgd, steps
from tfdp.gradients.first_pass import examine
from tfdp.gradients.forward import Forward
from tfdp.layers import NoisyDense, PublicBatchNormalization, PublicExamples

X, Y = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)


def compiled(*stack, shape=(3,), loss="mse", **kwargs):
    model = keras.Sequential([keras.Input(shape), *stack, layers.Flatten(), layers.Dense(2)])
    model.compile(loss=loss, **kwargs)
    return model


def check(model, x=X, y=Y):
    return examine(Forward(model), x, y)


class Writer(layers.Layer):
    """Keeps a sum of its inputs, written by `how(layer, sum)`."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how = how
        self.kept = tf.Variable(0.0, trainable=False)
        self.rows = tf.Variable(tf.zeros([5]), trainable=False)
        self.built = True

    def call(self, t):
        seen = self.how(self, tf.reduce_sum(t))
        if not isinstance(seen, tf.Tensor):
            return t
        return t + 0.0 * tf.reshape(tf.cast(seen, t.dtype), [])

    def compute_output_spec(self, t):
        return keras.KerasTensor(t.shape, t.dtype)


COUNTED = tf.Variable(0.0)


def in_nested_functions(layer, s):
    inner = tf.function(lambda t: layer.kept.assign_add(t))
    return tf.function(lambda t: tf.cond(t > 0, lambda: inner(t), lambda: t))(s)


WRITES = {
    "running sum": lambda layer, s: layer.kept.assign_add(s),
    "cache of one row": lambda layer, s: layer.rows[1].assign(s),
    "global": lambda layer, s: COUNTED.assign(s),
    "nested functions": in_nested_functions,
}


@pytest.mark.parametrize("how", WRITES)
def test_a_layer_that_writes_is_refused_with_its_name(how):
    layer = Writer(WRITES[how], name="secretive")
    with pytest.raises(ValueError, match="'secretive'"):
        check(compiled(layers.Dense(3), layer))
    assert layer.kept.numpy() == 0.0


def writes(value):
    COUNTED.assign_add(tf.reduce_sum(value))
    return 0.0 * tf.reduce_sum(value)


def losing(y_true, y_pred):
    return writes(y_pred) + tf.reduce_mean(tf.square(y_true - y_pred), -1)


class Losing(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        writes(x)
        return super().compute_loss(x, y, y_pred, sample_weight, training)


def losing_model():
    model = Losing([keras.Input((3,)), layers.Dense(2)])
    model.compile(loss="mse")
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: compiled(loss=losing),
        losing_model,
        lambda: compiled(layers.Dense(2, activity_regularizer=writes)),
    ],
    ids=["loss", "compute_loss", "regularizer"],
)
def test_state_that_is_written_elsewhere_is_refused(make):
    with pytest.raises(ValueError, match="assigns to"):
        check(make())


class Statistic(layers.Layer):
    """Keeps a running statistic in a weight that may be named like a random state."""

    def __init__(self, called, **kwargs):
        super().__init__(**kwargs)
        self.called = called

    def build(self, shape):
        self.kept = self.add_weight(name=self.called, initializer="zeros", trainable=False)

    def call(self, t):
        self.kept.assign(self.kept + keras.ops.sum(t))
        return t


@pytest.mark.parametrize("called", ["statistic", "seed_generator_state"])
def test_a_weight_that_keeps_a_running_statistic_is_refused_by_name(called):
    with pytest.raises(ValueError, match=called):
        check(compiled(Statistic(called)))


def test_a_variable_that_the_loss_assigns_is_refused():
    model = compiled(Statistic("statistic"))
    kept = model.layers[0]
    kept.call = lambda t: t

    def loss(y_true, y_pred):
        kept.kept.assign(keras.ops.mean(y_pred))
        return keras.losses.mean_squared_error(y_true, y_pred)

    model.compile(loss=loss)
    with pytest.raises(ValueError, match="statistic"):
        check(model)


# -- what must be accepted -----------------------------------------------------------------------


def public():
    stack = [keras.Input((3,)), layers.Dense(2), PublicBatchNormalization()]
    return PublicExamples(keras.Sequential(stack), np.random.default_rng(0).normal(size=(4, 3)))


@pytest.mark.parametrize(
    "stack",
    [
        lambda: [
            layers.Dropout(0.5),
            layers.AlphaDropout(0.5),
            layers.GaussianNoise(0.5),
            NoisyDense(3, noise_stddev=0.1),
            layers.Dense(3, kernel_regularizer="l2", activity_regularizer="l1"),
            public(),
        ],
        lambda: [
            layers.Reshape((3, 1)),
            layers.Bidirectional(layers.LSTM(3, recurrent_dropout=0.1, return_sequences=True)),
            layers.SpatialDropout1D(0.5),
            layers.GRU(3, dropout=0.1),
        ],
        lambda: [
            layers.Reshape((3, 1, 1)),
            layers.RandomFlip(),
            layers.RandomRotation(0.1),
            layers.RandomContrast(0.1),
            layers.Conv2D(2, 1),
        ],
    ],
    ids=["rows", "sequences", "images"],
)
def test_ordinary_layers_pass(stack):
    check(compiled(*stack()))


def test_a_model_is_traced_once_until_its_loss_or_what_it_trains_changes():
    calls = []

    class Counted(layers.Dense):
        def call(self, inputs):
            calls.append(inputs.shape)
            return super().call(inputs)

    model = compiled(Counted(3))
    calls.clear()
    for rows in (4, 7):
        found = check(model, np.ones((rows, 3), "float32"), np.zeros((rows, 2), "float32"))
    assert len(calls) == 1
    assert found.row_bytes > 4 * 3
    model.compile(loss="mae")
    check(model)
    model.layers[0].trainable = False
    check(model)
    assert len(calls) == 3


# -- counters ------------------------------------------------------------------------------------

ROWS = 8
MANY_X, MANY_Y = np.ones((24, 3), "float32"), np.ones((24, 1), "float32")


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


def counting(new, run_eagerly=False, **kwargs):
    options = {"loss": "mse", "metrics": [], "run_eagerly": run_eagerly}
    return private(sgd(noise=0.0), network(new), options, engine="loop", **kwargs)


def calls(n, x):
    return n + 1


@pytest.mark.parametrize(
    ("new", "options"),
    [
        (calls, {"physical_batch_size": 2}),
        (lambda n, x: ops.minimum(0.5 * n + 0.5, 2), {}),
    ],
    ids=["chunks", "formula"],
)
def test_counters_advance_once_for_each_lot_as_in_keras(new, options):
    plain = network(new)
    plain.compile("sgd", "mse", run_eagerly=True)
    plain.fit(MANY_X, MANY_Y, batch_size=ROWS, verbose=0)
    model = counting(new, **options)
    model.fit(MANY_X, MANY_Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == plain.layers[0].counter.numpy() > 0
    assert model.privacy.steps_taken == 3


def test_a_counter_that_looks_at_the_data_is_refused():
    model = counting(lambda n, x: n + ops.sum(x))
    with pytest.raises(ValueError, match="counts/variable"):
        model.fit(MANY_X, MANY_Y, batch_size=ROWS, shuffle=False, verbose=0)
    assert model.layers[0].counter.numpy() == 0
    assert steps(model) == 0


def test_an_average_of_weights_is_refused():
    # Weights may be secret until the training ends.
    class Averages(layers.Dense):
        def build(self, shape):
            super().build(shape)
            self.average = self.add_weight(name="average", shape=self.kernel.shape, trainable=False)

        def call(self, x):
            self.average.assign(0.9 * self.average + 0.1 * self.kernel)
            return super().call(x)

    with pytest.raises(ValueError, match="average"):
        check(compiled(Averages(3)))


ROWS_WRITTEN = {
    "layer": (lambda rows: lambda x: ops.reshape(x, (rows, 3, 1)), "mse"),
    "loss": (
        lambda rows: lambda x: ops.expand_dims(x, -1),
        lambda rows: lambda t, p: ops.sum((ops.reshape(t, (rows, 1)) - p) ** 2, -1),
    ),
}


@pytest.mark.parametrize("where", ROWS_WRITTEN)
def test_a_number_of_rows_that_is_written_in_is_refused_and_passes_as_minus_one(where):
    layer, loss = ROWS_WRITTEN[where]

    def examined(rows):
        function = loss if isinstance(loss, str) else loss(rows)
        reshaped = layers.Lambda(layer(rows), output_shape=(3, 1))
        check(compiled(reshaped, loss=function), MANY_X[:ROWS], MANY_Y[:ROWS])

    with pytest.raises(ValueError, match="write -1"):
        examined(ROWS)
    examined(-1)


def test_shapes_in_errors_do_not_count_the_rows_of_the_check():
    model = private(sgd(), keras.Sequential([keras.Input((3,)), layers.Dense(2)]), {"loss": "mse"})
    with pytest.raises(ValueError, match=r"\(None, 4\)"):
        model.fit(np.zeros((24, 4)), MANY_Y, batch_size=ROWS, verbose=0)


LABELS = np.arange(24) % 2
HOT, ONES = np.eye(2)[LABELS], np.ones((24, 2))


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ((LABELS, None), (HOT, None), r"targets of shape \(\(rows\), \(rows\)\)"),
        ((HOT, ONES[:, 0]), (HOT, ONES), r"weights \(\(rows\), \(rows\)\)"),
    ],
    ids=["targets", "weights"],
)
def test_targets_and_weights_that_do_not_fit_are_named_and_train_once_they_do(
    wrong, right, message
):
    inputs = keras.Input((3,))
    network = keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
    model = private(sgd(), network, {"loss": lambda y, outputs: ops.square(y - outputs)})

    def train(y, weight):
        weights = None if weight is None else [weight, weight]
        model.fit(MANY_X, [y, y], sample_weight=weights, batch_size=ROWS, verbose=0)

    with pytest.raises(ValueError, match=message):
        train(*wrong)
    train(*right)
    assert steps(model) == 3
