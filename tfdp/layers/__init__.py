"""Layers for private training: layers with noisy weights, and normalization by public examples."""

from tfdp.layers.noisy import NoisyConv as NoisyConv
from tfdp.layers.noisy import NoisyConv1D as NoisyConv1D
from tfdp.layers.noisy import NoisyConv2D as NoisyConv2D
from tfdp.layers.noisy import NoisyConv3D as NoisyConv3D
from tfdp.layers.noisy import NoisyDense as NoisyDense
from tfdp.layers.public import PublicBatchNormalization as PublicBatchNormalization
from tfdp.layers.public import PublicExamples as PublicExamples
