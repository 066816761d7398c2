"""The building block of the models: a trainable layer with its normalization and activation."""

import functools
import math
from collections.abc import Callable

import keras

from tfdp._validate import one_of
from tfdp.layers import PrivateBatchNormalization, PublicBatchNormalization
from tfdp.models import NORMALIZATIONS, PRIVATE_BATCH

# The normalization that replaces "batch" inside a `PublicExamples` layer.
PUBLIC_BATCH = "public_batch"
# The value of the papers' PyTorch models. Keras' default of 1e-3 would weaken the normalization of
# small activations, and with it the invariance to the scale of the weights.
EPSILON = 1e-5
_GROUPS = 32  # Wu and He 2018, "Group Normalization"


def block(
    layer: keras.Layer,
    normalization: str | Callable[..., keras.Layer],
    activation: str | None = None,
) -> list[keras.Layer]:
    """Returns a list of three layers: a trainable layer, its normalization and its activation.

    The normalization is between the weighted sum and the activation (SI-DPSGD, equation 1).

    Args:
        layer: A Dense or a Conv2D layer without activation.
        normalization: One of `NORMALIZATIONS`, or `PUBLIC_BATCH`, or a function that makes a
            normalization, given its `name`. "layer" normalizes over all features of an example
            (height, width and channels of an image) and has no weights. "layer_affine" adds a
            learned scale and offset. "group" normalizes over groups of channels of an example, with
            a learned scale and offset for each channel (32 groups, or as many as divide both 32 and
            the number of channels; the units of a dense layer are one group). "batch" is
            `keras.layers.BatchNormalization`, which mixes examples and cannot be trained privately.
            `PUBLIC_BATCH` is `PublicBatchNormalization`, for the network of a `PublicExamples`
            layer. "private_batch" is `PrivateBatchNormalization`.
        activation: Name of the activation. None for no activation.

    Raises:
        ValueError: If the normalization is unknown.
    """
    if normalization == PRIVATE_BATCH:
        normalization = private_batch()
    layers = [layer]
    if callable(normalization):
        layers.append(normalization(name=f"{layer.name}_norm"))
        normalization = "none"
    one_of("normalization", normalization, (*NORMALIZATIONS, PUBLIC_BATCH))
    if normalization in ("layer", "layer_affine"):
        affine = normalization == "layer_affine"
        axis = [1, 2, 3] if isinstance(layer, keras.layers.Conv2D) else -1
        layers.append(
            keras.layers.LayerNormalization(
                axis=axis,
                epsilon=EPSILON,
                center=affine,
                scale=affine,
                name=f"{layer.name}_norm",
            )
        )
    elif normalization == "group":
        layers.append(_group(layer))
    elif normalization == "batch":
        layers.append(keras.layers.BatchNormalization(epsilon=EPSILON, name=f"{layer.name}_norm"))
    elif normalization == PUBLIC_BATCH:
        layers.append(PublicBatchNormalization(epsilon=EPSILON, name=f"{layer.name}_norm"))
    if activation is not None:
        layers.append(keras.layers.Activation(activation, name=f"{layer.name}_activation"))
    return layers


def private_batch(**options) -> Callable[..., keras.Layer]:
    """Returns a function that makes a `PrivateBatchNormalization` with these arguments."""
    return functools.partial(PrivateBatchNormalization, epsilon=EPSILON, **options)


def _group(layer) -> keras.Layer:
    if isinstance(layer, keras.layers.Conv2D):
        groups = math.gcd(_GROUPS, layer.filters)
        return keras.layers.GroupNormalization(groups, epsilon=EPSILON, name=f"{layer.name}_norm")
    return keras.layers.LayerNormalization(axis=-1, epsilon=EPSILON, name=f"{layer.name}_norm")


def through(layers: list[keras.Layer], x: keras.KerasTensor) -> keras.KerasTensor:
    """Applies layers to `x`, one after the other."""
    return functools.reduce(lambda x, layer: layer(x), layers, x)


def scaled(channels: int, width: float) -> int:
    """Returns the number of channels in a network that is `width` times as wide, at least 1."""
    return max(1, round(channels * width))
