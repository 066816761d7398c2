"""The statistical checks of a replay: lots of the accounted law, noise of the accounted law.

Each returns findings with a p-value: the probability that a sound training looks as bad. Everything
here is NumPy and SciPy.
"""

import collections
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


# -- lots --------------------------------------------------------------------------------------------


def lot_sizes(sizes, run) -> list[Finding]:
    """Whether lots have the sizes of their sampling scheme.

    Args:
        sizes: number of examples in each lot.
        run: what the steps were accounted as (`accounting.Run`).
    """
    sizes, trials = np.asarray(sizes), run.sampling.trials()
    found = []
    largest = run.sampling.largest_lot
    if largest is not None and sizes.max(initial=0) > largest:
        step = int(np.argmax(sizes))
        found.append(
            Finding("lot size", 0.0, f"a lot has {sizes[step]}, more than {largest}", step)
        )
    if not run.sampling.coin_flips or run.groups > 1 or run.sampling.max_lot_size is not None:
        if run.sampling.whole_epochs or (trials is not None and trials[0] > 1):
            wrong = np.flatnonzero(sizes != run.lot_size)
            if len(wrong):
                words = f"a lot has {sizes[wrong[0]]} examples, not {run.lot_size}"
                found.append(Finding("lot size", 0.0, words, int(wrong[0])))
        return found
    n, q = run.num_examples, run.sampling_probability
    if q >= 1:
        wrong = np.flatnonzero(sizes != n)
        if not len(wrong):
            return found
        words = f"a lot has {sizes[wrong[0]]} of {n} examples, and each is in every lot"
        return [*found, Finding("lot size", 0.0, words, int(wrong[0]))]
    total = stats.binomtest(int(sizes.sum()), n * len(sizes), q).pvalue
    found.append(
        Finding("mean lot size", float(total), f"{sizes.mean():.1f} of {n * q:.1f} expected")
    )
    # Lots that were cut pile up at one size, which no larger lot exceeds. The size is chosen by the
    # data, so the probability is taken times the number of sizes.
    most = int(sizes.max())
    piled = int(np.sum(sizes == most))
    p = float(stats.binom.sf(piled - 1, len(sizes), stats.binom.pmf(most, n, q))) * n
    words = f"{piled} of {len(sizes)} lots have {most} examples, and none has more"
    found.append(Finding("largest lots", min(1.0, p), words))
    spread = float(np.sum((sizes - n * q) ** 2) / (n * q * (1 - q)))
    p = _two_sided(stats.chi2(len(sizes)), spread)
    found.append(
        Finding(
            "spread of lot sizes", p, f"{spread / len(sizes):.2f} of the variance of coin flips"
        )
    )
    return found


def repetitions(lots, run) -> list[Finding]:
    """Whether examples come back as in independent lots, or in fixed places as in epochs.

    Lots that are drawn independently: given in how many of T lots an example is, all places are equally
    likely, so the number of neighbouring lots that share it has a known mean and variance; this holds
    for records that look alike, too. An example that is drawn far too often, or examples that are all
    drawn equally often, are no coin flips.

    Args:
        lots: for each step a list of hashable examples.
        run: what the steps were accounted as.
    """
    if run.groups > 1 or len(lots) < 2:
        return []
    sets = [frozenset(lot) for lot in lots]
    if run.sampling.whole_epochs:
        return _in_epochs(sets, run)
    if not run.sampling.random_lots:
        return []
    counts, shared = collections.Counter(), 0
    for lot in sets:
        counts.update(lot)
    for one, other in itertools.pairwise(sets):
        shared += len(one & other)
    t, c = len(lots), np.array([*counts.values()], float)
    expected = float(np.sum(c * (c - 1) / t))
    variance = float(np.sum(c * (c - 1) * (t - c) * (t - c + 1) / (t**2 * max(1, t - 1))))
    found = []
    if variance > 0:
        z = (shared - expected) / math.sqrt(variance)
        words = f"{shared} examples in common, {expected:.0f} expected"
        p = 2.0 * float(stats.norm.sf(abs(z)))
        found.append(Finding("overlap of neighbouring lots", p, words))
    if not run.sampling.coin_flips or run.sampling_probability >= 1:
        return found
    n, q = run.num_examples, run.sampling_probability
    # Records that look alike are drawn as one, twice as often; they make the spread larger only.
    p = float(stats.binom.sf(c.max() - 1, 2 * t, q)) * n
    words = f"one example is in {c.max():.0f} of {t} lots, {t * q:.1f} are expected"
    found.append(Finding("most drawn example", min(1.0, p), words))
    spread = (np.sum((c - t * q) ** 2) + max(0, n - len(c)) * (t * q) ** 2) / (t * q * (1 - q))
    p = float(stats.chi2.cdf(spread, n))
    words = f"counts of examples have {spread / n:.2f} of the variance of coin flips"
    found.append(Finding("spread of draws", p, words))
    return found


def _in_epochs(sets, run):
    """Lots of one epoch are different; in a fixed order, they come back after an epoch."""
    length = run.steps_per_epoch
    for first in range(0, len(sets) - length + 1, length):
        epoch = sets[first : first + length]
        if len(set(epoch)) < len(epoch):
            words = "a lot comes twice in one epoch"
            return [Finding("lots of an epoch", 0.0, words, first)]
    if run.sampling.fixed_order:
        for step in range(length, len(sets)):
            if sets[step] != sets[step - length]:
                words = f"the lot is not that of {length} steps before"
                return [Finding("order of lots", 0.0, words, step)]
    return []


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
    p, ratio = _variance(normal)
    words = f"{ratio:.3f} of the accounted variance"
    found.append(Finding("variance of the noise, all steps", p, words))
    return found, normal


def _variance(values) -> tuple[float, float]:
    """(p-value, mean square) of numbers that should be N(0, 1)."""
    mean = float(np.mean(values**2))
    return _two_sided(stats.chi2(values.size), mean * values.size), mean


def whiteness(noise, sums) -> list[Finding]:
    """Whether noise is independent from step to step, from entry to entry, and of the sums.

    Args:
        noise: array [steps, entries] that should be N(0, 1).
        sums: array [steps, entries], the bounded sums.
    """
    found = []
    unit = noise / np.linalg.norm(noise, axis=1, keepdims=True)
    steps, entries = noise.shape
    if steps > 1:
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


def _of_correlation(value, entries):
    """Two-sided p-value of a correlation of independent unit vectors (exact for Gaussian entries)."""
    if value >= 1.0 - 1e-12:
        return 0.0
    t = value * math.sqrt((entries - 1) / (1.0 - value**2))
    return 2.0 * float(stats.t.sf(t, max(1, entries - 1)))


def _two_sided(law, value) -> float:
    return min(1.0, 2.0 * min(float(law.cdf(value)), float(law.sf(value))))
