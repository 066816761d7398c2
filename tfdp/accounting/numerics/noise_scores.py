"""Noise of any family against Gaussian noise: a bound by its score, for shifts of any direction.

Let noise have independent coordinates of density z, with scores S = -z'(x) / z(x) at a draw x. Let P_t
be its law after a shift by the vector t, Phi and phi the distribution function and the density of
N(0, 1), and N a draw from it.

Theorem. If E max(<t, S> - y, 0) <= E max(sqrt(b) N - y, 0) for all y, then for every event A

    Phi^-1(P_t(A)) <= Phi^-1(P_0(A)) + sqrt(b),

so the shift is sqrt(b)-GDP, and by symmetry the other order is, too.

Proof. Let p(u) = P_ut(A) = Phi(a). Its derivative is E[<t, S>; A] under P_ut, where <t, S> has the
same law as under P_0. For every y it is at most y p + E max(<t, S> - y, 0). For y = -sqrt(b) a this is
at most y Phi(a) + E max(sqrt(b) N - y, 0) = sqrt(b) phi(a). So the derivative of Phi^-1(p(u)) is at
most sqrt(b), and u goes from 0 to 1.

Mixtures. Let P be a mixture of shifts by a_i with weights p_i, Q one of shifts by b_j with weights r_j,
and every a_i - b_j at most sqrt(b) (A_i - B_j)-GDP for numbers A_i and B_j. For an event A, let x_i and
y_j be Phi^-1 of its chances, so that x_i <= y_j + sqrt(b) (A_i - B_j), and c the least of all
y_j - sqrt(b) B_j. Then x_i <= sqrt(b) A_i + c and y_j >= sqrt(b) B_j + c, hence

    P(A) - alpha Q(A) <= sum p_i Phi(sqrt(b) A_i + c) - alpha sum r_j Phi(sqrt(b) B_j + c),

which is what a half line attains between mixtures of Gaussians with the centres A_i and B_j on a line.
This is the comparison lemma of `pairs` for noise of any family, with 1 / sqrt(b) as the noise.

The bound b. Let h(k) = pi/2 (E|S + sqrt(k) N|)^2 - k. Sums of independent numbers keep the order of the
theorem, so if S + sqrt(k) N is below N(0, k + h(k)) in it, a coordinate of shift t increases a bound b
to at most b + t^2 h(b / t^2). As h falls with k (a bound for k is one for k + x, plus x), shifts of at
most m give db/d(sum of t^2) <= h(b / m^2 - h(0)), where h(0) is for steps that end within their
interval. So b = m^2 K(sum of t^2 / m^2), with one function K for each family. In the limit of small
shifts it is the Fisher information times the sum of t^2, which no bound can undercut.

S + sqrt(k) N is below N(0, k + h): let D(y) be the difference of their E max(. - y, 0). D is even, 0 at
0 by the choice of h, and 0 at infinity. D'' is the difference of their densities, which are those of S
and N(0, h), convolved with N(0, k). If these change their order at most twice on y > 0, so do the
convolutions (variation diminishing; Karlin 1968, "Total positivity"), and far out the second one is
larger, since S is bounded. So D' is 0 at 0 and at infinity, first falls, if it does not fall at the end
only, then rises and falls: it is first negative and then positive. So D is at most 0. The densities
of S are

* laplace: atoms at -1 and 1;
* sech: 1 / (pi sqrt(1 - s^2)), which rises up to the end;
* variance_gamma: exp(-s / (1 - s)) / (4 (1 - s)^3); over that of N(0, h), its log has the derivative
  3 v - v^2 + (1 - 1 / v) / h with v = 1 / (1 - s), which is concave, so the ratio rises and then falls;
* student_t: with c = sqrt(1 - (s / largest)^2), a multiple of ((1 + c)^j + (1 - c)^j) / c for
  j = (nu - 1) / 2. Over the density of N(0, h), its log falls with c, so it rises with s, if

      j ((1 + c)^(j-1) - (1 - c)^(j-1)) / ((1 + c)^j + (1 - c)^j) <= 1 / c + largest^2 c / h,

  which holds for h <= h(0) and 1 <= nu <= 12 (in the tests; not from nu = 13 on, where quadrature still
  finds D <= 0).
"""

import functools
import math

import numpy as np
from scipy import special

from tfdp.accounting.numerics.noise_families import log_density, score

# Degrees of freedom of Student's t for which D <= 0 is proven.
LEAST_DEGREES, MOST_DEGREES = 1.0, 12.0
# Quadrature in u with x = sinh(u), whose ends are negligible even for Cauchy noise.
_END, _PANELS, _NODES = 40.0, 160, 20
# The first and the last k at which h is computed, and their number; h hardly falls any more.
_STARTS = (0.02, 1e4, 200)
# Relative margin for quadrature and rounding, which are far below it.
_HAIR = 1e-9


def are_covered(degrees_of_freedom: float | None) -> bool:
    """Returns whether the bound is proven; None is for families without degrees of freedom."""
    return degrees_of_freedom is None or LEAST_DEGREES <= degrees_of_freedom <= MOST_DEGREES


def square_of(
    family: str, degrees_of_freedom: float | None, square_norm: float, largest: float
) -> float:
    """Returns b, at scale 1, for all shifts up to this square norm with no entry above `largest`."""
    if not square_norm > 0:
        return 0.0
    bounds, sums, rate = _growth(family, degrees_of_freedom)
    most = square_norm / largest**2
    at = np.interp(most, sums, bounds) + max(most - sums[-1], 0.0) * rate
    return float(at) * largest**2 * (1 + _HAIR)


@functools.lru_cache(maxsize=16)
def _growth(family: str, degrees_of_freedom: float | None) -> tuple[np.ndarray, np.ndarray, float]:
    """(values of K, their arguments, the derivative of K after the last one)."""
    x, weight = np.polynomial.legendre.leggauss(_NODES)
    half = _END / _PANELS / 2
    u = np.add.outer((2 * np.arange(_PANELS) + 1) * half, half * x).ravel()
    x = np.sinh(u)
    density = np.exp(log_density(family, x, degrees_of_freedom))
    chances = 2 * half * np.tile(weight, _PANELS) * np.cosh(u) * density
    if family == "laplace":
        chances, x = np.ones(1), np.ones(1)
    scores = score(family, x, degrees_of_freedom)
    starts = np.geomspace(*_STARTS)
    root = np.sqrt(starts)[:, None]
    ratio = scores / root
    normal = math.sqrt(2 / math.pi) * root * np.exp(-(ratio**2) / 2)
    means = np.einsum("ij,j", scores * special.erf(ratio / math.sqrt(2)) + normal, chances)
    means = np.append(np.einsum("i,i", scores, chances), means)
    rates = math.pi / 2 * means**2 - np.append(0.0, starts)
    bounds = np.append(0.0, starts + rates[0])
    return bounds, np.append(0.0, np.cumsum(np.diff(bounds) / rates[:-1])), float(rates[-1])
