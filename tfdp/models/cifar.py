"""The convolutional network of the first papers on private CIFAR-10."""

from keras import layers

from tfdp.models.blocks import block, scaled


def cifar_tutorial(num_classes, normalization, activation, output_normalization, *, width=1.0):
    """Makes two 5x5 convolutions of 64 filters, each pooled, and dense layers of 384, 384 and classes.

    Source: Abadi et al. 2016, section 5.3 ("Deep Learning with Differential Privacy"), who took the
    network of TensorFlow's CIFAR-10 tutorial without its local response normalization; "TF-tutorial"
    in SI-DPSGD, Table 5. With ten classes it has 1,144,138 weights for Abadi et al.'s 24x24x3 crops and
    1,832,266 for whole images of 32x32x3.
    """
    filters, units = scaled(64, width), scaled(384, width)
    return [
        *block(layers.Conv2D(filters, 5, padding="same", name="conv_1"), normalization, activation),
        layers.MaxPooling2D(2, name="pool_1"),
        *block(layers.Conv2D(filters, 5, padding="same", name="conv_2"), normalization, activation),
        layers.MaxPooling2D(2, name="pool_2"),
        layers.Flatten(name="flatten"),
        *block(layers.Dense(units, name="dense_1"), normalization, activation),
        *block(layers.Dense(units, name="dense_2"), normalization, activation),
        *block(layers.Dense(num_classes, name="logits"), output_normalization),
    ]
