"""Methods of Keras that tfdp's subclasses override still exist, with the same parameters."""

import inspect

import keras
import numpy as np
import pytest

# Methods that subclasses in tfdp override and Keras calls, with the parameters (without `self`) of
# Keras' own methods; None marks a property. An override must be an attribute of the subclass, so no
# function in this module can wrap it.
OVERRIDDEN = {
    "keras.Model": {
        "__reduce__": (),
        "_maybe_symbolic_build": ("iterator", "data_batch"),
        "compile": (
            *("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics"),
            *("run_eagerly", "steps_per_execution", "jit_compile", "auto_scale_loss"),
        ),
        "compile_from_config": ("config",),
        "fit": (
            *("x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split"),
            *("validation_data", "shuffle", "class_weight", "sample_weight", "initial_epoch"),
            *("steps_per_epoch", "validation_steps", "validation_batch_size", "validation_freq"),
        ),
        "get_compile_config": (),
        "make_train_function": ("force",),
        "save": ("filepath", "overwrite", "zipped", "kwargs"),
        "save_weights": ("filepath", "overwrite", "max_shard_size"),
        "test_step": ("data",),
        "train_on_batch": ("x", "y", "sample_weight", "class_weight", "return_dict"),
        "train_step": ("data",),
    },
    "keras.layers.Layer": {
        "build": ("input_shape",),
        "call": ("args", "kwargs"),
        "compute_mask": ("inputs", "previous_mask"),
        "compute_output_shape": ("args", "kwargs"),
        "from_config": ("config",),
        "get_config": (),
        "load_own_variables": ("store",),
        "save_own_variables": ("store",),
    },
    "keras.optimizers.Optimizer": {
        "__reduce__": (),
        "_all_reduce_sum_gradients": ("grads_and_vars",),
        "apply": ("grads", "trainable_variables"),
        "build": ("variables",),
        "get_config": (),
        "learning_rate": None,
    },
    "keras.callbacks.Callback": {
        "on_epoch_begin": ("epoch", "logs"),
        "on_epoch_end": ("epoch", "logs"),
        "on_test_begin": ("logs",),
        "on_train_batch_begin": ("batch", "logs"),
        "on_train_batch_end": ("batch", "logs"),
        "on_train_begin": ("logs",),
        "on_train_end": ("logs",),
    },
}
# Methods that tfdp replaces on single layers while it traces a pass, in the same form.
REPLACED = {
    "keras.layers.Layer": {"_get_regularization_losses": ()},
    "keras.layers.RNN": {"inner_loop": ("sequences", "initial_state", "mask", "training")},
    "keras.layers.SimpleRNN": {"inner_loop": ("sequences", "initial_state", "mask", "training")},
    "keras.layers.LSTM": {"inner_loop": ("sequences", "initial_state", "mask", "training")},
    "keras.layers.GRU": {"inner_loop": ("sequences", "initial_state", "mask", "training")},
    "keras.layers.Bidirectional": {
        "_can_attempt_fused_lstm": ("mask", "initial_state"),
        "_can_attempt_fused_gru": ("mask", "initial_state"),
    },
}
# The first version of Keras that has a replaced method, if older supported versions lack it. Those
# older versions always call the layers.
SINCE = {"_can_attempt_fused_lstm": (3, 15), "_can_attempt_fused_gru": (3, 15)}


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
