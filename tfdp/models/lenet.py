"""LeNet-5 and LeNet-300-100 with the widths of SI-DPSGD, Table 7."""

from keras import layers

from tfdp.models.blocks import block


def lenet5(num_classes, normalization, activation, output_normalization):
    """Makes LeNet-5: convolutions of 6 and 16 filters, each pooled; dense layers of 120, 84, classes.

    The kernels are 5x5. The first convolution is padded ("same") and the second is not, as in Caffe's
    and PyTorch's LeNet for 28x28 images. It has 61,706 weights for 28x28x1 and ten classes.
    """
    return [
        *block(layers.Conv2D(6, 5, padding="same", name="conv_1"), normalization, activation),
        layers.MaxPooling2D(2, name="pool_1"),
        *block(layers.Conv2D(16, 5, name="conv_2"), normalization, activation),
        layers.MaxPooling2D(2, name="pool_2"),
        layers.Flatten(name="flatten"),
        *block(layers.Dense(120, name="dense_1"), normalization, activation),
        *block(layers.Dense(84, name="dense_2"), normalization, activation),
        *block(layers.Dense(num_classes, name="logits"), output_normalization),
    ]


def lenet_300_100(num_classes, normalization, activation, output_normalization):
    """Makes LeNet-300-100: dense layers of 300, 100, classes; 266,610 weights for 28x28x1 and ten."""
    return [
        layers.Flatten(name="flatten"),
        *block(layers.Dense(300, name="dense_1"), normalization, activation),
        *block(layers.Dense(100, name="dense_2"), normalization, activation),
        *block(layers.Dense(num_classes, name="logits"), output_normalization),
    ]
