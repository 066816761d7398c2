"""Writes the release: the weights that the guarantee is about, and nothing else."""

import os
import tempfile
from collections.abc import Callable

import keras
import numpy as np

from tfdp._compat.keras import is_graph_of_layers, layers_of
from tfdp._files import replaced_whole
from tfdp.layers import PrivateBatchNormalization
from tfdp.training.files import plainly


def plain_copy(model: keras.Model) -> keras.Model:
    """A plain, uncompiled Keras model with the weights of `model`.

    The copy has no optimizer, so no slots; its random state is fresh. For SI-DPSGD the weights are
    the one draw theta that was frozen, never the means.

    Args:
        model: a private or a plain Keras model, built.

    Raises:
        NotImplementedError, TypeError: the model is subclassed without `get_config`.
    """
    with plainly(*layers_of(model, itself=True)):
        copy = type(model).from_config(model.get_config())
    if not copy.built:
        copy.build_from_config(model.get_build_config())
    values_into(copy, model)
    return copy


def values_into(copy: keras.Model, model: keras.Model) -> None:
    """Gives a `plain_copy` the values that the model has now, with LoRA merged where it has none.

    Layers pass them on as to a file, which holds no random state.
    """
    for source, target in zip(
        layers_of(model, itself=True), layers_of(copy, itself=True), strict=True
    ):
        layer_values_into(target, source)


def layer_values_into(copy: keras.Layer, layer: keras.Layer) -> None:
    """Gives the copy of a layer the layer's own values, without those of layers inside."""
    values: dict[str, np.ndarray] = {}
    layer.save_own_variables(values)
    copy.load_own_variables(values)
    if hasattr(layer, "adapt") and hasattr(layer, "save_assets"):
        # What a preprocessing layer was adapted to may be a table.
        with tempfile.TemporaryDirectory() as folder:
            layer.save_assets(folder)
            copy.load_assets(folder)


def exchanged_copy(model: keras.Model, is_replaced: Callable, replacement: Callable):
    """Returns a copy of a Sequential or functional model with all weights and other layers in it.

    Args:
        model: a built model.
        is_replaced: whether a layer is replaced; it may not be built.
        replacement: takes a layer of the model and returns the new one, built and with its weights.

    Raises:
        ValueError: the class of a layer makes a layer that should be replaced.
    """
    made = {}  # by the id of the old layer, so that a shared layer stays shared
    replaced = set()  # the ids of the replacements

    def call(layer, *args, **kwargs):
        if id(layer) in replaced:  # it may not accept all arguments of the old layer
            kwargs = {name: v for name, v in kwargs.items() if name != "training" and v is not None}
        return layer(*args, **kwargs)

    def copied(layer):
        if id(layer) not in made:
            made[id(layer)] = new_layer(layer)
        return made[id(layer)]

    def new_layer(layer):
        if is_replaced(layer):
            new = replacement(layer)
            replaced.add(id(new))
            return new
        if is_graph_of_layers(layer):
            # `clone_model` accepts no call function for Sequential models, which do not need one.
            options = {} if isinstance(layer, keras.Sequential) else {"call_function": call}
            return keras.models.clone_model(layer, clone_function=copied, **options)
        if not isinstance(layer, keras.Layer):  # a function such as `keras.ops.add`
            return type(layer).from_config(layer.get_config())
        inside = {each.name: each for each in layers_of(layer) if is_replaced(each)}
        new = type(layer).from_config(_exchanged(layer.get_config(), inside, replacement))
        left = [each for each in layers_of(new, itself=True) if is_replaced(each)]
        if left:
            raise ValueError(
                f"'{layer.name}' ({type(layer).__name__}) makes a {type(left[0]).__name__} that its "
                "configuration does not hold, so it cannot be replaced. Expected another layer in the "
                "class, or trainable=False where the layer's weights and statistics are public."
            )
        return new

    copy = copied(model)
    # Setting the `trainable` flag of a layer sets those of all layers inside, so outer ones come first.
    for old, new in zip(layers_of(model, itself=True), layers_of(copy, itself=True), strict=True):
        if is_replaced(old):
            old = replacement(old)
            new.set_weights(old.get_weights())
        else:
            layer_values_into(new, old)
        new.trainable = old.trainable
    return copy


def _exchanged(config, inside, replacement):
    """A layer's configuration, with replacements for the layers `inside` it, which are by name."""
    if isinstance(config, (list, tuple)):
        return [_exchanged(each, inside, replacement) for each in config]
    if not isinstance(config, dict):
        return config
    if "class_name" in config and config["config"].get("name") in inside:
        new = replacement(inside[config["config"]["name"]])
        return keras.saving.serialize_keras_object(new)
    return {name: _exchanged(each, inside, replacement) for name, each in config.items()}


def export(model: keras.Model, path: str | os.PathLike, *, stock_layers: bool = False) -> None:
    """Writes the release of `model` to a `.keras` file: no optimizer slots, seeds or secret means.

    The file loads with `keras.models.load_model`, without tfdp if the model uses no tfdp layer.
    On a local disk it appears whole or not at all, and a file that is there stays until then.

    Args:
        model: a trained model.
        path: a file name that ends in `.keras`.
        stock_layers: whether the file has a frozen `keras.layers.BatchNormalization` with the same
            outputs for every `tfdp.layers.PrivateBatchNormalization`, so that it loads without tfdp.

    Raises:
        ValueError: the name does not end in `.keras`, or the model cannot be copied.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model = tfdp.make_private(network)
        >>> tfdp.export(model, "release.keras")
        >>> plain = keras.models.load_model("release.keras")
        >>> type(plain) is keras.Sequential, hasattr(plain, "privacy")
        (True, False)
        >>> np.array_equal(plain.get_weights()[0], model.get_weights()[0])
        True
    """
    path = os.fspath(path)
    if not path.endswith(".keras"):
        raise ValueError(f"Expected a file name that ends in '.keras'. Received: {path!r}")
    copy = plain_copy(model)
    if stock_layers:
        copy = exchanged_copy(
            copy,
            lambda layer: isinstance(layer, PrivateBatchNormalization),
            lambda old: old.frozen(),
        )
    if "://" in path:
        copy.save(path)  # TensorFlow's other file systems have names that only Keras understands
        return
    with replaced_whole(path) as partial:
        copy.save(partial)
