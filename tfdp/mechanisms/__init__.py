"""What is added to the bounded sum."""

from tfdp.mechanisms.noise import NoiseSource

__all__ = ["NoiseSource"]
