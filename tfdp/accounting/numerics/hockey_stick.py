"""Hockey-stick divergences of subsampled Gaussians, vectorized and without cancellation.

H_alpha(P || Q) is the integral of max(P - alpha Q, 0). Every function takes alpha = e^epsilon for an
array of epsilon of at least 0, a sampling probability q in (0, 1] and a shift in standard deviations of
the noise. N(c) is a Gaussian of mean c and standard deviation 1.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import special

Curve = Callable[[float, float, np.ndarray], np.ndarray]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def mixture_against_centre(q: float, shift: float, epsilon: np.ndarray) -> np.ndarray:
    """H((1-q) N(0) + q N(shift) || N(0))."""
    log_excess = _log_expm1(epsilon)
    # At x the density ratio is e^epsilon: 1 - q + q exp(shift x - shift^2 / 2) = e^epsilon.
    x = np.logaddexp(0.0, log_excess - math.log(q)) / shift + shift / 2
    lost = np.exp(log_excess + special.log_ndtr(-x))
    return np.maximum(q * _mass_between(x - shift, shift) - lost, 0.0)


def centre_against_mixture(q: float, shift: float, epsilon: np.ndarray) -> np.ndarray:
    """H(N(0) || (1-q) N(0) + q N(shift)); it is 0 from epsilon = -log(1-q) on."""
    # The ratio is e^epsilon at x with 1 - q + q exp(shift x - shift^2 / 2) = e^-epsilon. For a small
    # epsilon both sides are near 1, for a large one both are small; each form is without cancellation.
    with np.errstate(divide="ignore", invalid="ignore"):
        near = np.log1p(np.maximum(np.expm1(-epsilon) / q, -1.0))
        log_rest = -epsilon if q == 1 else np.log(np.maximum(np.exp(-epsilon) - (1 - q), 0.0))
    small = epsilon < 0.7
    x = np.where(small, near, log_rest - math.log(q)) / shift + shift / 2
    x = np.maximum(x, -1e100)
    # The mass between x - shift and x is that of the mirrored interval, which does not cancel.
    early = np.minimum(epsilon, 0.7)
    gained = np.exp(early) * q * _mass_between(-x, shift)
    lost = np.exp(_log_expm1(early) + special.log_ndtr(x))
    late = np.exp(np.minimum(epsilon + log_rest + special.log_ndtr(x), 0.0))
    late -= np.exp(np.minimum(epsilon + math.log(q) + special.log_ndtr(x - shift), 0.0))
    return np.maximum(np.where(small, gained - lost, late), 0.0)


def mixture_against_mixture(q: float, shift: float, epsilon: np.ndarray) -> np.ndarray:
    """H((1-q) N(0) + q N(2 shift) || (1-q) N(0) + q N(shift)).

    With v = exp(shift x - 3/2 shift^2 - epsilon) the ratio of the densities is e^epsilon where
    v^2 - v = (1-q)/q (e^epsilon - 1) exp(-2 epsilon - shift^2). All terms in the formula of the root
    are positive, so nothing cancels.
    """
    right = (1 - q) / q * -np.expm1(-epsilon) * np.exp(-epsilon - shift**2)
    log_v = np.log1p(2 * right / (1 + np.sqrt(1 + 4 * right)))
    x = (epsilon + log_v) / shift + 1.5 * shift
    log_excess = _log_expm1(epsilon)
    lost = q * np.exp(log_excess + special.log_ndtr(shift - x))
    lost += (1 - q) * np.exp(log_excess + special.log_ndtr(-x))
    return np.maximum(q * _mass_between(x - 2 * shift, shift) - lost, 0.0)


def opposite_mixtures(q: float, shift: float, epsilon: np.ndarray) -> np.ndarray:
    """H((1-q) N(0) + q N(shift) || (1-q) N(0) + q N(-shift)).

    With u = exp(shift x - epsilon / 2) the ratio of the densities is e^epsilon where
    u - 1/u = 2 (1-q)/q exp(shift^2 / 2) sinh(epsilon / 2).
    """
    with np.errstate(divide="ignore"):
        log_ratio = np.log1p(-q) if q < 1 else -math.inf
        log_half = (
            log_ratio
            - math.log(q)
            + shift**2 / 2
            + epsilon / 2
            + np.log(-np.expm1(-epsilon))
            - math.log(2)
        )
    # log u = asinh(exp(log_half)), written for large and small arguments alike.
    log_u = np.where(
        log_half > 20, log_half + math.log(2), np.arcsinh(np.exp(np.minimum(log_half, 20.0)))
    )
    x = (epsilon / 2 + log_u) / shift
    log_excess = _log_expm1(epsilon)
    lost = q * np.exp(log_excess + special.log_ndtr(-x - shift))
    lost += (1 - q) * np.exp(log_excess + special.log_ndtr(-x))
    return np.maximum(q * _mass_between(x - shift, 2 * shift) - lost, 0.0)


def _log_expm1(epsilon: np.ndarray) -> np.ndarray:
    """log(e^epsilon - 1) without overflow for large epsilon; minus infinity at 0."""
    with np.errstate(divide="ignore"):
        return epsilon + np.log(-np.expm1(-epsilon))


def _mass_between(low: np.ndarray, width: float) -> np.ndarray:
    """Standard normal mass of [low, low + width], without cancellation for a small width."""
    if width > 0.5:
        return special.ndtr(-low) - special.ndtr(-low - width)
    total = np.zeros_like(low)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        total += weight * np.exp(-0.5 * (low + width * (node + 1) / 2) ** 2)
    return total * width / (2 * math.sqrt(2 * math.pi))
