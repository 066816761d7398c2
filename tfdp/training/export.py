"""Writes the release: the weights that the guarantee covers, and nothing else."""

import os
import tempfile

import keras
import numpy as np

import tfdp.layers
from tfdp._compat.keras import become, is_graph_of_layers, layers_of, take_policy
from tfdp._files import replaced_whole
from tfdp.training.files import plainly
from tfdp.training.replicas import writes


def plain_copy(model: keras.Model) -> keras.Model:
    """Returns a plain, uncompiled Keras model with the weights of a private or plain one.

    The copy has no optimizer, so no slots. Its random state is fresh. For SI-DPSGD the weights are the
    one draw theta that was frozen, never the means.
    """
    for layer in layers_of(model):
        take_policy(layer)  # the model may come from a file
    with plainly(*layers_of(model, itself=True)):
        copy = type(model).from_config(model.get_config())
    if not copy.built:
        copy.build_from_config(model.get_build_config())
    replace_again(copy, replacements(model))
    for layer in layers_of(copy):
        take_policy(layer)
    values_into(copy, model)
    return copy


def values_into(copy: keras.Model, model: keras.Model) -> None:
    """Assigns the current values of a model to a `plain_copy`, and merges LoRA where the copy has none.

    Layers pass on what they write to files, so no random state.
    """
    for source, target in zip(
        layers_of(model, itself=True), layers_of(copy, itself=True), strict=True
    ):
        values: dict[str, np.ndarray] = {}
        source.save_own_variables(values)
        target.load_own_variables(values)
        if hasattr(source, "adapt") and hasattr(source, "save_assets"):
            # A preprocessing layer may hold a table, which is no array.
            with tempfile.TemporaryDirectory() as folder:
                source.save_assets(folder)
                target.load_assets(folder)


# Attribute of a layer that took the place of another one.
_REPLACED = "_tfdp_replaced"


def replace(layer: keras.Layer, new: keras.Layer) -> None:
    """Puts a built layer in the place of another one, in everything that holds it."""
    become(layer, new)
    setattr(layer, _REPLACED, True)


def replacements(model: keras.Model) -> dict[str, dict]:
    """Returns the configurations of layers that took the place of others, by number in the model.

    A class whose constructor makes layers makes the old ones when it is loaded.
    """
    layers = enumerate(layers_of(model, itself=True))
    new = {str(i): layer for i, layer in layers if hasattr(layer, _REPLACED)}
    return {i: keras.saving.serialize_keras_object(layer) for i, layer in new.items()}


def replace_again(model: keras.Model, configs: dict[str, dict]) -> None:
    """Puts the replacements into a loaded model whose class has made the old layers again."""
    layers = layers_of(model, itself=True)
    for i, config in configs.items():
        new = keras.saving.deserialize_keras_object(config)
        if type(layers[int(i)]) is not type(new):
            replace(layers[int(i)], new)


def _as_graph(copy):
    """Returns a copy as a graph of layers, without the class of a model that makes other layers."""
    if is_graph_of_layers(copy):
        graph = keras.models.clone_model(copy, clone_function=lambda layer: layer, recursive=True)
        copy = plain_copy(graph)
    left = next((each for each in layers_of(copy) if hasattr(each, _REPLACED)), None)
    if left is None:
        return copy
    raise ValueError(
        f"The release could not be loaded without tfdp: the class that makes layer '{left.name}' does "
        f"not make it as a {type(left).__name__}. Make that layer in the class; or write "
        "model.save_weights(path), for a new model whose layers tfdp.fix replaces before load_weights."
    )


def export(model: keras.Model, path: str | os.PathLike, *, stock_layers: bool = False) -> None:
    """Writes the model that may be published to a `.keras` file.

    The file has the weights that the guarantee covers, and no optimizer slots, seeds or secret means.
    Publish this file rather than one of `model.save`, which keeps the state of the training.
    `keras.models.load_model` loads it, without tfdp if the model uses no tfdp layer.

    On a local disk, the file is written atomically: an existing file is replaced only by a complete
    one. Of several machines, the chief writes it.

    Args:
        model: A trained model, private or plain.
        path: A file name that ends in `.keras`.
        stock_layers: Whether every `tfdp.layers.PrivateBatchNormalization` becomes a frozen
            `keras.layers.BatchNormalization` with the same outputs, so that the file loads without
            tfdp.

    Raises:
        ValueError: If the name does not end in `.keras`, or the model cannot be copied.

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
    if not writes(model):
        return
    copy = plain_copy(model)
    if stock_layers:
        for layer in layers_of(copy):
            if isinstance(layer, tfdp.layers.PrivateBatchNormalization):
                replace(layer, layer.frozen())
        copy = plain_copy(copy)
    if replacements(copy):
        copy = _as_graph(copy)
    if "://" in path:
        copy.save(path)  # TensorFlow's other file systems have names that only Keras understands
        return
    with replaced_whole(path) as partial:
        copy.save(partial)
