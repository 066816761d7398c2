"""Layers and functions that keep the rows of a batch apart are known; all others are not trusted."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.gradients.checking import check_engines
from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate


def separate(model):
    return rows_are_separate(model, owners(model))


def model_of(function, shape=(6, 4)):
    inputs = keras.Input(shape)
    hidden = layers.Flatten()(function(layers.Dense(4)(inputs)))
    return keras.Model(inputs, layers.Dense(2)(hidden))


FUNCTIONS = {
    "first position": lambda x: x[:, 0],
    "last entry": lambda x: x[:, ..., -1],
    "new axis": lambda x: x[:, None],
    "mean": lambda x: ops.mean(x, axis=-1),
    "positions": lambda x: ops.cumsum(ops.ones_like(x), axis=1) * x,
    "logsumexp": lambda x: ops.logsumexp(x, axis=(1,), keepdims=True),
    "standardized": lambda x: x / (1.0 + ops.std(x, axis=[1, 2], keepdims=True)),
    "last axis": lambda x: ops.expand_dims(x, -1),
}


def test_functions_of_later_axes_keep_rows_apart():
    models = {name: model_of(function) for name, function in FUNCTIONS.items()}
    assert [name for name, model in models.items() if not separate(model)] == []
    for name in ("positions", "standardized"):
        check_engines(models[name], engines=["ghost"])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x[0],
        lambda x: x - ops.mean(x, axis=0, keepdims=True),
        lambda x: x - ops.mean(x, axis=-3, keepdims=True),
        lambda x: x - ops.mean(x),
        lambda x: ops.cumsum(x, axis=0),
        lambda x: ops.softmax(x, axis=0),
        lambda x: ops.expand_dims(x, 0)[0],
    ],
)
def test_functions_of_the_first_axis_are_not_trusted(function):
    assert not separate(model_of(function))


def test_one_hot_codes_keep_rows_apart_unless_their_axis_is_the_first():
    for axis, apart in ((-1, True), (1, True), (0, False)):
        inputs = keras.Input((6,), dtype="int32")
        codes = ops.one_hot(inputs, 5, axis=axis)
        assert separate(keras.Model(inputs, layers.Dense(2)(codes))) is apart


def mix(x):
    return x / (1.0 + ops.max(ops.abs(x), axis=0, keepdims=True))


MIXING = {
    "lambda as activation": lambda: layers.Dense(4, activation=layers.Lambda(mix)),
    "model as activation": lambda: layers.Dense(
        4, activation=keras.Sequential([layers.Lambda(mix)])
    ),
    "flip": lambda: layers.Dense(4, activation=ops.flip),
    "own function": lambda: layers.Dense(4, activation=mix),
    "softmax of the batch": lambda: layers.Dense(4, activation=layers.Softmax(axis=0)),
    "normalization": lambda: layers.LayerNormalization(axis=-2, center=False, scale=False),
    "unit norms": lambda: layers.UnitNormalization(axis=-2),
    "counts": lambda: layers.CategoryEncoding(9, "count"),
    "dropout of whole columns": lambda: layers.Dropout(0.5, noise_shape=(1, 4)),
    "penalty": lambda: layers.Dense(4, activity_regularizer="l2"),
}


@pytest.mark.parametrize("name", MIXING)
def test_layers_that_may_mix_rows_are_not_trusted(name):
    layer = MIXING[name]()
    assert not separate(keras.Sequential([keras.Input((4,), batch_size=4), layers.Dense(4), layer]))


def test_layers_with_known_functions_keep_rows_apart():
    stack = [
        layers.Dense(4, activation=tf.nn.relu),
        layers.Dense(4, activation=ops.gelu),
        layers.Dense(4, activation=layers.LeakyReLU()),
        layers.Dense(4, activation=keras.Sequential([layers.ReLU(max_value=3.0)])),
        layers.Activation(layers.Softmax()),
        layers.LayerNormalization(center=False, scale=False),
        layers.LayerNormalization(trainable=False),
    ]
    model = keras.Sequential([keras.Input((4,)), *stack])
    assert separate(model)
    check_engines(model, engines=["ghost"], tolerance=3e-5)


def test_every_activation_of_keras_is_known():
    own = {"deserialize", "get", "serialize"}
    names = {n for n in dir(keras.activations) if n[0].islower()} - own
    unknown = [name for name in names if not separate(model_of(layers.Activation(name)))]
    assert unknown == []


# -- rows of single numbers --------------------------------------------------------------------------


def softmax_of_single_numbers(activation):
    x = keras.Input((3,))
    single = ops.squeeze(layers.Dense(1)(x), axis=-1)
    return keras.Model(x, layers.Dense(1)(layers.Reshape((1,))(activation(single))))


def masked_numbers():
    x = keras.Input(())
    hidden = layers.Reshape((1,))(layers.Masking(5.0)(x))
    return keras.Model(x, layers.Dense(1)(hidden))


def mask_without_rows():
    x, mask, values = keras.Input((1, 4)), keras.Input((7,), dtype="bool"), keras.Input((7, 4))
    attended = layers.MultiHeadAttention(2, 2)(x, values, attention_mask=mask)
    return keras.Model([x, values, mask], layers.Dense(1)(attended))


def attention_over_rows():
    a, b = keras.Input((3,)), keras.Input((3,))
    return keras.Model([a, b], layers.Attention()([a, b]))


def shared_with_steps(layer):
    x = keras.Input((4, 3))
    hidden = layers.Dense(3)(x)
    both = layers.Add()([layer(hidden), layers.TimeDistributed(layer)(hidden)])
    return keras.Model(x, layers.Dense(1)(both))


AXIS = {"axis": -2, "center": False, "scale": False}


@pytest.mark.parametrize(
    "make",
    [
        lambda: softmax_of_single_numbers(layers.Softmax()),
        lambda: softmax_of_single_numbers(layers.Activation("softmax")),
        masked_numbers,
        mask_without_rows,
        attention_over_rows,
        lambda: shared_with_steps(layers.LayerNormalization(**AXIS)),
    ],
)
def test_models_whose_last_axis_is_the_batch_are_not_trusted(make):
    assert not separate(make())


def test_single_numbers_in_front_of_a_table_are_trusted():
    x, weight = keras.Input((), dtype="int32"), keras.Input((1,))
    hidden = layers.Concatenate()([layers.Embedding(5, 3)(x), weight])
    assert separate(keras.Model([x, weight], layers.Dense(1)(hidden)))


# -- one row moves no bit of the others --------------------------------------------------------------


def stock_layers():
    a, b = keras.Input((5, 3)), keras.Input((6, 3))
    image, tokens = keras.Input((7, 6, 2)), keras.Input((5,), dtype="int32")
    options = {"head_dim": 2, "num_query_heads": 4, "num_key_value_heads": 2}
    outputs = [
        layers.Attention()([a, b]),
        layers.AdditiveAttention(use_scale=False)([a, b]),
        layers.GroupQueryAttention(**options)(a, b),
        layers.Dot(axes=-1)([a, b]),
        layers.UnitNormalization(axis=(1, -1))(a),
        layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.7])(a),
        layers.CenterCrop(4, 3)(image),
        layers.Resizing(5, 3, crop_to_aspect_ratio=True)(image),
        layers.CategoryEncoding(9, "multi_hot")(tokens),
        layers.Hashing(3)(tokens),
    ]
    return keras.Model([a, b, image, tokens], outputs)


def test_one_row_moves_no_bit_of_the_others():
    model, rng = stock_layers(), np.random.default_rng(0)
    assert separate(model)
    *shapes, of_tokens = [(4, *tensor.shape[1:]) for tensor in model.inputs]
    before = [rng.normal(size=shape).astype("float32") for shape in shapes]
    before.append(rng.integers(0, 9, of_tokens))
    after = [values.copy() for values in before]
    for values in after:
        values[1] = 8 - values[1] if values.dtype == int else 1e6 * values[1]
    found = [tf.nest.flatten(model(values, training=True)) for values in (before, after)]
    others = np.arange(4) != 1
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(np.array(a)[others], np.array(b)[others])
