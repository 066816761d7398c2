"""DP dropout and SGLD: the published sigmas, their interpretations, and the proven guarantees."""

import math

import pytest

from tests.accounting.varying import vary
from tfdp.accounting import (
    claimed,
    describe,
    noise_for,
    proven,
)
from tfdp.accounting.claims import READINGS, claimed_sigma_epsilon

DELTA = 1e-4
MNIST = describe(
    mechanism="dp_dropout",
    num_examples=60000,
    lot_size=600,
    steps=20000,
    sampling="poisson",
    noise_multiplier=2 * 10.88,
)


@pytest.mark.parametrize(
    ("mechanism", "composition", "delta", "sigma"),
    [
        ("dp_dropout", None, DELTA, 10.8756193),
        ("dp_dropout", "ac", DELTA, 10.8756193),
        ("sgld", None, DELTA, 3.2297583),
        ("dp_dropout", "zcdp", DELTA, 3.2297583),
        ("dp_dropout", "zcdp_a", 1e-6, 3.2311877),
        ("dp_dropout", "zcdp_c", DELTA, 3.2282007),
        ("dp_dropout", "ac_as_printed", DELTA, 74.354010),
        ("dp_dropout", "zcdp_as_printed", DELTA, 10.261026),
    ],
)
def test_golden_sigmas(mechanism, composition, delta, sigma):
    run = vary(MNIST, mechanism=mechanism, composition=composition)
    exact = vary(run, noise_multiplier=2 * sigma)
    assert claimed(exact, delta).epsilon == pytest.approx(0.5, rel=1e-6)
    assert claimed(exact, delta).details["sigma"] == sigma
    assert noise_for(0.5, delta, run, "claimed") / 2 == pytest.approx(sigma, rel=2e-4)


@pytest.mark.parametrize(
    ("sigma", "epsilon", "replaced", "by_layer"),
    [(10.88, 0.17062, 0.3710, 0.2519), (3.23, 0.67186, 1.4591, 1.0006)],
)
def test_golden_proven(sigma, epsilon, replaced, by_layer):
    run = vary(MNIST, noise_multiplier=2 * sigma)
    # The golden values use a coarse grid. A finer grid can only give lower values.
    for guarantee, golden in (
        (proven(run, DELTA), epsilon),
        (proven(run, DELTA, "replace_one"), replaced),
        (proven(vary(run, clip_groups=2), DELTA), by_layer),
    ):
        assert guarantee.epsilon == pytest.approx(golden, rel=6e-3)
        assert guarantee.epsilon <= golden * 1.001
    assert proven(vary(run, clip_groups=2), DELTA).details["sensitivity"] == math.sqrt(2)


def test_the_zcdp_claim_is_no_guarantee():
    """In its most favourable reading the published sigma spends more than it claims."""
    run = vary(MNIST, composition="zcdp", noise_multiplier=2 * 3.23)
    assert claimed(run, DELTA).epsilon == pytest.approx(0.5, abs=1e-3)
    assert proven(run, DELTA).epsilon > 0.65


def test_same_accounting_as_dpsgd():
    twin = vary(MNIST, mechanism="dpsgd")
    for mechanism in ("dp_dropout", "sgld"):
        run = vary(MNIST, mechanism=mechanism)
        change = {"sampling": "cyclic", "clip_groups": 3}
        ours, theirs = (proven(vary(r, **change), DELTA).epsilon for r in (run, twin))
        assert ours == theirs


@pytest.mark.parametrize("reading", READINGS)
def test_claims_are_monotone(reading):
    def epsilon(sigma=5.0, delta=DELTA, steps=2000, probability=0.01):
        return claimed_sigma_epsilon(sigma, delta, steps, probability, reading)

    assert 0 < epsilon() < epsilon(sigma=4.0) < math.inf
    assert epsilon() < epsilon(steps=3000)
    assert epsilon(steps=0) == 0
    assert epsilon(sigma=0.0) == epsilon(sigma=1e-9) == math.inf


def test_segments():
    half = vary(MNIST, steps=10000)
    assert claimed([half, half], DELTA).epsilon == claimed(MNIST, DELTA).epsilon
    assert proven([half, half], DELTA).epsilon == pytest.approx(
        proven(MNIST, DELTA).epsilon, rel=1e-3
    )
    other = vary(half, noise_multiplier=30.0)
    split = claimed([half, other], DELTA)
    parts = [claimed(run, DELTA / 2).epsilon for run in (half, other)]
    assert split.epsilon == pytest.approx(sum(parts))


@pytest.mark.parametrize(
    "change",
    [{"composition": "rdp"}, {"mechanism": "dpsgd", "composition": "ac"}, {"clip_groups": 0}],
)
def test_bad_fields_are_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        vary(MNIST, **change)
