"""Distributions of random participation, against enumeration and simulation."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tfdp.accounting import describe
from tfdp.accounting.numerics import gaussian
from tfdp.accounting.numerics.binomials import binomial
from tfdp.accounting.numerics.linear_response import Dynamics
from tfdp.accounting.numerics.participation import (
    _whole,
    occurrence_law,
    prefix_sum_law,
    triangle_law,
)

DELTA = 1e-5


def make_run(steps=6, lot_size=3, num_examples=10, sampling="poisson", **changes):
    return describe(
        mechanism="si_dpsgd",
        num_examples=num_examples,
        lot_size=lot_size,
        steps=steps,
        sampling=sampling,
        noise_multiplier=1.0,
        **changes,
    )


def exact_law(run):
    """Returns ||W m||^2 and its probability for every pattern of Poisson participation."""
    q, dynamics = run.sampling.probability, Dynamics.of(run)
    patterns = np.array(list(itertools.product([0, 1], repeat=run.steps))).T
    squares = dynamics.squared_response(patterns)
    counts = patterns.sum(axis=0)
    return squares, q**counts * (1 - q) ** (run.steps - counts)


def epsilon(law):
    return gaussian.epsilon_of_mixture(*law, DELTA)


@settings(max_examples=25, deadline=None)
@given(
    number=st.integers(1, 5_000_000),
    mean=st.floats(1e-4, 300),
    tail=st.sampled_from([1e-6, 1e-11, 1e-18]),
)
def test_binomial(number, mean, tail):
    chance = min(mean / number, 0.999)
    pmf, beyond = binomial(number, chance, tail)
    k = np.arange(len(pmf))
    np.testing.assert_allclose(pmf, stats.binom.pmf(k, number, chance), rtol=1e-7, atol=1e-300)
    assert beyond <= tail
    assert beyond == pytest.approx(stats.binom.sf(k[-1], number, chance), rel=1e-6, abs=1e-300)


def test_prefix_sum_law_is_exact_for_few_steps():
    run = make_run(steps=8)
    found, expected = prefix_sum_law(run, DELTA), exact_law(run)
    assert epsilon(found) == pytest.approx(epsilon((*expected, 0.0)), rel=1e-6)
    assert found[1].sum() + found[2] == pytest.approx(1.0, abs=1e-12)


def test_with_replacement_counts_repeats():
    run = make_run(steps=2, lot_size=2, num_examples=3, sampling="with_replacement")
    pmf = stats.binom.pmf([0, 1, 2], 2, 1 / 3)
    expected = {}
    for a, b in itertools.product(range(3), repeat=2):
        square = a**2 + (a + b) ** 2
        expected[square] = expected.get(square, 0) + pmf[a] * pmf[b]
    squares, probabilities, _ = prefix_sum_law(run, DELTA)
    found = {s: p for s, p in zip(squares, probabilities, strict=True) if p}
    assert found == pytest.approx(expected)
    squares, probabilities, _ = occurrence_law(run, run.steps, DELTA, 1.0)
    expected = {}
    for a, b in itertools.product(range(3), repeat=2):
        expected[a * a + b * b] = expected.get(a * a + b * b, 0) + pmf[a] * pmf[b]
    assert {s: p for s, p in zip(squares, probabilities, strict=True) if p} == pytest.approx(
        expected
    )


@pytest.mark.parametrize("bins", [7, 50])
def test_bins_are_an_upper_bound_that_tightens(bins):
    run = make_run(steps=200, lot_size=10, num_examples=1000, sampling="with_replacement")
    exact = epsilon(prefix_sum_law(run, DELTA, bins=200))
    binned = epsilon(prefix_sum_law(run, DELTA, bins=bins))
    assert exact <= binned * (1 + 1e-9) <= exact * (1 + 8.0 / bins)


@settings(max_examples=20, deadline=None)
@given(
    rates=st.lists(st.floats(0.05, 2), min_size=7, max_size=7).map(tuple),
    beta=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
)
def test_triangle_law_bounds_the_exact_profile(rates, beta, nesterov):
    run = make_run(steps=7, learning_rates=rates, momentum=beta, nesterov=nesterov)
    exact = epsilon((*exact_law(run), 0.0))
    assert (
        exact <= epsilon(triangle_law(run, Dynamics.of(run).column_norms(), DELTA)) <= 2 * exact + 1
    )


def test_triangle_law_is_near_for_a_constant_rate():
    run = make_run(steps=200, lot_size=10, num_examples=1000)
    mean_of = lambda law: np.sqrt(law[0]) @ law[1]  # noqa: E731
    near = mean_of(prefix_sum_law(run, DELTA, bins=200))
    assert near <= mean_of(triangle_law(run, Dynamics.of(run).column_norms(), DELTA)) <= 1.2 * near


@pytest.mark.parametrize(("lot_size", "steps"), [(750, 130), (999, 130)])
def test_laws_keep_their_mass_where_lots_are_nearly_everybody(lot_size, steps):
    run = describe(
        mechanism="si_dpsgd", sampling="poisson", num_examples=1000, lot_size=lot_size, steps=steps,
        noise_multiplier=3000.0,
    )  # fmt: skip
    _, probabilities, overflow = prefix_sum_law(run, 1e-5)
    assert probabilities.sum() + overflow == pytest.approx(1.0, abs=1e-9)
    assert overflow < 1e-10


def test_a_law_that_loses_mass_counts_it_as_a_loss():
    values = np.arange(3.0)
    assert _whole((values, np.array([0.5, 0.2, 0.1]), 0.0))[2] == pytest.approx(0.2)
    assert _whole((values, np.array([0.5, 0.3, 0.2]), 1e-20))[2] == 1e-20


def test_the_tail_holds_for_more_trials_than_32_bits_count():
    _, beyond = binomial(2**32 + 5, 1e-9, 1.0)
    assert beyond == pytest.approx(-np.expm1(-(2**32 + 5) * 1e-9))
    assert binomial(5, 0.5, 0.6)[1] == pytest.approx(0.5)
    assert binomial(5, 0.5, 0.0)[1] == 0.0
    assert binomial(5, 1.0, 0.0)[0].tolist() == [0, 0, 0, 0, 0, 1]
