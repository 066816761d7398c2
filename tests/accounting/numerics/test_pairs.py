"""Dominating pairs: the comparison lemma, and users in Poisson lots, against exact mixtures."""

import functools
import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from scipy import stats

from tests.accounting.numerics.test_fixed_size import (
    EPSILONS,
    divergences_of,
    grid,
    mixture,
    profile,
)
from tests.accounting.varying import vary
from tfdp.accounting import describe, proven
from tfdp.accounting.numerics.binomials import hypergeometric
from tfdp.accounting.numerics.pairs import Component, orders, positive_losses
from tfdp.accounting.numerics.participation import draws

DELTA = 1e-5
RUN = describe(
    "dpsgd", "poisson", num_examples=60000, lot_size=256, steps=3516, noise_multiplier=1.1
)


def divergence(p, q, a, b, scale=0.7):
    """The profile of two mixtures with weights p and q and centres a and b of two coordinates."""
    points, cell = grid(2, 7.0, 141)
    return profile(mixture(a, p, points, scale), mixture(b, q, points, scale), cell)


# ------------------------------------------------ the comparison lemma


def on_a_line(distances):
    """Centres A_i and B_j on the first axis, at the least distances that the lemma needs."""
    a = distances.max(1) / 2
    b = (a[:, None] - distances).min(0)
    return (np.stack([x, 0 * x], 1) for x in (a, b))


@pytest.mark.parametrize("seed", range(12))
def test_centres_at_larger_distances_on_a_line_are_easier_to_distinguish(seed):
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))
    a, b = rng.normal(scale=0.8, size=(2, 3, 2))
    along, across = on_a_line(np.linalg.norm(a[:, None] - b, axis=2))
    below, above = divergence(p, q, a, b), divergence(p, q, along, across)
    assert np.all(below <= above * (1 + 1e-6) + 1e-9)


def test_distances_between_the_mixtures_matter():
    """A centre that is moved towards one of the other mixture makes the lemma false."""
    p = q = np.array([0.5, 0.5])
    a, b = np.array([[2.0, 0], [0, 0]]), np.array([[0.0, 0], [-2.0, 0]])
    near = np.array([[1.0, 0], [0, 0]])
    assert np.all(divergence(p, q, near, b) < 0.98 * divergence(p, q, a, b))


# ------------------------------------------------ users in Poisson lots


def lots_of_users(terms, q, scale):
    """The law of the sum of a user's terms in one lot: (centres, weights)."""
    users = len(terms)
    drawn = np.array(list(itertools.product((0, 1), repeat=users)))
    return drawn @ terms, np.prod(np.where(drawn, q, 1 - q), axis=1)


@pytest.mark.parametrize("pair", ["add", "replace"])
@pytest.mark.parametrize("users", [1, 2, 3])
@pytest.mark.parametrize("q", [0.1, 0.6])
def test_no_terms_of_a_user_exceed_the_bound(pair, users, q):
    """Random terms in the unit ball of one and two dimensions, and all corners of the cube."""
    rng, scale = np.random.default_rng(users), 0.7
    chances = tuple(float(c) for c in stats.binom.pmf(range(users + 1), users, q))
    bound = divergences_of((Component(1.0, sum(chances[1:]), scale, pair, chances),))
    corners = [np.array(c)[:, None] for c in itertools.product((-1.0, 1.0), repeat=2 * users)]
    tries = [rng.normal(scale=2, size=(2 * users, d)) for d in (1, 1, 1, 1, 2, 2)]
    best = np.zeros((2, len(EPSILONS)))
    for vectors in (*corners, *tries):
        terms = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)
        others = 0 * terms[users:] if pair == "add" else terms[users:]
        dimension = terms.shape[1]
        points, cell = grid(dimension, users + 7 * scale, 1201 if dimension == 1 else 91)
        p, r = (
            mixture(*lots_of_users(t, q, scale), points, scale) for t in (terms[:users], others)
        )
        best = np.maximum(best, [profile(p, r, cell), profile(r, p, cell)])
    assert np.all(best <= np.array(bound) * (1 + 1e-4) + 1e-6)
    # The corner at which all terms point one way attains the bound.
    np.testing.assert_allclose(best, bound, rtol=1e-3, atol=1e-6)


def test_users_in_groups_that_take_turns_are_worst_off_in_one_group():
    """Two examples in one turn, against one example in each of the two turns of a cycle."""
    q, scale = 0.3, 0.7
    terms, weights = lots_of_users(np.eye(2), q, scale)
    apart = divergence(weights, weights, terms, -terms, scale)
    together = divergences_of(
        (
            Component(
                1.0, 1 - (1 - q) ** 2, scale, "replace", ((1 - q) ** 2, 2 * q * (1 - q), q * q)
            ),
        )
    )[0]
    assert np.all(apart <= together * (1 + 1e-4) + 1e-6)
    assert apart[0] > 0.7 * together[0]


# ------------------------------------------------ the losses of pairs with several terms


@pytest.mark.parametrize("pair", ["add", "replace", "slot", "triangle"])
def test_losses_increase_where_they_are_positive(pair):
    chances = (0.64, 0.2, 0.1, 0.05, 0.01)
    part = Component(1.0, sum(chances[1:]), 0.8, pair, chances)
    x = np.linspace(-40, 40, 200_001)
    for p, q in orders(part):
        ratio = p.log_over_standard(x) - q.log_over_standard(x)
        some = ratio > 1e-9
        assert np.all(np.diff(ratio[some]) >= 0) and np.all(np.diff(some.astype(int)) >= 0)
    # The two orders agree at epsilon 0.
    forward, backward = (
        losses.infinite + float(losses.chances @ -np.expm1(-losses.values))
        for losses in positive_losses(part, 1e-3)
    )
    assert forward == pytest.approx(backward, rel=1e-9)


# ------------------------------------------------ golden values, attacks, and order


@functools.cache
def attacked(run, rise_of_p, rise_of_q, delta=DELTA, interval=5e-4):
    """Epsilon against lots whose sums move by these amounts for each draw, in every step.

    Losses are rounded to the nearest multiple of an interval: an attack, without a certificate.
    """
    chances, _ = draws(run, 1e-14)
    j, noise = np.arange(len(chances)), run.mechanism.noise_multiplier
    ends = max(abs(rise_of_p), abs(rise_of_q)) * j[-1] / noise + 9
    x = np.linspace(-ends, ends, 40_001)

    def log_density(rise):
        logs = [
            math.log(max(c, 1e-300)) + stats.norm.logpdf(x, rise * i / noise)
            for i, c in enumerate(chances)
        ]
        return functools.reduce(np.logaddexp, logs)

    p, q = log_density(rise_of_p), log_density(rise_of_q)
    index = np.round((p - q) / interval).astype(int)
    masses = np.bincount(index - index.min(), np.exp(p) * (x[1] - x[0]))
    pld = DensePLDPmf(interval, int(index.min()), masses / max(masses.sum(), 1.0), 0.0, False)
    return pld.self_compose(run.steps).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("users", "changes", "epsilon"),
    [
        (2, {}, 4.219),
        (4, {}, 9.558),
        (8, {}, 22.933),
        (8, {"lot_size": 6000, "noise_multiplier": 8.0, "steps": 200}, 15.351),
    ],
)
def test_replaced_users_in_poisson_lots(users, changes, epsilon):
    run = vary(RUN, max_examples_per_user=users, **changes)
    found = proven(run, DELTA, "replace_one").epsilon
    assert found == pytest.approx(epsilon, rel=1e-3)
    assert 0.998 * found < attacked(run, 1, -1) < 1.002 * found
    grouped = vary(run, microbatch_size=4)
    assert proven(grouped, DELTA).epsilon == pytest.approx(found, rel=1e-6)


@pytest.mark.parametrize(
    ("sampling", "users", "adjacency", "epsilon", "ratio"),
    [
        ("fixed_size", 2, "zero_out", 12.556, 1.04),
        ("fixed_size", 4, "zero_out", 24.794, 1.06),
        ("fixed_size", 2, "replace_one", 18.511, 1.19),
        ("with_replacement", 1, "zero_out", 7.916, 1.04),
        ("with_replacement", 1, "replace_one", 10.241, 1.10),
    ],
)
def test_lots_of_fixed_size(sampling, users, adjacency, epsilon, ratio):
    run = vary(RUN, sampling=sampling, max_examples_per_user=users)
    found = proven(run, DELTA, adjacency).epsilon
    assert found == pytest.approx(epsilon, rel=1e-3)
    attack = attacked(run, 2, 1 if adjacency == "zero_out" else 0)
    assert attack < found < ratio * attack


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed_size", "with_replacement"])
@pytest.mark.parametrize("users", [5, 10, 12])
def test_users_whose_records_are_in_almost_every_lot(sampling, users, adjacency):
    """Some numbers of draws are impossible. A secret sample costs no more than a known one."""
    run = describe("dpsgd", sampling, num_examples=10, lot_size=8, steps=3, noise_multiplier=20.0,
                   max_examples_per_user=users)  # fmt: skip
    most = users if sampling == "poisson" else 8  # in one lot
    every = vary(run, sampling="unknown", max_examples_per_user=most)
    found = proven(run, DELTA, adjacency).epsilon
    assert 0 < found <= proven(every, DELTA, adjacency).epsilon * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("changes", [{}, {"lot_size": 6000, "noise_multiplier": 8.0, "steps": 200}])
@pytest.mark.parametrize(
    "sampling", ["poisson", "cyclic_poisson", "fixed_size", "with_replacement"]
)
def test_order(sampling, changes, adjacency):
    """More examples of a user, more steps and less noise cost more; no scheme is below Poisson."""
    run = vary(RUN, sampling=sampling, max_examples_per_user=3, **changes)

    def epsilon(**changes):
        return proven(vary(run, **changes), DELTA, adjacency).epsilon

    found, noise = epsilon(), run.mechanism.noise_multiplier
    fewer = epsilon(max_examples_per_user=1), epsilon(max_examples_per_user=2)
    assert fewer[0] < fewer[1] < found
    assert epsilon(steps=run.steps // 2) < found < epsilon(noise_multiplier=0.9 * noise)
    assert epsilon(sampling="poisson") <= found * (1 + 1e-6)


@pytest.mark.parametrize(
    ("users", "rate", "noise"), [(150, 0.3, 7.5), (64, 0.5, 3.56), (100, 0.5, 9)]
)
def test_users_who_are_nearly_always_in_the_lot(users, rate, noise):
    """The chance of no draw is far below 1e-16, and counts nevertheless."""
    run = describe("dpsgd", "poisson", num_examples=1000, lot_size=round(1000 * rate), steps=1,
                   noise_multiplier=noise, max_examples_per_user=users)  # fmt: skip
    found = proven(run, DELTA, "replace_one").epsilon
    assert 0.999 * found < attacked(run, 1, -1) < 1.001 * found


def test_numbers_of_marked_items_in_a_huge_population():
    """They are nearly binomial there."""
    population, drawn = 10**12, 10**6
    none, one, two = hypergeometric(population, drawn, 2)
    share = drawn / population
    np.testing.assert_allclose(
        [none, one, two], [(1 - share) ** 2, 2 * share * (1 - share), share**2], rtol=1e-5
    )
    np.testing.assert_allclose(
        hypergeometric(10, 8, 5), stats.hypergeom.pmf(np.arange(6), 10, 5, 8), rtol=1e-12
    )
