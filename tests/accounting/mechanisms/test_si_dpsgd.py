"""SI-DPSGD: golden values, and properties of every run."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.accounting.varying import vary
from tfdp.accounting import claimed, describe, proven

DELTA = 1e-5
MNIST = describe(
    mechanism="si_dpsgd",
    num_examples=60000,
    lot_size=32,
    steps=18750,
    sampling="cyclic",
    noise_multiplier=7.1,
)
CIFAR = vary(MNIST, num_examples=50000, lot_size=16, steps=125000, noise_multiplier=10.0)
AG_NEWS = vary(MNIST, num_examples=96000, lot_size=128, steps=37500, noise_multiplier=0.621)
DECAY = tuple(0.1 * 0.9 ** (t // 1875) for t in range(18750))


def small(steps=12, **changes):
    fields = {"num_examples": 30, "lot_size": 10, "steps": steps, "noise_multiplier": 2.0}
    return vary(MNIST, **(fields | changes))


@pytest.mark.parametrize(
    ("run", "mu", "epsilon", "tolerance"),
    [
        (MNIST, 119.66651738, 7669.41975, 1e-8),
        (vary(MNIST, learning_rates=DECAY, momentum=0.9), 1792.04462, 1613353.84, 1e-6),
        (vary(MNIST, momentum=0.9), 1195.88, 720163, 1e-5),
        (vary(MNIST, learning_rates=DECAY), 179.28, 16834.3, 1e-4),
        (AG_NEWS, 9136.80, 4.178e7, 1e-3),
        (vary(MNIST, sampling="shuffle"), 119.66651738, 7669.41975, 1e-8),
    ],
)
def test_golden_epochs(run, mu, epsilon, tolerance):
    guarantee = proven(run, DELTA)
    assert guarantee.mu == pytest.approx(mu, rel=max(tolerance, 1e-8))
    assert guarantee.epsilon == pytest.approx(epsilon, rel=max(tolerance, 1e-6))
    assert guarantee.vacuous
    doubled = proven(run, DELTA, "replace_one")
    assert doubled.mu == pytest.approx(2 * guarantee.mu, rel=1e-12)


@pytest.mark.parametrize(
    ("sampling", "epsilon"), [("with_replacement", 51078.13662), ("poisson", 51047.56793)]
)
def test_golden_random_sampling(sampling, epsilon):
    guarantee = proven(vary(MNIST, sampling=sampling), DELTA)
    assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert guarantee.mu is None
    # This is a 99.9% lower bound on the true epsilon (linear loss, whole transcript).
    assert guarantee.epsilon >= 45675


@pytest.mark.parametrize(
    ("run", "epsilon"),
    [(MNIST, 0.0500362885), (CIFAR, 0.0555168725), (AG_NEWS, 5.991100711)],
)
def test_golden_claims(run, epsilon):
    guarantee = claimed(run, DELTA)
    assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-6)
    # The claim does not depend on momentum.
    assert claimed(vary(run, momentum=0.9), DELTA).epsilon == guarantee.epsilon


def test_learning_rate_schedule_of_the_authors_with_random_sampling():
    run = vary(MNIST, learning_rates=DECAY, momentum=0.9, sampling="with_replacement")
    guarantee = proven(run, DELTA)
    # A Monte Carlo estimate of the average profile is 1.31e7. A bound must not be below it.
    assert 1.31e7 < guarantee.epsilon < 1.31e7 * 1.3


SAMPLINGS = ("cyclic", "shuffle", "poisson", "unknown")


def loss_of(run, adjacency="zero_out"):
    """Returns mu, or epsilon if draws are random."""
    guarantee = proven(run, DELTA, adjacency)
    return guarantee.epsilon if guarantee.mu is None else guarantee.mu


@pytest.mark.parametrize("sampling", SAMPLINGS)
@settings(max_examples=8, deadline=None)
@given(
    rates=st.lists(st.floats(0.05, 2), min_size=12, max_size=12).map(tuple),
    beta=st.floats(0, 0.9),
    nesterov=st.booleans(),
)
def test_properties_of_every_schedule(sampling, rates, beta, nesterov):
    run = small(sampling=sampling, learning_rates=rates, momentum=beta, nesterov=nesterov)
    base = loss_of(run)
    drawn = sampling == "poisson"
    grid = 1 + 5e-2 if drawn else 1 + 1e-9
    replaced = loss_of(run, "replace_one")
    assert replaced > base if drawn else replaced == pytest.approx(2 * base, rel=1e-9)
    assert loss_of(vary(run, momentum=min(beta + 0.05, 0.95))) * grid >= base
    assert loss_of(vary(run, steps=11)) <= base * grid
    scaled = tuple(7.5 * r for r in rates)
    assert loss_of(vary(run, learning_rates=scaled)) == pytest.approx(base, rel=1e-2)
    quieter = loss_of(vary(run, noise_multiplier=4.0))
    assert quieter < base if drawn else quieter == pytest.approx(base / 2, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(k=st.integers(1, 12), b=st.integers(1, 12), z=st.floats(0.1, 100))
def test_bounds_on_mu_at_a_constant_rate(k, b, z):
    run = small(k * b, num_examples=10 * b, noise_multiplier=z)
    mu = proven(run, DELTA).mu
    # With a linear loss, the last weights alone separate the neighbours by k/z.
    assert mu >= k / z * (1 - 1e-12)
    # Theorem E: the noise is never less than that of DP-SGD without amplification, whose largest
    # prefix-sum noise at the same mu is sqrt(k) sqrt(T).
    other = proven(vary(run, mechanism="dpsgd"), DELTA).mu
    ratio = mu * z / (other * z * math.sqrt(k * b))
    assert ratio == pytest.approx(math.sqrt((k + 1) * (2 * k + 1) / (6 * k)))
    assert ratio >= 1 - 1e-12


def test_full_lots():
    """Every sampling scheme puts every record into a lot that is the whole data set."""
    runs = [small(7, num_examples=10, sampling=s) for s in ("cyclic", "poisson", "unknown")]
    mus = [proven(run, DELTA).mu for run in runs]
    assert mus == pytest.approx([math.sqrt(140) / 2] * 3)  # the sum of the squares of 1 to 7
    drawn = proven(vary(runs[0], sampling="with_replacement"), DELTA)
    assert drawn.mu is None
    assert drawn.epsilon > 0


def test_shuffle_with_increasing_rates_uses_the_envelope():
    run = small(sampling="shuffle", learning_rates=tuple(range(1, 13)))
    guarantee = proven(run, DELTA)
    assert guarantee.mu > 1.01 * proven(vary(run, sampling="cyclic"), DELTA).mu


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"release": "mu"}, "released"),
        ({"optimizer": "adam"}, "linear"),
        ({"noise_multiplier": 0.0}, "noise"),
        ({"learning_rates": (1.0,) * 11 + (0.0,)}, "noise"),
        ({"sampling": "poisson", "batch_statistics": True}, "statistics"),
    ],
)
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_nothing_finite_with_a_reason(changes, words, adjacency):
    guarantee = proven(small(**changes), DELTA, adjacency)
    assert guarantee.epsilon == math.inf
    assert words in guarantee.reason


def test_batch_statistics_multiply_the_sensitivity():
    plain, mixed = (proven(small(batch_statistics=b), DELTA).mu for b in (False, True))
    assert mixed == pytest.approx(19 * plain)  # 2 L - 1 with L = 10
    assert proven(small(batch_statistics=True), DELTA, "replace_one").mu == pytest.approx(
        20 * plain
    )
