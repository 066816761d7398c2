"""Decides by inspection whether a model is known to map each row of a batch by itself.

Such a model can run forward on the whole batch at once. Any other model runs row by row under
`tf.vectorized_map`, which costs a little more, and cannot mix rows whatever its code does.
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tfdp._compat.keras import (
    Functional,
    attention_axes,
    children,
    is_keras_function,
    normalizes_by_batch,
    uses_of,
)
from tfdp.gradients.rules import rule_for
from tfdp.layers import PrivateBatchNormalization, PublicBatchNormalization, PublicExamples
from tfdp.layers.gate import CanaryGate

_PLAIN = {
    CanaryGate,
    layers.Add,
    layers.Average,
    layers.ELU,
    layers.Flatten,
    layers.GaussianDropout,
    layers.GaussianNoise,
    layers.Identity,
    layers.InputLayer,
    layers.LeakyReLU,
    layers.Masking,
    layers.Maximum,
    layers.Minimum,
    layers.Multiply,
    layers.Normalization,
    layers.Permute,
    layers.ReLU,
    layers.RepeatVector,
    layers.Reshape,
    layers.Subtract,
}
_PLAIN |= {
    getattr(layers, f"{kind}{rank}D")
    for kind in (
        "AveragePooling",
        "Cropping",
        "GlobalAveragePooling",
        "GlobalMaxPooling",
        "MaxPooling",
        "SpatialDropout",
        "UpSampling",
        "ZeroPadding",
    )
    for rank in (1, 2, 3)
}


# Functions of `keras.ops` that work on each entry by itself. Between tensors of equal rank they
# never mix rows; a lower rank would be broadcast along the batch.
_ELEMENTWISE = {
    "Absolute",
    "Add",
    "Divide",
    "Equal",
    "Exp",
    "Gelu",
    "Log",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Multiply",
    "Negative",
    "NotEqual",
    "OnesLike",
    "Relu",
    "Sigmoid",
    "Silu",
    "Sqrt",
    "Square",
    "Subtract",
    "Tanh",
    "TrueDivide",
    "ZerosLike",
}
# Functions of `keras.ops` that work along the axes that they are given.
_ALONG_AXES = {
    "All",
    "Any",
    "Cumprod",
    "Cumsum",
    "ExpandDims",
    "LogSoftmax",
    "Logsumexp",
    "Max",
    "Mean",
    "Min",
    "OneHot",
    "Prod",
    "Softmax",
    "Squeeze",
    "Std",
    "Sum",
    "Var",
}


def _tuple(axis):
    return tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)


def _arguments(operation):
    """Yields (tensors, other arguments) for each use of `operation` in its model."""
    for used_with in uses_of(operation):
        leaves = keras.tree.flatten(used_with)
        tensors = [leaf for leaf in leaves if isinstance(leaf, keras.KerasTensor)]
        yield tensors, [leaf for leaf in leaves if not isinstance(leaf, keras.KerasTensor)]


def _elementwise(operation):
    if not is_keras_function(operation, _ELEMENTWISE):
        return False
    for tensors, others in _arguments(operation):
        if len({tensor.ndim for tensor in tensors}) != 1 or tensors[0].ndim == 0:
            return False
        if not all(other is None or isinstance(other, (bool, int, float)) for other in others):
            return False
    return True


def _along_later_axes(operation):
    """Whether `operation` works along given axes, none of which is the first."""
    if not is_keras_function(operation, _ALONG_AXES) or operation.axis is None:
        return False
    axes = _tuple(operation.axis)
    added = len(axes) if type(operation).__name__ in ("ExpandDims", "OneHot") else 0
    return all(
        len(tensors) == 1 and all(axis % (tensors[0].ndim + added) for axis in axes)
        for tensors, _ in _arguments(operation)
    )


def _takes_from_each_row(operation):
    """Whether `operation` is `x[:, ...]`, with numbers, slices and new axes after the first colon."""
    if not is_keras_function(operation, {"GetItem"}):
        return False
    for args, kwargs in uses_of(operation):
        arguments = [*args, *kwargs.values()]
        if len(arguments) != 2 or not isinstance(arguments[1], tuple):
            return False
        first, *rest = arguments[1]
        if not isinstance(first, slice) or first != slice(None):
            return False
        if not all(k is None or k is Ellipsis or isinstance(k, (int, slice)) for k in rest):
            return False
    return True


_FUNCTIONS = (_elementwise, _along_later_axes, _takes_from_each_row)


def _by_constants(layer):
    """Whether a frozen BatchNormalization scales every row by its moving statistics, as constants."""
    return not normalizes_by_batch(layer) and layer.axis % layer.input_spec.ndim > 0


def _rescales(layer):
    """Whether a Rescaling has numbers, or a number for each feature, which no batch is broadcast to."""
    factors = np.ndim(layer.scale), np.ndim(layer.offset)
    used_on = [tensor.ndim for tensors, _ in _arguments(layer) for tensor in tensors]
    if max(factors) == 0:
        return True
    # With channels first, Keras puts the factors along the first axis of a tensor [rows, features].
    last = keras.config.image_data_format() == "channels_last"
    return last and max(factors) == 1 and min(used_on, default=0) > 1


def _own_mask(layer):
    """Whether a dropout layer draws a mask of its own for each row."""
    shape = getattr(layer, "noise_shape", None)
    return shape is None or shape[0] is None


def _ranks(layer):
    """The ranks of the tensors that a layer is used on in a functional model; empty if unknown."""
    return [tensor.ndim for tensors, _ in _arguments(layer) for tensor in tensors]


def _on_rank(*allowed):
    """Returns a condition: all tensors have such a rank. With others, rows could be taken for axes."""
    return lambda layer: bool(_ranks(layer)) and all(rank in allowed for rank in _ranks(layer))


def _along_axes_of_rows(axes):
    """Returns a condition: the axes that `axes` returns for a layer are not the first one."""

    def condition(layer):
        ranks = _ranks(layer)
        return bool(ranks) and all(axis % rank for axis in axes(layer) for rank in ranks)

    return condition


def _attends_within_rows(layer):
    """Whether a MultiHeadAttention attends along axes of a row, with a mask for each row if any.

    Keras takes the first axis of a mask with fewer axes for that of the queries.
    """
    ranks = _ranks(layer)
    if not ranks or any(axis <= 0 for axis in attention_axes(layer)):
        return False
    return {*ranks} == {3} or (len({*ranks}) == 1 and len(ranks) <= 2 * len(uses_of(layer)))


def _distributes_a_known_layer(layer):
    """Whether the layer inside a TimeDistributed keeps rows apart on tensors with one axis less.

    Its uses elsewhere have other ranks, so no condition on ranks can be trusted.
    """
    inner, ranks = layer.layer, _ranks(layer)
    if not ranks or min(ranks) < 3:
        return False
    if type(inner) in _NORMALIZATIONS:
        return all(axis % (rank - 1) for axis in _tuple(inner.axis) for rank in ranks)
    return type(inner) not in _CONDITIONAL or type(inner) in (layers.Activation, layers.Dropout)


def _encodes_each_row(layer):
    """Whether a CategoryEncoding encodes the categories of each row by themselves."""
    return layer.output_mode in ("one_hot", "multi_hot") and _on_rank(2)(layer)


def _numbers_each_entry(layer):
    """Whether a Discretization or Hashing returns one number for each entry."""
    return layer.output_mode == "int" and not layer.sparse


# Layers that work on rows one by one in some configurations.
_CONDITIONAL = {
    layers.Activation: lambda layer: True,  # `rows_are_separate` checks its function
    layers.AlphaDropout: _own_mask,
    layers.BatchNormalization: _by_constants,
    layers.AdditiveAttention: _on_rank(3),
    layers.Attention: _on_rank(3),
    layers.CategoryEncoding: _encodes_each_row,
    layers.CenterCrop: _on_rank(4),
    layers.Concatenate: lambda layer: layer.axis == -1 or layer.axis > 0,
    layers.Discretization: _numbers_each_entry,
    layers.Dot: _along_axes_of_rows(lambda layer: _tuple(layer.axes)),
    layers.Dropout: _own_mask,
    layers.Hashing: _numbers_each_entry,
    layers.Rescaling: _rescales,
    layers.Resizing: _on_rank(4),
    layers.Softmax: lambda layer: all(a == -1 or a > 0 for a in _tuple(layer.axis)),
    layers.UnitNormalization: _along_axes_of_rows(lambda layer: _tuple(layer.axis)),
}
# Layers with a rule that holds for all axes but the first.
_NORMALIZATIONS = {
    layers.GroupNormalization,
    layers.LayerNormalization,
    layers.RMSNormalization,
    PrivateBatchNormalization,
    PublicBatchNormalization,
}
# Functions for `activation=` that work on each entry by itself, or along the last axis: the names of
# those in `keras.activations`, `keras.ops` and `tf.nn`.
# fmt: off
_ACTIVATION_NAMES = [
    "abs", "celu", "elu", "exp", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid",
    "hard_silu", "hard_swish", "hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax",
    "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softmax", "softplus",
    "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax", "square", "squareplus", "swish",
    "tanh", "tanh_shrink", "threshold",
]
# fmt: on
_ACTIVATIONS = {
    id(getattr(module, name))
    for module in (keras.activations, keras.ops, tf.nn, tf.math)
    for name in _ACTIVATION_NAMES
    if hasattr(module, name)
}
# Layers made of other layers, whose own code keeps rows apart.
_COMPOSITE = {
    layers.Bidirectional: lambda layer: not layer.stateful,
    layers.GroupQueryAttention: _on_rank(3),
    layers.MultiHeadAttention: _attends_within_rows,
    PublicExamples: lambda layer: layer.statistics == "example",
    layers.TimeDistributed: _distributes_a_known_layer,
}
_CONTAINERS = (keras.Sequential.call, Functional.call)


def rows_are_separate(model, rules: dict) -> bool:
    """Whether every layer of `model` is known to map each row of a batch by itself.

    Args:
        model: a built model.
        rules: {layer: rule}; a layer with a rule does not mix rows, by the rule's contract.
    """
    if model in rules or _has_a_rule_that_holds(model):
        separate = _normalizes_within_rows(model) and model.activity_regularizer is None
        return separate and _activations_are_separate(model, rules)
    if getattr(model, "activity_regularizer", None) is not None or "call" in vars(model):
        return False
    if getattr(type(model), "call", None) in _CONTAINERS:
        inner = model.layers if isinstance(model, keras.Sequential) else model.operations
        return all(rows_are_separate(operation, rules) for operation in inner)
    if min(_ranks_if_used(model), default=2) < 2 and not _keeps_single_numbers_apart(model):
        return False
    if type(model) in _COMPOSITE and _COMPOSITE[type(model)](model):
        return all(rows_are_separate(inner, rules) for inner in children(model))
    if type(model) in _PLAIN or any(is_separate(model) for is_separate in _FUNCTIONS):
        return True
    condition = _CONDITIONAL.get(type(model))
    if condition is None or not condition(model):
        return False
    return _activations_are_separate(model, rules)


def _ranks_if_used(operation):
    return _ranks(operation) if isinstance(operation, keras.Operation) else []


def _keeps_single_numbers_apart(operation):
    """Whether an operation keeps rows apart where a row is one number, so that axis -1 is theirs."""
    if type(operation) in (layers.InputLayer, layers.Identity, layers.Reshape):
        return True
    return _elementwise(operation) or _along_later_axes(operation)


def _has_a_rule_that_holds(layer):
    """Whether a layer without trainable weights is of a kind, and so configured, that a rule covers."""
    if not isinstance(layer, layers.Layer) or layer.trainable_variables:
        return False
    rule = rule_for(layer)
    return rule is not None and rule.refusal() is None


def _normalizes_within_rows(layer):
    """Whether a normalization along axes has none that is the first, in all its uses.

    An axis that is counted from the end is the first one where the layer is used on few axes.
    """
    if type(layer) not in _NORMALIZATIONS:
        return True
    ranks = {tensor.ndim for tensors, _ in _arguments(layer) for tensor in tensors}
    return bool(ranks) and all(axis % rank for axis in _tuple(layer.axis) for rank in ranks)


def _activations_are_separate(layer, rules):
    """Whether the functions that a layer applies to its outputs, or to its state, keep rows apart."""
    for name in ("activation", "recurrent_activation"):
        function = getattr(layer, name, None)
        if isinstance(function, keras.Operation):
            if not rows_are_separate(function, rules):
                return False
        elif function is not None and id(function) not in _ACTIVATIONS:
            return False
    return True
