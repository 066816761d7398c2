"""Golden values from the tests of dp_accounting.

Golden values: google/differential-privacy at commit b5b0286e (version 0.6.0 of the package), below
`python/dp_accounting/dp_accounting/`. Each table names the file and the test that it was read from.
The assertions here are tfdp's own: a proven epsilon is an upper bound, so it may be larger than the
golden value by what rounding up costs, and never smaller.

dp_accounting's relation REPLACE_SPECIAL is `zero_out` here.
"""

import math

import numpy as np
import pytest

from tfdp.accounting import (
    describe,
    noise_for,
    proven,
)
from tfdp.accounting.numerics import gaussian, subsampled
from tfdp.accounting.numerics.privacy_loss import rdp_to_epsilon
from tfdp.accounting.numerics.subsampled import Component, SubsampledLoss


def sampled(q, noise, steps=1, pair="add"):
    return SubsampledLoss((Component(1.0, q, noise, pair),), steps)


def poisson(q, noise, steps, **fields):
    """A run with Poisson lots of probability q, which has to be a multiple of 1e-4."""
    return describe(
        mechanism="dpsgd", sampling="poisson", num_examples=10_000, lot_size=round(10_000 * q),
        noise_multiplier=noise, steps=steps, nominal=True, **fields,
    )  # fmt: skip


def whole_lots(noise, steps=1, **fields):
    """A run in which every lot is the whole data set: one Gaussian mechanism in each step."""
    options = dict(sampling="cyclic", num_examples=10, lot_size=10) | fields
    return describe(mechanism="dpsgd", noise_multiplier=noise, steps=steps, **options)


# ------------------------------------------------------------------ Rényi divergences


# rdp/rdp_privacy_accountant_test.py, test_compute_rdp_poisson_sampled_gaussian:
# noise multiplier 2.5, sampling probability 0.01, 50 rounds.
RDP_OF_50_ROUNDS = {
    2.5: 1.08548710e-03,
    5: 2.18075656e-03,
    50: 2.38460375e-02,
}


@pytest.mark.parametrize("order", RDP_OF_50_ROUNDS)
def test_renyi_divergence_of_poisson_rounds(order):
    (found,), _ = subsampled.renyi_divergences(sampled(0.01, 2.5, 50), (order,))
    assert found == pytest.approx(RDP_OF_50_ROUNDS[order], rel=1e-3)


def test_gaussian_divergence_is_linear_in_the_order():
    """test_compute_rdp_gaussian and test_compute_rdp_multi_gaussian."""
    order, noises = 3.14159, (2.71828, 6.28319)
    both = sum(subsampled.renyi_divergences(sampled(1.0, z), (order,))[0][0] for z in noises)
    assert both == pytest.approx(sum(order / (2 * z**2) for z in noises), rel=1e-3)


def test_pure_privacy_by_hand():
    """test_compute_epsilon_delta_pure_dp: a constant divergence of 1.1 gives 1.32783806176."""
    orders = range(2, 33)
    epsilon, best = rdp_to_epsilon(np.full(31, 1.1), 1e-5, orders)
    assert (epsilon, best) == (pytest.approx(1.32783806176, abs=1e-10), 32)


def test_conversion_of_a_gaussian():
    """test_compute_epsilon_delta_gaussian: noise 4.530877117 is (1, 1e-6) by Rényi divergences.

    The proven epsilon of a Gaussian is exact, hence smaller.
    """
    orders = np.arange(1.02, 100, 0.001)
    by_orders, _ = rdp_to_epsilon(orders / (2 * 4.530877117**2), 1e-6, orders)
    assert by_orders == pytest.approx(1.0, abs=1e-6)
    assert 0.9 < proven(whole_lots(4.530877117), 1e-6).epsilon < 1.0


# ------------------------------------------------------------------ Gaussians in closed form


# pld/pld_privacy_accountant_test.py (test_gaussian_basic), pld/accountant_test.py
# (test_get_smallest_gaussian_noise) and pld/privacy_loss_mechanism_test.py
# (test_gaussian_from_privacy_parameters): sensitivity over noise, epsilon, delta.
GAUSSIANS = [
    (1.0, 1.0, 0.12693674),
    (3.0, 1.0, 0.78760074),
    (1.0, 2.0, 0.02092364),
    (1 / 0.344, 16.0, 1.016e-05),
]


@pytest.mark.parametrize(("ratio", "epsilon", "delta"), GAUSSIANS)
def test_gaussian_profile(ratio, epsilon, delta):
    assert np.exp(gaussian.log_delta(epsilon, ratio)) == pytest.approx(delta, rel=2e-3)
    assert proven(whole_lots(1 / ratio), delta).epsilon == pytest.approx(epsilon, abs=1e-3)
    assert noise_for(epsilon, delta, whole_lots(1.0)) == pytest.approx(1 / ratio, abs=1e-3)


@pytest.mark.parametrize("steps", [1, 25])
def test_noise_grows_with_the_root_of_the_number_of_queries(steps):
    """test_get_smallest_gaussian_noise: 25 queries of sensitivity 6 need 10 instead of 1/3 * 6."""
    needed = noise_for(1.0, 0.78760074, whole_lots(1.0, steps))
    assert needed == pytest.approx(math.sqrt(steps) / 3, rel=1e-4)


def test_composition_of_three_gaussians():
    """test_gaussian_basic: once and twice noise sqrt(3) is mu = 1, with delta 0.126936 at 1."""
    once, twice = whole_lots(math.sqrt(3)), whole_lots(math.sqrt(3), 2)
    for found in (
        proven(whole_lots(math.sqrt(3), 3), 0.126936),
        proven([once, twice], 0.126936),
    ):
        assert found.epsilon == pytest.approx(1.0, abs=1e-5)
        assert found.mu == pytest.approx(1.0, rel=1e-12)


# ------------------------------------------------------------------ subsampled Gaussians


ADD, REMOVE, REPLACE = "add", "remove", "replace"

# pld/privacy_loss_mechanism_test.py, test_gaussian_get_delta_for_epsilon (the rows with epsilon of at
# least 0) and test_gaussian_get_delta_for_epsilon_vectorized: standard deviation, sensitivity,
# probability, order of the pair, epsilon, delta.
PROFILES = [
    (1.0, 1.0, 0.8, ADD, 1.0, 0.0231362104090899),
    (1.0, 3.0, 0.7, ADD, 1.0, 0.1195051215523554),
    (2.0, 6.0, 0.4, ADD, 1.0, 0.0),
    (1.0, 1.0, 0.2, ADD, 0.1, 0.02337934),
    (1.0, 1.0, 0.2, ADD, 0.2, 0.00020196),
    (1.0, 1.0, 0.8, REMOVE, 1.0, 0.0816951786585355),
    (1.0, 3.0, 0.7, REMOVE, 1.0, 0.5356298793262404),
    (2.0, 6.0, 0.4, REMOVE, 1.0, 0.2888308005139968),
    (1.0, 1.0, 0.3, REMOVE, 2.0, 0.0003341102928869332),
    (1.0, 1.0, 0.2, REMOVE, 0.1, 0.051816131),
    (1.0, 1.0, 0.2, REMOVE, 1.0, 0.00229682),
    (2.0, 1.0, 0.8, REPLACE, 1.0, 0.05808665654484252),
    (2.0, 3.0, 0.7, REPLACE, 1.0, 0.4013057526509164),
    (3.0, 6.0, 0.4, REPLACE, 1.0, 0.20752885274183325),
    (2.0, 1.0, 0.3, REPLACE, 2.0, 2.4770380148941894e-09),
    (1.0, 1.0, 1.0, REPLACE, 1.0, 0.50986166),
    (1.0, 1.0, 0.2, REPLACE, 1.0, 0.004734828),
]


@pytest.mark.parametrize(("deviation", "sensitivity", "q", "order", "epsilon", "delta"), PROFILES)
def test_profile_of_a_subsampled_gaussian(deviation, sensitivity, q, order, epsilon, delta):
    pair = "replace" if order == REPLACE else "add"
    loss = sampled(q, deviation / sensitivity, pair=pair)
    both = subsampled.one_round(loss.components, 1e-4).halves
    found = both[-1 if order == ADD else 0].delta(epsilon)
    assert found == pytest.approx(delta, rel=1e-6, abs=1e-8)
    # What is stated about a run covers both orders of a pair.
    adjacency = "replace_one" if pair == "replace" else "add_or_remove_one"
    if delta > 1e-7 and epsilon > 0:
        noise = deviation / sensitivity
        assert proven(poisson(q, noise, 1), delta, adjacency).epsilon >= epsilon * (1 - 1e-6)


# pld/privacy_loss_mechanism_test.py, test_gaussian_from_privacy_parameters, rows with sampling in the
# order that decides: sensitivity, probability, adjacency, epsilon, delta, standard deviation.
CALIBRATED = [
    (1.0, 0.1, "zero_out", 2.0, 2.355e-06, 1.0),
    (2.0, 0.2, "zero_out", 16, 0.02302382, 0.4),
    (5.0, 0.75, "replace_one", 2.0, 0.09233932, 5.0),
    (1.0, 0.1, "replace_one", 2.0, 3.828e-06, 1.0),
    (2.0, 0.2, "replace_one", 16, 0.02477823, 0.4),
]


@pytest.mark.parametrize(
    ("sensitivity", "q", "adjacency", "epsilon", "delta", "deviation"), CALIBRATED
)
def test_noise_of_one_subsampled_step(sensitivity, q, adjacency, epsilon, delta, deviation):
    noise = noise_for(epsilon, delta, poisson(q, 1.0, 1), adjacency=adjacency)
    assert noise == pytest.approx(deviation / sensitivity, abs=5e-4)
    assert proven(poisson(q, noise, 1), delta, adjacency).epsilon <= epsilon


def test_noise_of_a_rare_subsampled_step():
    """pld/accountant_test.py, test_get_smallest_subsampled_gaussian_noise."""
    expected = 0.67379294682
    found = noise_for(1.0, 1e-5, poisson(0.01, 1.0, 1), adjacency="add_or_remove_one")
    assert found == pytest.approx(expected, rel=1e-3)
    assert found >= expected * (1 - 1e-4)  # never less noise than is needed, beyond their grid


@pytest.mark.parametrize("split", [(3,), (1, 2)])
def test_three_subsampled_steps(split):
    """pld/pld_privacy_accountant_test.py: test_poisson_subsampled_gaussian, ..._self_composed_..."""
    runs = [poisson(0.2, 0.5, n) for n in split]
    found = proven(runs, 0.15594, "add_or_remove_one").epsilon
    assert found == pytest.approx(1.0, abs=1e-3)
