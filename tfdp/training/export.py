"""Writes the release: the weights that the guarantee is about, and nothing else."""

import os

import keras

from tfdp._compat.keras import is_graph_of_layers, layers_of
from tfdp._files import replaced_whole
from tfdp.layers import PrivateBatchNormalization
from tfdp.training.checks import refuse_unsavable
from tfdp.training.files import plainly


def plain_copy(model: keras.Model) -> keras.Model:
    """A plain, uncompiled Keras model with the weights of `model`.

    The copy has no optimizer, so no slots; its random state is fresh. For SI-DPSGD the weights are
    the one draw theta that was frozen, never the means.

    Args:
        model: a private or a plain Keras model, built.

    Raises:
        NotImplementedError, TypeError: the model is subclassed without `get_config`.
        ValueError: `tfdp.fix` exchanged layers that the copy would not have.
    """
    refuse_unsavable(model)
    with plainly(model):
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
        values = {}
        source.save_own_variables(values)
        target.load_own_variables(values)


def with_stock_layers(model: keras.Model) -> keras.Model:
    """Returns a copy of a plain model with Keras' own layers for every `PrivateBatchNormalization`.

    Raises:
        ValueError: such a layer stands where a copy of the model cannot exchange it.
    """
    own = [layer for layer in layers_of(model) if isinstance(layer, PrivateBatchNormalization)]
    outer = {id(layer) for layer in model.layers}
    for layer in own:
        if not is_graph_of_layers(model) or id(layer) not in outer:
            raise ValueError(
                f"Expected layer '{layer.name}' (PrivateBatchNormalization) as a layer of a Sequential "
                "or functional model, and not of a model or layer inside of it. Found it elsewhere, "
                "where it cannot be exchanged. Export with stock_layers=False."
            )

    def made(layer):
        if isinstance(layer, PrivateBatchNormalization):
            return layer.frozen()
        return type(layer).from_config(layer.get_config())

    copy = keras.models.clone_model(model, clone_function=made)
    for old, new in zip(model.layers, copy.layers, strict=True):
        if not isinstance(old, PrivateBatchNormalization):
            new.set_weights(old.get_weights())
    return copy


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
        copy = with_stock_layers(copy)
    if "://" in path:
        copy.save(path)  # TensorFlow's other file systems have names that only Keras understands
        return
    with replaced_whole(path) as partial:
        copy.save(partial)
