"""The smallest models: a linear model, and models with a single hidden layer."""

import functools

from keras import layers

from tfdp.models.blocks import block, scaled


def linear(num_classes, normalization, activation, output_normalization):
    """Makes a multinomial logistic regression, with 650 weights for 8x8x1 and ten classes.

    A normalization is applied to the features of each example, because the model has no hidden layer,
    and with normalized logits, a logistic regression could not become confident. The weights start at
    zero: the loss is convex, and the first gradient at random weights would mostly undo them.
    """
    del activation, output_normalization  # there is no hidden layer
    flat = layers.Flatten(name="flatten")
    logits = layers.Dense(num_classes, kernel_initializer="zeros", name="logits")
    return [*block(flat, normalization), logits]


def mlp(num_classes, normalization, activation, output_normalization, *, units=64, width=1.0):
    """Makes a network of one hidden layer; 64 units have 4,810 weights for 8x8x1 and ten classes."""
    return [
        layers.Flatten(name="flatten"),
        *block(layers.Dense(scaled(units, width), name="dense_1"), normalization, activation),
        *block(layers.Dense(num_classes, name="logits"), output_normalization),
    ]


# The networks of the differentially private dropout paper, for DIGITS and for MNIST.
hidden_500 = functools.partial(mlp, units=500)
hidden_1000 = functools.partial(mlp, units=1000)
