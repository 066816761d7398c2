"""Attacks on linear functions of all sums whose lots are drawn by coin flips, by the worst gradients.

By Theorem F of `tfdp.accounting.linear_steps`, one gradient in all steps is the worst choice. The
releases are then y = W m + z xi, against z xi without the record, and the likelihood ratio of y is
computed by a recursion over the steps: for prefix sums, the state is the number of draws so far, and
for a matrix of few bands, the draws of the last steps. `shown` samples it.

    python -m tests.accounting.mechanisms.worst_gradients  # figures of docs/decisions/tightness.md
"""

import math

import numpy as np
from scipy import special

from tfdp.accounting import describe, proven
from tfdp.accounting.strategies import strategy

# Chance that a shown epsilon is not one.
ERROR = 1e-3


def sums(states):
    """(next states without a draw, with a draw, shift in each state) of prefix sums."""
    numbers = np.arange(states)
    return numbers, np.minimum(numbers + 1, states - 1), 1.0 * numbers


def bands(column):
    """As `sums`, for a Toeplitz matrix: bit j of a state is whether the record was in the lot j ago."""
    numbers = np.arange(2 ** len(column))
    bits = numbers[:, None] >> np.arange(len(column)) & 1
    idle = numbers << 1 & 2 ** len(column) - 1
    return idle, idle | 1, bits @ np.asarray(column)


def log_ratios(chain, q, noise, steps, samples):
    """Log likelihood ratios of sampled releases with the record."""
    idle, joined, shift = chain
    rng = np.random.default_rng(0)
    forward = np.zeros((len(shift), len(shift)))
    np.add.at(forward, (idle, np.arange(len(shift))), 1 - q)
    np.add.at(forward, (joined, np.arange(len(shift))), q)
    results = []
    for start in range(0, samples, 4000):
        size = min(4000, samples - start)
        state = np.zeros(size, int)
        chances = np.zeros((len(shift), size))
        chances[0] = 1.0
        total = np.zeros(size)
        for _ in range(steps):
            state = np.where(rng.random(size) < q, joined[state], idle[state])
            y = shift[state] + noise * rng.normal(size=size)
            chances = forward @ chances
            chances *= np.exp((np.outer(shift, y) - (shift**2 / 2)[:, None]) / noise**2)
            density = chances.sum(axis=0)
            chances /= density
            total += np.log(density)
        results.append(total)
    return np.concatenate(results)


def shown(chain, q, noise, steps, delta, samples):
    """An epsilon that the run exceeds, but for a chance of `ERROR` in the sampling.

    P(event) - e^epsilon Q(event) is the mean of max(1 - e^(epsilon - L), 0) under P, of numbers from 0
    to 1. By Hoeffding's inequality with relative entropies, it is above delta, unless an event of
    chance exp(-samples KL(average, delta)) happened.
    """
    losses = log_ratios(chain, q, noise, steps, samples)

    def gain(epsilon):
        return float(np.mean(np.maximum(-np.expm1(np.minimum(epsilon - losses, 0)), 0)))

    def certain(average):
        if average <= delta:
            return False
        entropy = special.rel_entr(average, delta) + special.rel_entr(1 - average, 1 - delta)
        return samples * entropy >= -math.log(ERROR)

    low, high = 0.0, float(losses.max())
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if certain(gain(middle)) else (low, middle)
    return low


def main():
    delta = 1e-4
    for number, noise in ((2, 1.1), (2, 2.0), (4, 2.0), (4, 4.0)):
        plan = strategy("banded_toeplitz", 3516, number)
        run = describe(
            "matrix", "poisson", num_examples=60000, lot_size=256, steps=3516,
            noise_multiplier=noise, strategy=plan,
        )  # fmt: skip
        found = shown(bands(plan.first(3516)), 256 / 60000, noise, 3516, delta, 200_000)
        print(number, "bands", noise, proven(run, delta).epsilon, found, flush=True)
    for lot, steps, noise in (
        (100, 10, 16.0),
        (100, 10, 4.0),
        (10, 10, 4.0),
        (10, 40, 16.0),
        (10, 160, 64.0),
    ):
        run = describe(
            "si_dpsgd",
            "poisson",
            num_examples=1000,
            lot_size=lot,
            steps=steps,
            noise_multiplier=noise,
        )
        found = shown(sums(30), lot / 1000, noise, steps, delta, 600_000)
        print(run, proven(run, delta).epsilon, found, flush=True)


if __name__ == "__main__":
    main()
