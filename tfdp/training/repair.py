"""Replaces batch normalization, which mixes examples, so that a model can be trained privately."""

import inspect
import tempfile
from collections.abc import Callable

import keras
from absl import logging

from tfdp._compat.keras import (
    children,
    exchange_child,
    input_structure,
    is_graph_of_layers,
    layers_of,
    normalizes_by_batch,
)
from tfdp._validate import one_of, whole
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.training.checks import FIXED_INSIDE
from tfdp.training.export import values_into

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

    The copy of a subclassed model, or of a layer that holds other layers, is a changed object of the
    same class. A file or a pickle would make the class anew, with BatchNormalization: save the weights
    (`save_weights`) and load them into `fix` of a new model, or write the class without it.

    A frozen BatchNormalization (`trainable=False`) stays as it is. Its statistics are constants of
    the model, which must not depend on the private data.

    Args:
        model: a built model. Nested models, and layers that hold other layers as attributes or in
            lists, tuples, dicts and sets, are repaired too. `model` itself is not changed.
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
        ValueError: an argument is invalid or has no effect; or the model is not built, or is
            subclassed and cannot be made again from its configuration.

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
    _refuse_unknown(model, public_data)
    if not _mixing(model):
        return model
    if public_data is None:
        groups = (num_groups or _GROUPS) if normalization == "group" else None
        repair = _Repair(lambda layer: _group_norm(layer, groups))
    else:
        repair = _Repair(_public_norm)
    network = repair.repaired(model if is_graph_of_layers(model) else _copy(model))
    made = [f"'{name}': {_described(layer)}" for name, layer in repair.made]
    logging.info("tfdp.fix replaced %d layers: %s.", len(made), "; ".join(made))
    if public_data is None:
        return network
    inputs = keras.tree.map_structure(
        lambda tensor: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name),
        _input_structure(network),
    )
    outputs = PublicExamples(network, public_data, statistics, name="public_examples")(inputs)
    return keras.Model(inputs, outputs, name=model.name)


def _refuse_unknown(model, public_data):
    built = isinstance(model, keras.Model) and model.built
    if not built or (public_data is not None and not is_graph_of_layers(model)):
        what = "model" if public_data is None else "Sequential or functional model with public_data"
        raise ValueError(
            f"Invalid value received for argument `model`. Expected a built {what}. Received: "
            f"{type(model).__name__} '{getattr(model, 'name', '')}'. Give it an Input layer or call it "
            "once on data; in a subclassed model with public_data replace the layers by hand."
        )


def _mixing(layer):
    return [inner for inner in layers_of(layer, itself=True) if normalizes_by_batch(inner)]


def _copy(model):
    """A copy of a subclassed model, made from its configuration."""
    try:
        made = type(model).from_config(_arguments(model))
        _copy_names(model, made)
        made.build_from_config(model.get_build_config() or {})
        _copy_state(model, made)
        made.built = True  # all weights are there
    except (NotImplementedError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"Model '{model.name}' ({type(model).__name__}) cannot be copied: {error} Expected a "
            "subclassed model that its get_config and from_config make again, with the same weights. "
            "Define them, or replace its BatchNormalization layers by hand."
        ) from error
    _copy_flags(model, made)
    return made


def _arguments(model):
    """The configuration of a model, without what its constructor does not take."""
    config = model.get_config()
    parameters = inspect.signature(type(model).__init__).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return config
    return {name: value for name, value in config.items() if name in parameters}


def _copy_names(old, new):
    pairs = layers_of(old, itself=True), layers_of(new, itself=True)
    if len(pairs[0]) == len(pairs[1]):  # else `build` makes some of the layers
        for a, b in zip(*pairs, strict=True):
            b.name = a.name


def _copy_state(old, new):
    values_into(new, old)
    for a, b in zip(layers_of(old, itself=True), layers_of(new, itself=True), strict=True):
        # What a preprocessing layer was adapted to may be a table.
        if callable(getattr(a, "adapt", None)) and hasattr(a, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                a.save_assets(folder)
                b.load_assets(folder)


def _copy_flags(old, new):
    # Setting the flag of a layer sets those of all layers inside, so outer layers come first.
    for a, b in zip(layers_of(old, itself=True), layers_of(new, itself=True), strict=True):
        b.trainable = a.trainable


class _Repair:
    """One repair of a model.

    Args:
        make: makes the replacement for a BatchNormalization, not built.

    Attributes:
        made: (name, replacement) for each BatchNormalization.
    """

    def __init__(self, make: Callable):
        self._make = make
        # (new layer, old layer) by the id of the old layer, so that a shared layer stays shared. The
        # old layer is there to keep its id in use.
        self._done: dict = {}
        self.made: list[tuple] = []

    def repaired(self, layer):
        """The layer to use in place of `layer`: a graph is copied, another layer changed in place."""
        if normalizes_by_batch(layer):
            return self._once(layer, self._replacement)
        if not _mixing(layer):
            return layer
        if is_graph_of_layers(layer):
            return self._once(layer, self._graph)
        return self._once(layer, self._attributes)

    def _once(self, old, make):
        if id(old) not in self._done:
            self._done[id(old)] = (make(old), old)
        return self._done[id(old)][0]

    def _replacement(self, layer):
        made = self._make(layer)
        made.build(_input_shape(layer))
        for name in ("gamma", "beta"):
            if getattr(layer, name) is not None:
                getattr(made, name).assign(getattr(layer, name))
        self.made.append((layer.name, made))
        return made

    def _graph(self, model):
        clone = self._clone(model)
        self._take_over(model)
        for layer in layers_of(clone):
            if not is_graph_of_layers(layer):
                self.repaired(layer)
        return clone

    def _clone(self, model):
        # `clone_model` accepts no call function for Sequential models, which do not need one.
        options = {} if isinstance(model, keras.Sequential) else {"call_function": _call}
        clone = keras.models.clone_model(model, clone_function=self._operation, **options)
        clone.name = model.name
        self._done[id(model)] = (clone, model)
        return clone

    def _operation(self, operation):
        """What stands in the copy of a graph for a layer, or a function such as `keras.ops.add`."""
        if normalizes_by_batch(operation):
            return self.repaired(operation)
        if is_graph_of_layers(operation):
            return self._once(operation, self._clone)
        return self._once(operation, lambda old: type(old).from_config(old.get_config()))

    def _take_over(self, model):
        """Copies weights and `trainable` flags of a graph that was cloned, outer layers first."""
        self._done[id(model)][0].trainable = model.trainable
        for old in model.layers:
            new, _ = self._done.get(id(old), (None, None))
            if is_graph_of_layers(old):
                self._take_over(old)
            elif normalizes_by_batch(old):
                new.trainable = old.trainable
            elif new is not None:  # Keras makes the inputs itself
                _copy_state(old, new)
                _copy_flags(old, new)

    def _attributes(self, layer):
        """Replaces what the attributes of a layer hold; the layer is one that may be changed."""
        for old in list(children(layer)):
            new = self.repaired(old)
            if new is not old:
                exchange_child(layer, old, new)
        for name, value in list(vars(layer).items()):
            new = self._exchanged(value)
            if new is not value:
                setattr(layer, name, new)
        vars(layer)[FIXED_INSIDE] = True
        return layer

    def _exchanged(self, value):
        """`value` with new layers for old ones; lists, dicts and sets are changed in place."""
        if isinstance(value, keras.Layer):
            return self._done.get(id(value), (value,))[0]
        if isinstance(value, (list, dict)):
            for key, old in list(enumerate(value) if isinstance(value, list) else value.items()):
                new = self._exchanged(old)
                if new is not old:
                    value[key] = new
        elif isinstance(value, set):
            for old in list(value):
                value.remove(old)
                value.add(self._exchanged(old))
        elif isinstance(value, tuple):
            new = [self._exchanged(old) for old in value]
            if any(a is not b for a, b in zip(new, value, strict=True)):
                return type(value)(*new) if hasattr(value, "_fields") else tuple(new)
        return value


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


def _group_norm(layer, most: int | None):
    """A GroupNormalization with at most so many groups; None takes one group for each channel."""
    features = int(layer.moving_mean.shape[0])
    groups = max(n for n in range(1, min(most or features, features) + 1) if features % n == 0)
    if groups == features and len(_input_shape(layer)) == 2:
        groups = 1  # groups of one feature without positions would normalize everything to zero
    return keras.layers.GroupNormalization(
        groups,
        axis=_axis_of(layer),
        epsilon=layer.epsilon,
        **{f"{of}_{what}": getattr(layer, f"{of}_{what}") for of in _AFFINE for what in _PARTS},
        **_common(layer),
    )


# Arguments that both layers have for their factor and offset.
_AFFINE, _PARTS = ("gamma", "beta"), ("initializer", "regularizer", "constraint")


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


def _described(layer):
    public = isinstance(layer, PublicBatchNormalization)
    what = "public examples" if public else f"{layer.groups} groups"
    return f"{type(layer).__name__} ({what})"


def _input_shape(layer):
    return layer.get_build_config()["input_shape"]
