"""Noise: Gaussian and other families, noise that is correlated over steps, and denoising."""

from tfdp.noise.correlated import CorrelatedNoise
from tfdp.noise.families import NoiseFamily
from tfdp.noise.gaussian import NoiseSource

__all__ = ["CorrelatedNoise", "NoiseFamily", "NoiseSource"]
