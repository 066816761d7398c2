"""Correlated noise: the proven guarantees against brute force and equal mechanisms."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.accounting.mechanisms.worst_gradients import bands, shown, sums
from tests.accounting.varying import vary
from tfdp.accounting import (
    Strategy,
    claimed,
    describe,
    gaussian_steps,
    proven,
)
from tfdp.accounting.numerics.gaussian import epsilon_of_mu
from tfdp.accounting.numerics.linear_response import Dynamics, Toeplitz
from tfdp.accounting.numerics.privacy_loss import curve_of, epsilon_of
from tfdp.accounting.strategies import inverse

DELTA = 1e-5
ROOT = Strategy(name="sqrt_toeplitz")
PREFIX = Strategy(name="prefix_sum")
BANDED = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5, 0.25, -0.1))
BASE = describe(
    mechanism="matrix",
    num_examples=100,
    lot_size=10,
    steps=20,
    sampling="cyclic",
    noise_multiplier=3.0,
    strategy=ROOT,
)


def matrix(run):
    c = np.zeros(run.steps)
    c[: len(run.mechanism.strategy.first(run.steps))] = run.mechanism.strategy.first(run.steps)
    steps = range(run.steps)
    return np.array([[c[t - s] if t >= s else 0.0 for s in steps] for t in steps])


# ------------------------------------------------------------------ twins


@pytest.mark.parametrize(
    ("sampling", "adjacency"),
    [("cyclic", "zero_out"), ("shuffle", "replace_one"), ("poisson", "zero_out")],
)
def test_prefix_sums_are_si_dpsgd(sampling, adjacency):
    run = vary(BASE, sampling=sampling, strategy=PREFIX)
    twin = vary(run, mechanism="si_dpsgd")
    assert proven(run, DELTA, adjacency).epsilon == pytest.approx(
        proven(twin, DELTA, adjacency).epsilon, rel=1e-9
    )


@pytest.mark.parametrize("sampling", ["cyclic", "poisson", "unknown"])
def test_identity_is_dpsgd(sampling):
    run = vary(BASE, sampling=sampling, strategy=Strategy(name="identity"))
    twin = vary(run, mechanism="dpsgd")
    assert proven(run, DELTA).epsilon == proven(twin, DELTA).epsilon
    scaled = Strategy(name="banded_toeplitz", coefficients=(2.0,))
    doubled = vary(run, strategy=scaled, noise_multiplier=6.0)
    assert proven(doubled, DELTA).epsilon == pytest.approx(proven(twin, DELTA).epsilon)


def test_one_group_is_poisson():
    run = vary(BASE, mechanism="dpsgd", sampling="poisson")
    grouped = vary(run, sampling="cyclic_poisson", groups=1)
    assert proven(grouped, DELTA).epsilon == proven(run, DELTA).epsilon
    assert proven(vary(grouped, groups=5), DELTA).epsilon > proven(run, DELTA).epsilon
    assert claimed(vary(grouped, groups=5), DELTA).epsilon == claimed(run, DELTA).epsilon


# ------------------------------------------------------------------ brute force


@pytest.mark.parametrize("plan", [ROOT, PREFIX, BANDED], ids=lambda p: p.name)
@pytest.mark.parametrize("sampling", ["cyclic", "shuffle", "unknown"])
def test_every_pattern_is_covered(plan, sampling):
    run = vary(BASE, num_examples=40, steps=10, strategy=plan, sampling=sampling)  # epochs of 4
    gram = np.abs(matrix(run).T @ matrix(run))
    epochs = [range(e, min(e + 4, 10)) for e in range(0, 10, 4)]
    patterns = {
        "cyclic": [range(o, 10, 4) for o in range(4)],
        "shuffle": list(itertools.product(*epochs)),
        "unknown": [range(10)],
    }[sampling]
    worst = max(gram[np.ix_(p, p)].sum() for p in map(list, patterns))
    found = proven(run, DELTA).mu * run.mechanism.noise_multiplier
    assert math.sqrt(worst) <= found * (1 + 1e-12)
    assert found <= 1.6 * math.sqrt(worst)
    if sampling == "cyclic" and plan is not BANDED:
        assert found == pytest.approx(math.sqrt(worst))


POISSON = vary(BASE, num_examples=10, lot_size=3, steps=2, sampling="poisson", noise_multiplier=2.0)
EPSILONS = np.array([0.0, 0.1, 0.3, 0.7, 1.2])
AXIS = np.linspace(-15, 15, 601)


def two_steps(run, against, second):
    """Returns the profiles of two adaptive steps in both orders, by quadrature.

    Args:
      against: the other neighbour's gradient over the record's: 0 for zero_out, -1 for replace_one.
      second: the gradient of the second step, a function of the first release.
    """
    z, q, c = run.mechanism.noise_multiplier, run.sampling.probability, matrix(run)

    def density(sign):
        total = 0.0
        for m, n in itertools.product((0, 1), repeat=2):
            chance = q ** (m + n) * (1 - q) ** (2 - m - n)
            centre = c[1, 0] * m + (c[1, 1] * second(AXIS)[:, None] if n else 0.0)
            first = stats.norm.pdf(AXIS, sign * m * c[0, 0], z)[:, None]
            total = total + chance * first * stats.norm.pdf(AXIS, sign * centre, z)
        return total * (AXIS[1] - AXIS[0]) ** 2

    p, o = density(1.0), density(against)
    return [
        np.array([np.maximum(x - math.exp(e) * y, 0).sum() for e in EPSILONS])
        for x, y in ((p, o), (o, p))
    ]


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("plan", [PREFIX, (1.0, 0.6), (1.0, -0.5)], ids=str)
@pytest.mark.parametrize(("adjacency", "against"), [("zero_out", 0.0), ("replace_one", -1.0)])
def test_no_adaptive_gradient_exceeds_theorem_f(adjacency, against, plan, length):
    if isinstance(plan, tuple):
        plan = Strategy(name="banded_toeplitz", coefficients=plan)
    run = vary(POISSON, strategy=plan)
    noise = 2.0 / math.sqrt(Toeplitz.of(run).joint_square(1, length))
    curve = curve_of(gaussian_steps.amplified(run, noise, adjacency, length).losses, 1e-6)
    bound = np.array([curve(e) for e in EPSILONS])
    sign = math.copysign(1.0, plan.first(2)[1])
    constant = np.max(two_steps(run, against, lambda y: sign + 0 * y), axis=0)
    assert np.all(constant <= bound)
    assert np.all(constant[:3] >= 0.5 * bound[:3])  # otherwise, even a wrong bound would hold
    if length == 1:
        assert np.all(constant[:2] >= 0.9 * bound[:2])
    for second in (np.sign, lambda y: -np.sign(y), lambda y: 0 * y - sign, np.cos):
        for found in two_steps(run, against, second):
            assert np.all(found < constant)


@pytest.mark.parametrize(
    ("mechanism", "strategy", "lot", "steps", "noise", "ratio"),
    [
        ("si_dpsgd", None, 100, 10, 16.0, 1.4),
        ("si_dpsgd", None, 10, 40, 16.0, 2.0),
        ("matrix", Strategy(name="banded_toeplitz", coefficients=(1.0, 0.5)), 20, 100, 2.0, 1.3),
    ],
)
def test_the_worst_gradients_are_near_the_bound(mechanism, strategy, lot, steps, noise, ratio):
    changes = {} if strategy is None else {"strategy": strategy}
    run = describe(
        mechanism, "poisson", num_examples=1000, lot_size=lot, steps=steps, noise_multiplier=noise,
        **changes,
    )  # fmt: skip
    chain = sums(20) if strategy is None else bands(strategy.first(steps))
    attack = shown(chain, lot / 1000, noise, steps, 1e-2, 40_000)
    assert attack < proven(run, 1e-2).epsilon < ratio * attack


def test_the_best_length_of_blocks_is_stated():
    run = describe(
        "si_dpsgd", "poisson", num_examples=1000, lot_size=50, steps=40, noise_multiplier=16.0
    )
    found = {}
    for length in (1, 4, 16, 40):
        square = Dynamics.of(vary(run, noise_multiplier=1.0)).joint_square(1, length)
        amplified = gaussian_steps.amplified(run, 16.0 / math.sqrt(square), "zero_out", length)
        found[length] = epsilon_of(amplified.losses, DELTA).epsilon
    assert min(found, key=found.get) == 4
    assert proven(run, DELTA).epsilon == pytest.approx(found[4])


@pytest.mark.parametrize("sampling", ["fixed_size", "with_replacement", "random_allocation"])
def test_all_random_lots_are_post_processing_of_dpsgd(sampling):
    """Theorem G: all columns together have the norm 1 + 0.6."""
    few = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.6))
    run = vary(BASE, num_examples=1000, steps=1000, sampling=sampling, strategy=few)
    twin = vary(run, mechanism="dpsgd", noise_multiplier=3.0 / 1.6)
    assert proven(run, DELTA).epsilon == pytest.approx(proven(twin, DELTA).epsilon)
    assert any("secret" in sentence for sentence in proven(run, DELTA).assumptions)


def test_users_in_groups_that_take_turns_have_group_privacy():
    """Each record alone is amplified exactly, and all of a user's by Theorem G only."""
    few = Strategy(name="banded_toeplitz", coefficients=(1.0, 0.9, 0.8, 0.8))
    run = vary(
        BASE, num_examples=60000, lot_size=256, steps=3516, sampling="cyclic_poisson", groups=4
    )
    of_two = proven(vary(run, strategy=few, max_examples_per_user=2), DELTA)
    assert of_two.epsilon < 4 * proven(vary(run, strategy=few), DELTA).epsilon


@pytest.mark.parametrize("changes", [{"max_examples_per_user": 2}, {"microbatch_size": 2}])
def test_users_and_microbatches_cost_more(changes):
    run = vary(BASE, num_examples=1000, sampling="poisson", strategy=BANDED)
    more = vary(run, **changes)
    assert proven(run, DELTA).epsilon < proven(more, DELTA).epsilon
    assert proven(more, DELTA).epsilon < proven(vary(more, sampling="unknown"), DELTA).epsilon


@pytest.mark.parametrize(("share", "caught"), [(1.0, False), (2 / 3, True), (1.5, False)])
def test_the_best_linear_test_gains_no_more_than_is_proven(share, caught):
    """A linear test of sums with noise C^-1 z exceeds mu only at two thirds of the noise."""
    run = vary(BASE, steps=20, noise_multiplier=2.0)
    c = run.mechanism.strategy.first(20)
    pattern = np.zeros(20)
    pattern[::10] = 1.0
    rng = np.random.default_rng(0)
    z = rng.normal(size=(4000, 20)) * 2.0 * share
    inverse_matrix = np.array(
        [[inverse(c, 20)[t - s] if t >= s else 0.0 for s in range(20)] for t in range(20)]
    )
    noise = z @ inverse_matrix.T
    weights = matrix(run).T @ matrix(run) @ pattern  # the best linear statistic of the releases
    without = noise @ weights
    separation = (pattern @ weights) / without.std()
    assert bool(separation > proven(run, DELTA).mu * 1.05) is caught


def test_amplified_rounds_by_brute_force():
    """Two bands, two groups, two turns: hockey sticks of the exact mixture on a grid."""
    run = vary(
        BASE, num_examples=20, lot_size=2, steps=4, sampling="cyclic_poisson", groups=2,
        strategy=Strategy(name="banded_toeplitz", coefficients=(1.0, 0.6)), noise_multiplier=1.0,
    )  # fmt: skip
    delta = 1e-2
    epsilon = proven(run, delta).epsilon
    q, norm = 0.2, math.hypot(1.0, 0.6)
    rng = np.random.default_rng(0)
    # A record of the first group shifts rows (0, 1) and rows (2, 3) by (1, 0.6).
    drawn = rng.random((400_000, 2)) < q
    y = rng.normal(size=(400_000, 2)) + norm * drawn
    ratio = np.prod(1 - q + q * np.exp(norm * y - norm * norm / 2), axis=1)
    spent = np.maximum(0, 1 - math.exp(epsilon) / ratio).mean()
    assert spent <= delta * 1.03
    assert spent >= delta * 0.5
    honest = 1 / norm  # the noise multiplier relative to the norm of a column with both bands
    careless = vary(run, strategy=Strategy(name="identity"))
    assert proven(careless, delta).epsilon < epsilon
    assert proven(vary(careless, noise_multiplier=honest), delta).epsilon == pytest.approx(epsilon)


# ------------------------------------------------------------------ guards


def test_amplification_needs_few_bands():
    run = vary(BASE, num_examples=1000, sampling="cyclic_poisson", groups=4, strategy=BANDED)
    amplified = proven(run, DELTA)
    assert amplified.mu is None
    for change in ({"groups": 3}, {"strategy": ROOT}):
        other = vary(run, **change)
        norm = np.linalg.norm(other.mechanism.strategy.first(20))
        orthogonal = vary(other, mechanism="dpsgd", noise_multiplier=3.0 / float(norm))
        assert proven(other, DELTA).epsilon > proven(orthogonal, DELTA).epsilon
    of_two = claimed(vary(run, max_examples_per_user=2), DELTA)
    assert of_two.epsilon == amplified.epsilon  # a claim is for one record
    overlapping = vary(run, groups=3)
    revealed = math.sqrt(Toeplitz.of(overlapping).cyclic(3)) / 3.0
    assert proven(overlapping, DELTA).epsilon < epsilon_of_mu(revealed, DELTA)
    certain = vary(run, num_examples=40, groups=4)  # every example is in every turn
    assert proven(certain, DELTA).mu is not None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": 0.0}, "noise"),
        ({"batch_statistics": True, "sampling": "cyclic_poisson"}, "size"),
    ],
)
def test_unproven_cases_are_infinite(change, words):
    for guarantee in (proven(vary(BASE, **change), DELTA), claimed(vary(BASE, **change), DELTA)):
        assert guarantee.epsilon == math.inf
        assert words in guarantee.reason


def test_factors():
    base = proven(BASE, DELTA).mu
    assert proven(BASE, DELTA, "replace_one").mu == pytest.approx(2 * base)
    assert proven(vary(BASE, batch_statistics=True), DELTA).mu == pytest.approx(19 * base)


@pytest.mark.parametrize(
    "change",
    [
        {"strategy": None},
        {"groups": 2},
        {"sampling": "cyclic_poisson", "groups": 0},
        {"sampling": "cyclic_poisson", "groups": 11},
    ],
)
def test_bad_fields_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        vary(BASE, **change)
