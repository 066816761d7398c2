"""Rules of convolutions: their gradients are those of batches of one."""

import keras
import pytest
from keras import layers

from tests.gradients.checking import check_engines, check_layers, side_by_side
from tests.helpers import needs_every_convolution


def test_one_dimension():
    check_layers(
        (9, 4),
        layers.Conv1D(3, 3, activation="tanh"),
        layers.Conv1D(2, 3, strides=2, padding="causal", use_bias=False),
        layers.Conv1DTranspose(3, 2, strides=2),
        layers.DepthwiseConv1D(3, strides=2, use_bias=False),
        layers.SeparableConv1D(5, 3, activation="tanh"),
        engines=["ghost"],
    )


@pytest.mark.parametrize("engine", ["ghost", pytest.param("vectorized", marks=pytest.mark.slow)])
def test_two_dimensions(engine):
    check_layers(
        (9, 8, 2),
        layers.Conv2D(3, (4, 5), activation="tanh"),
        layers.Conv2D(3, 3, strides=2, padding="same", use_bias=False),
        layers.Conv2DTranspose(3, (2, 3), activation="tanh"),
        layers.Conv2DTranspose(2, 3, strides=2, padding="same", output_padding=(1, 0)),
        layers.DepthwiseConv2D(3, strides=2, padding="same", depth_multiplier=2),
        layers.SeparableConv2D(4, 3, activation="tanh"),
        engines=[engine],
    )


def test_one_channel():
    check_layers(
        (9, 12, 1),
        layers.Conv2D(3, (4, 5)),
        layers.Conv2D(3, (4, 5), strides=2, padding="same"),
        layers.Conv2D(3, 3, strides=3, padding="same"),
        engines=["ghost"],
    )


def test_many_channels_and_few_positions():
    check_layers((2, 2, 48), layers.Conv2D(40, 3, padding="same"), engines=["ghost"])


def test_three_dimensions():
    check_layers(
        (5, 4, 3, 2),
        layers.Conv3D(3, (2, 3, 1), strides=2, padding="same"),
        layers.Conv3DTranspose(3, 2, strides=2, use_bias=False),
        engines=["ghost"],
    )


def test_padding_in_front_of_a_volume_convolution():
    # TensorFlow merges the padding into the convolution, and forgets that this one has its own.
    convolution = layers.Conv3D(1, 2, padding="same", use_bias=False)
    check_layers(
        (3, 3, 2, 1), keras.Sequential([layers.ZeroPadding3D(2), convolution]), engines=["ghost"]
    )


@needs_every_convolution
def test_groups_dilations_and_uneven_strides():
    check_layers(
        (13, 11, 6),
        layers.Conv2D(4, 3, groups=2, activation="tanh"),
        layers.Conv2D(2, 2, dilation_rate=2, padding="same"),
        layers.Conv2D(3, (4, 3), strides=(2, 3), padding="same"),
        layers.Conv2DTranspose(2, 2, dilation_rate=2),
        layers.DepthwiseConv2D(3, dilation_rate=2),
        engines=["ghost"],
    )


@needs_every_convolution
def test_channels_first():
    options = {"data_format": "channels_first"}
    check_layers(
        (2, 8, 5),
        layers.Conv2D(4, 3, **options),
        layers.Conv2DTranspose(4, 3, **options),
        layers.DepthwiseConv2D(3, **options),
        layers.SeparableConv2D(4, 3, **options),
        engines=["ghost"],
    )


@needs_every_convolution
def test_a_bias_that_keras_adds_along_another_axis():
    # The outputs are (4, 6, 4), and Keras adds the bias along the last axis.
    layer = layers.Conv2D(4, 3, data_format="channels_first")
    check_engines(side_by_side((2, 8, 6), layer), engines=["ghost"])
