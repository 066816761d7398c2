"""Laws of what one record does under random sampling, with the sampling treated as public.

Theorem B. Under Poisson or with-replacement sampling the multiplicities m of a record do not depend
on the data, and given them the mechanism is Gaussian with mu = ||W m|| / z. Hockey-stick divergence
is jointly convex, so delta(epsilon) is at most the average over m of the Gaussian profiles. What is
needed is the law of ||W m||^2, or of anything that is never smaller.

Every function here returns `(squares, probabilities, overflow)`: outcomes rounded up, their
chances, and the chance of everything that was left out.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from tfdp.accounting.numerics.binomials import binomial

if TYPE_CHECKING:
    from tfdp.accounting.run import Run
    from tfdp.accounting.sampling import Sampling

Law = tuple[np.ndarray, np.ndarray, float]

# Tail mass that may be left out, as a share of delta: it costs a negligible part of epsilon.
_TAIL_SHARE = 1e-6
_DP_CELLS = 4_000_000


def trials(sampling: "Sampling") -> tuple[int, float]:
    """(number, chance) of the independent draws of a record in one step."""
    found = sampling.trials()
    if found is None:
        raise ValueError(f"Expected random sampling. Received {sampling.name!r}.")
    return found


def _whole(law: Law) -> Law:
    """A law in which chances that are missing, for whatever reason, count as a complete loss."""
    values, probabilities, overflow = law
    missing = 1.0 - math.fsum(probabilities)
    # Up to the rounding of the sum, which must not matter to a tiny delta.
    return values, probabilities, missing if missing > overflow + 1e-10 else overflow


def occurrence_law(sampling: "Sampling", steps: int, delta: float, scale: float) -> Law:
    """Law of mu^2 = scale^2 sum m_s^2 in DP-SGD when every step is revealed.

    A record that is drawn m_s times in step s moves that step's sum by at most scale * m_s standard
    deviations of the noise. Drawing twice in one step is rare; the sum of squares is counted exactly
    by convolution.

    Args:
      sampling: Random sampling.
      steps: Number of steps.
      delta: Sets how much of the tail is left out.
      scale: Sensitivity of one occurrence in units of the noise.
    """
    number, chance = trials(sampling)
    tail = _TAIL_SHARE * delta
    if number == 1:
        probabilities, overflow = binomial(steps, chance, tail)
        k_squares = np.arange(len(probabilities), dtype=float)
    else:
        one, over = binomial(number, chance, tail / max(steps, 1))
        step = np.zeros((len(one) - 1) ** 2 + 1)
        step[np.arange(len(one)) ** 2] = one
        probabilities, overflow = _power(step, steps, tail)
        overflow += steps * over
        k_squares = np.arange(len(probabilities), dtype=float)
    return _whole((k_squares * scale * scale, probabilities, overflow))


def _power(pmf: np.ndarray, times: int, tail: float) -> tuple[np.ndarray, float]:
    """pmf of a sum of `times` independent copies, trimmed; all terms stay non-negative."""
    result, overflow, base, base_over = np.array([1.0]), 0.0, pmf, 0.0
    # A trimmed mass is counted once for every copy that contains it.
    while times:
        if times & 1:
            result, cut = _trim(np.convolve(result, base), tail / 64)
            overflow += cut + base_over
        times >>= 1
        if times:
            base, cut = _trim(np.convolve(base, base), tail / (64 * times))
            base_over = 2 * base_over + cut
    return result, overflow


def _trim(pmf: np.ndarray, tail: float) -> tuple[np.ndarray, float]:
    beyond = np.cumsum(pmf[::-1])[::-1]  # mass at or beyond each index
    keep = max(int(np.searchsorted(-beyond, -tail, side="left")), 1)
    return pmf[:keep], float(beyond[keep]) if keep < len(pmf) else 0.0


def prefix_sum_law(run: "Run", delta: float, bins: int = 50) -> Law:
    """Law of ||A m||^2 for prefix sums A (constant learning rate, no momentum).

    Steps are cut into bins of l steps and every participation is moved to the start of its bin,
    which only increases each row. Then ||A m||^2 = l * sum over bins of K_i^2 with K_i the number
    of participations so far: an exact dynamic programme over (K, sum of K_i^2). With at most
    `bins` steps the bins are single steps and the law is exact.

    Args:
      run: With random sampling.
      delta: Sets how much of the tail is left out.
      bins: Number of bins to aim for.
    """
    number, chance = trials(run.sampling)
    tail = _TAIL_SHARE * delta
    length = max(1, run.steps // bins)
    count = -(-run.steps // length)  # the last bin is filled up, which again only adds rows
    whole, overflow = binomial(count * length * number, chance, tail)
    k_max = len(whole) - 1
    one, over = binomial(length * number, chance, tail / count)
    overflow += count * over
    # The total never exceeds k_max^2 * count; a coarser unit (rounded up) bounds the memory.
    unit = max(1, math.ceil(k_max * k_max * count * (k_max + 1) / _DP_CELLS))
    rise = -(-(np.arange(k_max + 1) ** 2) // unit)
    size = int(rise[-1]) * count + 1
    state, used = np.zeros((k_max + 1, size)), 1
    state[0, 0] = 1.0
    for _ in range(count):
        arrived = np.zeros_like(state)
        for k in range(min(len(one), k_max + 1)):
            arrived[k:, :used] += one[k] * state[: k_max + 1 - k, :used]
        new_used = min(size, used + int(rise[-1]))
        state = np.zeros_like(arrived)
        for k in range(k_max + 1):
            state[k, rise[k] : rise[k] + used] = arrived[k, :used]
        # States whose total is improbably large are dropped and counted as a complete loss.
        beyond = np.cumsum(state[:, :new_used].sum(axis=0)[::-1])[::-1]
        used = max(int(np.searchsorted(-beyond, -tail / count)), 1)
        if used < new_used:
            overflow += float(beyond[used])
            state[:, used:] = 0.0
    # Paths with more than k_max participations in total fell off the table: `whole`'s tail.
    return _whole((np.arange(size) * float(unit * length), state.sum(axis=0), overflow))


def triangle_law(run: "Run", response, delta: float, levels: int = 400) -> Law:
    """Law of an upper bound on ||W m||^2 that holds for every schedule and momentum.

    ||W m|| <= sum_s m_s ||W[:, s]|| (triangle inequality). Column norms are rounded up to multiples
    of a 1/levels-th of the largest, and the sum of independent terms is convolved exactly. For a
    constant rate the bound on mu is about 1.15 times the exact one.

    Args:
      run: With random sampling.
      response: The matrix W (a `linear_releases.Response`, of which column_norms is used).
      delta: Sets how much of the tail is left out.
      levels: Resolution.
    """
    number, chance = trials(run.sampling)
    tail = _TAIL_SHARE * delta
    norms = response.column_norms()
    if not norms.max() > 0:
        return np.zeros(1), np.ones(1), 0.0
    width = norms.max() / levels
    # The hair below covers the rounding of the division, so that no norm is rounded down.
    level = np.minimum(np.ceil(norms / width * (1 - 1e-14) + 1e-12).astype(int), levels)
    steps_at = np.bincount(level, minlength=levels + 1)
    whole, overflow = binomial(run.steps * number, chance, tail)
    k_max = len(whole) - 1
    pmf = np.zeros(k_max * levels + 1)
    pmf[0], used = 1.0, 1
    occupied = np.flatnonzero(steps_at[1:]) + 1
    for j in occupied:
        one, over = binomial(int(steps_at[j]) * number, chance, tail / len(occupied))
        overflow += over
        new = np.zeros_like(pmf)
        for n in range(len(one)):
            end = min(len(pmf), used + n * j)
            if end > n * j:
                new[n * j : end] += one[n] * pmf[: end - n * j]
        used = min(len(pmf), used + (len(one) - 1) * int(j))
        pmf = new
    # More than k_max participations are covered by `whole`'s tail; fewer never leave the table.
    return _whole(((np.arange(len(pmf)) * width * (1 + 1e-12)) ** 2, pmf, overflow))
