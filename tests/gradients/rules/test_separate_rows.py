"""The functions of `keras.ops` that keep the rows of a batch separate are known."""

import keras
import pytest
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
