"""Refuses, by name and with the remedy, layers with which an example's gradient is not its own."""

import keras

from tfdp.layers import PublicBatchNormalization, PublicExamples


def _batch_norm(layer):
    if isinstance(layer, keras.layers.BatchNormalization):
        return (
            "normalizes each example with statistics of the whole batch, so one example changes "
            "the gradients of all others. tfdp.fix(model, public_data=examples) replaces it by "
            "PublicBatchNormalization, and tfdp.fix(model) by GroupNormalization"
        )
    return None


def _spectral_norm(layer):
    if isinstance(layer, keras.layers.SpectralNormalization):
        return (
            "assigns its power-iteration vectors during the forward pass. Apply a kernel "
            "constraint instead, or wrap nothing"
        )
    return None


def _stateful_rnn(layer):
    if getattr(layer, "stateful", False) is True:
        return "carries its state from one example to the next. Build it with stateful=False"
    return None


def _adapted_normalization(layer):
    if isinstance(layer, keras.layers.Normalization) and layer.input_mean is None:
        return (
            "takes its mean and variance from data by adapt(), which no privacy guarantee covers. "
            "Give it public constants: Normalization(mean=..., variance=...)"
        )
    return None


def _batch_axis(layer):
    axis = getattr(layer, "axis", None)
    kinds = (
        keras.layers.LayerNormalization,
        keras.layers.UnitNormalization,
        keras.layers.Softmax,
        keras.layers.RMSNormalization,
    )
    if isinstance(layer, kinds) and axis is not None:
        axes = axis if isinstance(axis, (list, tuple)) else [axis]
        if any(a == 0 for a in axes):
            return "works along axis 0, across the examples of a batch. Use a feature axis"
    return None


def _empty_public_examples(layer):
    if isinstance(layer, PublicExamples) and not layer.holds_examples:
        return "holds no public examples. Load the saved weights, which carry them"
    return None


_RULES = (
    _batch_norm,
    _spectral_norm,
    _stateful_rnn,
    _adapted_normalization,
    _batch_axis,
    _empty_public_examples,
)


def layers_of(model):
    """All layers of a model, nested ones too, each once."""
    return model._flatten_layers(include_self=False, recursive=True)


def refuse_mixing_layers(model) -> None:
    """Raises ValueError that names every layer of `model` that mixes examples, with its remedy.

    The engines do not rely on this check for safety (the exact engine sees one example at a time,
    the ghost engine only layers with a rule), but a name and a remedy beat a wrong result.
    """
    found = []
    layers = layers_of(model)
    inside = {
        id(inner)
        for layer in layers
        if isinstance(layer, PublicExamples)
        for inner in layer._flatten_layers(include_self=False)
    }
    for layer in layers:
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
    if found:
        raise ValueError(
            "This model cannot be trained with per-example privacy: " + "; ".join(found) + "."
        )
