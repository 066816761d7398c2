"""Replaces batch normalization, which mixes examples, so that a model can be trained privately."""

import tempfile

import keras
from absl import logging

from tfdp._compat.keras import (
    input_structure,
    is_graph_of_layers,
    layers_of,
    normalizes_by_batch,
)
from tfdp._validate import one_of, whole
from tfdp.layers import PublicBatchNormalization, PublicExamples

_BY_HAND = "replace BatchNormalization by GroupNormalization in the class"
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
    """Returns a copy of `model` without BatchNormalization layers, and logs the replacements.

    With public data, each BatchNormalization becomes a `PublicBatchNormalization`, and the whole
    network goes into one `PublicExamples` layer. Without public data, each becomes a
    GroupNormalization. The copy keeps all weights, among them the factor and offset of each
    BatchNormalization, but not its running statistics: they were averaged over data that no guarantee
    covers. It keeps names, dtypes and the `trainable` flags, too.

    A frozen BatchNormalization (`trainable=False`) stays as it is. Its statistics are constants of
    the model, which must not depend on the private data.

    Args:
        model: a built Sequential or functional model, with such models inside. It is not changed.
        public_data: array [M, ...] of examples like the model's inputs (or a structure of arrays, one
            for each input), disjoint from the private data and chosen without looking at the private
            data.
        statistics: "example" or "batch"; see `PublicExamples`.
        num_groups: the most groups of a GroupNormalization; None takes 32. Each layer gets the largest
            number of groups up to this that divides its channels, and the log says which.
        normalization: "group"; or "instance", with one group for each channel. A layer whose inputs
            have no positions [rows, channels] gets a single group, where one for each channel would
            make everything zero.

    Returns:
        An uncompiled model of the same name; `model` itself if there is nothing to repair.

    Raises:
        ValueError: an argument is invalid or has no effect; or the model is not built, or a
            BatchNormalization is inside of a subclassed model or layer, whose class has to be changed.

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
            "Expected num_groups with normalization='group' only, and neither num_groups nor "
            "normalization with public_data, which takes the statistics of public examples. Received "
            f"num_groups={num_groups!r}, normalization={normalization!r}. Leave one of them out."
        )
    if not any(map(normalizes_by_batch, layers_of(model, itself=True))):
        return model
    if not (is_graph_of_layers(model) and model.built):
        raise ValueError(
            "Invalid value received for argument `model`. Expected a built Sequential or functional "
            f"model. Received: {type(model).__name__} '{model.name}'. Give it an Input layer; in a "
            f"subclassed model, {_BY_HAND}."
        )
    if public_data is None:
        groups = (num_groups or _GROUPS) if normalization == "group" else None
        network = _clone(model, {}, lambda layer: _group_norm(layer, groups))
    else:
        network = _clone(model, {}, _public_norm)
    _take_over(model, network)
    if public_data is None:
        return network
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name),
        _input_structure(network),
    )
    outputs = PublicExamples(network, public_data, statistics, name="public_examples")(inputs)
    return keras.Model(inputs, outputs, name=model.name)


def _clone(model, made: dict, make):
    """A copy of a graph of layers with new weights.

    Args:
        model: a Sequential or functional model.
        made: the layers of the copy by the ids of those that they stand for, so that a shared layer
            stays shared.
        make: makes the replacement for a BatchNormalization, not built.
    """

    def operation(old):
        """What stands in the copy for a layer, or a function such as `keras.ops.add`."""
        if id(old) not in made:
            if normalizes_by_batch(old):
                made[id(old)] = make(old)
            elif is_graph_of_layers(old):
                made[id(old)] = _clone(old, made, make)
            else:
                made[id(old)] = type(old).from_config(old.get_config())
        return made[id(old)]

    # `clone_model` accepts no call function for Sequential models, which do not need one.
    options = {} if isinstance(model, keras.Sequential) else {"call_function": _call}
    clone = keras.models.clone_model(model, clone_function=operation, **options)
    clone.name = model.name
    return clone


def _take_over(model, clone):
    """Copies weights and `trainable` flags; outer layers come first, whose flag sets those inside."""
    log = []
    for old, new in zip(layers_of(model, itself=True), layers_of(clone, itself=True), strict=True):
        new.trainable = old.trainable
        if normalizes_by_batch(new):
            raise ValueError(
                f"BatchNormalization '{old.name}' is inside of a layer with a class of its own, which "
                f"tfdp.fix does not change. Expected no such layer: {_BY_HAND}."
            )
        if normalizes_by_batch(old):
            groups = getattr(new, "groups", "public")
            log.append(f"'{old.name}': {type(new).__name__} ({groups})")
            for name in ("gamma", "beta"):
                if getattr(old, name) is not None:
                    getattr(new, name).assign(getattr(old, name))
            continue
        values = {}
        old.save_own_variables(values)
        new.load_own_variables(values)
        # What a preprocessing layer was adapted to may be a table.
        if callable(getattr(old, "adapt", None)) and hasattr(old, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                old.save_assets(folder)
                new.load_assets(folder)
    logging.info("tfdp.fix replaced %d layers: %s.", len(log), "; ".join(log))


def _call(layer, *args, **kwargs):
    """Calls a replaced layer with the arguments of the original layer.

    BatchNormalization has arguments (`training`, `mask`) that its replacements do not accept.
    """
    if isinstance(layer, (PublicBatchNormalization, keras.layers.GroupNormalization)):
        kwargs.pop("training", None)
        if kwargs.get("mask") is None:
            kwargs.pop("mask", None)
    return layer(*args, **kwargs)


def _input_structure(network):
    structure = input_structure(network)
    if isinstance(structure, (list, tuple)) and len(structure) == 1:
        (structure,) = structure
    return structure


def _group_norm(layer, most: int | None):
    """A GroupNormalization with at most so many groups; None takes one group for each channel."""
    features = int(layer.moving_mean.shape[0])
    groups = max(n for n in range(1, min(most or features, features) + 1) if features % n == 0)
    if groups == features and len(_input_shape(layer)) == 2:
        groups = 1  # groups of one feature without positions would normalize everything to zero
    return keras.layers.GroupNormalization(
        groups,
        axis=layer.axis,
        epsilon=layer.epsilon,
        **{f"{of}_{what}": getattr(layer, f"{of}_{what}") for of in _AFFINE for what in _PARTS},
        **_common(layer),
    )


# Arguments that both layers have for their factor and offset.
_AFFINE, _PARTS = ("gamma", "beta"), ("initializer", "regularizer", "constraint")


def _public_norm(layer):
    return PublicBatchNormalization(layer.axis, layer.epsilon, **_common(layer))


def _common(layer):
    return {
        "center": layer.center,
        "scale": layer.scale,
        "name": layer.name,
        "trainable": layer.trainable,
        "dtype": layer.dtype_policy,
    }


def _input_shape(layer):
    return layer.get_build_config()["input_shape"]
