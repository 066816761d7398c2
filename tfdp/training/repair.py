"""Replaces batch normalization, which mixes examples, so that a model can be trained privately."""

import keras

from tfdp._compat.keras import (
    input_structure,
    is_graph_of_layers,
    layers_of,
    normalizes_by_batch,
)
from tfdp._validate import one_of, whole
from tfdp.account import account_of, copy_ledgers
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.training.export import exchanged_copy
from tfdp.training.model_privacy import enter_unknown_steps

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
    """Returns a copy of `model` without BatchNormalization layers.

    With public data, each BatchNormalization becomes a `PublicBatchNormalization`, and the whole
    network goes into one `PublicExamples` layer. Without public data, each becomes a
    GroupNormalization. The copy keeps all weights, among them the factor and offset of each
    BatchNormalization, but not its running statistics: they were averaged over data that no guarantee
    covers. It keeps names, dtypes and the `trainable` flags, too.

    A frozen BatchNormalization (`trainable=False`) stays as it is. Its statistics are constants of
    the model, which must not depend on the private data.

    Args:
        model: a built Sequential or functional model. Nested models are repaired too, and layers whose
            configuration holds other layers, such as `TimeDistributed`. `model` itself is not changed.
        public_data: array [M, ...] of examples like the model's inputs (or a structure of arrays, one
            for each input), disjoint from the private data and chosen without looking at the private
            data.
        statistics: "example" or "batch"; see `PublicExamples`.
        num_groups: the most groups of a GroupNormalization; None takes 32. Each layer gets the largest
            number of groups up to this that divides its channels.
        normalization: "group"; or "instance", with one group for each channel. A layer whose inputs
            have no positions [rows, channels] gets a single group, where one for each channel would
            make everything zero.

    Returns:
        An uncompiled model of the same name; `model` itself if there is nothing to repair.

    Raises:
        ValueError: an argument is invalid or has no effect; or the model is not built or is
            subclassed, or a layer makes a BatchNormalization in its class.

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
    if not (is_graph_of_layers(model) and model.built):
        raise ValueError(
            "Invalid value received for argument `model`. Expected a built Sequential or functional "
            f"model. Received: {type(model).__name__} '{getattr(model, 'name', '')}'. Give it an Input "
            "layer or call it once on data; in a subclassed model, replace BatchNormalization by hand."
        )
    if not any(map(normalizes_by_batch, layers_of(model, itself=True))):
        return model
    if public_data is None:
        groups = (num_groups or _GROUPS) if normalization == "group" else None
        fixed = exchanged_copy(model, normalizes_by_batch, lambda layer: _group_norm(layer, groups))
        _copy_spent(model, fixed)
        return fixed
    network = exchanged_copy(model, normalizes_by_batch, _public_norm)
    _copy_spent(model, network)
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name),
        _input_structure(network),
    )
    outputs = PublicExamples(network, public_data, statistics, name="public_examples")(inputs)
    return keras.Model(inputs, outputs, name=model.name)


def _copy_spent(model, copy):
    """Gives the copy the ledgers of the model, and the plain training that its optimizer counted."""
    copy_ledgers(model, copy)
    enter_unknown_steps(model, account_of(copy))


def _input_structure(network):
    structure = input_structure(network)
    if isinstance(structure, (list, tuple)) and len(structure) == 1:
        (structure,) = structure
    return structure


def _axis_of(layer):
    axis = layer.axis
    return axis[0] if isinstance(axis, (list, tuple)) else axis


def _group_norm(layer, most: int | None):
    """A GroupNormalization with at most so many groups; None takes one group for each channel."""
    features = int(layer.moving_mean.shape[0])
    groups = max(n for n in range(1, min(most or features, features) + 1) if features % n == 0)
    if groups == features and len(_input_shape(layer)) == 2:
        groups = 1  # groups of one feature without positions would normalize everything to zero
    made = keras.layers.GroupNormalization(
        groups,
        axis=_axis_of(layer),
        epsilon=layer.epsilon,
        **{f"{of}_{what}": getattr(layer, f"{of}_{what}") for of in _AFFINE for what in _PARTS},
        **_common(layer),
    )
    return _with_weights(made, layer)


# Arguments that both layers have for their factor and offset.
_AFFINE, _PARTS = ("gamma", "beta"), ("initializer", "regularizer", "constraint")


def _public_norm(layer):
    made = PublicBatchNormalization(_axis_of(layer), layer.epsilon, **_common(layer))
    return _with_weights(made, layer)


def _with_weights(made, layer):
    """Builds a replacement and gives it the factor and offset of the old layer."""
    made.build(_input_shape(layer))
    for name in _AFFINE:
        if getattr(layer, name) is not None:
            getattr(made, name).assign(getattr(layer, name))
    return made


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
