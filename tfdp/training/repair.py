"""`fix`, which replaces batch normalization so that a model can be trained privately."""

import keras
from absl import logging

from tfdp._compat.keras import input_structure, is_stock_graph, layers_of, normalizes_by_batch
from tfdp._validate import one_of, whole
from tfdp.account import account_of
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.training.checks import has_trained_statistics
from tfdp.training.export import replace
from tfdp.training.unknown_steps import enter_unknown_steps

_GROUPS = 32  # Wu and He 2018, "Group Normalization"
NORMALIZATIONS = ("group", "instance")


def fix(
    model: keras.Model,
    public_data=None,
    *,
    statistics: str = "example",
    num_groups: int | None = None,
    normalization: str = "group",
) -> keras.Model:
    """Replaces the BatchNormalization layers of a model, so that it can be trained privately.

    BatchNormalization mixes the examples of a batch, so `make_private` refuses it. Call `fix` first.
    The model is changed in place. Without public data, each BatchNormalization becomes a
    GroupNormalization. With public data, each becomes a `PublicBatchNormalization`, and the whole
    network goes into one `PublicExamples` layer of a new model.

    The model keeps its class, its attributes and all weights, among them the factor and offset of each
    BatchNormalization, but not its running statistics. So a network that was trained with
    BatchNormalization computes something else afterwards. If its statistics come from public data,
    freeze these layers instead: `layer.trainable = False`. `fix` leaves a frozen BatchNormalization as
    it is. Its statistics are constants of the model, which must not depend on the private data.

    If a class makes its BatchNormalization layers itself, only files of a private model load as they
    were saved; see docs/unsupported.md.

    Args:
        model: A built model of any class; with public data, a Sequential or functional model. Layers
            at any depth are replaced. Other models that share these layers change, too.
        public_data: Public examples like the model's inputs, an array [M, ...] or a structure of
            arrays, one for each input. They must be disjoint from the private data and chosen without
            looking at them.
        statistics: "example" or "batch", for public data; see `PublicExamples`.
        num_groups: Largest number of groups in a GroupNormalization. None means 32. Each layer gets
            the largest number up to this that divides its channels.
        normalization: "group"; or "instance", for one group for each channel. A layer whose inputs
            are [rows, channels], without positions, gets a single group, since one group for each
            channel would make everything zero.

    Returns:
        `model` itself, uncompiled if a layer was replaced. With public data, a new model of the same
        name.

    Raises:
        ValueError: If an argument is invalid or has no effect, the model is not built, or its class
            would be lost with public data.

    Example:
        >>> import keras, tfdp
        >>> model = keras.Sequential([
        ...     keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()])
        >>> tfdp.make_private(model)
        Traceback (most recent call last):
        ...
        ValueError: ...BatchNormalization...
        >>> fixed = tfdp.fix(model)
        >>> [type(layer).__name__ for layer in fixed.layers]
        ['Conv2D', 'GroupNormalization']
        >>> _ = tfdp.make_private(fixed)
    """
    num_groups = whole("num_groups", num_groups, 1, optional=True)
    one_of("normalization", normalization, NORMALIZATIONS)
    twice = num_groups is not None and normalization != "group"
    if twice or (public_data is not None and (num_groups, normalization) != (None, "group")):
        raise ValueError(
            "num_groups can only be used with normalization='group', and neither can be used with "
            "public_data, which normalizes by public examples. Received "
            f"num_groups={num_groups!r}, normalization={normalization!r}. Remove one of them."
        )
    found = [layer for layer in layers_of(model, itself=True) if normalizes_by_batch(layer)]
    _check(model, found, public_data is not None)
    if not found:
        return model
    if public_data is None:
        groups = (num_groups or _GROUPS) if normalization == "group" else None
        new = [_group_norm(layer, groups) for layer in found]
    else:
        examples = PublicExamples(model, public_data, statistics, name="public_examples")
        new = [_public_norm(layer) for layer in found]
    # Nothing was changed before this line, so a call with invalid arguments can be repeated.
    enter_unknown_steps(model, account_of(model))
    for pair in zip(found, new, strict=True):
        replace(*pair)
    account_of(model)  # which ties the ledger to the new weights
    for name in ("optimizer", "train_function", "test_function", "predict_function"):
        setattr(model, name, None)  # they are for the layers before
    model.compiled = False
    if public_data is None:
        return model
    structure = input_structure(model)
    if isinstance(structure, (list, tuple)) and len(structure) == 1:
        (structure,) = structure
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name),
        structure,
    )
    return keras.Model(inputs, examples(inputs), name=model.name)


def _check(model, found, public: bool) -> None:
    """Refuses a model whose layers cannot be replaced, and warns of statistics that are lost."""
    if not (model.built and all(layer.built for layer in found)):
        raise ValueError(
            f"Model '{model.name}' is not built, so the shapes of its layers are unknown. Add an "
            "Input layer, or call it once on data."
        )
    if public and found and not is_stock_graph(model):
        raise ValueError(
            "public_data puts a network into a new functional model, so the methods of "
            f"{type(model).__name__} would be lost. Pass the graph alone, "
            "keras.Model(model.inputs, model.outputs), or remove public_data."
        )
    trained = [layer.name for layer in found if has_trained_statistics(layer)]
    if trained:
        logging.warning(
            "tfdp.fix discards the trained statistics of %d layers, such as '%s', so the network "
            "computes something else. If they come from public data, load the model again and set "
            "layer.trainable = False for these layers instead.",
            len(trained),
            trained[0],
        )


def _group_norm(layer, most: int | None):
    """Returns a GroupNormalization with at most `most` groups, or one for each channel if None."""
    features = int(layer.moving_mean.shape[0])
    groups = max(n for n in range(1, min(most or features, features) + 1) if features % n == 0)
    if groups == features and len(_input_shape(layer)) == 2:
        groups = 1  # groups of one feature without positions would normalize everything to zero
    parts = [
        f"{of}_{what}" for of in _AFFINE for what in ("initializer", "regularizer", "constraint")
    ]
    same = {name: getattr(layer, name) for name in parts}
    return _made(keras.layers.GroupNormalization, layer, groups=groups, **same)


def _public_norm(layer):
    return _made(PublicBatchNormalization, layer)


_AFFINE = ("gamma", "beta")  # factor and offset, which all these layers have


def _made(kind, layer, **arguments):
    """Builds a layer of another kind with the settings, factor and offset of a BatchNormalization."""
    axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
    for name in ("epsilon", "center", "scale", "name", "trainable"):
        arguments[name] = getattr(layer, name)
    made = kind(axis=axis, dtype=layer.dtype_policy, **arguments)
    made.build(_input_shape(layer))
    for name in _AFFINE:
        if getattr(layer, name) is not None:
            getattr(made, name).assign(getattr(layer, name))
    return made


def _input_shape(layer):
    return layer.get_build_config()["input_shape"]
