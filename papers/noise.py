"""Computed figures of the papers: the noise for an epsilon, and how far noise moves a vector.

This module imports neither TensorFlow nor Keras.
"""

import functools
import math

import numpy as np
from scipy import integrate, optimize

from tfdp import accounting
from tfdp.accounting.numerics import renyi_of_noise
from tfdp.accounting.numerics.noise_families import degrees, log_density

_ORDERS = (2,)  # of the Rényi divergence
_TOLERANCE = 1e-9  # relative, of the divergence


def by_epsilon(*, epsilon: float, delta: float, **run) -> dict:
    """Computes figure 1 (c, f) of the dropout paper: the noise of its two recipes for an epsilon.

    Args:
        epsilon, delta: The claimed guarantee.
        run: Arguments of `accounting.describe` for Poisson lots. "composition" chooses the recipe, one
            of `accounting.mechanisms.READINGS`.

    Returns:
        A dictionary with "sigma" (half of tfdp's noise multiplier), and the "claimed" and "proven"
        epsilons.
    """
    run = accounting.describe("dp_dropout", "poisson", noise_multiplier=1.0, **run)
    noise = accounting.noise_for(epsilon, delta, run, "claimed")
    kinds = {"claimed": accounting.claimed, "proven": accounting.proven}
    return {"sigma": noise / 2} | {
        kind: of(run.with_noise(noise), delta).epsilon for kind, of in kinds.items()
    }


def distance(
    *,
    noise: str,
    divergence: float,
    degrees_of_freedom: float | None = None,
    codebook_size: int = 1000,
    num_weights: int = 26010,
    seed: int = 0,
) -> dict:
    """Computes figure 6 of the encoding paper: how far noise moves a vector, at equal privacy.

    The L1 distance of a vector from its noisy version is the sum of the magnitudes of the noise. So the
    mean distance in each coordinate is E|noise|, for every vector. The scale of the noise is the
    smallest that keeps the divergence of one step for each vector of the codebook.

    Args:
        noise, degrees_of_freedom: The family of the noise.
        divergence: The Rényi divergence of order 2 of a step in which the record takes part.
        codebook_size, num_weights, seed: Size and seed of the codebook.

    Returns:
        A dictionary with "l1" (E|noise| in clip norms), "of_gaussian" (in percent of Gaussian noise of
        the same divergence) and "scale" (in clip norms).
    """
    vectors = codebook(codebook_size, num_weights, seed)

    def excess(scale, vector):
        moments = renyi_of_noise.corner(noise, vector / scale, _ORDERS, degrees_of_freedom)
        return float(renyi_of_noise.subsampled(moments, 1.0, _ORDERS)[0]) / divergence - 1

    # The scale is near that of Gaussian noise. The worst vector depends on the scale, so each round
    # solves for the worst vector of the round before. Scales only grow, so the rounds end.
    guess, worst = 1 / math.sqrt(divergence), vectors[0]
    while True:
        scale = optimize.brentq(excess, guess / 8, guess * 8, args=(worst,), rtol=1e-12)
        worst = vectors[int(np.argmax([excess(scale, vector) for vector in vectors]))]
        if excess(scale, worst) <= _TOLERANCE:
            break
    l1 = scale * mean_size(noise, degrees_of_freedom)
    gaussian = guess * mean_size("gaussian")
    return {"l1": l1, "of_gaussian": 100 * l1 / gaussian, "scale": scale}


def mean_size(noise: str, degrees_of_freedom: float | None = None) -> float:
    """Returns E|x| of a family of `noise_families.FAMILIES` at scale 1, infinite without a mean."""
    if (degrees(noise, degrees_of_freedom) or math.inf) <= 1:
        return math.inf

    def density(x):
        return math.exp(log_density(noise, x, degrees_of_freedom))

    return 2 * integrate.quad(lambda x: x * density(x), 0, math.inf)[0]


@functools.lru_cache(maxsize=1)
def codebook(size: int, num_weights: int, seed: int) -> np.ndarray:
    """Returns vectors [size, num_weights] of norm 1: magnitudes of normal numbers, 0 below 1e-5."""
    vectors = np.abs(np.random.default_rng(seed).standard_normal((size, num_weights)))
    vectors[vectors < 1e-5] = 0.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
