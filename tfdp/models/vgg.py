"""VGG for small images: as in the code of SI-DPSGD's authors, as printed in the paper, and light."""

import functools

from keras import layers

from tfdp.models.blocks import block, scaled

_WIDTHS = (64, 128, 256, 512, 512)


def vgg(
    num_classes,
    normalization,
    activation,
    output_normalization,
    *,
    depths,
    width=1.0,
    last_normalized=True,
):
    """Makes groups of 3x3 convolutions (64, 128, 256, 512, 512), each group pooled; mean, classes.

    Args:
        num_classes, normalization, activation, output_normalization: As for `Architecture.make`.
        depths: Number of convolutions in each group.
        width: A factor on the number of channels.
        last_normalized: Whether the last convolution is normalized.
    """
    made = []
    for group, (depth, channels) in enumerate(zip(depths, _WIDTHS, strict=False), start=1):
        for number in range(1, depth + 1):
            name = f"group_{group}_conv_{number}"
            convolution = layers.Conv2D(scaled(channels, width), 3, padding="same", name=name)
            is_last = (group, number) == (len(depths), depth)
            kind = normalization if last_normalized or not is_last else "none"
            made += block(convolution, kind, activation)
        made.append(layers.MaxPooling2D(2, name=f"pool_{group}"))
    made.append(layers.GlobalAveragePooling2D(name="pool"))
    return [*made, *block(layers.Dense(num_classes, name="logits"), output_normalization)]


# The VGG-16 of Simonyan and Zisserman 2014 (13 convolutions), which the authors of SI-DPSGD trained
# according to their code: 14,728,266 weights for ten classes with batch normalization, 14,719,818
# without. The models without the last normalization are VGG-16-mod in SI-DPSGD, Table 2.
vgg16 = functools.partial(vgg, depths=(2, 2, 3, 3, 3))
vgg16_mod = functools.partial(vgg16, last_normalized=False)

# "VGG-16" as SI-DPSGD prints it in Table 7, which is the trunk of VGG-19 (16 convolutions): 20,040,522
# weights for ten classes with batch normalization, 20,029,514 without.
vgg16_table = functools.partial(vgg, depths=(2, 2, 4, 4, 4))
vgg16_table_mod = functools.partial(vgg16_table, last_normalized=False)


def vgg_light(num_classes, normalization, activation, output_normalization, *, width=1.0):
    """Makes two convolutions of 64 filters, two of 128 and four of 256, pooled; mean, 512, classes.

    As in VGG with batch normalization, the convolutions are normalized, and the hidden dense layer is
    not. It has 2,465,098 weights for ten classes with batch normalization, 2,462,282 without.

    Source: "VGG" in the paper on DP-SGD with batch normalization, Table 1; "BN-VGG" in its Table 6.
    """
    *trunk, logits = vgg(
        num_classes, normalization, activation, "none", depths=(2, 2, 4), width=width
    )
    hidden = block(layers.Dense(scaled(512, width), name="dense_1"), "none", activation)
    return [*trunk, *hidden, *block(logits, output_normalization)]
