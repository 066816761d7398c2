"""Noise: Gaussian and other families, noise that is correlated over steps, and denoising.

Example:
    >>> import tfdp
    >>> source = tfdp.noise.NoiseSource(seed=0)  # without a seed the noise is secret
    >>> (noise,) = tfdp.noise.NoiseFamily("laplace").sample(source, 0, 2.0, [(10000,)])
    >>> print(f"{abs(noise.numpy()).mean():.1f}")  # the scale
    2.0
"""

from tfdp.noise.correlated import CorrelatedNoise
from tfdp.noise.families import NoiseFamily
from tfdp.noise.gaussian import NoiseSource

__all__ = ["CorrelatedNoise", "NoiseFamily", "NoiseSource"]
