"""Laws of the influence of one record under random sampling, with the sampling treated as public.

Theorem B. Under Poisson or with-replacement sampling the multiplicities m of a record do not depend
on the data, and given them the mechanism is Gaussian with mu = ||W m|| / z. Hockey-stick divergence
is jointly convex, so delta(epsilon) is at most the average over m of the Gaussian profiles. This needs
the law of ||W m||^2, or of an upper bound on it.

Every law is a tuple `(squares, probabilities, overflow)`: outcomes rounded up, their probabilities,
and the probability of all outcomes that were left out.
"""

import math

import numpy as np

from tfdp.accounting.run import Run

Law = tuple[np.ndarray, np.ndarray, float]

# Tail mass that may be left out, as a share of delta. It increases epsilon by a negligible part.
_TAIL_SHARE = 1e-6
# Approximate number of table cells in the dynamic programme of `prefix_sum_law`.
_DP_CELLS = 4_000_000


def draws(run: Run, tail: float) -> tuple[np.ndarray, float] | None:
    """Returns the law of how often a user's examples (or their microbatches) are drawn in one step.

    Returns:
        (probabilities of 0, 1, ... draws, probability of more); None if lots are not drawn
        independently.
    """
    lots = run.sampling.of_groups(run.contribution.microbatch_size)
    return lots.draws(run.contribution.max_examples_per_user, tail)


def _drawn(run: Run, tail: float) -> tuple[np.ndarray, float]:
    """The same as `draws`, for lots that every step draws independently."""
    law = draws(run, tail)
    assert law is not None
    return law


def _whole(law: Law) -> Law:
    """Returns the law with an overflow that includes all missing probability, whatever its cause."""
    values, probabilities, overflow = law
    missing = 1.0 - math.fsum(probabilities) - overflow
    if missing > 1e-10:
        return values, probabilities, overflow + missing
    # This little is rounding, which is relative to each probability and must not use up a tiny delta.
    return values, probabilities * (1.0 + max(missing, 0.0)), overflow


def occurrence_law(run: Run, steps: int, delta: float, scale: float) -> Law:
    """Returns the law of mu^2 = scale^2 sum m_s^2 in DP-SGD if every sample is revealed.

    A user whose examples are drawn m_s times in step s moves that step's sum by at most scale * m_s
    standard deviations of the noise. Convolution gives the law of the sum of squares exactly, up to
    the tail.
    """
    tail = _TAIL_SHARE * delta
    one, over = _drawn(run, tail / max(steps, 1))
    step = np.zeros((len(one) - 1) ** 2 + 1)
    step[np.arange(len(one)) ** 2] = one
    probabilities, overflow = _power(step, steps, tail)
    squares = np.arange(len(probabilities), dtype=float) * scale * scale
    return _whole((squares, probabilities, overflow + steps * over))


def _power(pmf: np.ndarray, times: int, tail: float) -> tuple[np.ndarray, float]:
    """Probabilities of a sum of `times` independent copies, and the mass trimmed from its tail.

    Convolutions are direct rather than by Fourier transforms, so no term becomes negative.
    """
    result, overflow, base, base_over = np.array([1.0]), 0.0, pmf, 0.0
    # A trimmed mass counts once for every copy of the base that contains it.
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


def prefix_sum_law(run: Run, delta: float, bins: int = 50) -> Law:
    """Returns the law of ||A m||^2 for the matrix A of prefix sums (constant rate, no momentum).

    Steps are cut into bins of l steps, and every participation is moved to the start of its bin,
    which only increases each row of A m. Then ||A m||^2 = l * sum over bins of K_i^2, where K_i is
    the number of participations up to bin i. A dynamic programme over (K, sum of K_i^2) computes its
    law. With at most `bins` steps the bins are single steps and no participation is moved.
    """
    tail = _TAIL_SHARE * delta
    length = max(1, run.steps // bins)
    count = -(-run.steps // length)  # the last bin is filled up, which only adds rows to A
    step, over = _drawn(run, tail / (count * length))
    whole, overflow = _power(step, count * length, tail)
    k_max = len(whole) - 1
    one, cut = _power(step, length, tail / count)
    overflow += count * (cut + 2 * length * over)
    # The sum of K_i^2 never exceeds k_max^2 * count. Each square is rounded up to a multiple of
    # `unit`, which bounds the memory.
    unit = max(1, math.ceil(k_max * k_max * count * (k_max + 1) / _DP_CELLS))
    rise = -(-(np.arange(k_max + 1) ** 2) // unit)
    rows = [np.ones(1)]  # probabilities of the sum so far, for each K
    for _ in range(count):
        before, rows = rows, []
        for k in range(min(len(before) + len(one) - 1, k_max + 1)):
            ways = [(one[k - i], row) for i, row in enumerate(before[: k + 1]) if k - i < len(one)]
            row = np.zeros(rise[k] + max(len(row) for _, row in ways))
            for chance, earlier in ways:
                row[rise[k] : rise[k] + len(earlier)] += chance * earlier
            # Improbably large sums are dropped, and their mass counts as a complete loss.
            row, cut = _trim(row, tail / (count * (k_max + 1)))
            rows.append(row)
            overflow += cut
    total = np.zeros(max(map(len, rows)))
    for row in rows:
        total[: len(row)] += row
    # Paths with more than k_max participations have left the table; the tail of `whole`, which is
    # part of the overflow, covers them.
    return _whole((np.arange(len(total)) * float(unit * length), total, overflow))


def triangle_law(run: Run, norms: np.ndarray, delta: float, levels: int = 400) -> Law:
    """Returns the law of an upper bound on ||W m||^2 that holds for every schedule and momentum.

    By the triangle inequality, ||W m|| <= sum_s m_s ||W[:, s]||. The column norms `norms` are rounded
    up to multiples of the largest over `levels`, and convolution gives the law of the sum. For a
    constant rate the bound on mu is about 1.15 times the exact one.
    """
    tail = _TAIL_SHARE * delta
    if not norms.max() > 0:
        return np.zeros(1), np.ones(1), 0.0
    width = norms.max() / levels
    # Adding 1e-12 keeps the rounding of the division from rounding a norm down. The factor
    # (1 + 1e-12) in the result makes up for the factor (1 - 1e-14).
    level = np.minimum(np.ceil(norms / width * (1 - 1e-14) + 1e-12).astype(int), levels)
    steps_at = np.bincount(level, minlength=levels + 1)
    step, missing = _drawn(run, tail / run.steps)
    whole, overflow = _power(step, run.steps, tail)
    overflow += 2 * run.steps * missing
    k_max = len(whole) - 1
    pmf = np.zeros(k_max * levels + 1)
    pmf[0], used = 1.0, 1
    occupied = (np.flatnonzero(steps_at[1:]) + 1).tolist()
    for j in occupied:
        one, over = _power(step, int(steps_at[j]), tail / len(occupied))
        overflow += over
        new = np.zeros_like(pmf)
        for n in range(len(one)):
            end = min(len(pmf), used + n * j)
            if end > n * j:
                new[n * j : end] += one[n] * pmf[: end - n * j]
        used = min(len(pmf), used + (len(one) - 1) * j)
        pmf = new
    # The tail of `whole` covers more than k_max participations; fewer never leave the table.
    return _whole(((np.arange(len(pmf)) * width * (1 + 1e-12)) ** 2, pmf, overflow))
