"""Losses that are not one value for each row are refused; all others train as in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdp
from tfdp.gradients.coupled_losses import refuse_coupled_losses

L = keras.losses
ROWS = 8
LABELS = np.arange(ROWS) % 3
HOT = np.eye(3, dtype="float32")[LABELS]


def centred(y, y_pred):
    return tf.reduce_mean(tf.square(y - y_pred + tf.reduce_mean(y_pred, axis=0)), axis=-1)


def in_pairs(y, y_pred):
    return tf.linalg.norm(y_pred[::2] - y_pred[1::2], axis=-1)


class Whole(L.Loss):
    def call(self, y, y_pred):
        return tf.reduce_sum(tf.square(y - y_pred))


class PassesOn(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 2.0 * super().compute_loss(x, y, y_pred, sample_weight, training)


REFUSED = {
    "circle": ("circle", LABELS),
    "Circle": (L.Circle(), LABELS),
    "Dice": (L.Dice(), HOT),
    "Tversky": (L.Tversky(), HOT),
    "over the rows": (L.BinaryCrossentropy(axis=0), HOT),
    "mean": (lambda y, y_pred: tf.reduce_mean(tf.square(y - y_pred)), HOT),
    "largest": (lambda y, y_pred: tf.reduce_max(tf.square(y - y_pred)), HOT),
    "centred": (centred, HOT),
    "pairs": (in_pairs, HOT),
    "class": (Whole(), HOT),
}
# Losses that expect other targets than one-hot rows, or other options; CTC is refused by its loop.
OPTIONS = {
    "CategoricalGeneralizedCrossEntropy": ({}, LABELS),
    "SparseCategoricalCrossentropy": ({}, LABELS),
    "Dice": ({"axis": -1}, HOT),
    "Tversky": ({"axis": -1}, HOT),
    # Without these, Keras takes the logits behind the softmax for those of a sigmoid.
    "BinaryCrossentropy": ({"from_logits": True}, HOT),
    "BinaryFocalCrossentropy": ({"from_logits": True}, HOT),
}
STOCK = [
    name
    for name, found in vars(keras.losses).items()
    if isinstance(found, type) and name not in ("Loss", "Circle", "CTC")
]


def model(kind=keras.Sequential, activation="softmax", head=()):
    keras.utils.set_random_seed(0)
    return kind([keras.Input((4,)), layers.Dense(3, activation=activation), *head])


def inputs():
    return np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")


def trained(made, loss, y, clip=1e9):
    tfdp.make_private(made)
    optimizer = tfdp.DPKerasSGDOptimizer(l2_norm_clip=clip, noise_multiplier=0.0, learning_rate=0.1)
    made.compile(optimizer, loss)
    return made.train_on_batch(inputs(), y)


def compare(make, loss, y):
    ours, plain = make(), make()
    plain.set_weights(ours.get_weights())
    plain.compile(keras.optimizers.SGD(0.1), loss)
    expected = plain.train_on_batch(inputs(), y)
    np.testing.assert_allclose(trained(ours, loss, y), expected, rtol=1e-4)
    for u, v in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(u, v, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [keras.Sequential, PassesOn])
@pytest.mark.parametrize("name", REFUSED)
def test_losses_that_couple_rows_are_refused(name, kind):
    loss, y = REFUSED[name]
    with pytest.raises(ValueError, match=r"not one value for each row.*Expected values of shape"):
        trained(model(kind), loss, y)


@pytest.mark.parametrize("name", STOCK)
def test_every_loss_of_keras_trains_as_in_keras(name):
    options, y = OPTIONS.get(name, ({}, HOT))
    activation = None if options.get("from_logits") else "softmax"
    compare(lambda: model(activation=activation), getattr(L, name)(**options), y)


def test_ctc_is_refused_with_the_engine_that_trains_it():
    head = (layers.Reshape((3, 1)), layers.Dense(5))
    with pytest.raises(NotImplementedError, match="engine='loop'"):
        trained(model(head=head), L.CTC(), np.ones((ROWS, 2), "int32"))


@pytest.mark.parametrize("loss", ["mse", lambda y, y_pred: tf.square(y - y_pred)])
def test_one_number_a_row(loss):
    def make():
        return model(head=(layers.Dense(1), layers.Reshape(())))

    compare(make, loss, np.linspace(0.0, 1.0, ROWS, dtype="float32"))


def test_one_loss_of_several_is_named():
    x = keras.Input((4,))
    made = keras.Model(x, {"a": layers.Dense(3)(x), "b": layers.Dense(3)(x)})
    with pytest.raises(ValueError, match="The loss 'dice'"):
        trained(made, {"a": "mse", "b": "dice"}, {"a": HOT, "b": HOT})


def test_a_loss_of_random_numbers_is_no_coupled_loss():
    seed = keras.random.SeedGenerator(1)

    def loss(y, y_pred):
        return tf.reduce_mean(tf.square(y - y_pred), axis=-1) * keras.random.uniform(
            (1,), seed=seed
        )

    trained(model(), loss, HOT)


def test_a_loss_that_made_up_numbers_break_is_judged_by_its_shape():
    def checked(reduce):
        def loss(y, y_pred):
            if tf.executing_eagerly() and not np.all(np.asarray(y).sum(axis=-1) == 1.0):
                raise ValueError("not one-hot")
            return reduce(tf.square(y - y_pred))

        return loss

    trained(model(), checked(lambda squares: tf.reduce_mean(squares, axis=-1)), HOT)
    with pytest.raises(ValueError, match=r"for 4 rows it returns values of shape \(\)"):
        trained(model(), checked(tf.reduce_mean), HOT)


class InPairs(keras.Model):
    """Two towers, as a contrastive model has them; `views` times as many outputs as rows."""

    def __init__(self, views=1):
        super().__init__()
        self.a, self.b, self.views = layers.Dense(4), layers.Dense(4), views

    def call(self, x):
        towers = [tf.concat([tower(x)] * self.views, axis=0) for tower in (self.a, self.b)]
        return tf.matmul(*towers, transpose_b=True)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        same = tf.range(tf.shape(y_pred)[0])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(same, y_pred))


@pytest.mark.parametrize("views", [1, 2])
def test_outputs_over_pairs_of_rows_are_refused(views):
    made = InPairs(views)
    made(np.zeros((2, 4), "float32"))
    with pytest.raises(ValueError, match=r"pairs of rows.*Expected outputs \(rows"):
        trained(made, None, HOT)


@pytest.mark.parametrize("units", [ROWS, (ROWS, ROWS)])
def test_outputs_that_are_as_long_as_the_lot_by_chance_are_not(units):
    if units == ROWS:
        head, y = [layers.Dense(ROWS)], np.zeros((ROWS, ROWS), "float32")
    else:
        head = [layers.Dense(ROWS * ROWS), layers.Reshape(units)]
        y = np.zeros((ROWS, *units), "float32")
    trained(model(head=head), "mse", y)


class OwnLoss(keras.Model):
    """A model whose whole loss is a function of targets and outputs."""

    def __init__(self, function, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.function = function

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.function(y, y_pred)


def _squares(y, y_pred):
    return keras.ops.square(y - y_pred)


def _similarities(y, y_pred):
    z = keras.ops.normalize(y_pred, axis=-1)
    return keras.ops.logsumexp(z @ keras.ops.transpose(z), -1)


OWN = {
    "mean": (lambda y, p: keras.ops.mean(_squares(y, p)), False),
    "sum": (lambda y, p: keras.ops.sum(_squares(y, p)), False),
    "random": (lambda y, p: keras.ops.mean(_squares(y, p) * keras.random.uniform((4, 1))), False),
    "not computable": (lambda y, p: keras.ops.mean(p @ keras.ops.ones((9, 9))), False),
    "pairs": (lambda y, p: keras.ops.mean(_similarities(y, p)), True),
    "centred": (lambda y, p: keras.ops.mean(_squares(p, keras.ops.mean(p, axis=0))), True),
}


@pytest.mark.parametrize("name", list(OWN))
def test_a_compute_loss_that_compares_examples_is_warned_of(name, caplog):
    function, warns = OWN[name]
    x = keras.Input((3,))
    model = OwnLoss(function, x, keras.layers.Dense(2)(x))
    model.compile("sgd")
    specs = tf.TensorSpec([8, 3]), tf.TensorSpec([8, 2]), tf.TensorSpec([8, 2])
    with caplog.at_level("WARNING"):
        refuse_coupled_losses(model, *specs)
    assert any("compares examples" in r.getMessage() for r in caplog.records) == warns
