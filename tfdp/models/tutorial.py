"""The small convolutional network of the TensorFlow Privacy tutorials."""

from keras import layers

from tfdp.models.blocks import block


def tutorial_cnn(num_classes, normalization, activation, output_normalization):
    """The MNIST tutorial's network: 26,010 weights for 28x28x1 and ten classes.

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
