"""Noise: Gaussian and other families, noise that is correlated over steps, and denoising.

Example:
    >>> import tfdp
    >>> source = tfdp.noise.NoiseSource(seed=0)  # without a seed the noise is secret
    >>> (noise,) = tfdp.noise.NoiseFamily("laplace").sample(source, 0, 2.0, [(10000,)])
    >>> print(f"{abs(noise.numpy()).mean():.1f}")  # the scale
    2.0
"""

import tfdp._compat  # noqa: F401, refuses another backend before any of these modules is imported
from tfdp._lazy import importing

_PUBLIC = {
    "CorrelatedNoise": "correlated",
    "NoiseFamily": "families",
    "NoiseSource": "gaussian",
}

__all__ = [*_PUBLIC]
__getattr__, __dir__ = importing(__name__, _PUBLIC)
