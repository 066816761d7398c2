"""The networks of the TensorFlow Privacy tutorials."""

from keras import layers, ops

from tfdp.models.blocks import block

_LARGEST_NORM = 8.0  # `data_l2_norm` of the tutorial on logistic regression


def tutorial_cnn(num_classes, normalization, activation, output_normalization):
    """Makes the MNIST tutorial's network, with 26,010 weights for 28x28x1 and ten classes.

    Source: `tutorials/mnist_dpsgd_tutorial_keras.py` of TensorFlow Privacy.
    """
    return [
        *block(
            layers.Conv2D(16, 8, strides=2, padding="same", name="conv_1"),
            normalization,
            activation,
        ),
        layers.MaxPooling2D(2, strides=1, name="pool_1"),
        *block(layers.Conv2D(32, 4, strides=2, name="conv_2"), normalization, activation),
        layers.MaxPooling2D(2, strides=1, name="pool_2"),
        layers.Flatten(name="flatten"),
        *block(layers.Dense(32, name="dense_1"), normalization, activation),
        *block(layers.Dense(num_classes, name="logits"), output_normalization),
    ]


def tutorial_logistic(inputs, num_classes, activation):
    """Makes the MNIST tutorial's logistic regression, with 7,850 weights for 28x28x1 and ten classes.

    Pixels are scaled to [0, 1], and an example whose L2 norm is above 8 is scaled down to 8. So the
    gradient of the cross-entropy has a norm of at most sqrt(2 (8^2 + 1)) = 11.4, and no gradient is
    clipped at that norm.

    Source: `tutorials/mnist_lr_tutorial.py` of TensorFlow Privacy.
    """
    del activation  # there is no hidden layer
    x = layers.Flatten(name="flatten")(layers.Rescaling(0.5, 0.5, name="pixels")(inputs))
    norm = ops.sqrt(ops.sum(ops.square(x), axis=1, keepdims=True))
    x = x * (_LARGEST_NORM / ops.maximum(norm, _LARGEST_NORM))
    return layers.Dense(num_classes, name="logits")(x)


def tutorial_lstm(inputs, num_classes, activation):
    """Makes the language model of characters: one-hot inputs, an LSTM of 256 units, a dense layer.

    It gives logits of the next character at every place of a row of token ids below `num_classes`. It
    has 591,104 weights for 256 characters.

    Source: `tutorials/lm_dpsgd_tutorial.py` of TensorFlow Privacy.
    """
    del activation  # there is no other hidden layer
    x = ops.one_hot(inputs, num_classes)
    x = layers.LSTM(256, return_sequences=True, name="lstm")(x)
    return layers.Dense(num_classes, name="logits")(x)
