"""What is added to the bounded sum."""

from tfdp.mechanisms.correlated import CorrelatedNoise
from tfdp.mechanisms.noise import NoiseSource

__all__ = ["CorrelatedNoise", "NoiseSource"]
