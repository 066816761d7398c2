"""Replaces batch normalization, which mixes examples, so that a model can be trained privately."""

import keras
from absl import logging

from tfdp._compat.keras import input_structure, is_graph_of_layers, layers_of
from tfdp.layers import PublicBatchNormalization, PublicExamples

_GROUPS = 32  # Wu and He 2018, "Group Normalization"


def fix(model: keras.Model, public_data=None, *, statistics: str = "example") -> keras.Model:
    """Returns a copy of `model` without BatchNormalization layers, and logs the replacements.

    With public data, each BatchNormalization becomes a `PublicBatchNormalization`, and the whole
    network goes into one `PublicExamples` layer. Without public data, each becomes a
    GroupNormalization with at most 32 groups. The copy keeps all weights, among them the factor and
    offset of each BatchNormalization, but not its running statistics: they were averaged over data
    that no guarantee covers.

    Args:
        model: a built Sequential or functional model; nested models are repaired too. `model` itself
            is not changed.
        public_data: array [M, ...] of examples like the model's inputs (or a structure of arrays, one
            for each input), disjoint from the private data and chosen without looking at the private
            data.
        statistics: "example" or "batch"; see `PublicExamples`.

    Returns:
        An uncompiled model of the same name; `model` itself if there is nothing to repair.

    Raises:
        ValueError: the model is subclassed or not built, or a BatchNormalization is inside another
            layer, where it cannot be replaced.

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
    if not _is_graph(model):
        raise ValueError(
            "Invalid value received for argument `model`. Expected a built Sequential or functional "
            f"model. Received: {type(model).__name__} '{getattr(model, 'name', '')}'. In a subclassed "
            "model replace the layers by hand."
        )
    if not any(_is_batch_norm(layer) for layer in _all_layers(model)):
        return model
    changed: list[str] = []

    def replace(layer):
        if _is_graph(layer):
            return _clone(layer, replace)
        if not _is_batch_norm(layer):
            hidden = [inner for inner in _all_layers(layer) if _is_batch_norm(inner)]
            if hidden:
                raise ValueError(
                    f"Layer '{hidden[0].name}' ({type(hidden[0]).__name__}) is inside of layer "
                    f"'{layer.name}' ({type(layer).__name__}), where it cannot be replaced. Expected "
                    "it in a Sequential or functional model. Replace it by hand."
                )
            return type(layer).from_config(layer.get_config())
        made = _group_norm(layer) if public_data is None else _public_norm(layer)
        what = f"{made.groups} groups" if public_data is None else "public examples"
        changed.append(f"'{layer.name}': {type(made).__name__} ({what})")
        return made

    network = _clone(model, replace)
    _copy_weights(model, network)
    logging.info("tfdp.fix replaced %d layers: %s.", len(changed), "; ".join(changed))
    if public_data is None:
        return network
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name),
        _input_structure(network),
    )
    outputs = PublicExamples(network, public_data, statistics, name="public_examples")(inputs)
    return keras.Model(inputs, outputs, name=model.name)


def _is_graph(model):
    return is_graph_of_layers(model) and model.built


def _is_batch_norm(layer):
    return isinstance(layer, keras.layers.BatchNormalization)


def _all_layers(layer):
    return layers_of(layer, itself=True)


def _clone(model, replace):
    # `clone_model` accepts no call function for Sequential models, which do not need one.
    options = {} if isinstance(model, keras.Sequential) else {"call_function": _call}
    clone = keras.models.clone_model(model, clone_function=replace, **options)
    clone.name = model.name
    return clone


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


def _axis_of(layer):
    axis = layer.axis
    return axis[0] if isinstance(axis, (list, tuple)) else axis


def _group_norm(layer):
    axis = _axis_of(layer)
    features = int(layer.moving_mean.shape[0])
    groups = max(n for n in range(1, min(_GROUPS, features) + 1) if features % n == 0)
    if groups == features and len(_input_shape(layer)) == 2:
        groups = 1  # groups of one feature without positions would normalize everything to zero
    return keras.layers.GroupNormalization(
        groups, axis=axis, epsilon=layer.epsilon, **_common(layer)
    )


def _public_norm(layer):
    return PublicBatchNormalization(_axis_of(layer), layer.epsilon, **_common(layer))


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


def _copy_weights(source, target):
    for old, new in zip(source.layers, target.layers, strict=True):
        if _is_graph(old):
            _copy_weights(old, new)
        elif _is_batch_norm(old):
            for name in ("gamma", "beta"):
                if getattr(old, name) is not None:
                    getattr(new, name).assign(getattr(old, name))
        else:
            new.set_weights(old.get_weights())
