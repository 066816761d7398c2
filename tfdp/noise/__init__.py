"""Sources of noise: Gaussian and other families, noise correlated over steps, and denoising.

The private optimizers use them. You need them only for a mechanism or a training loop of your own.

Example:
    >>> import tfdp
    >>> source = tfdp.noise.NoiseSource(seed=0)  # without a seed the noise is secret
    >>> (noise,) = tfdp.noise.NoiseFamily("laplace").sample(source, 0, 2.0, [(10000,)])
    >>> print(f"{abs(noise.numpy()).mean():.1f}")  # the scale
    2.0
"""

from typing import TYPE_CHECKING

import tfdp._compat  # noqa: F401, raises for another backend before any of these modules is imported
from tfdp._lazy import importing

if TYPE_CHECKING:
    from tfdp.noise.correlated import CorrelatedNoise as CorrelatedNoise
    from tfdp.noise.families import NoiseFamily as NoiseFamily
    from tfdp.noise.gaussian import NoiseSource as NoiseSource
else:
    __getattr__, __dir__, __all__ = importing(__name__)
