"""Methods of Keras that tfdp's subclasses override still exist, with the same parameters."""

import ast
import importlib
import inspect
import pkgutil
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp._compat.keras import OVERRIDDEN, REPLACED, SINCE

_BASES = {
    "keras.Model": keras.Model,
    "keras.layers.Layer": keras.layers.Layer,
    "keras.optimizers.Optimizer": keras.optimizers.Optimizer,
    "keras.callbacks.Callback": keras.callbacks.Callback,
    "keras.StatelessScope": keras.StatelessScope,
}
_CASES = [
    (base, name, parameters)
    for table in (OVERRIDDEN, REPLACED)
    for base, names in table.items()
    for name, parameters in names.items()
]


def _is_younger_than_this_keras(name):
    version = tuple(map(int, keras.__version__.split(".")[:2]))
    return version < SINCE.get(name, version)


def _public(path):
    found = keras
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("base", "name", "parameters"), _CASES, ids=lambda value: str(value)[:40])
def test_keras_still_has_it_with_these_parameters(base, name, parameters):
    if _is_younger_than_this_keras(name):
        assert not hasattr(_public(base), name)
        return
    found = getattr(_public(base), name)
    if parameters is None:
        assert isinstance(found, property)
        return
    names = [p for p in inspect.signature(found).parameters if p != "self"]
    assert names == list(parameters)


def _classes_of_tfdp(base):
    for module in pkgutil.walk_packages(tfdp.__path__, "tfdp."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    waiting, seen = [base], set()
    while waiting:
        for cls in waiting.pop().__subclasses__():
            if cls not in seen:
                seen.add(cls)
                waiting.append(cls)
    # Models are layers, too, but have a table of their own.
    other = keras.Model if base is keras.layers.Layer else ()
    return [cls for cls in seen if not issubclass(cls, other)]


def _ours(cls):
    return cls.__module__.partition(".")[0] == "tfdp"


def _own_definitions(base):
    """Names that tfdp's subclasses of a Keras class, and their mixins, define."""
    kinds = {k for cls in _classes_of_tfdp(base) for k in cls.__mro__ if _ours(k)}
    return {name for kind in kinds for name in vars(kind)}


def _put_on_self(base):
    """Yields the names of the attributes that methods of these classes assign to `self`."""
    kinds = {k for cls in _classes_of_tfdp(base) for k in cls.__mro__ if _ours(k)}
    for kind in kinds:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
        except OSError:  # a factory made this class, and adds no methods
            continue
        stores = (n for n in ast.walk(tree) if isinstance(getattr(n, "ctx", None), ast.Store))
        attributes = (n for n in stores if isinstance(n, ast.Attribute))
        yield from (n.attr for n in attributes if getattr(n.value, "id", None) == "self")


@pytest.mark.parametrize("base", OVERRIDDEN)
def test_the_table_has_every_override(base):
    cls = _BASES[base]
    names = _own_definitions(cls)
    pythons = {n for n in names if n.startswith("__")} - {"__reduce__"}
    assert {n for n in names - pythons if hasattr(cls, n)} == OVERRIDDEN[base].keys()


@pytest.mark.parametrize("base", OVERRIDDEN)
def test_keras_has_no_private_name_that_tfdp_gives_another_meaning(base):
    names = _own_definitions(_BASES[base]) | {*_put_on_self(_BASES[base])}
    private = {name for name in names if name[0] == "_" and name[1] != "_"}
    # The attributes of instances count, too.
    instances = {
        "keras.Model": lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
        "keras.layers.Layer": lambda: keras.layers.Dense(1),
        "keras.optimizers.Optimizer": lambda: keras.optimizers.Adam(use_ema=True),
        "keras.callbacks.Callback": keras.callbacks.Callback,
        "keras.StatelessScope": keras.StatelessScope,
    }
    instance = instances[base]()
    if base == "keras.Model":
        instance.compile("sgd", "mse")
    if base == "keras.optimizers.Optimizer":
        instance.build([keras.Variable(0.0)])
    assert private
    assert {n for n in private if hasattr(instance, n)} == private & {*OVERRIDDEN[base]}


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_recurrent_layers_run_their_inner_loop(kind):
    layer = getattr(keras.layers, kind)(3)
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
    assert [tuple(s.shape) for s in seen["states"]] == [(2, 3)] * (2 if kind == "LSTM" else 1)
    assert tuple(keras.tree.flatten(seen["mask"])[0].shape) == (2, 4)
    assert seen["training"] is True
    last, outputs, states = own(x, seen["states"], None)
    assert tuple(last.shape) == (2, 3)
    assert tuple(outputs.shape) in {(2, 1, 3), (2, 4, 3)}
    assert len(states) == (2 if kind == "LSTM" else 1)


@pytest.mark.parametrize("name", ["get_dropout_mask", "get_recurrent_dropout_mask"])
@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_cells_give_the_masks_of_their_dropout(kind, name):
    layer = getattr(keras.layers, kind)(3, dropout=0.5, recurrent_dropout=0.5)
    mask = np.asarray(getattr(layer.cell, name)(np.ones((200, 3), "float32")))
    assert set(np.unique(mask)) == {0.0, 2.0}
    # The mask is the same at every step until it is reset.
    np.testing.assert_array_equal(mask, getattr(layer.cell, name)(np.ones((200, 3), "float32")))


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


def test_what_is_put_past_setattr_is_not_tracked():
    layer = keras.layers.Layer()
    vars(layer)["hidden"] = [keras.Variable(1.0), keras.layers.Dense(1)]
    assert layer.variables == []
    assert list(layer._flatten_layers(include_self=False)) == []
    layer.shown = [keras.Variable(1.0)]
    assert len(layer.variables) == 1


def test_fit_calls_the_train_function_that_make_train_function_leaves():
    calls = []

    class Model(keras.Sequential):
        def make_train_function(self, force=False):
            super().make_train_function(force)
            inner = self.train_function
            self.train_function = lambda iterator: calls.append(iterator) or inner(iterator)

    model = Model([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), batch_size=2, verbose=0)
    assert calls
    taken = len(calls)
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    assert len(calls) > taken


def test_loading_compiles_from_the_config(tmp_path):
    seen = []

    @keras.saving.register_keras_serializable(package="test_overrides")
    class Compiled(keras.Sequential):
        def compile_from_config(self, config):
            seen.append(set(config))
            super().compile_from_config(config)

    model = Compiled([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    keras.models.load_model(tmp_path / "model.keras")
    assert seen and {"optimizer", "loss", "metrics", "weighted_metrics"} <= seen[0]
