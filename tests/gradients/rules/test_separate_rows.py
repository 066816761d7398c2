"""The functions of `keras.ops` that keep the rows of a batch separate are known."""

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.gradients.testing import check_model

SEPARATE = {
    "first_position": lambda x: x[:, 0],
    "last_entry": lambda x: x[:, ..., -1],
    "slice": lambda x: x[:, 1:3],
    "new_axis": lambda x: x[:, None],
    "mean": lambda x: ops.mean(x, axis=1),
    "mean_from_the_end": lambda x: ops.mean(x, axis=-1),
    "positions": lambda x: ops.cumsum(ops.ones_like(x), axis=1) * x,
    "softmax": lambda x: ops.softmax(x),
    "logsumexp": lambda x: ops.logsumexp(x, axis=(1,), keepdims=True),
    "standardized": lambda x: x / (1.0 + ops.std(x, axis=[1, 2], keepdims=True)),
    "last_axis": lambda x: ops.expand_dims(x, -1),
}
MIXING = {
    "first_row": lambda x: x + x[0],
    "mean": lambda x: x - ops.mean(x, axis=0, keepdims=True),
    "mean_from_the_end": lambda x: x - ops.mean(x, axis=-3, keepdims=True),
    "mean_of_everything": lambda x: x - ops.mean(x),
    "running_sum": lambda x: ops.cumsum(x, axis=0),
    "softmax": lambda x: ops.softmax(x, axis=0),
    "new_first_axis": lambda x: ops.expand_dims(x, 0)[0],
}


def _model(function):
    inputs = keras.Input((6, 4))
    hidden = keras.layers.Dense(4)(inputs)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(function(hidden))))


@pytest.mark.parametrize("name", SEPARATE)
def test_functions_of_later_axes_keep_rows_apart(name):
    model = _model(SEPARATE[name])
    assert rows_are_separate(model, owners(model))


def test_one_hot_codes_keep_rows_apart_unless_their_axis_is_the_first():
    for axis, separate in ((-1, True), (1, True), (0, False)):
        inputs = keras.Input((6,), dtype="int32")
        model = keras.Model(inputs, keras.layers.Dense(2)(ops.one_hot(inputs, 5, axis=axis)))
        assert rows_are_separate(model, owners(model)) is separate


@pytest.mark.parametrize("name", ["first_position", "positions", "standardized", "logsumexp"])
def test_such_a_model_has_the_gradients_of_the_exact_engine(name):
    check_model(_model(SEPARATE[name]))


@pytest.mark.parametrize("name", MIXING)
def test_functions_of_the_first_axis_are_not_trusted(name):
    model = _model(MIXING[name])
    assert not rows_are_separate(model, owners(model))


def _mix(x):
    return x / (1.0 + ops.max(ops.abs(x), axis=0, keepdims=True))


MIXING_LAYERS = {
    "lambda_as_activation": lambda: keras.layers.Dense(4, activation=keras.layers.Lambda(_mix)),
    "lambda_in_activation": lambda: keras.layers.Activation(keras.layers.Lambda(_mix)),
    "model_as_activation": lambda: keras.layers.Dense(
        4, activation=keras.Sequential([keras.layers.Lambda(_mix)])
    ),
    "flip": lambda: keras.layers.Dense(4, activation=ops.flip),
    "own_function": lambda: keras.layers.Dense(4, activation=_mix),
    "softmax_of_the_batch": lambda: keras.layers.Dense(4, activation=keras.layers.Softmax(axis=0)),
    "layer_normalization": lambda: keras.layers.LayerNormalization(
        axis=-2, center=False, scale=False
    ),
    "rms_normalization": lambda: keras.layers.RMSNormalization(axis=-2),
    "frozen_einsum": lambda: keras.layers.EinsumDense("ab,bc->ca", (4,), trainable=False),
}


@pytest.mark.parametrize("name", MIXING_LAYERS)
def test_layers_that_mix_rows_of_two_axes_are_not_trusted(name):
    layer = MIXING_LAYERS[name]()
    if name == "rms_normalization":
        layer.build((4, 4))  # as many examples as features, so that the weights fit
        layer.trainable = False
    model = keras.Sequential([keras.Input((4,), batch_size=4), keras.layers.Dense(4), layer])
    assert not rows_are_separate(model, owners(model))


SEPARATE_LAYERS = {
    "function_of_tensorflow": lambda: keras.layers.Dense(4, activation=tf.nn.relu),
    "function_of_ops": lambda: keras.layers.Dense(4, activation=ops.gelu),
    "layer_as_activation": lambda: keras.layers.Dense(4, activation=keras.layers.LeakyReLU()),
    "model_as_activation": lambda: keras.layers.Dense(
        4, activation=keras.Sequential([keras.layers.ReLU(max_value=3.0)])
    ),
    "layer_in_activation": lambda: keras.layers.Activation(keras.layers.Softmax()),
    "layer_normalization": lambda: keras.layers.LayerNormalization(center=False, scale=False),
    "frozen_normalization": lambda: keras.layers.LayerNormalization(trainable=False),
}


@pytest.mark.parametrize("name", SEPARATE_LAYERS)
def test_layers_with_known_functions_keep_rows_apart(name):
    layer = SEPARATE_LAYERS[name]()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), layer])
    assert rows_are_separate(model, owners(model))
    check_model(model)


def test_every_activation_of_keras_is_known():
    own = {"deserialize", "get", "serialize"}
    for name in {n for n in dir(keras.activations) if n[0].islower()} - own:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation=name)])
        assert rows_are_separate(model, owners(model)), name
