"""Layers for private training: layers with noisy weights, and normalization by public examples."""

from tfdp.layers.noisy import NoisyConv2D as NoisyConv2D
from tfdp.layers.noisy import NoisyDense as NoisyDense
from tfdp.layers.public import PublicBatchNormalization as PublicBatchNormalization
from tfdp.layers.public import PublicExamples as PublicExamples
