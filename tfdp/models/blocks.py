"""The building block of the models: a trainable layer, its normalization and its activation."""

import keras

from tfdp._validate import one_of
from tfdp.layers import PublicBatchNormalization

NORMALIZATIONS = ("none", "layer", "layer_affine", "batch")
# The normalization that replaces "batch" inside a `PublicExamples` layer.
PUBLIC_BATCH = "public_batch"
# The value of the papers' PyTorch models. Keras' default of 1e-3 would damp the normalization of
# small activations, and with it the invariance to the scale of the weights.
_EPSILON = 1e-5


def block(
    layer: keras.Layer, normalization: str, activation: str | None = None
) -> list[keras.Layer]:
    """Returns `layer`, its normalization and its activation, as a list of layers.

    The normalization stands between the weighted sum and the activation (SI-DPSGD, equation 1).

    Args:
        layer: a Dense or a Conv2D layer without activation.
        normalization: one of `NORMALIZATIONS`, or `PUBLIC_BATCH`. "layer" normalizes over all
            features of an example (height, width and channels of an image) and has no weights;
            "layer_affine" adds the learned scale and offset; "batch" is
            `keras.layers.BatchNormalization`, which mixes examples and so cannot be trained
            privately; `PUBLIC_BATCH` is `PublicBatchNormalization`, for the network of a
            `PublicExamples` layer.
        activation: name of the activation, or None.

    Raises:
        ValueError: the normalization is unknown.
    """
    one_of("normalization", normalization, (*NORMALIZATIONS, PUBLIC_BATCH))
    layers = [layer]
    if normalization in ("layer", "layer_affine"):
        affine = normalization == "layer_affine"
        axis = [1, 2, 3] if isinstance(layer, keras.layers.Conv2D) else -1
        layers.append(
            keras.layers.LayerNormalization(
                axis=axis,
                epsilon=_EPSILON,
                center=affine,
                scale=affine,
                name=f"{layer.name}_norm",
            )
        )
    elif normalization == "batch":
        layers.append(keras.layers.BatchNormalization(epsilon=_EPSILON, name=f"{layer.name}_norm"))
    elif normalization == PUBLIC_BATCH:
        layers.append(PublicBatchNormalization(epsilon=_EPSILON, name=f"{layer.name}_norm"))
    if activation is not None:
        layers.append(keras.layers.Activation(activation, name=f"{layer.name}_activation"))
    return layers
