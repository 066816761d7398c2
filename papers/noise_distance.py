"""Figure 6 of the encoding paper: how far noise of several families moves a vector, at equal privacy.

A privatized vector is the encoded one plus noise that is independent in every coordinate. So the L1
distance between both is the sum of the magnitudes of the noise, whatever the vector is, and its mean
for each coordinate is E|noise|. Privacy is the Rényi divergence of order 2 of one step in which the
record surely takes part, for the worst vector of the codebook.

This module imports neither TensorFlow nor Keras.
"""

import functools
import math

import numpy as np
from scipy import optimize, special

from tfdp.accounting.numerics import renyi_of_noise
from tfdp.accounting.numerics.noise_families import degrees

_ORDER = 2
# Relative accuracy of the divergence.
_TOLERANCE = 1e-9
_CATALAN = 0.915965594177219
# E|x| at scale 1 of the families without parameters, each by integration of its density.
_MEAN_SIZES = {
    "gaussian": math.sqrt(2 / math.pi),
    "laplace": 1.0,
    "sech": 4 * _CATALAN / math.pi,
    "variance_gamma": 1.5,
}


def mean_size(noise: str, degrees_of_freedom: float | None = None) -> float:
    """Returns E|x| of a family at scale 1; infinite where there is no mean.

    Args:
        noise: one of `accounting.numerics.noise_families.FAMILIES`.
        degrees_of_freedom: those of student_t.
    """
    if noise in _MEAN_SIZES:
        return _MEAN_SIZES[noise]
    nu = degrees(noise, degrees_of_freedom)
    if nu <= 1:
        return math.inf
    log_gammas = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2)
    return 2 * math.sqrt(nu / math.pi) / (nu - 1) * math.exp(log_gammas)


@functools.lru_cache(maxsize=1)
def codebook(size: int, num_weights: int, seed: int) -> np.ndarray:
    """Returns [size, num_weights] magnitudes: the paper's vectors of norm 1.

    Their entries are standard normal numbers, those below 1e-5 zero, scaled to norm 1.
    """
    vectors = np.abs(np.random.default_rng(seed).standard_normal((size, num_weights)))
    vectors[vectors < 1e-5] = 0.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def compute(
    *,
    noise: str,
    divergence: float,
    degrees_of_freedom: float | None = None,
    codebook_size: int = 1000,
    num_weights: int = 26010,
    seed: int = 0,
) -> dict:
    """Computes the scale of the noise whose divergence is given, and the L1 distance at this scale.

    Args:
        noise, degrees_of_freedom: the family.
        divergence: the Rényi divergence of order 2 of one step.
        codebook_size, num_weights, seed: of the codebook.

    Returns:
        "l1" (E|noise| of a coordinate in clip norms), "of_gaussian" (this in percent of Gaussian noise
        of the same divergence), "scale" (in clip norms) and "divergence" (at this scale).
    """
    vectors = codebook(codebook_size, num_weights, seed)

    def of(vector, scale):
        moments = renyi_of_noise.corner(noise, vector / scale, (_ORDER,), degrees_of_freedom)
        return float(renyi_of_noise.subsampled(moments, 1.0, (_ORDER,))[0])

    def scale_for(vector):
        # For small entries the scale is the Gaussian one times the root of the family's Fisher
        # information, which is between 0.29 and 1.
        guess = 1 / math.sqrt(divergence)
        return optimize.brentq(
            lambda scale: math.log(of(vector, scale) / divergence), guess / 8, guess * 8, rtol=1e-12
        )

    # The worst vector depends on the scale. Each round raises the scale to that of a worse vector, so
    # it ends, also where vectors differ by rounding only.
    scale = scale_for(vectors[0])
    while True:
        worst = vectors[int(np.argmax([of(vector, scale) for vector in vectors]))]
        if of(worst, scale) <= divergence * (1 + _TOLERANCE):
            break
        scale = scale_for(worst)
    l1 = scale * mean_size(noise, degrees_of_freedom)
    longest = float(np.linalg.norm(vectors, axis=1).max())
    gaussian = longest / math.sqrt(divergence) * _MEAN_SIZES["gaussian"]
    return {
        "l1": l1,
        "of_gaussian": 100 * l1 / gaussian,
        "scale": scale,
        "divergence": of(worst, scale),
    }
