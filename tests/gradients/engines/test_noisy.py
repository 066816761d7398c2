"""Layers that draw noise for their weights: the whole lot has one draw, and gradients are exact."""

import pytest

from tests.gradients.checking import (
    beside,
    check_engines,
    check_layers,
    check_traced,
    side_by_side,
)
from tests.helpers import EVERY_CONVOLUTION
from tfdp.layers.noisy import NoisyConv1D, NoisyConv2D, NoisyConv3D, NoisyDense


def dense_and_convolutions():
    groups = 2 if EVERY_CONVOLUTION else 1
    return [
        NoisyDense(3, noise_stddev=0.3),
        NoisyConv1D(4, 3, noise_stddev=0.3, padding="causal", activation="tanh"),
        NoisyConv1D(4, 2, noise_stddev=0.3, strides=2, groups=groups, use_bias=False),
    ]


def test_dense_and_convolutions():
    check_layers((5, 4), *dense_and_convolutions())


@pytest.mark.slow
def test_images_and_volumes():
    image = NoisyConv2D(4, 3, noise_stddev=0.3, activation="relu")
    volume = NoisyConv3D(3, 3, noise_stddev=0.3, strides=2, padding="same", use_bias=False)
    model = beside(side_by_side((5, 6, 2), image), side_by_side((4, 3, 4, 2), volume))
    check_engines(model, engines=["ghost"])


@pytest.mark.slow
def test_under_xla():
    check_traced(side_by_side((5, 4), *dense_and_convolutions()), jit_compile=True)
