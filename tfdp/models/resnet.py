"""ResNet-18 with group normalization, which keeps examples apart."""

from keras import layers

_WIDTHS = (64, 128, 256, 512)
_BLOCKS = 2  # per width
_GROUPS = 32  # Wu and He 2018, "Group Normalization"


def resnet18(inputs, num_classes, activation):
    """ResNet-18 for small images: widths 64, 128, 256, 512, two blocks each.

    The stem is a 3x3 convolution without pooling, as in He et al. 2016 for CIFAR-10. Group
    normalization with 32 groups replaces every batch normalization. Convolutions have no bias.
    11,173,962 weights for 32x32x3 and ten classes.
    """
    x = _normalized_conv(inputs, _WIDTHS[0], 3, 1, "stem")
    x = layers.Activation(activation, name="stem_activation")(x)
    for stage, width in enumerate(_WIDTHS, start=1):
        for number in range(1, _BLOCKS + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            x = _residual(x, width, stride, activation, f"stage_{stage}_block_{number}")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return layers.Dense(num_classes, name="logits")(x)


def _normalized_conv(x, width, size, stride, name):
    x = layers.Conv2D(width, size, stride, padding="same", use_bias=False, name=f"{name}_conv")(x)
    return layers.GroupNormalization(_GROUPS, epsilon=1e-5, name=f"{name}_norm")(x)


def _residual(x, width, stride, activation, name):
    """Two convolutions with a shortcut, which is a 1x1 convolution if the shape changes."""
    shortcut = x
    if stride != 1 or x.shape[-1] != width:
        shortcut = _normalized_conv(x, width, 1, stride, f"{name}_shortcut")
    x = _normalized_conv(x, width, 3, stride, f"{name}_1")
    x = layers.Activation(activation, name=f"{name}_activation_1")(x)
    x = _normalized_conv(x, width, 3, 1, f"{name}_2")
    x = layers.Add(name=f"{name}_add")([x, shortcut])
    return layers.Activation(activation, name=f"{name}_activation_2")(x)
