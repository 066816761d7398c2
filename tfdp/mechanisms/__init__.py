"""What bounds a gradient entry by entry, what is added to the bounded sum, and what is done to it after."""

from tfdp.mechanisms.correlated import CorrelatedNoise
from tfdp.mechanisms.encoding import Codebook, Encoder
from tfdp.mechanisms.noise import NoiseSource
from tfdp.mechanisms.noise_families import NoiseFamily

__all__ = ["Codebook", "CorrelatedNoise", "Encoder", "NoiseFamily", "NoiseSource"]
