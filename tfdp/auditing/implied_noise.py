"""The noise of recorded steps, from the weights that were really given out, and its accounted law."""

import functools

import numpy as np
from scipy import stats

from tfdp.accounting import Run
from tfdp.accounting.numerics import noise_families
from tfdp.auditing.recording import Step, flat


def implied_noise(steps: list[Step], optimizer):
    """The noise that the weights really got, over its accounted scale.

    Args:
        steps: the recorded steps of one run, in order.
        optimizer: the optimizer of the recorded model.

    Returns:
        (float64 array [steps, weights], None), or (None, why it is not known).
    """
    run = steps[0].run
    if getattr(optimizer, "denoise", False):
        return None, "the sum is denoised, which cannot be undone"
    table = np.ravel(run.noise_multiplier)
    accounted = np.array([table[step.counted - 1 if len(table) > 1 else 0] for step in steps])
    if np.any(accounted <= 0):
        return None, "none is accounted"
    if steps[0].means:
        rates = run.mechanism.schedule("learning_rates", steps[-1].counted)
        noise = []
        for step in steps:
            spacing = np.max(np.abs(flat(step.after)), initial=0.0) * np.finfo(np.float32).eps
            scale = rates[step.counted - 1] * step.clip * accounted[step.number - steps[0].number]
            if scale / step.divisor < 100 * spacing:
                return None, "it is as small as the rounding of the weights"
            drawn = flat(step.after) - flat(step.means)
            noise.append(drawn * step.divisor / (rates[step.counted - 1] * step.clip))
    elif any(step.noisy is None for step in steps):
        return None, "the update rule was given more than the noisy sum"
    else:
        noise = [(step.noisy - step.total) / step.clip for step in steps]
    noise = np.stack(noise)
    strategy = getattr(run, "strategy", None)
    if strategy is not None and steps[0].counted != 1:
        return None, "it is correlated with steps before the recording"
    if strategy is not None:
        noise = _white(noise, strategy.first(steps[-1].counted))
    if run.contribution.adaptive_clipping:
        # The multiplier is shared with the noise on the count, so the noise on the sum is larger.
        on_count = optimizer.adaptive_clipping.quantile_noise_multiplier
        accounted = accounted / np.sqrt(1.0 - (accounted / (2.0 * on_count)) ** 2)
    elif run.mechanism.adds_at_least:
        accounted = np.maximum(accounted, [step.scale / step.clip for step in steps])
    return noise / accounted[:, None], None


def _white(noise, coefficients):
    """Undoes the correlation: z_t = sum_j c_j y_{t-j}."""
    white = np.zeros_like(noise)
    for j, c in enumerate(coefficients[: len(noise)]):
        white[j:] += c * noise[: len(noise) - j]
    return white


def accounted_law(run: Run):
    """The distribution function of the accounted noise at scale 1."""
    encoding = getattr(run, "encoding", None)
    name = "gaussian" if encoding is None else encoding.noise
    laws = {
        "gaussian": stats.norm,
        "student_t": lambda: stats.t(encoding.degrees_of_freedom),
        "laplace": stats.laplace,
        "sech": stats.hypsecant,
        "cauchy": stats.cauchy,
    }
    if name in laws:
        return laws[name]().cdf
    grid = np.linspace(-60.0, 60.0, 240_001)
    density = np.exp(noise_families.log_density(name, grid, encoding.degrees_of_freedom))
    mass = np.concatenate(
        [[0.0], np.cumsum((density[1:] + density[:-1]) / 2) * (grid[1] - grid[0])]
    )
    return functools.partial(np.interp, xp=grid, fp=mass / mass[-1])
