"""Refuses models that break per-example privacy, and other optimizers; names layer and remedy."""

from collections.abc import Iterable

import keras
import numpy as np

from tfdp._compat.keras import (
    input_structure,
    is_graph_of_layers,
    layers_of,
    normalizes_by_batch,
    uses_of,
    was_given_vocabulary,
)
from tfdp.data import check_labels
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.optimizers import DPKerasOptimizer

# The name of a mark: layers in this layer's attributes were exchanged, and its class does not know.
FIXED_INSIDE = "_tfdp_fixed_inside"


def _batch_norm(layer):
    if normalizes_by_batch(layer):
        return (
            "normalizes each example with statistics of the whole batch, so one example changes "
            "the gradients of all others. tfdp.fix(model, public_data=examples) replaces it by "
            "PublicBatchNormalization, and tfdp.fix(model) by GroupNormalization; a layer with "
            "public statistics is frozen by layer.trainable = False"
        )
    return None

    return None


def _changes_nothing(normalization) -> bool:
    """Whether a built Normalization has mean 0 and variance 1, as it is made: it was not adapted."""
    if not normalization.built:
        return False
    zeros = (normalization.mean, normalization.adapt_mean)
    ones = (normalization.variance, normalization.adapt_variance)
    held = [[keras.ops.convert_to_numpy(v) for v in each] for each in (zeros, ones)]
    return not any(map(np.any, held[0])) and all(np.all(each == 1) for each in held[1])


# The data that a preprocessing layer is adapted to become part of the model, without any noise. For
# each class: a test whether a layer got its values as constants from its constructor, and an example
# of such a constructor. The test also works for a layer that was loaded from a file (a vocabulary that
# came from a text file then counts as adapted).
_CONSTANTS = {
    keras.layers.Normalization: (
        lambda layer: layer.input_mean is not None or _changes_nothing(layer),
        "Normalization(mean=..., variance=...)",
    ),
    keras.layers.Discretization: (
        lambda layer: layer.num_bins is None,
        "Discretization(bin_boundaries=...)",
    ),
    keras.layers.IntegerLookup: (
        was_given_vocabulary,
        "IntegerLookup(vocabulary=...)",
    ),
    keras.layers.StringLookup: (
        was_given_vocabulary,
        "StringLookup(vocabulary=...)",
    ),
    keras.layers.TextVectorization: (
        was_given_vocabulary,
        "TextVectorization(vocabulary=...)",
    ),
}


def _adapted(layer):
    """Why the values that a layer holds may come from private data; None if they are constants."""
    if not callable(getattr(layer, "adapt", None)):
        return None
    kinds = [kind for kind in _CONSTANTS if isinstance(layer, kind)]
    remedy = "Make it from public constants instead"
    if kinds:
        has_constants, example = _CONSTANTS[kinds[0]]
        if has_constants(layer):
            return None
        remedy = f"Give it public constants: {example}"
    elif isinstance(layer, keras.utils.FeatureSpace):
        inner = layer.preprocessors.values()
        if all(_adapted(preprocessor) is None for preprocessor in inner):
            return None
    return (
        "takes what it holds from data by adapt() or set_vocabulary(), which no privacy guarantee "
        f"covers. {remedy}. Where that data is public, say so: make_private(model, "
        f"public_preprocessing=[{layer.name!r}])"
    )


def _adapted_layers(model, public):
    """[(layer, reason)] for the adapted layers that are not declared public."""
    layers = layers_of(model)
    public = _declared(model, layers, public)
    found = {layer: _adapted(layer) for layer in layers if id(layer) not in public}
    judges = [layer for layer in layers if id(layer) in public or hasattr(layer, "adapt")]
    # The verdict on a layer that can be adapted, or is declared public, covers the layers inside it.
    inside = {id(inner) for layer in judges for inner in layers_of(layer)}
    return [(layer, why) for layer, why in found.items() if why and id(layer) not in inside]


def _declared(model, layers, public):
    """The Python ids of the layers that `public` names."""
    if public is True:
        return {id(layer) for layer in layers}
    if isinstance(public, (str, keras.Layer)) or not isinstance(public, Iterable):
        raise ValueError(
            "Invalid value received for argument `public`. Expected True or a collection of layers "
            f"or of their names, such as ['lookup']. Received: {public!r}"
        )
    found = set()
    for item in public:
        meant = {id(layer) for layer in layers if layer is item or layer.name == item}
        if not meant and model.built:
            raise ValueError(
                f"Invalid value received for argument `public`. Expected layers of model "
                f"'{model.name}', or their names. Received: {item!r}"
            )
        found |= meant
    return found


def _overwritten(layer):
    inside = {id(v) for inner in layers_of(layer) for v in inner.variables}
    for variable in layer.trainable_variables:
        if id(variable) not in inside and getattr(variable, "overwrite_with_gradient", False):
            return (
                f"takes the gradient of its variable '{variable.path}' as the variable's new value "
                "(overwrite_with_gradient, as float8 layers keep their scales), and a gradient that "
                "is clipped and noised is no such value. Give the layer dtype='float32' or "
                "'mixed_bfloat16', or freeze it"
            )
    return None


_RULES = (_overwritten, _batch_norm)


def refuse_mixing_layers(model, public=()) -> None:
    """Refuses layers that mix examples, and preprocessing layers that were adapted to private data.

    The error names the first three such layers with their remedies, and the number of the others. A
    BatchNormalization with `trainable=False` is allowed: its moving statistics are constants, which
    like all weights at the start must not depend on the private data.

    Other layers that mix examples, or keep what they see, are found when the first step is traced
    (`gradients.mixed_rows`, `gradients.first_pass`). Adapted layers are checked only here.

    Args:
        model: a Keras model.
        public: True, or a collection of layers or of their names: preprocessing layers that the
            caller declares to be adapted to public data only.

    Raises:
        ValueError: the model has such a layer, or `public` names no layer of it.
    """
    found = []
    layers = layers_of(model)
    inside = {
        id(inner)
        for layer in layers
        if isinstance(layer, PublicExamples)
        for inner in layers_of(layer)
    }
    for layer in [model, *layers]:
        if isinstance(layer, PublicBatchNormalization) and id(layer) not in inside:
            found.append(
                f"layer '{layer.name}' (PublicBatchNormalization) has no public examples. Put its "
                "network into tfdp.layers.PublicExamples(network, examples), as "
                "tfdp.fix(model, public_data=examples) does"
            )
        for rule in _RULES:
            why = rule(layer)
            if why:
                found.append(f"layer '{layer.name}' ({type(layer).__name__}) {why}")
    for layer, why in _adapted_layers(model, public):
        found.append(f"layer '{layer.name}' ({type(layer).__name__}) {why}")
    if found:
        raise ValueError(
            "This model cannot be trained with per-example privacy: " + _some(found) + "."
        )


def _some(found: list[str]) -> str:
    """The first three of what was found, and how many more there are."""
    shown = "; ".join(found[:3])
    return shown if len(found) <= 3 else f"{shown}; and {len(found) - 3} more layers"


# Methods of a model that private training replaces: one of the user's would be ignored, or would
# train without bound and noise.
_REPLACED = ("train_step", "make_train_function")


def refuse_unsavable(model) -> None:
    """Raises ValueError if a file of the whole model could not be loaded, because of `tfdp.fix`."""
    for layer in layers_of(model, itself=True):
        if vars(layer).get(FIXED_INSIDE):
            raise ValueError(
                f"'{layer.name}' ({type(layer).__name__}) got other layers for its BatchNormalization "
                "from tfdp.fix. A file of the whole model only names the class, which makes "
                "BatchNormalization anew, so that it could not be loaded. Expected save_weights (in "
                "ModelCheckpoint, save_weights_only=True), and load_weights into tfdp.fix of a new "
                "model; or another normalization in the class."
            )


def refuse_own_train_step(model, private_base) -> None:
    """Refuses a model with its own `train_step` or `make_train_function`, which would be ignored.

    Args:
        model: a model, or its class.
        private_base: the class, or a tuple of classes, whose training step is the private one.

    Raises:
        ValueError: the model, or one of its classes, overrides one of these methods.
    """
    cls = model if isinstance(model, type) else type(model)
    known = private_base if isinstance(private_base, tuple) else (private_base,)
    for name in _REPLACED:
        where = None if model is cls or name not in vars(model) else f"Model '{model.name}'"
        for base in cls.__mro__:
            if name in vars(base) and not (base in known or issubclass(keras.Model, base)):
                where = where or f"{base.__module__}.{base.__qualname__}"
        if where is not None:
            raise ValueError(
                f"{where} has a {name} of its own, which private training does not run: nothing "
                f"bounds what it does with an example. Expected the {name} of keras.Model. Override "
                "compute_loss, whose loss is bounded for each example, or compute_metrics, or train "
                "without tfdp."
            )


def check_optimizer(model, optimizer) -> None:
    """Raises ValueError for an optimizer, or a dtype policy, that cannot train privately."""
    policy = getattr(model, "dtype_policy", None)
    if policy is not None and policy.compute_dtype == "float16":
        raise ValueError(
            "The float16 policy needs loss scaling, which scales gradients before they are clipped. "
            "Expected float32 or mixed_bfloat16."
        )
    if not isinstance(optimizer, DPKerasOptimizer):
        raise ValueError(
            f"Private model '{model.name}' needs a private optimizer, such as "
            "tfdp.DPKerasSGDOptimizer or tfdp.make_dp_optimizer_class(keras.optimizers.AdamW). "
            f"Received: {type(optimizer).__name__}. For training without privacy, use the plain "
            "Keras model."
        )


def check_targets(model, y) -> None:
    """Raises ValueError if targets are missing, or integer labels are no indices of the outputs.

    Args:
        model: a compiled Keras model.
        y: labels; only one array with a sparse categorical loss is checked. None if there are none.
    """
    loss = model.loss
    own = type(model).compute_loss is not keras.Model.compute_loss or "compute_loss" in vars(model)
    if y is None and loss is not None and not own:
        raise ValueError(
            "The model was compiled with a loss, which compares outputs with targets. Expected y, or "
            "a model without a compiled loss whose layers call add_loss. Received y=None."
        )
    sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or (
        loss == "sparse_categorical_crossentropy"
    )
    if not sparse or not model.built or not hasattr(model, "outputs") or y is None:
        return
    classes = model.outputs[0].shape[-1] if len(model.outputs) == 1 else None
    if classes is None or isinstance(y, (dict, list, tuple)):
        return
    check_labels(y, classes)


def check_tokens(model, x) -> None:
    """Raises ValueError if arrays of tokens hold one that an embedding has no vector for.

    Only inputs of Sequential and functional models that go straight to an `Embedding` are checked.
    A step would take another token in its place.

    Args:
        model: a Keras model.
        x: inputs, a structure of arrays.
    """
    if not is_graph_of_layers(model) or not model.built:
        return
    pairs = zip(keras.tree.flatten(input_structure(model)), keras.tree.flatten(x), strict=False)
    known = {id(entry): array for entry, array in pairs if np.size(array)}
    for layer in layers_of(model):
        if isinstance(layer, keras.layers.Embedding):
            fed = [known.get(id(tokens[0])) for tokens, _ in uses_of(layer) if tokens]
            for array in fed:
                if array is not None and not 0 <= np.min(array) <= np.max(array) < layer.input_dim:
                    raise ValueError(
                        f"Embedding '{layer.name}' has vectors for the tokens 0 to "
                        f"{layer.input_dim - 1}. Received tokens from {np.min(array)} to "
                        f"{np.max(array)}."
                    )
