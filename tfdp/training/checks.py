"""Refuses models and optimizers that cannot train privately. Errors name the layer and the remedy."""

import keras
import numpy as np

from tfdp._compat.keras import (
    is_frozen_by_flag,
    layers_of,
    normalizes_by_batch,
    was_given_vocabulary,
)
from tfdp.layers import PublicBatchNormalization, PublicExamples
from tfdp.optimizers import DPKerasOptimizer

_BATCH_NORM = (
    "normalizes each example with statistics of the whole batch, so one example changes the gradients "
    "of all others. "
)
_FRESH = (
    "tfdp.fix(model, public_data=examples) replaces it by PublicBatchNormalization, and "
    "tfdp.fix(model) by GroupNormalization"
)
_TRAINED = (
    "If its statistics come from public data, freeze it: layer.trainable = False for each "
    "BatchNormalization. Otherwise begin with fresh weights and tfdp.fix(model), which discards "
    "the statistics"
)
_NO_EXAMPLES = (
    "has no public examples. Put its network into tfdp.layers.PublicExamples(network, examples), as "
    "tfdp.fix(model, public_data=examples) does"
)
_STATEFUL = "carries its states from one example to the next. Make it with stateful=False"
_ADAPTED = (
    "takes its values from data by adapt() or set_vocabulary(), which no privacy guarantee covers. "
    "Make it from public constants by the arguments of its class (mean and variance, vocabulary, "
    "bin_boundaries). If the data are public, declare it: make_private(model, "
    "public_preprocessing=[{!r}])"
)


def has_trained_statistics(layer: keras.layers.BatchNormalization) -> bool:
    """Whether a BatchNormalization holds statistics of data, which it would use if it were frozen."""
    trained = layer.built and (np.any(layer.moving_mean) or np.any(layer.moving_variance != 1))
    return bool(trained) and is_frozen_by_flag(layer)


def _is_adapted(layer) -> bool:
    """Whether the values in a preprocessing layer may come from private data.

    Such values become part of the model without any noise, unless they are constants of its
    constructor. In a layer that was loaded from a file, a vocabulary from a text file counts as
    adapted.
    """
    if isinstance(layer, keras.utils.FeatureSpace):
        return any(map(_is_adapted, layer.preprocessors.values()))
    if isinstance(layer, keras.layers.Normalization):
        # A layer that was not adapted has mean 0 and variance 1.
        unused = layer.built and not np.any(layer.mean) and np.all(layer.variance == 1)
        return layer.input_mean is None and not unused
    if isinstance(layer, keras.layers.Discretization):
        return layer.num_bins is not None
    return hasattr(layer, "adapt") and not was_given_vocabulary(layer)


def _adapted_layers(model, layers, public) -> list:
    """Returns the adapted layers that `public` does not declare; see `refuse_mixing_layers`."""
    if public is True:
        return []
    declared = []
    for item in public:
        meant = [layer for layer in layers if layer is item or layer.name == item]
        if not meant and model.built:
            raise ValueError(
                "Invalid value received for argument `public_preprocessing`. Expected True, or layers "
                f"of model '{model.name}' or their names. Received: {item!r}"
            )
        declared += meant
    can_be_adapted = [layer for layer in layers if hasattr(layer, "adapt")]
    # The verdict on a layer that can be adapted, or is declared public, covers the layers inside it.
    inner = [each for layer in [*declared, *can_be_adapted] for each in layers_of(layer)]
    covered = {id(layer) for layer in [*declared, *inner]}
    return [layer for layer in can_be_adapted if id(layer) not in covered and _is_adapted(layer)]


def refuse_mixing_layers(model, public=()) -> None:
    """Refuses layers that mix examples, and preprocessing layers that were adapted to private data.

    A BatchNormalization with `trainable=False` is allowed: its moving statistics are constants, which,
    like all weights at the start, must not depend on the private data. Other layers that mix examples,
    or store their inputs, are found when the first step is traced (`gradients.mixed_rows`,
    `gradients.first_pass`). Adapted layers are checked only here.

    Args:
        model: A Keras model.
        public: The preprocessing layers, or their names, that were adapted to public data. True means
            all.

    Raises:
        ValueError: If there is such a layer. The message names it and the remedy.
    """
    layers = layers_of(model)
    with_examples = [layers_of(layer) for layer in layers if isinstance(layer, PublicExamples)]
    inside = {id(inner) for found in with_examples for inner in found}
    found = []
    for layer in [model, *layers]:
        if normalizes_by_batch(layer):
            why = _BATCH_NORM + (_TRAINED if has_trained_statistics(layer) else _FRESH)
        elif isinstance(layer, PublicBatchNormalization) and id(layer) not in inside:
            why = _NO_EXAMPLES
        elif getattr(layer, "stateful", False):
            why = _STATEFUL
        else:
            continue
        found.append((layer, why))
    found += [(each, _ADAPTED.format(each.name)) for each in _adapted_layers(model, layers, public)]
    if found:
        reasons: dict[str, list] = {}
        for layer, why in found:
            reasons.setdefault(why, []).append(layer)
        named = [f"{_several(layers)} {why}" for why, layers in reasons.items()]
        raise ValueError(
            "This model cannot be trained with per-example privacy: " + "; ".join(named) + "."
        )


def _several(layers) -> str:
    """Names the first of several layers with the same problem in full, and the others briefly."""
    first, *others = layers
    names = [f"'{layer.name}'" for layer in others[:2]]
    names += [f"{len(others) - 2} more"] if len(others) > 2 else []
    likewise = f", likewise {', '.join(names)}," if names else ""
    return f"layer '{first.name}' ({type(first).__name__}){likewise}"


# Methods that private training replaces. A custom one would be ignored, or would train without clipping
# and noise.
_REPLACED = ("train_step", "make_train_function")


def refuse_own_train_step(model, private_base) -> None:
    """Raises ValueError for a model with a custom `train_step` or `make_train_function`.

    Args:
        model: A Keras model.
        private_base: The class that has the private training step.
    """
    for name in _REPLACED:
        where = f"Model '{model.name}'" if name in vars(model) else None
        for base in type(model).__mro__:
            if name in vars(base) and not (base is private_base or issubclass(keras.Model, base)):
                where = where or f"{base.__module__}.{base.__qualname__}"
        if where is not None:
            raise ValueError(
                f"{where} has a custom {name}, which private training does not run, because nothing "
                "bounds the influence of an example there. Override compute_loss instead, whose "
                "gradient is clipped for each example, or compute_metrics, or train without tfdp."
            )


def check_optimizer(model, optimizer) -> None:
    """Raises ValueError for an optimizer, or a dtype policy, that cannot train privately."""
    policy = getattr(model, "dtype_policy", None)
    if policy is not None and policy.compute_dtype == "float16":
        raise ValueError(
            "The float16 policy cannot train privately: it needs loss scaling, which scales gradients "
            "before they are clipped. Use float32 or mixed_bfloat16."
        )
    if optimizer is None:
        raise ValueError(
            f"Private model '{model.name}' is not compiled. Call model.compile with a private "
            "optimizer, such as tfdp.DPKerasSGDOptimizer, and a loss."
        )
    if not isinstance(optimizer, DPKerasOptimizer):
        kind = type(optimizer).__name__
        private = f"tfdp.make_dp_optimizer_class({kind})"
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            private = "one without loss scaling"
        elif hasattr(keras.optimizers, kind):
            private = f"tfdp.DPKeras{kind}Optimizer"
        raise ValueError(
            f"Private model '{model.name}' needs a private optimizer: {private} in place of {kind}, or "
            "the optimizer of make_private_with_epsilon. Train without privacy with a plain model."
        )
