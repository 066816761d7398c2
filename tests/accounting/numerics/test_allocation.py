"""Random allocation: the losses of an epoch against sampling, quadrature, and other schemes."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.accounting.varying import vary
from tfdp.accounting import describe, noise_for, proven
from tfdp.accounting.numerics.gaussian import log_delta
from tfdp.accounting.numerics.pairs import Component
from tfdp.accounting.numerics.subsampled import one_round

DELTA = 1e-5
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0)
RUN = describe(
    mechanism="dpsgd",
    sampling="random_allocation",
    num_examples=60_000,
    lot_size=256,
    steps=15 * 234,
    noise_multiplier=1.1,
)


def epoch(lots, noise):
    halves = one_round((Component(1.0, 1 / lots, noise, "allocation"),), 5e-4).halves
    return [[half.delta(e) for e in EPSILONS] for half in halves]


@pytest.mark.parametrize("noise", [0.5, 0.8, 2.5])
def test_two_lots_by_quadrature(noise):
    """The mixture of two Gaussians on the plane against the one at 0."""
    x = np.linspace(-9 * noise, 9 * noise + 1, 1201)
    cell = (x[1] - x[0]) ** 2
    nothing, one = (stats.norm.pdf(x, c, noise) for c in (0.0, 1.0))
    p = (np.outer(one, nothing) + np.outer(nothing, one)) / 2
    q = np.outer(nothing, nothing)
    for found, (first, other) in zip(epoch(2, noise), ((p, q), (q, p)), strict=True):
        truth = [np.maximum(first - math.exp(e) * other, 0).sum() * cell for e in EPSILONS]
        np.testing.assert_allclose(found, truth, rtol=5e-4, atol=2e-6)
        assert np.all(np.array(found) >= np.array(truth) * (1 - 1e-6) - 1e-9)


def epsilon_of_lots(lots, **changes):
    run = vary(RUN, lot_size=60_000 // lots, steps=lots, noise_multiplier=0.8)
    return proven(vary(run, **changes), 1e-6).epsilon


def test_few_lots_with_little_noise():
    """With little noise, the best attack looks at the lot of the largest sum: log(lots) is gained."""
    found = [epsilon_of_lots(lots) for lots in (1, 2, 3, 4, 8, 32, 33, 40)]
    assert found[1] == pytest.approx(5.6208, rel=2e-4)  # 5.6208 by quadrature
    assert all(a > b for a, b in itertools.pairwise(found))
    clear = [epsilon_of_lots(lots, noise_multiplier=0.5) for lots in (1, 2, 4, 8)]
    gained = np.diff(clear)
    np.testing.assert_allclose(gained, -math.log(2), rtol=5e-3)


@pytest.mark.parametrize("lots", [2, 5, 32])
def test_the_two_lattices_agree(lots):
    """Above a noise multiplier of 2, the lattice is even in X."""
    found = [epsilon_of_lots(lots, noise_multiplier=z) for z in (2.0, 2.0 + 1e-9)]
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_many_lots_by_sampling():
    rng, lots, noise, number = np.random.default_rng(0), 20, 0.9, 200_000
    draws = rng.normal(size=(lots, number))
    y = np.exp(draws / noise - 0.5 / noise**2).mean(0)
    draws[0] += 1 / noise  # the lot that has the example, which all of them are alike
    y_with = np.exp(draws / noise - 0.5 / noise**2).mean(0)
    forward, backward = epoch(lots, noise)
    for at, e in enumerate(EPSILONS):
        one = np.maximum(1 - math.exp(e) / y_with, 0)
        other = np.maximum(1 - math.exp(e) * y, 0)
        for sample, found in ((one, forward[at]), (other, backward[at])):
            error = sample.std() / math.sqrt(number)
            assert abs(sample.mean() - found) <= 4 * error + 0.02 * found + 1e-6


def test_one_lot_is_a_gaussian():
    whole = vary(RUN, lot_size=60_000, steps=15, noise_multiplier=8.0)
    exact = proven(vary(whole, sampling="cyclic"), DELTA).epsilon
    assert exact <= proven(whole, DELTA).epsilon <= exact * (1 + 1e-3)


def test_golden_value_and_order():
    found = proven(RUN, DELTA).epsilon
    assert found == pytest.approx(1.0949, rel=1e-3)
    assert found < 0.1 * proven(vary(RUN, sampling="shuffle"), DELTA).epsilon
    few = vary(RUN, num_examples=2560, steps=30)  # three epochs of ten lots
    noises = [proven(vary(few, noise_multiplier=z), DELTA).epsilon for z in (0.45, 0.6, 0.8, 3.0)]
    assert all(a > b for a, b in itertools.pairwise(noises))
    assert noises[0] <= proven(vary(few, sampling="shuffle", noise_multiplier=0.45), DELTA).epsilon


def test_the_lattice_is_fine_enough_for_few_lots_with_little_noise():
    run = vary(RUN, num_examples=100, lot_size=10, steps=200, noise_multiplier=0.5)
    assert 31.6 < proven(run, 1e-3).epsilon < 31.66  # 31.647 on finer lattices


def test_epochs_compose_and_steps_of_an_epoch_count_together():
    one = proven(vary(RUN, steps=234), DELTA).epsilon
    assert proven(vary(RUN, steps=1), DELTA).epsilon == one
    assert one < proven(vary(RUN, steps=235), DELTA).epsilon
    table = (2.0,) * 234 + (1.1,) * 234
    both = proven(vary(RUN, noise_multiplier=table, steps=468), DELTA).epsilon
    assert one < both < proven(vary(RUN, steps=468), DELTA).epsilon


def test_calibration():
    run = vary(RUN, num_examples=2560, steps=30)
    noise = noise_for(2.0, DELTA, run)
    assert 1.999 < proven(vary(run, noise_multiplier=noise), DELTA).epsilon <= 2.0


# ------------------------------------------------ a record is replaced


def replaced(lots, noise):
    half = one_round((Component(1.0, 1 / lots, noise, "replaced_allocation"),), 5e-4).halves[0]
    return np.array([half.delta(e) for e in EPSILONS])


@pytest.mark.parametrize("noise", [1.2, 2.0])
def test_replaced_in_two_lots_by_quadrature(noise):
    """All gradients of a record on the plane, also those of a second lot that follow the first one."""
    x = np.linspace(-7 * noise, 7 * noise + 1, 281)
    cell = (x[1] - x[0]) ** 2
    rng, worst = np.random.default_rng(0), np.zeros(len(EPSILONS))
    first, second = np.meshgrid(x, x, indexing="ij")

    def density(of_first, of_second):
        parts = (
            stats.norm.pdf(first, of_first, noise) * stats.norm.pdf(second, 0, noise),
            stats.norm.pdf(first, 0, noise) * stats.norm.pdf(second, of_second, noise),
        )
        return sum(parts) / 2

    def attempt(one, other):
        p, q = density(*one), density(*other)
        for a, b in ((p, q), (q, p)):
            found = [np.maximum(a - math.exp(e) * b, 0).sum() * cell for e in EPSILONS]
            np.maximum(worst, found, out=worst)

    for signs in itertools.product((-1.0, 0.0, 1.0), repeat=4):
        attempt(signs[:2], signs[2:])
    for _ in range(5):  # gradients of the second lot that depend on the release of the first one
        a, b, c, d = rng.normal(scale=3, size=4)
        attempt((rng.choice([-1, 1]), np.tanh(a * first + b)), (1, np.tanh(c * first + d)))
    found = replaced(2, noise)
    assert np.all(worst <= found * (1 + 1e-4) + 1e-8)
    np.testing.assert_allclose(found, worst, rtol=0.02, atol=1e-5)


def test_replaced_in_many_lots_by_sampling():
    rng, lots, noise, number = np.random.default_rng(0), 20, 1.1, 200_000
    draws = rng.normal(size=(lots, number))
    draws[0] += 1 / noise
    with_, other = (np.exp(sign * draws / noise).sum(0) for sign in (1, -1))
    for e, found in zip(EPSILONS, replaced(lots, noise), strict=True):
        sample = np.maximum(1 - math.exp(e) * other / with_, 0)
        error = sample.std() / math.sqrt(number)
        assert abs(sample.mean() - found) <= 4 * error + 5e-3 * found + 1e-7


def test_replaced_records_golden_values_and_order():
    found = proven(RUN, DELTA, "replace_one")
    assert found.epsilon == pytest.approx(1.9342, rel=1e-3) and found.changes == 1
    assert proven(vary(RUN, microbatch_size=4), DELTA).epsilon == found.epsilon
    few = vary(RUN, num_examples=2560, steps=30)  # three epochs of ten lots
    noises = [
        proven(vary(few, noise_multiplier=z), DELTA, "replace_one").epsilon
        for z in (0.45, 0.6, 0.8, 1.0, 3.0)
    ]
    assert all(a > b for a, b in itertools.pairwise(noises))
    for run in (few, RUN):
        assert proven(run, DELTA).epsilon < proven(run, DELTA, "replace_one").epsilon
    users = proven(vary(RUN, max_examples_per_user=2), DELTA, "replace_one")
    assert users.epsilon == pytest.approx(4.3768, rel=1e-3) and users.changes == 2


def test_one_lot_that_replaces_is_a_gaussian():
    exact = np.array([math.exp(log_delta(e, 2 / 4.0)) for e in EPSILONS])
    found = replaced(1, 4.0)
    assert np.all(exact <= found) and np.all(found <= exact * 1.01 + 1e-6)
