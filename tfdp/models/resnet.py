"""ResNet-18 for small images (SI-DPSGD, Table 7), and the small ResNet of Fast-CIFAR."""

import functools

from keras import layers

from tfdp.models.blocks import block, scaled, through

_WIDTHS = (64, 128, 256, 512)
_BLOCKS = 2  # per width


def resnet18(
    inputs,
    num_classes,
    normalization,
    activation,
    output_normalization,
    *,
    width=1.0,
    last_normalized=True,
):
    """Makes ResNet-18 for small images: two blocks each of 64, 128, 256 and 512 filters.

    The stem is a 3x3 convolution without pooling, as in He et al. 2016 for CIFAR-10, and each
    convolution is normalized, also in the shortcuts. Convolutions have no bias. With batch
    normalization or with group normalization it has 11,173,962 weights for 32x32x3 and ten classes, of
    which 9,600 belong to the normalization; without normalization it has 11,164,362.

    With `last_normalized=False`, the last convolution has no normalization: this is ResNet-18-mod in
    SI-DPSGD, Table 2 (11,172,938 weights). BN-ResNet-18 there is the model with normalized logits
    (11,173,982).
    """
    convolution = functools.partial(_convolution, width=width)
    x = convolution(inputs, 64, "stem", normalization, activation)
    for stage, channels in enumerate(_WIDTHS, start=1):
        for number in range(1, _BLOCKS + 1):
            name = f"stage_{stage}_block_{number}"
            stride = 2 if stage > 1 and number == 1 else 1
            is_last = channels == _WIDTHS[-1] and number == _BLOCKS
            second = normalization if last_normalized or not is_last else "none"
            shortcut = x
            if stride != 1:
                shortcut = convolution(
                    x, channels, f"{name}_shortcut", normalization, size=1, stride=stride
                )
            x = convolution(x, channels, f"{name}_1", normalization, activation, stride=stride)
            x = convolution(x, channels, f"{name}_2", second)
            x = layers.Add(name=f"{name}_add")([x, shortcut])
            x = layers.Activation(activation, name=f"{name}_activation")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return through(block(layers.Dense(num_classes, name="logits"), output_normalization), x)


# ResNet-18-mod of SI-DPSGD, Table 2.
resnet18_mod = functools.partial(resnet18, last_normalized=False)


def fast_cifar(inputs, num_classes, normalization, activation, output_normalization, *, width=1.0):
    """Makes the small ResNet of Fast-CIFAR.

    Its layers are convolutions of 64 filters; of 128, pooled, with a residual of 128, 128; of 256,
    pooled; of 512, pooled, with a residual of 512, 512; then a pool and a dense layer of the classes.

    All convolutions are 3x3, and no layer has a bias. The last pool takes the maximum over the whole
    image, and the logits are multiplied by 0.125. A residual of two layers is added to its input, after
    the second activation. With batch normalization the network has 6,573,120 weights for 32x32x3 and
    ten classes, of which 4,480 belong to the normalization.

    Source: "Fast-CIFAR" in SI-DPSGD, Table 7: the network of D. Page,
    https://github.com/davidcpage/cifar10-fast.
    """

    def convolution(x, channels, name):
        return _convolution(x, channels, name, normalization, activation, width=width)

    def residual(x, channels, name):
        y = convolution(convolution(x, channels, f"{name}_1"), channels, f"{name}_2")
        return layers.Add(name=f"{name}_add")([x, y])

    x = convolution(inputs, 64, "prepare")
    for number, channels in enumerate((128, 256, 512), start=1):
        x = convolution(x, channels, f"layer_{number}")
        x = layers.MaxPooling2D(2, name=f"pool_{number}")(x)
        if number != 2:
            x = residual(x, channels, f"residual_{number}")
    x = layers.GlobalMaxPooling2D(name="pool")(x)
    logits = layers.Dense(num_classes, use_bias=False, name="logits")
    x = through(block(logits, output_normalization), x)
    return layers.Rescaling(0.125, name="scale")(x)


def _convolution(x, channels, name, normalization, activation=None, *, width, size=3, stride=1):
    convolution = layers.Conv2D(
        scaled(channels, width), size, stride, padding="same", use_bias=False, name=name
    )
    return through(block(convolution, normalization, activation), x)
