"""Numbers that dp_accounting's own tests expect, computed by tfdp's accountants.

Golden values: google/differential-privacy at commit b5b0286e (version 0.6.0 of the package), below
`python/dp_accounting/dp_accounting/`. Each table names the file and the test that it was read from.
The assertions here are tfdp's own: a proven epsilon is an upper bound, so it may be larger than the
golden value by what rounding up costs, and never smaller.

dp_accounting's relation REPLACE_SPECIAL is `zero_out` here.
"""

import math

import numpy as np
import pytest
from scipy import integrate, special, stats

from tfdp.accounting import (
    CalibrationError,
    Run,
    epsilon_curve,
    max_steps,
    noise_for,
    proven,
    proven_composition,
)
from tfdp.accounting.numerics import gaussian, loss_grid, subsampled
from tfdp.accounting.numerics.subsampled import Component, SubsampledLoss


def sampled(q, noise, steps=1, pair="add"):
    return SubsampledLoss((Component(1.0, q, noise, pair),), steps)


def poisson(q, noise, steps, **fields):
    """A run with Poisson lots of probability q, which has to be a multiple of 1e-4."""
    return Run(
        mechanism="dpsgd", sampling="poisson", num_examples=10_000, lot_size=round(10_000 * q),
        noise_multiplier=noise, steps=steps, nominal=True, **fields,
    )  # fmt: skip


def whole_lots(noise, steps=1, **fields):
    """A run in which every lot is the whole data set: one Gaussian mechanism in each step."""
    options = dict(sampling="cyclic", num_examples=10, lot_size=10) | fields
    return Run(mechanism="dpsgd", noise_multiplier=noise, steps=steps, **options)


# ------------------------------------------------------------------ Rényi divergences


# rdp/rdp_privacy_accountant_test.py, test_compute_rdp_poisson_sampled_gaussian:
# noise multiplier 2.5, sampling probability 0.01, 50 rounds.
RDP_OF_50_ROUNDS = {
    1.5: 6.70579741e-04,
    2.5: 1.08548710e-03,
    5: 2.18075656e-03,
    50: 2.38460375e-02,
    100: 1.67416308e02,
}


@pytest.mark.parametrize("order", RDP_OF_50_ROUNDS)
def test_renyi_divergence_of_poisson_rounds(order):
    (found,) = subsampled.total_rdp([sampled(0.01, 2.5, 50)], 0.0, [order])
    assert found == pytest.approx(RDP_OF_50_ROUNDS[order], rel=1e-4)


# rdp/rdp_privacy_accountant_test.py, params of test_compute_log_a_equals_mp. The reference there is a
# quadrature with many digits; here it is one of the logarithm, so that nothing overflows.
LOG_MOMENTS = [
    (1e-7, 0.1, 1.01),
    (1e-6, 0.1, 256),
    (1e-5, 0.1, 256.1),
    (1e-6, 1.0, 27),
    (1e-4, 1.0, 1.5),
    (1e-3, 1.0, 2),
    (0.01, 10.0, 20),
    (0.1, 100.0, 20.5),
    (0.99, 0.1, 256),
    (0.999, 100.0, 256.1),
]


def log_moment_by_quadrature(q, noise, order):
    """log E[((1-q) + q exp((2x-1) / (2 noise^2)))^order] for x from N(0, noise^2)."""
    width = 40 * noise
    x = np.linspace(-width, order + width, 1_000_001)
    log_density = -(x**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
    power = order * np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * noise**2))
    log_moment = special.logsumexp(log_density + power) + math.log(x[1] - x[0])
    if log_moment > 1:
        return float(log_moment)
    # Close to 1, the moment minus 1 has the digits. Where the power is large, 1 does not count.
    small = np.exp(log_density) * np.expm1(np.minimum(power, 30.0))
    large = np.exp(log_density + power)
    return math.log1p(integrate.trapezoid(np.where(power < 30, small, large), x))


@pytest.mark.parametrize(("q", "noise", "order"), LOG_MOMENTS)
def test_log_moments_equal_quadrature(q, noise, order):
    (divergence,) = subsampled.one_round_rdp(sampled(q, noise), [order])
    expected = log_moment_by_quadrature(q, noise, order)
    # dp_accounting gives up on one of its series and returns infinity; then the order is dropped.
    if np.isfinite(divergence):
        assert (order - 1) * divergence == pytest.approx(expected, rel=1e-4, abs=1e-8)
    else:
        assert math.isinf(subsampled.rdp_to_epsilon(np.array([divergence]), 1e-5, [order])[0])


def test_divergences_of_fractional_orders_are_positive():
    """test_log_a_frac_positive: (0.4, 12) once gave a negative divergence near order 59."""
    orders = np.linspace(58.5, 59.5, 21)
    assert np.all(subsampled.one_round_rdp(sampled(0.4, 12.0), orders) > 0)


def test_gaussian_divergence_is_linear_in_the_order():
    """test_compute_rdp_gaussian and test_compute_rdp_multi_gaussian."""
    order, noises = 3.14159, (2.71828, 6.28319)
    both = subsampled.total_rdp([sampled(1.0, z) for z in noises], 0.0, [order])
    assert both == pytest.approx([sum(order / (2 * z**2) for z in noises)], rel=1e-12)


def test_pure_privacy_by_hand():
    """test_compute_epsilon_delta_pure_dp: a constant divergence of 1.1 gives 1.32783806176."""
    orders = range(2, 33)
    epsilon, best = subsampled.rdp_to_epsilon(np.full(31, 1.1), 1e-5, orders)
    assert (epsilon, best) == (pytest.approx(1.32783806176, abs=1e-10), 32)


def test_conversion_of_a_gaussian():
    """test_compute_epsilon_delta_gaussian: noise 4.530877117 is (1, 1e-6) by Rényi divergences.

    The proven epsilon of a Gaussian is exact, hence smaller.
    """
    orders = np.arange(1.02, 100, 0.001)
    by_orders, _ = subsampled.rdp_to_epsilon(orders / (2 * 4.530877117**2), 1e-6, orders)
    assert by_orders == pytest.approx(1.0, abs=1e-6)
    assert 0.9 < proven(whole_lots(4.530877117), 1e-6).epsilon < 1.0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 20.0])
def test_renyi_conversion_lies_between_the_truth_and_the_tail_bound(epsilon):
    """test_delta_bounds_gaussian, at noise 1."""
    truth = float(np.exp(gaussian.log_delta(epsilon, np.array(1.0))))
    orders = np.arange(1.05, 50.5, 0.05)
    for delta in (truth, max(truth, 1e-300) * 2):
        by_orders, _ = subsampled.rdp_to_epsilon(orders / 2, delta, orders)
        assert by_orders >= gaussian.epsilon_of_mu(1.0, delta)
        assert by_orders <= 0.5 + math.sqrt(2 * math.log(1 / delta)) + 1e-9


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
    # REPLACE has twice the noise of ADD and REMOVE.
    twice = noise_for(epsilon, delta, whole_lots(1.0), adjacency="replace_one")
    assert twice == pytest.approx(2 / ratio, abs=1e-3)


@pytest.mark.parametrize("steps", [1, 3, 25])
def test_noise_grows_with_the_root_of_the_number_of_queries(steps):
    """test_get_smallest_gaussian_noise: 25 queries of sensitivity 6 need 10 instead of 1/3 * 6."""
    needed = noise_for(1.0, 0.78760074, whole_lots(1.0, steps))
    assert needed == pytest.approx(math.sqrt(steps) / 3, rel=1e-6)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0])
def test_gdp_parameter(mu):
    """pld/privacy_loss_distribution_test.py, test_gaussian_gdp."""
    assert proven(whole_lots(1 / mu), 1e-5).mu == pytest.approx(mu, rel=1e-12)


@pytest.mark.parametrize("delta", [1e-10, 0.1, 0.9])
@pytest.mark.parametrize("epsilon", [1e-5, 0.1, 1.0, 10.0, 1e5])
def test_noise_and_epsilon_are_inverse(epsilon, delta):
    """gaussian_mechanism_test.py, test_get_epsilon_gaussian_inverts_get_sigma_gaussian."""
    mu = gaussian.mu_of_epsilon(epsilon, delta)
    assert gaussian.epsilon_of_mu(mu, delta) <= epsilon
    assert gaussian.epsilon_of_mu(mu, delta) == pytest.approx(epsilon, rel=1e-6)


def test_composition_of_three_gaussians():
    """test_gaussian_basic: once and twice noise sqrt(3) is mu = 1, with delta 0.126936 at 1."""
    once, twice = whole_lots(math.sqrt(3)), whole_lots(math.sqrt(3), 2)
    for found in (
        proven(whole_lots(math.sqrt(3), 3), 0.126936),
        proven_composition([once, twice], 0.126936),
    ):
        assert found.epsilon == pytest.approx(1.0, abs=1e-5)
        assert found.mu == pytest.approx(1.0, rel=1e-12)


def test_composition_of_unequal_gaussians():
    """test_effective_gaussian_noise_multiplier_composed: precisions add up."""
    noises = np.random.default_rng(0).uniform(0.5, 2.0, 4)
    counts = (1, 3, 1, 1)
    runs = [whole_lots(z, n) for z, n in zip(noises, counts, strict=True)]
    together = sum(n / z**2 for z, n in zip(noises, counts, strict=True)) ** 0.5
    assert proven_composition(runs, 1e-5).mu == pytest.approx(together, rel=1e-12)


@pytest.mark.parametrize("steps", [100, 1000])
def test_a_tree_of_single_leaves_is_a_gaussian_in_every_step(steps):
    """test_no_tree_no_sampling."""
    noise = 0.1 * math.sqrt(steps)
    unknown = whole_lots(noise, steps, sampling="unknown")
    assert proven(unknown, 1e-5).mu == pytest.approx(math.sqrt(steps) / noise, rel=1e-12)


# ------------------------------------------------------------------ subsampled Gaussians


ADD, REMOVE, REPLACE = "add", "remove", "replace"

# pld/privacy_loss_mechanism_test.py, test_gaussian_get_delta_for_epsilon (the rows with epsilon of at
# least 0) and test_gaussian_get_delta_for_epsilon_vectorized: standard deviation, sensitivity,
# probability, order of the pair, epsilon, delta.
PROFILES = [
    (1.0, 1.0, 0.8, ADD, 1.0, 0.0231362104090899),
    (1.0, 3.0, 0.7, ADD, 1.0, 0.1195051215523554),
    (2.0, 6.0, 0.4, ADD, 1.0, 0.0),
    (1.0, 1.0, 0.3, ADD, 2.0, 0.0),
    (5.0, 5.0, 0.2, ADD, 2.0, 0.0),
    (1.0, 1.0, 0.2, ADD, 0.0, 0.076584985),
    (1.0, 1.0, 0.2, ADD, 0.1, 0.02337934),
    (1.0, 1.0, 0.2, ADD, 0.2, 0.00020196),
    (1.0, 1.0, 0.8, REMOVE, 1.0, 0.0816951786585355),
    (1.0, 3.0, 0.7, REMOVE, 1.0, 0.5356298793262404),
    (2.0, 6.0, 0.4, REMOVE, 1.0, 0.2888308005139968),
    (1.0, 1.0, 0.3, REMOVE, 2.0, 0.0003341102928869332),
    (1.0, 1.0, 0.2, REMOVE, 0.0, 0.076584985),
    (1.0, 1.0, 0.2, REMOVE, 0.1, 0.051816131),
    (1.0, 1.0, 0.2, REMOVE, 0.5, 0.012494629),
    (1.0, 1.0, 0.2, REMOVE, 1.0, 0.00229682),
    (2.0, 1.0, 0.8, REPLACE, 1.0, 0.05808665654484252),
    (3.0, 2.0, 0.8, REPLACE, 1.0, 0.13711260900644096),
    (2.0, 3.0, 0.7, REPLACE, 1.0, 0.4013057526509164),
    (3.0, 6.0, 0.4, REPLACE, 1.0, 0.20752885274183325),
    (2.0, 1.0, 0.3, REPLACE, 2.0, 2.4770380148941894e-09),
    (1.0, 1.0, 1.0, REPLACE, 1.0, 0.50986166),
    (1.0, 1.0, 0.2, REPLACE, 0.0, 0.13653790),
    (1.0, 1.0, 0.2, REPLACE, 0.5, 0.0250311655),
    (1.0, 1.0, 0.2, REPLACE, 1.0, 0.004734828),
]


@pytest.mark.parametrize(("deviation", "sensitivity", "q", "order", "epsilon", "delta"), PROFILES)
def test_profile_of_a_subsampled_gaussian(deviation, sensitivity, q, order, epsilon, delta):
    pair = "replace" if order == REPLACE else "add"
    both = loss_grid.divergences(pair, q, deviation / sensitivity, np.array([epsilon]))
    found = both[1 if order == ADD else 0][0]
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
    (5.0, 0.75, "zero_out", 2.0, 0.00877201, 5.0),
    (1.0, 0.3, "zero_out", 16, 3.294e-05, 0.3),
    (2.0, 0.2, "zero_out", 16, 0.02302382, 0.4),
    (5.0, 0.75, "replace_one", 2.0, 0.09233932, 5.0),
    (1.0, 0.3, "replace_one", 16, 4.960e-05, 0.3),
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


# pld/accountant_test.py, test_get_smallest_subsampled_gaussian_noise: probability, queries, noise over
# sensitivity, at epsilon 1 and delta 1e-5.
@pytest.mark.parametrize(
    ("q", "steps", "expected"), [(0.01, 1, 0.67379294682), (0.001, 25, 3.20956502598 / 6)]
)
def test_noise_of_subsampled_steps(q, steps, expected):
    found = noise_for(1.0, 1e-5, poisson(q, 1.0, steps), adjacency="add_or_remove_one")
    assert found == pytest.approx(expected, rel=1e-3)
    assert found >= expected * (1 - 1e-4)  # never less noise than is needed, beyond their grid


@pytest.mark.parametrize("split", [(3,), (1, 2)])
def test_three_subsampled_steps(split):
    """pld/pld_privacy_accountant_test.py: test_poisson_subsampled_gaussian, ..._self_composed_..."""
    runs = [poisson(0.2, 0.5, n) for n in split]
    found = proven_composition(runs, 0.15594, "add_or_remove_one").epsilon
    assert found == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("adjacency", ["zero_out", "add_or_remove_one", "replace_one"])
def test_adjacencies_are_ordered(adjacency):
    """A replacement is a removal and an addition, so it costs at least as much."""
    least = proven(poisson(0.1, 1.0, 5), 1e-5, "zero_out").epsilon
    found = proven(poisson(0.1, 1.0, 5), 1e-5, adjacency).epsilon
    assert found >= least * (1 - 1e-9)
    assert (found > 1.1 * least) == (adjacency == "replace_one")


@pytest.mark.parametrize(
    ("q", "cut", "same"),
    [(0.1, 10_000, "none"), (0.1, 2_000, "next to none"), (0.1, 1_000, "more")],
)
def test_cut_lots(q, cut, same):
    """test_truncated_gaussian_matches_gaussian: what cannot be cut costs what whole lots cost."""
    whole, cut_run = (
        Run(
            mechanism="dpsgd", sampling="poisson", num_examples=10_000, lot_size=1_000,
            noise_multiplier=1.0, steps=4, max_lot_size=size,
        )
        for size in (None, cut)
    )  # fmt: skip
    costs = proven(whole, 1e-6).epsilon, proven(cut_run, 1e-6).epsilon
    if same == "more":
        assert costs[1] > costs[0] * 1.01
    else:
        assert costs[1] == pytest.approx(costs[0], rel=1e-6)


# ------------------------------------------------------------------ what every accountant has to do


RUNS = {
    "gaussian": whole_lots(1.0, 2),
    "poisson": poisson(0.1, 1.0, 2),
    "fixed_size": whole_lots(1.0, 2, sampling="fixed_size", lot_size=2),
    "with_replacement": whole_lots(1.0, 2, sampling="with_replacement", lot_size=2),
    "shuffle": whole_lots(1.0, 2, sampling="shuffle", lot_size=5),
}
EACH_RUN = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())


@EACH_RUN
def test_no_steps_cost_nothing(run):
    """privacy_accountant_test.py, test_no_events and test_no_op."""
    assert proven(run.with_(steps=0), 1e-12).epsilon == 0
    assert proven_composition([], 1e-12).epsilon == 0


@EACH_RUN
def test_without_noise_nothing_is_private(run):
    """test_non_private, and test_additive_noise_mechanisms_with_zero_noise_multiplier."""
    bare = proven(run.with_(noise_multiplier=0.0), 0.99)
    assert bare.epsilon == math.inf and bare.reason
    assert proven_composition([run, run.with_(noise_multiplier=0.0)], 0.99).epsilon == math.inf


@EACH_RUN
def test_composition_is_additive_over_the_steps(run):
    """test_rdp_composition: two steps are one step twice, whoever counts."""
    if run.sampling_name == "shuffle":
        run = run.with_(steps=4)  # whole epochs, so that both halves have the same length
    halves = [run.with_(steps=run.steps // 2)] * 2
    together = proven(run, 1e-5).epsilon
    assert proven_composition(halves, 1e-5).epsilon == pytest.approx(together, rel=1e-3)


@EACH_RUN
def test_epsilon_falls_with_delta_and_noise_and_grows_with_steps(run):
    """test_epsilon_delta_consistency, and test_compute_eps_tree_decreasing without the tree."""
    by_delta = [proven(run, delta).epsilon for delta in (1e-9, 1e-5, 1e-2, 0.9)]
    by_noise = [proven(run.with_(noise_multiplier=z), 1e-5).epsilon for z in (0.5, 1.0, 4.0, 50.0)]
    assert by_delta == sorted(by_delta, reverse=True)
    assert by_noise == sorted(by_noise, reverse=True) and by_noise[0] > by_noise[-1]
    by_steps = epsilon_curve(run, [0, 1, 2, 4, 8], 1e-5)
    assert by_steps == sorted(by_steps) and by_steps[0] == 0 < by_steps[-1]


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, 1.1, math.nan])
def test_delta_out_of_range(delta):
    """test_raises_target_delta_out_of_range; here 0 and 1 are refused as well."""
    with pytest.raises(ValueError, match="delta"):
        proven(RUNS["poisson"], delta)
    with pytest.raises(ValueError, match="delta"):
        noise_for(1.0, delta, RUNS["poisson"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"steps": -3}, "steps"),
        ({"lot_size": 10_001}, "lot_size"),
        ({"lot_size": 0}, "lot_size"),
        ({"mechanism": "exponential"}, "mechanism"),
    ],
)
def test_bad_descriptions_are_refused(change, words):
    """test_raises_on_invalid_sampling_rate, ..._noise_multiplier, and test_unsupported."""
    with pytest.raises(ValueError, match=words):
        RUNS["poisson"].with_(**change)


@pytest.mark.parametrize(
    "sampling", ["fixed_size", "with_replacement", "cyclic", "shuffle", "unknown"]
)
def test_adding_a_record_is_refused_where_it_moves_the_others(sampling):
    """test_supports: lots of a fixed size are supported for a replacement only."""
    run = whole_lots(1.0, sampling=sampling, lot_size=5)
    with pytest.raises(ValueError, match="zero_out"):
        proven(run, 1e-5, "add_or_remove_one")
    assert proven(run, 1e-5, "replace_one").epsilon > 0


def test_sampling_everything_is_no_sampling():
    """test_compute_rdp_multi_gaussian: probability 1 is the mechanism itself."""
    for sampling in ("poisson", "fixed_size"):
        run = whole_lots(2.0, 3, sampling=sampling)
        assert proven(run, 1e-5).mu == pytest.approx(math.sqrt(3) / 2, rel=1e-12)


# ------------------------------------------------------------------ calibration


@EACH_RUN
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_calibrated_noise_is_on_the_safe_side(run, epsilon):
    """mechanism_calibration_test.py, test_basic_inversion."""
    noise = noise_for(epsilon, 1e-4, run)
    assert proven(run.with_noise(noise), 1e-4).epsilon <= epsilon
    assert proven(run.with_noise(noise * 0.999), 1e-4).epsilon > epsilon * 0.9999


@EACH_RUN
def test_calibrated_steps_are_on_the_safe_side(run):
    """test_discrete: the largest whole number whose epsilon is within the budget."""
    run = run.with_(noise_multiplier=5.0)
    steps = max_steps(3.0, 1e-4, run)
    assert isinstance(steps, int) and steps > 1
    assert proven(run.with_(steps=steps), 1e-4).epsilon <= 3.0
    assert proven(run.with_(steps=steps + 1), 1e-4).epsilon > 3.0


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, math.inf, math.nan])
def test_bad_targets_are_refused(epsilon):
    """test_raises_target_epsilon_negative."""
    with pytest.raises(ValueError, match="epsilon"):
        noise_for(epsilon, 1e-5, RUNS["poisson"])
    with pytest.raises(ValueError, match="epsilon"):
        max_steps(epsilon, 1e-5, RUNS["poisson"])


def test_no_noise_meets_the_target():
    """test_no_bracket_interval_found: the search ends with an error."""
    with pytest.raises(CalibrationError):
        noise_for(1.0, 1e-5, RUNS["poisson"].with_(insecure_seed=True))


def test_a_budget_that_one_step_exceeds():
    """test_bad_bracket_interval, for numbers of steps: nothing fits, and that is 0."""
    assert max_steps(0.01, 1e-5, whole_lots(1.0)) == 0


# ------------------------------------------------------------------ the normal distribution's tails


# pld/privacy_loss_distribution_test.py, test_gaussian_tpr_at_extreme_fpr: false and true positive rate
# of the best test of a mu = 1 mechanism.
RATES = [
    (1e-3, 0.01830),
    (1e-4, 0.003274),
    (1e-5, 0.0005475),
    (1e-6, 8.7218e-5),
    (1e-8, 1.99405e-6),
    (1e-10, 4.1303e-8),
]


@pytest.mark.parametrize(("false", "true"), RATES)
def test_no_test_is_better_than_the_proven_epsilon_allows(false, true):
    """The golden rate is a point of the trade-off curve, which every proven pair has to contain."""
    assert stats.norm.sf(stats.norm.isf(false) - 1) == pytest.approx(true, rel=1e-3)
    run = whole_lots(1.0)
    for delta in (true / 2, true / 10, true / 100):
        assert true <= math.exp(proven(run, delta).epsilon) * false + delta
