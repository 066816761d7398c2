"""The statistical checks of a replay: noise of the accounted law.

Each returns findings with a p-value: the probability that a sound training looks as bad. Everything
here is NumPy and SciPy.
"""

import dataclasses
import itertools
import math

import numpy as np
from scipy import special, stats

# Entries of a step's noise that the Kolmogorov-Smirnov test looks at; more would only take time.
_ENTRIES = 200_000


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: of the check.
        p_value: probability that a sound training looks at least as bad; 0 for what never happens in
            a sound training, 1 if there is nothing to see.
        detail: a sentence.
        step: the step that it is about, or None for all of them.
    """

    name: str
    p_value: float
    detail: str
    step: int | None = None


# -- noise -------------------------------------------------------------------------------------------


def noise_law(noise, cdf, sizes) -> tuple[list[Finding], np.ndarray]:
    """Whether noise, in units of its accounted scale, has the accounted law in every step and weight.

    Args:
        noise: array [steps, entries].
        cdf: the accounted distribution function, for scale 1.
        sizes: numbers of entries of the variables, in order.

    Returns:
        (findings, noise that is mapped to N(0, 1) by the accounted law).
    """
    bounds = np.cumsum([0, *sizes])
    for step, values in enumerate(noise):
        for variable, (start, end) in enumerate(itertools.pairwise(bounds)):
            if end > start and not np.any(values[start:end]):
                words = f"there is none at all in variable {variable}"
                return [Finding("noise", 0.0, words, step)], noise
    every = max(1, noise.size // _ENTRIES)
    p = float(stats.kstest(noise.reshape(-1)[::every], cdf).pvalue)
    found = [Finding("law of the noise", p, "Kolmogorov-Smirnov test of all entries")]
    normal = special.ndtri(np.clip(cdf(noise), 1e-16, 1.0 - 1e-16))
    by_step = [_variance(values) for values in normal]
    worst = int(np.argmin([p for p, _ in by_step]))
    p, ratio = by_step[worst]
    # The smallest p-value of all steps is multiplied by their number.
    words = f"{ratio:.3f} of the accounted variance"
    found.append(Finding("variance of the noise", min(1.0, p * len(noise)), words, worst))
    by_variable = [_variance(normal[:, a:b]) for a, b in itertools.pairwise(bounds) if b > a]
    worst = int(np.argmin([p for p, _ in by_variable]))
    p, ratio = by_variable[worst]
    words = f"{ratio:.3f} of the accounted variance in variable {worst}"
    found.append(Finding("variance in each variable", min(1.0, p * len(by_variable)), words))
    size, most = normal.size, float(np.max(np.abs(normal)))
    within = size * math.log1p(-2.0 * float(stats.norm.sf(most)))
    p = min(1.0, 2.0 * min(math.exp(within), -math.expm1(within)))
    found.append(Finding("largest noise", p, f"{most:.2f} standard deviations in {size:,} draws"))
    p, ratio = _variance(normal)
    words = f"{ratio:.3f} of the accounted variance"
    found.append(Finding("variance of the noise, all steps", p, words))
    return found, normal


def _variance(values) -> tuple[float, float]:
    """(p-value, mean square) of numbers that should be N(0, 1)."""
    mean = float(np.mean(values**2))
    return two_sided(stats.chi2(values.size), mean * values.size), mean


def whiteness(noise, sums) -> list[Finding]:
    """Whether noise is independent from step to step, from entry to entry, and of the sums.

    Args:
        noise: array [steps, entries] that should be N(0, 1).
        sums: array [steps, entries], the bounded sums.
    """
    found = []
    unit = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    steps, entries = noise.shape
    if steps > 1 and entries >= 50:
        closest = [
            stats.kstwobign.cdf(math.sqrt(entries / 2.0) * _distance(one, other))
            for one, other in itertools.pairwise(noise)
        ]
        worst = int(np.argmin(closest))
        p = min(1.0, float(closest[worst]) * len(closest))
        words = f"how alike steps {worst} and {worst + 1} are, whatever the order of weights"
        found.append(Finding("noise in another order", p, words, worst + 1))
    if steps > 1 and entries >= 10:
        products = unit @ unit.T
        rows, columns = np.triu_indices(steps, 1)
        common = np.abs(products[rows, columns])
        worst = int(np.argmax(common))
        p = _of_correlation(common[worst], entries) * len(common)
        i, j = rows[worst], columns[worst]
        words = f"correlation {common[worst]:.3f} between steps {i} and {j}"
        found.append(Finding("noise of different steps", min(1.0, p), words, int(j)))
        # A weak correlation that all pairs at one distance share.
        lags = np.arange(1, steps)
        z = [np.trace(products, lag) * math.sqrt(entries / (steps - lag)) for lag in lags]
        worst = int(np.argmax(np.abs(z)))
        p = 2.0 * float(stats.norm.sf(abs(z[worst]))) * len(z)
        words = f"z = {z[worst]:.1f} for steps {lags[worst]} apart, all together"
        found.append(Finding("noise of steps at one distance", min(1.0, p), words))
    lags = np.arange(1, entries)
    lags = lags[steps * (entries - lags) >= 200]
    if len(lags):
        spectrum = np.fft.rfft(noise, 2 * entries, axis=1)
        total = np.fft.irfft(np.sum(np.abs(spectrum) ** 2, axis=0), 2 * entries)[lags]
        z = total / np.sqrt(steps * (entries - lags))
        worst = int(np.argmax(np.abs(z)))
        p = 2.0 * float(stats.norm.sf(abs(z[worst]))) * len(z)
        words = f"z = {z[worst]:.1f} for weights {lags[worst]} entries apart"
        found.append(Finding("noise of different weights", min(1.0, p), words))
    sizes = np.linalg.norm(sums, axis=1)
    z = [float(noise[i] @ sums[i] / sizes[i]) for i in range(steps) if sizes[i] > 0]
    if z:
        p = float(stats.chi2.sf(np.sum(np.square(z)), len(z)))
        found.append(Finding("noise and sums", p, "projection of the noise on the sums"))
    return found


def _distance(one, other) -> float:
    """Largest distance of two empirical distribution functions."""
    return float(stats.ks_2samp(one, other, method="asymp").statistic)


def _of_correlation(value, entries):
    """Two-sided p-value of a correlation of independent unit vectors (exact for Gaussian entries)."""
    if value >= 1.0 - 1e-12:
        return 0.0
    t = value * math.sqrt((entries - 1) / (1.0 - value**2))
    return 2.0 * float(stats.t.sf(t, max(1, entries - 1)))


def two_sided(law, value, step: int = 0) -> float:
    """Two-sided p-value of a number under a SciPy law; `step` is 1 for laws on whole numbers."""
    return min(1.0, 2.0 * min(float(law.cdf(value)), float(law.sf(value - step))))
