"""Noise families: densities of the noise that is added to each coordinate of a sum.

Every family is a symmetric density on the line that decreases away from 0. Noise of scale s is s times
a draw from the density at scale 1; s need not be the standard deviation. Densities at scale 1:

* gaussian: exp(-x^2 / 2) / sqrt(2 pi)
* student_t with nu degrees of freedom: proportional to (1 + x^2 / nu)^(-(nu + 1) / 2)
* cauchy: student_t with nu = 1
* laplace: exp(-|x|) / 2
* sech: 1 / (pi cosh x)
* variance_gamma (lambda = 2): (1 + |x|) exp(-|x|) / 4
"""

import math

import numpy as np
from scipy import special

GAUSSIAN, STUDENT_T = "gaussian", "student_t"
FAMILIES = (GAUSSIAN, STUDENT_T, "laplace", "sech", "variance_gamma", "cauchy")

# E[(d log z / dx)^2] at scale 1 (the location Fisher information).
_FISHER = {"gaussian": 1.0, "laplace": 1.0, "sech": 0.5}


def degrees(family: str, degrees_of_freedom: float | None) -> float | None:
    """Returns the degrees of freedom of student_t (as given) and cauchy (1), and otherwise None."""
    return {"student_t": degrees_of_freedom, "cauchy": 1.0}.get(family)


def log_density(family: str, x: np.ndarray, degrees_of_freedom: float | None = None) -> np.ndarray:
    """Returns the log density at scale 1; `degrees_of_freedom` are those of student_t."""
    x = np.asarray(x, dtype=float)
    size = np.abs(x)
    if family == "gaussian":
        return -x * x / 2 - math.log(2 * math.pi) / 2
    if family == "laplace":
        return -size - math.log(2)
    if family == "sech":
        return -size - np.log1p(np.exp(-2 * size)) + math.log(2 / math.pi)
    if family == "variance_gamma":
        return np.log1p(size) - size - math.log(4)
    nu = degrees(family, degrees_of_freedom)
    assert nu is not None
    constant = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - math.log(nu * math.pi) / 2
    return constant - (nu + 1) / 2 * np.log1p(x * x / nu)


def log_ratio(
    family: str, x: np.ndarray, shift: float, degrees_of_freedom: float | None = None
) -> np.ndarray:
    """Returns log z(x - shift) - log z(x) at scale 1, shift >= 0; tiny shifts do not cancel."""
    if family == "gaussian":
        return shift * x - shift * shift / 2
    if family == "sech":
        # cosh(x - t) / cosh x = cosh t - sinh t tanh x. For a large t this difference cancels if x
        # is large, so the log densities are subtracted instead.
        if shift < 1:
            lost = 2 * math.sinh(shift / 2) ** 2 - math.sinh(shift) * np.tanh(x)
            return -np.log1p(lost)
        return log_density("sech", x - shift) - log_density("sech", x)
    if family in ("laplace", "variance_gamma"):
        # `farther` is |x - t| - |x| without rounding of the difference.
        farther = np.clip(shift - 2 * x, -shift, shift)
        if family == "laplace":
            return -farther
        return np.log1p(farther / (1 + np.abs(x))) - farther
    nu = degrees(family, degrees_of_freedom)
    assert nu is not None
    return -(nu + 1) / 2 * np.log1p((shift * shift - 2 * shift * x) / (nu + x * x))


def score(family: str, x: np.ndarray, degrees_of_freedom: float | None = None) -> np.ndarray:
    """Returns -d log z / dx at scale 1, for x > 0."""
    if family == "laplace":
        return np.ones_like(x)
    if family == "sech":
        return np.tanh(x)
    if family == "variance_gamma":
        return x / (1 + x)
    if family == "gaussian":
        return np.asarray(x)
    nu = degrees(family, degrees_of_freedom)
    assert nu is not None
    return (nu + 1) * x / (nu + x * x)


def fisher_information(family: str, degrees_of_freedom: float | None = None) -> float:
    """Returns the location Fisher information at scale 1, which governs small shifts; 1 if Gaussian."""
    if family in _FISHER:
        return _FISHER[family]
    if family == "variance_gamma":
        # E[(x / (1 + |x|))^2] under (1 + |x|) exp(-|x|) / 4 = int x^2 exp(-x) / (1 + x) dx / 2.
        return float(special.exp1(1.0) * math.e) / 2
    nu = degrees(family, degrees_of_freedom)
    assert nu is not None
    return (nu + 1) / (nu + 3)
