"""Layers for private training: weights that are drawn instead of stored."""

from tfdp import _backend  # noqa: F401
from tfdp.layers.noisy import NoisyConv2D as NoisyConv2D
from tfdp.layers.noisy import NoisyDense as NoisyDense
