"""The noise that weights really got, and whether it has the accounted law."""

import itertools
import math

import numpy as np
from scipy import special, stats

from tests.replay.lots import Finding, two_sided
from tests.replay.recorder import Recording, flat


def implied_noise(recording: Recording) -> np.ndarray:
    """The noise of all steps over its accounted scale, without correlation: [steps, weights]."""
    steps, run, optimizer = recording.steps, recording.run, recording.model.optimizer
    divisor = run.sampling.lot_size // run.contribution.microbatch_size
    accounted = np.broadcast_to(np.ravel(run.mechanism.noise_multiplier), len(steps))
    if steps[0].means:  # in the weights, not in what the update rule gets
        rates = run.mechanism.schedule("learning_rates", len(steps))
        drawn = [divisor * (flat(step.after) - flat(step.means)) for step in steps]
        noise = [d / (rate * s.clip) for d, rate, s in zip(drawn, rates, steps, strict=True)]
    else:
        sums = [divisor * flat(step.given) / optimizer.mean_factor for step in steps]
        noise = [(total - s.total) / s.clip for total, s in zip(sums, steps, strict=True)]
    noise = np.stack(noise)
    strategy = getattr(run.mechanism, "strategy", None)
    if strategy is not None:
        noise = _white(noise, strategy.first(len(steps)))
    if run.contribution.adaptive_clipping:
        # The multiplier is shared with the noise on the count, so the noise on the sum is larger.
        on_count = optimizer.adaptive_clipping.count_noise
        accounted = accounted / np.sqrt(1.0 - (accounted / (2.0 * on_count)) ** 2)
    elif run.mechanism.name == "sgld":  # it may add more noise than the multiplier says
        accounted = np.maximum(accounted, [step.scale / step.clip for step in steps])
    return noise / accounted[:, None]


def _white(noise, coefficients):
    """Undoes the correlation: z_t = sum_j c_j y_{t-j}."""
    white = np.zeros_like(noise)
    for j, c in enumerate(coefficients[: len(noise)]):
        white[j:] += c * noise[: len(noise) - j]
    return white


def check_noise(noise, sums, sizes, cdf=stats.norm.cdf) -> list[Finding]:
    """Findings about the law of the noise, and about what it depends on.

    Args:
        noise: array [steps, entries], in units of its accounted scale.
        sums: array [steps, entries], the bounded sums.
        sizes: numbers of entries of the variables, in order.
        cdf: the accounted distribution function, for scale 1.
    """
    bounds = [*itertools.pairwise(np.cumsum([0, *sizes]))]
    if not all(np.all(np.any(noise[:, a:b], axis=1)) for a, b in bounds):
        return [Finding("noise", 0.0, "a step leaves a variable without any")]
    normal = special.ndtri(np.clip(cdf(noise), 1e-16, 1.0 - 1e-16))
    most = float(np.max(np.abs(normal)))
    within = normal.size * math.log1p(-2.0 * float(stats.norm.sf(most)))
    return [
        Finding("law", float(stats.kstest(noise.ravel(), cdf).pvalue)),
        _variance("variance", [normal]),
        _variance("variance in each step", normal),
        _variance("variance in each variable", [normal[:, a:b] for a, b in bounds]),
        Finding("largest", min(1.0, 2.0 * min(math.exp(within), -math.expm1(within)))),
        *_steps(normal),
        _entries(normal),
        _projections(normal, sums),
    ]


def _variance(name, parts):
    """The smallest p-value of the mean squares of parts that should be N(0, 1)."""
    p = [two_sided(stats.chi2(part.size), float(np.sum(part**2))) for part in parts]
    return Finding(name, min(1.0, min(p) * len(p)), f"worst in number {np.argmin(p)}")


def _largest(name, z, detail):
    """The smallest p-value of standard normal numbers."""
    return Finding(name, min(1.0, 2.0 * float(stats.norm.sf(np.max(np.abs(z)))) * len(z)), detail)


def _steps(noise):
    """Do two steps have the same noise, or correlated noise?"""
    steps, entries = noise.shape
    unit = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    products = unit @ unit.T
    common = np.max(np.abs(products[np.triu_indices(steps, 1)]))
    # Exact for the correlation of independent Gaussian vectors.
    t = common * math.sqrt((entries - 1) / max(1e-12, 1.0 - common**2))
    p = float(stats.t.sf(t, entries - 1)) * steps * (steps - 1)
    lags = np.arange(1, steps)
    z = [np.trace(products, lag) * math.sqrt(entries / (steps - lag)) for lag in lags]
    words = f"{np.argmax(np.abs(z)) + 1} steps apart"
    return [
        Finding("pairs of steps", min(1.0, p)),
        _largest("steps at one distance", z, words),
    ]


def _entries(noise):
    """Whether weights share noise with weights at one distance."""
    steps, entries = noise.shape
    lags = np.arange(1, entries)
    lags = lags[steps * (entries - lags) >= 200]
    spectrum = np.fft.rfft(noise, 2 * entries, axis=1)
    total = np.fft.irfft(np.sum(np.abs(spectrum) ** 2, axis=0), 2 * entries)[lags]
    z = total / np.sqrt(steps * (entries - lags))
    return _largest("weights", z, f"{lags[np.argmax(np.abs(z))]} entries apart")


def _projections(noise, sums):
    """Whether the noise follows the sums."""
    z = np.sum(noise * sums, axis=1) / np.linalg.norm(sums, axis=1)
    return Finding("noise and sums", float(stats.chi2.sf(np.sum(z**2), len(z))))
