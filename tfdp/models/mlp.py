"""The smallest models: a linear one and one with a single hidden layer."""

from keras import layers

from tfdp import _backend  # noqa: F401
from tfdp.models.blocks import block


def linear(num_classes, normalization, activation, output_normalization):
    """Multinomial logistic regression: 650 weights for 8x8x1 and ten classes."""
    del normalization, activation  # only the output layer is there
    return [
        layers.Flatten(name="flatten"),
        *block(layers.Dense(num_classes, name="logits"), output_normalization),
    ]


def mlp(num_classes, normalization, activation, output_normalization):
    """One hidden layer of 64 units: 4,810 weights for 8x8x1 and ten classes."""
    return [
        layers.Flatten(name="flatten"),
        *block(layers.Dense(64, name="dense_1"), normalization, activation),
        *block(layers.Dense(num_classes, name="logits"), output_normalization),
    ]
