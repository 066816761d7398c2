"""Writes the release: the weights that the guarantee is about, and nothing else."""

import os

import keras

from tfdp._files import replaced_whole
from tfdp.gradients.random_state import seed_states
from tfdp.training.checks import refuse_unsavable


def plain_class(cls: type) -> type:
    """The plain class that the private class `cls` was made from; `cls` itself if it is plain."""
    return vars(cls).get("_tfdp_base", cls)


def plain_copy(model: keras.Model) -> keras.Model:
    """A plain, uncompiled Keras model with the weights of `model`.

    The copy has no optimizer, so no slots; its random state is fresh. For SI-DPSGD the weights are
    the one draw theta that was frozen, never the means.

    Args:
        model: a private or a plain Keras model, built.

    Raises:
        ValueError: the model is subclassed without `get_config`, so Keras cannot copy it; or
            `tfdp.fix` exchanged layers that the copy would not have.
    """
    refuse_unsavable(model)
    cls = plain_class(type(model))
    try:
        copy = cls.from_config(model.get_config())
    except (NotImplementedError, TypeError) as error:
        raise ValueError(
            f"Model '{model.name}' ({cls.__name__}) cannot be copied: expected a get_config() from "
            f"which {cls.__name__}.from_config() builds it again. Found: {error}"
        ) from error
    if not copy.built:
        copy.build_from_config(model.get_build_config())
    values_into(copy, model)
    return copy


def values_into(copy: keras.Model, model: keras.Model) -> None:
    """Gives a `plain_copy` the values that the model has now."""
    seeds = {id(state) for state in seed_states(model)}
    for source, target in zip(model.variables, copy.variables, strict=True):
        if id(source) not in seeds:
            target.assign(source)


def export(model: keras.Model, path: str | os.PathLike) -> None:
    """Writes the release of `model` to a `.keras` file: no optimizer slots, seeds or secret means.

    The file loads with `keras.models.load_model`, without tfdp if the model uses no tfdp layer.
    On a local disk it appears whole or not at all, and a file that is there stays until then.

    Args:
        model: a trained model.
        path: a file name that ends in `.keras`.

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
    if "://" in path:
        copy.save(path)  # TensorFlow's other file systems have names that only Keras understands
        return
    with replaced_whole(path) as partial:
        copy.save(partial)
