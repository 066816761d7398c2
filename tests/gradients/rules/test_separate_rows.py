"""The functions of `keras.ops` that keep the rows of a batch separate are known."""

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdp.gradients.bounds import GlobalL2Clip
from tfdp.gradients.engines import ghost
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import choose_engine
from tfdp.gradients.rules import UnsupportedModelError
from tfdp.gradients.rules.recording import owners
from tfdp.gradients.rules.separate_rows import rows_are_separate
from tfdp.gradients.testing import (
    assert_equal_sums,
    check_model,
    loop_bounded_sum,
    run_engine,
)

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


def _softmax_of_single_numbers(activation):
    x = keras.Input((3,))
    single = ops.squeeze(keras.layers.Dense(1)(x), axis=-1)
    hidden = keras.layers.Reshape((1,))(activation(single))
    return keras.Model(x, keras.layers.Dense(1)(hidden))


def _masked_numbers():
    x = keras.Input(())
    hidden = keras.layers.Reshape((1,))(keras.layers.Masking(5.0)(x))
    return keras.Model(x, keras.layers.Dense(1)(hidden))


def _mask_without_rows():
    x, mask = keras.Input((1, 4)), keras.Input((7,), dtype="bool")
    values = keras.Input((7, 4))
    attended = keras.layers.MultiHeadAttention(2, 2)(x, values, attention_mask=mask)
    return keras.Model([x, values, mask], keras.layers.Dense(1)(attended))


def _shared_with_steps(layer):
    x = keras.Input((4, 3))
    hidden = keras.layers.Dense(3)(x)
    both = keras.layers.Add()([layer(hidden), keras.layers.TimeDistributed(layer)(hidden)])
    return keras.Model(x, keras.layers.Dense(1)(both))


MIXING_MODELS = {
    "softmax": lambda: _softmax_of_single_numbers(keras.layers.Softmax()),
    "softmax_of_a_tuple": lambda: _softmax_of_single_numbers(keras.layers.Softmax(axis=(-1,))),
    "activation": lambda: _softmax_of_single_numbers(keras.layers.Activation("log_softmax")),
    "function": lambda: _softmax_of_single_numbers(keras.layers.Activation(tf.nn.softmax)),
    "concatenation": lambda: _softmax_of_single_numbers(
        lambda x: keras.layers.Concatenate(axis=-1)([x, x])
    ),
    "masking": _masked_numbers,
    "attention": _mask_without_rows,
    "unit_normalization": lambda: _shared_with_steps(keras.layers.UnitNormalization(axis=-2)),
    "layer_normalization": lambda: _shared_with_steps(
        keras.layers.LayerNormalization(axis=-2, center=False, scale=False)
    ),
}


@pytest.mark.parametrize("name", MIXING_MODELS)
def test_models_whose_last_axis_is_the_batch_are_not_trusted(name):
    model = MIXING_MODELS[name]()
    assert not rows_are_separate(model, owners(model))


def test_single_numbers_in_front_of_a_table_are_trusted():
    x, weight = keras.Input((), dtype="int32"), keras.Input((1,))
    hidden = keras.layers.Concatenate()([keras.layers.Embedding(5, 3)(x), weight])
    model = keras.Model([x, weight], keras.layers.Dense(1)(hidden))
    assert rows_are_separate(model, owners(model))


def test_attention_with_a_mask_for_each_row_is_trusted():
    x, mask = keras.Input((5, 4)), keras.Input((5, 5), dtype="bool")
    attended = keras.layers.MultiHeadAttention(2, 2)(x, x, attention_mask=mask)
    model = keras.Model([x, mask], keras.layers.Dense(1)(attended))
    assert rows_are_separate(model, owners(model))


def test_a_regularized_weight_and_a_loss_of_ones_own_leave_the_ghost_engine():
    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean((y - y_pred) ** 2) + 3.0 * ops.sum(self.dense.kernel**2)

    x = keras.Input((3,))
    dense = keras.layers.Dense(2, kernel_regularizer="l2")
    model = Own(x, dense(x))
    model.dense = dense
    model.compile(loss="mse")
    rows = tf.random.stateless_normal([4, 3], [1, 2]), tf.zeros([4, 2])
    arguments = (Forward(model), GlobalL2Clip(0.5), *rows, tf.ones([4]))
    with pytest.raises(UnsupportedModelError, match=r"has a regularizer.*compute_loss"):
        run_engine(ghost.bounded_sum, *arguments)
    auto = run_engine(choose_engine("auto", model), *arguments)
    assert_equal_sums(auto, run_engine(loop_bounded_sum, *arguments))
