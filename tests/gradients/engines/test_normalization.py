"""Rules of normalizations and PReLU: their gradients are those of batches of one."""

from keras import layers

from tests.gradients.checking import check_engines, check_layers, side_by_side


def test_layer_normalization():
    check_layers(
        (3, 4),
        layers.LayerNormalization(),
        layers.LayerNormalization(center=False),
        layers.LayerNormalization(scale=False),
        layers.LayerNormalization(axis=[1, 2]),
        layers.LayerNormalization(axis=1),
        layers.RMSNormalization(),
        engines=["ghost"],
    )


def test_group_normalization():
    check_layers(
        (4, 5, 4),
        layers.GroupNormalization(2),
        layers.GroupNormalization(1, center=False),
        layers.GroupNormalization(-1),
        layers.GroupNormalization(2, axis=1),
        engines=["ghost"],
    )


def test_prelu():
    check_layers((3, 4), layers.PReLU(), layers.PReLU(shared_axes=[1]))


def test_a_scale_that_keras_puts_on_another_axis():
    check_engines(side_by_side((5, 5), layers.RMSNormalization(axis=1)), engines=["ghost"])
