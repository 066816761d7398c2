"""Codes that bound a gradient entry by entry, noise for the bounded sum, and denoising."""

from tfdp.mechanisms.correlated import CorrelatedNoise
from tfdp.mechanisms.encoding import Codebook, Encoder
from tfdp.mechanisms.noise import NoiseSource
from tfdp.mechanisms.noise_families import NoiseFamily

__all__ = ["Codebook", "CorrelatedNoise", "Encoder", "NoiseFamily", "NoiseSource"]
