"""Methods of Keras that tfdp's subclasses override still exist, with the same parameters."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdp._compat.keras import OVERRIDDEN, REPLACED, SINCE


def _is_younger_than_this_keras(name):
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    return version < SINCE.get(name, version)


def _public(path):
    found = keras
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("base", [*OVERRIDDEN, *REPLACED])
def test_keras_still_has_it_with_these_parameters(base):
    for name, parameters in (OVERRIDDEN | REPLACED)[base].items():
        if _is_younger_than_this_keras(name):
            continue
        found = getattr(_public(base), name)
        if parameters is None:
            assert isinstance(found, property), name
            continue
        names = [p for p in inspect.signature(found).parameters if p != "self"]
        assert names == list(parameters), name


def test_recurrent_layers_run_their_inner_loop():
    layer = keras.layers.LSTM(3)
    x = np.ones((2, 4, 5), "float32")
    expected = layer(x)
    seen = {}
    own = layer.inner_loop

    def inner_loop(sequences, initial_state, mask, training=False):
        seen.update(sequences=sequences, states=initial_state, mask=mask, training=training)
        return own(sequences, initial_state, mask, training)

    vars(layer)["inner_loop"] = inner_loop
    np.testing.assert_array_equal(layer(x, mask=np.ones((2, 4), bool), training=True), expected)
    assert tuple(seen["sequences"].shape) == (2, 4, 5)
    assert [tuple(s.shape) for s in seen["states"]] == [(2, 3)] * 2
    assert tuple(keras.tree.flatten(seen["mask"])[0].shape) == (2, 4)
    assert seen["training"] is True
    last, outputs, states = own(x, seen["states"], None)
    assert tuple(last.shape) == (2, 3)
    assert tuple(outputs.shape) in {(2, 1, 3), (2, 4, 3)}
    assert len(states) == 2


def _noting(asked, layer):
    def call(*args, **kwargs):
        asked.append("layer")
        return type(layer).call(layer, *args, **kwargs)

    return call


@pytest.mark.parametrize("name", REPLACED["keras.layers.Bidirectional"])
def test_bidirectional_asks_before_it_computes_without_its_layers(name):
    kind = "LSTM" if name.endswith("lstm") else "GRU"
    layer = keras.layers.Bidirectional(getattr(keras.layers, kind)(3))
    x = np.ones((2, 4, 5), "float32")
    layer(x)
    asked = []
    vars(layer)[name] = lambda *args, **kwargs: asked.append("shortcut")
    for part in (layer.forward_layer, layer.backward_layer):
        vars(part)["call"] = _noting(asked, part)
    layer(x)
    shortcut = [] if _is_younger_than_this_keras(name) else ["shortcut"]
    assert asked == [*shortcut, "layer", "layer"]


def test_a_scope_is_asked_for_every_value():
    read = []

    class Scope(keras.StatelessScope):
        def get_current_value(self, variable):
            read.append(variable)
            return super().get_current_value(variable)

    variable = keras.Variable(1.0)
    with Scope([(variable, keras.ops.convert_to_tensor(2.0))]):
        assert float(tf.convert_to_tensor(variable)) == 2.0
    assert any(v is variable for v in read)


def test_a_scope_collects_losses_when_it_is_told_to_later():
    layer = keras.layers.Dense(1, activity_regularizer="l2")
    layer.build((None, 2))
    variables = layer.trainable_variables
    with keras.StatelessScope([(v, keras.ops.convert_to_tensor(v)) for v in variables]) as scope:
        layer(np.ones((1, 2), "float32"))
        assert not scope.losses
        scope.collect_losses = True
        layer(np.ones((1, 2), "float32"))
    assert len(scope.losses) == 1
