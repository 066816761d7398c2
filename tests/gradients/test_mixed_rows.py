"""Layers and losses that mix rows are refused by name; all others train as in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.gradients.checking import normal
from tests.helpers import private, sgd
from tests.rounding import assert_close, terms_of
from tests.seeds import seed_keras
from tfdp.gradients.first_pass import examine
from tfdp.gradients.forward import Forward
from tfdp.layers import NoisyDense, PublicBatchNormalization, PublicExamples

L = keras.losses
ROWS = 8
LABELS = np.arange(ROWS) % 3
HOT = np.eye(3, dtype="float32")[LABELS]
X = normal(ROWS, 4)


def model_of(*head):
    seed_keras(0)
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="softmax"), *head])


def trained(model, loss, y):
    model = private(sgd(noise=0.0, clip=1e9, rate=0.1), model, {"loss": loss})
    return model.train_on_batch(X, y)


def examined(model, loss, y=HOT, x=X):
    model.compile(loss=loss)
    return examine(Forward(model), x, y)


def in_pairs(y, y_pred):
    return tf.linalg.norm(y_pred[::2] - y_pred[1::2], axis=-1)


def centred(y, y_pred):
    return ops.mean(ops.square(y - y_pred + ops.mean(y_pred, axis=0)), axis=-1)


def hinge_of_pairs(y, y_pred):
    scores = y_pred[:, 0]
    return ops.mean(ops.relu(1.0 - (scores[:, None] - scores[None, :])))


def partial_likelihood(y, y_pred):
    time, event, risk = y[:, 0], y[:, 1], y_pred[:, 0]
    later = ops.where(time[None, :] >= time[:, None], risk[None, :], -1e9)
    return ops.mean(event * (ops.logsumexp(later, axis=-1) - risk))


def correlation(y, y_pred):
    y, y_pred = (each - ops.mean(each, axis=0) for each in (y, y_pred))
    return -ops.mean(y * y_pred) / ops.sqrt(ops.mean(y**2) * ops.mean(y_pred**2))


def weighted_by(shares):
    return lambda y, y_pred: ops.sum(y * ops.log(y_pred) / -shares(y), axis=-1)


def hazards(y, y_pred):
    return ops.sum(y[:, 1] * ops.binary_crossentropy(y[:, 0], y_pred), axis=-1)


REFUSED = {
    "circle": (L.Circle(), LABELS),
    # Alike for (y, p) and (1 - y, 1 - p).
    "root mean square": (lambda y, p: ops.sqrt(ops.mean(ops.square(y - p))), HOT),
    "largest": (lambda y, p: ops.max(ops.square(y - p)), HOT),
    # Linear for numbers between 0 and 1.
    "hinge of pairs": (hinge_of_pairs, HOT),
    "dice": (L.Dice(), HOT),
    "centred": (centred, HOT),
    "pairs": (in_pairs, HOT),
    "survival": (partial_likelihood, HOT),
    "correlation": (correlation, HOT),
    "class weights of the batch": (weighted_by(lambda y: 0.1 + ops.mean(y, axis=0)), HOT),
}


def test_a_product_of_all_rows_is_named():
    left = layers.Dense(2)
    inputs = keras.Input((4,))
    both = layers.Lambda(lambda x: x[0] + ops.tensordot(x[0], x[1], 2))
    model = keras.Model(inputs, both([left(inputs), layers.Dense(2)(inputs)]))
    with pytest.raises(ValueError, match="Tensordot"):
        trained(model, "mse", X[:, :2])


@pytest.mark.parametrize(
    "mixes", [lambda x: x - x[:1], lambda x: ops.cumsum(x, 0), lambda x: x + x[-1:]]
)
def test_layers_that_mix_rows_are_refused_whichever_row_looks_at_the_others(mixes):
    with pytest.raises(ValueError, match="mixes the examples"):
        examined(model_of(layers.Lambda(mixes)), "mse")


@pytest.mark.parametrize("name", REFUSED)
def test_losses_that_couple_rows_are_refused(name):
    loss, y = REFUSED[name]
    with pytest.raises(ValueError, match="each row"):
        examined(model_of(), loss, y)


STOCK = {
    "labels": (L.SparseCategoricalCrossentropy(), LABELS),
    "tversky": (L.Tversky(axis=-1), HOT),
    "mean": (lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred)), HOT),
    "hazards": (hazards, np.stack([HOT, 1 - np.cumsum(HOT, 1) + HOT], 1)),
    "public mean and deviation": (lambda y, p: ops.mean(((y - 0.3) / 0.5 - p) ** 2, axis=-1), HOT),
    "public class weights": (weighted_by(lambda y: np.array([0.5, 0.25, 0.25], "float32")), HOT),
    "one number a row": ("mse", np.linspace(0.0, 1.0, ROWS, dtype="float32")),
}


def with_stock_losses():
    """A model with an output for each loss, so that one training shows them all."""
    seed_keras(0)
    x = keras.Input((4,))
    classes = [layers.Dense(3, activation="softmax")(x) for _ in STOCK][1:]
    return keras.Model(x, [*classes, layers.Reshape(())(layers.Dense(1)(x))])


def test_losses_of_keras_train_as_in_keras():
    losses, targets = (list(each) for each in zip(*STOCK.values(), strict=True))
    ours, plain = with_stock_losses(), with_stock_losses()
    plain.compile(keras.optimizers.SGD(0.1), losses, run_eagerly=True)
    expected = plain.train_on_batch(X, targets)
    assert_close(trained(ours, losses, targets), expected, terms_of(ours, ROWS))
    for u, v in zip(ours.get_weights(), plain.get_weights(), strict=True):
        assert_close(u, v, terms_of(ours, ROWS))


def test_ctc_is_refused_with_the_engine_that_trains_it():
    model = model_of(layers.Reshape((3, 1)), layers.Dense(5))
    with pytest.raises(NotImplementedError, match="engine='loop'"):
        trained(model, L.CTC(), np.ones((ROWS, 2), "int32"))


# -- losses of one's own -----------------------------------------------------------------------------


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.function(y, y_pred)


def with_loss(function):
    x = keras.Input((4,))
    model = OwnLoss(x, layers.Dense(3)(x))
    model.function = function
    return model


def in_batch_negatives(y, y_pred):
    logits = ops.matmul(y_pred, ops.transpose(y))
    return ops.mean(L.sparse_categorical_crossentropy(ops.arange(ops.shape(y)[0]), logits, True))


@pytest.mark.parametrize(
    ("function", "warns"),
    [
        (lambda y, p: ops.mean(ops.square(y - p)), False),
        (lambda y, p: ops.sum(ops.square(y - p)), False),
        (lambda y, p: ops.mean(centred(y, p)), True),
    ],
    ids=["mean", "sum", "centred"],
)
def test_a_compute_loss_that_compares_examples_is_warned_of(function, warns, caplog):
    with caplog.at_level("WARNING"):
        examined(with_loss(function), None)
    assert any("compares examples" in record.getMessage() for record in caplog.records) == warns


def test_a_compute_loss_of_which_nothing_is_left_for_a_row_alone_is_refused():
    with pytest.raises(ValueError, match="compute_loss"):
        trained(with_loss(in_batch_negatives), None, HOT)


# -- layers ------------------------------------------------------------------------------------------


class Function(layers.Layer):
    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, x):
        return self.function(x)


def normalized(x):
    mean, variance = ops.moments(x, axes=[0], keepdims=True)
    return (x - mean) / ops.sqrt(variance + 1e-3)


MIXING = {
    "mean": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "largest": lambda x: x / ops.max(ops.abs(x)),
    "batch normalization": normalized,
    "neighbours": lambda x: x + tf.roll(x, 1, axis=0),
    "attention between rows": lambda x: ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_layer_that_mixes_rows_is_refused_by_name(name):
    x = keras.Input((4,))
    hidden = Function(MIXING[name], name="mixing")(layers.Dense(5, name="innocent")(x))
    model = keras.Model(x, layers.Dense(3, activation="softmax")(hidden))
    with pytest.raises(ValueError, match="'mixing'"):
        examined(model, L.SparseCategoricalCrossentropy(), LABELS)


def test_a_layer_that_mixes_rows_is_refused_beside_one_that_draws():
    model = model_of(layers.Dropout(0.5), Function(normalized, name="mixing"))
    with pytest.raises(ValueError, match="mixing"):
        examined(model, "mse")


def test_outputs_over_pairs_of_rows_are_refused_with_arrays():
    first, second = keras.Input((4,)), keras.Input((4,))
    outputs = ops.matmul(layers.Dense(3)(first), ops.transpose(layers.Dense(3)(second)))
    loss = L.SparseCategoricalCrossentropy(from_logits=True)
    model = private(sgd(), keras.Model([first, second], outputs), {"loss": loss, "metrics": []})
    with pytest.raises(ValueError, match="mixes the examples"):
        model.fit([X, X], LABELS, batch_size=4, verbose=0)
    assert model.privacy.steps_taken == 0


class Recommender(keras.Model):
    """Its product sums over the batch, too."""

    def __init__(self):
        super().__init__()
        self.users, self.items = layers.Embedding(9, 4), layers.Embedding(9, 4)

    def call(self, x):
        both = ops.tensordot(self.users(x[:, 0]), self.items(x[:, 1]), 2)
        return ops.sigmoid(both + ops.zeros_like(x[:, :1], "float32"))


def test_an_operation_outside_of_layers_is_refused():
    model = private(sgd(), Recommender(), {"loss": "binary_crossentropy", "metrics": []})
    x = np.arange(24).reshape(8, 3) % 9
    with pytest.raises(ValueError, match="mixes the examples"):
        model.fit(x, np.ones((8, 1)), batch_size=4, verbose=0)


def test_a_loss_that_a_layer_adds_for_the_whole_lot_is_warned_of(caplog):
    class Balances(layers.Layer):
        def call(self, x):
            self.add_loss(ops.sum(ops.square(ops.mean(x, axis=0))))
            return x

    with caplog.at_level("WARNING"):
        examined(model_of(Balances()), "mse")
    assert any("add_loss" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("compares", [True, False])
def test_weights_of_zero_do_not_hide_that_a_regularizer_compares_rows(compares, caplog):
    """As in PointNet, whose transforms begin as the identity for every example."""

    def orthogonal(x):
        x = ops.reshape(x, (-1, 2, 2))
        if compares:
            products = ops.reshape(ops.tensordot(x, x, axes=(2, 2)), (-1, 2, 2))
        else:
            products = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        return ops.sum(ops.square(products - ops.eye(2)))

    start = keras.initializers.Constant(np.eye(2).ravel())
    model = model_of(
        layers.Dense(4, "linear", True, "zeros", start, activity_regularizer=orthogonal)
    )
    with caplog.at_level("WARNING"):
        examined(model, "mse", np.zeros((ROWS, 4)))
    assert any("add_loss" in record.getMessage() for record in caplog.records) == compares


def test_weights_of_zero_do_not_hide_a_layer_that_mixes_rows():
    class Residual(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=(), initializer="zeros")

        def call(self, x):
            return x + self.scale * ops.mean(x, axis=0)

    with pytest.raises(ValueError, match="mixes the examples"):
        examined(model_of(Residual()), "mse")


# -- what must pass ----------------------------------------------------------------------------------


def text():
    tokens = keras.Input((None,), dtype="int32")
    hidden = layers.Embedding(9, 4, mask_zero=True)(tokens)
    hidden = layers.Bidirectional(layers.LSTM(3, return_sequences=True, dropout=0.2))(hidden)
    attention = layers.MultiHeadAttention(2, 3, dropout=0.1)
    hidden = layers.LayerNormalization()(hidden + attention(hidden, hidden))
    return keras.Model(tokens, layers.Dense(9)(hidden))


def images():
    stack = [keras.Input((8, 8, 2)), layers.RandomFlip(), layers.RandomRotation(0.1)]
    stack += [layers.Conv2D(4, 3), layers.GroupNormalization(2), layers.SpatialDropout2D(0.5)]
    return keras.Sequential([*stack, layers.GlobalAveragePooling2D(), layers.Dense(3)])


def noisy():
    public = keras.Sequential([keras.Input((4,)), layers.Dense(3), PublicBatchNormalization()])
    examples = PublicExamples(public, normal(6, 4, seed=1))
    noises = [layers.GaussianNoise(0.5), layers.Dropout(0.5), NoisyDense(3, noise_stddev=0.1)]
    penalized = layers.Dense(3, kernel_regularizer="l2", activity_regularizer="l2")
    return keras.Sequential([keras.Input((4,)), examples, *noises, penalized])


def several():
    a, b = keras.Input((4,), name="a"), keras.Input((), dtype="int64", name="b")
    hidden = layers.Concatenate()([layers.Dense(3)(a), layers.Embedding(5, 3)(b)])
    outputs = {"c": layers.Dense(3)(hidden), "d": layers.Dense(1)(hidden)}
    return keras.Model({"a": a, "b": b}, outputs)


def half_precision():
    stack = [layers.Dense(64, dtype="mixed_bfloat16", activation="gelu") for _ in range(3)]
    return keras.Sequential([keras.Input((4,)), *stack, layers.Dense(3)])


TOKENS = np.arange(40).reshape(8, 5) % 9
HONEST = {
    "text": (text, L.SparseCategoricalCrossentropy(from_logits=True), TOKENS, TOKENS),
    "images": (images, "mse", normal(8, 8, 8, 2), HOT),
    "noisy": (noisy, L.LogCosh(), X, HOT),
    "several": (several, "mse", {"a": X, "b": LABELS}, {"c": HOT, "d": HOT[:, :1]}),
    "half precision": (half_precision, "huber", X, HOT),
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_pass_without_a_word(name, caplog):
    make, loss, x, y = HONEST[name]
    seed_keras(0)
    model = make()
    with caplog.at_level("INFO"):
        examined(model, loss, y, x)
    assert not [record.getMessage() for record in caplog.records if "rows" in record.getMessage()]
