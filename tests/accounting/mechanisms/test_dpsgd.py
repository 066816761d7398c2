"""DP-SGD: golden values, sampling schemes, and brute-force checks of the dominating pairs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.accounting.varying import vary
from tfdp.accounting import claimed, describe, proven
from tfdp.accounting.numerics.gaussian import log_delta
from tfdp.accounting.numerics.privacy_loss import RandomGaussianLoss
from tfdp.accounting.numerics.subsampled import composed
from tfdp.accounting.proofs import analyse

DELTA = 1e-5
BASE = describe(
    mechanism="dpsgd",
    num_examples=60000,
    lot_size=256,
    steps=14062,
    sampling="poisson",
    noise_multiplier=1.1,
)
DROPOUT = vary(BASE, num_examples=10000, lot_size=100, steps=20000)  # q = 0.01
SMALL = vary(BASE, num_examples=100, lot_size=10, steps=20, noise_multiplier=2.0)


@pytest.mark.parametrize(
    ("noise", "epsilon"), [(10.88, 0.37224), (3.23, 1.50519), (21.76, 0.17062), (6.46, 0.67186)]
)
def test_golden_poisson(noise, epsilon):
    # The golden values use a coarse grid. A finer grid can only give lower values.
    found = proven(vary(DROPOUT, noise_multiplier=noise), 1e-4)
    assert found.epsilon == pytest.approx(epsilon, rel=5e-3)
    assert found.epsilon <= epsilon * (1 + 1e-4)
    nominal = vary(DROPOUT, noise_multiplier=noise, nominal=True)
    same = proven(nominal, 1e-4, "add_or_remove_one")
    assert same.epsilon == found.epsilon


@pytest.mark.parametrize(("noise", "epsilon"), [(21.76, 0.3710), (6.46, 1.4591)])
def test_golden_poisson_replace_one(noise, epsilon):
    """`noise_multiplier` is relative to the clip norm, even if two records differ by twice that."""
    found = proven(vary(DROPOUT, noise_multiplier=noise), 1e-4, "replace_one")
    assert found.epsilon == pytest.approx(epsilon, rel=2e-3)


def test_golden_tutorial():
    guarantee = proven(BASE, DELTA)
    assert guarantee.epsilon == pytest.approx(2.3817, rel=1e-3)
    assert guarantee.details["conversion"] == "PLD"
    assert claimed(BASE, DELTA).epsilon == pytest.approx(3.009100, rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "epsilon"),
    [
        ((60000, 32, 7.1, 18750), 0.02833),
        ((96000, 128, 0.621, 37500), 4.5205),
    ],
)
def test_golden_settings_of_the_paper_with_poisson_lots(fields, epsilon):
    names = ("num_examples", "lot_size", "noise_multiplier", "steps")
    guarantee = proven(vary(BASE, **dict(zip(names, fields, strict=True))), DELTA)
    assert guarantee.epsilon == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize(
    ("lot", "noise", "epochs", "mu", "epsilon", "alone"),
    [(32, 7.1, 10, 28.06, 512.4, 1.752), (256, 1.1, 60, 3598.0, 6.49e6, 54.0)],
)
def test_golden_batch_statistics(lot, noise, epochs, mu, epsilon, alone):
    run = vary(
        BASE,
        sampling="cyclic",
        lot_size=lot,
        noise_multiplier=noise,
        steps=epochs * (60000 // lot),
        batch_statistics=True,
    )
    assert proven(run, DELTA).mu == pytest.approx(mu, rel=1e-3)
    assert proven(run, DELTA).epsilon == pytest.approx(epsilon, rel=2e-3)
    assert proven(vary(run, batch_statistics=False), DELTA).epsilon == pytest.approx(
        alone, rel=1e-3
    )


@pytest.mark.parametrize("lot", [2, 32])
def test_batch_statistics_sensitivity(lot):
    """The sensitivity (2L - 1) C is attained: an outlier flips the sign of all other gradients."""

    def clipped_sum(rows):
        x, sign, public = rows[:, 0], rows[:, 1], np.linspace(-1, 1, 30)
        both = np.concatenate([x, public])
        normalized = (x - both.mean()) / both.std()
        return np.clip(-1e6 * sign * normalized, -1, 1).sum()  # 1e6: every gradient is clipped

    others = np.column_stack([np.full(lot - 1, 1.0), np.ones(lot - 1)])
    joined = np.vstack([others, [[1000.0, -1.0]]])
    change = abs(clipped_sum(joined) - clipped_sum(others))
    run = vary(SMALL, sampling="cyclic", num_examples=512, lot_size=lot, batch_statistics=True)
    assert change == analyse(run, DELTA, "zero_out").details["sensitivity"] == 2 * lot - 1


def test_epochs_are_not_amplified():
    for sampling in ("cyclic", "shuffle"):
        run = vary(SMALL, sampling=sampling, steps=21)  # two epochs of ten lots, and one lot
        assert proven(run, DELTA).mu == pytest.approx(math.sqrt(3) / 2)
        assert proven(run, DELTA, "replace_one").mu == pytest.approx(math.sqrt(3))
    run = vary(SMALL, sampling="unknown", steps=21)
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(21) / 2)


def test_a_lot_of_everything_is_a_plain_gaussian():
    run = vary(SMALL, lot_size=100)
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(20) / 2)
    assert proven(run, DELTA, "replace_one").mu == pytest.approx(math.sqrt(20))


# ------------------------------------------------ microbatches, users and mixed lots


def test_microbatches_are_groups_that_are_replaced():
    pairs = vary(SMALL, microbatch_size=2)
    for sampling in ("poisson", "fixed_size", "cyclic", "shuffle"):
        run = vary(pairs, sampling=sampling)
        assert proven(run, DELTA).epsilon == proven(run, DELTA, "replace_one").epsilon
        assert proven(run, DELTA).epsilon == pytest.approx(
            proven(vary(SMALL, sampling=sampling), DELTA, "replace_one").epsilon, rel=0.2
        )
    assert proven(vary(BASE, microbatch_size=16, steps=3516), DELTA).epsilon == pytest.approx(
        1.9288, rel=1e-3
    )
    with pytest.raises(ValueError, match="regroup"):
        proven(pairs, DELTA, "add_or_remove_one")


def test_golden_users():
    """Ten of 10,000 examples are of one user: a mixture of Gaussians, exactly."""
    run = vary(BASE, num_examples=10_000, lot_size=100, steps=500, noise_multiplier=1.0)
    assert proven(vary(run, max_examples_per_user=10), DELTA).epsilon == pytest.approx(
        18.608, rel=1e-3
    )
    one = vary(run, max_examples_per_user=1)
    assert proven(one, DELTA).epsilon == proven(run, DELTA).epsilon


@pytest.mark.parametrize(
    "sampling", ["poisson", "random_allocation", "cyclic", "with_replacement", "fixed_size"]
)
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_more_examples_of_a_user_cost_more(sampling, adjacency):
    run = vary(SMALL, sampling=sampling, noise_multiplier=6.0)
    found = [
        proven(vary(run, max_examples_per_user=k), DELTA, adjacency).epsilon for k in (1, 2, 4)
    ]
    assert found[0] * 1.2 < found[1] and found[1] * 1.2 < found[2]
    everything = vary(run, sampling="unknown", max_examples_per_user=4)
    assert found[2] < proven(everything, DELTA, adjacency).epsilon


def test_batch_statistics_of_poisson_lots_are_unbounded():
    guarantee = proven(vary(SMALL, batch_statistics=True), DELTA)
    assert guarantee.epsilon == math.inf
    assert "fixed size" in guarantee.reason


# ------------------------------------------------ brute force


def hockey_stick(centres_p, centres_q, scale, epsilon):
    """H_{e^epsilon}(P || Q) of two mixtures on the line, by quadrature."""
    x = np.linspace(-14 * scale, 14 * scale + 30, 60_001)

    def density(centres):
        return sum(w * stats.norm.pdf(x, c, scale) for c, w in centres)

    gap = density(centres_p) - math.exp(epsilon) * density(centres_q)
    return float(np.maximum(gap, 0).sum() * (x[1] - x[0]))


def one_step_delta(run, epsilon, adjacency="zero_out"):
    """Returns the delta of one step at epsilon, from the loss that the accountant composes."""
    loss = analyse(run, DELTA, adjacency).losses[0]
    if isinstance(loss, RandomGaussianLoss):
        mu = np.sqrt(loss.squares[1:])
        profile = loss.probabilities[1:] @ np.exp(log_delta(epsilon, mu))
        return float(profile) + loss.overflow
    pld = composed([loss])
    return pld.delta(epsilon) + loss.overflow


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_with_replacement_covers_the_adversarial_lot(epsilon):
    """All other gradients are +C: k draws of the record at -C move the sum by 2k, of 0 by k.

    The mixture of Gaussians with sensitivities k is below this, so it is no bound.
    """
    noise = 1.5
    run = vary(
        SMALL,
        sampling="with_replacement",
        num_examples=20,
        lot_size=4,
        steps=1,
        noise_multiplier=noise,
    )
    weights = stats.binom.pmf(range(5), 4, 1 / 20)
    moved = [(2 * k, w) for k, w in enumerate(weights)]
    removed = [(k, w) for k, w in enumerate(weights)]
    truth = hockey_stick(moved, removed, noise, epsilon)
    naive = hockey_stick(removed, [(0, 1.0)], noise, epsilon)
    assert naive < truth
    assert one_step_delta(run, epsilon) >= truth
    replaced = [(0, 1.0)], [(2 * k, w) for k, w in enumerate(weights)]
    for p, q in (replaced, replaced[::-1]):
        assert one_step_delta(run, epsilon, "replace_one") >= hockey_stick(p, q, noise, epsilon)


@settings(max_examples=8, deadline=None)
@given(
    q=st.floats(0.01, 0.9),
    noise=st.floats(0.5, 4),
    position=st.floats(-1, 1),
    other=st.floats(-1, 1),
    epsilon=st.floats(0.0, 2),
)
def test_three_point_lemma_on_the_line(q, noise, position, other, epsilon):
    """R = 0, P and P' anywhere in [-1, 1]: the "replace" pair is at least as easy to tell apart."""
    worst = hockey_stick([(0, 1 - q), (1, q)], [(0, 1 - q), (-1, q)], noise, epsilon)
    some = hockey_stick([(0, 1 - q), (position, q)], [(0, 1 - q), (other, q)], noise, epsilon)
    assert some <= worst + 1e-6
    # All distances are at most 2, so the "add" pair at half the multiplier dominates this pair.
    assert worst <= hockey_stick([(0, 1 - q), (2, q)], [(0, 1.0)], noise, epsilon) + 1e-6


def test_microbatch_profile_covers_a_moved_mean():
    """A drawn group's clipped mean moves from anywhere in the ball to anywhere else."""
    run = vary(SMALL, steps=1, microbatch_size=2)
    for epsilon in (0.05, 0.3):
        bound = one_step_delta(run, epsilon) + 1e-9
        for here, there in itertools.product((-1.0, 0.0, 0.5, 1.0), repeat=2):
            p, q = [(0, 0.9), (here, 0.1)], [(0, 0.9), (there, 0.1)]
            assert hockey_stick(p, q, 2.0, epsilon) <= bound


def test_user_profile_covers_vectors_in_any_direction():
    """A user's three examples pull along directions that need not agree."""
    run = vary(SMALL, steps=1, max_examples_per_user=3)
    bounds = {epsilon: one_step_delta(run, epsilon) + 1e-9 for epsilon in (0.05, 0.3)}
    for pulls in itertools.combinations_with_replacement((-1.0, 0.4, 1.0), 3):
        drawn = [
            (
                sum(p for p, d in zip(pulls, drawn, strict=True) if d),
                np.prod([0.1 if d else 0.9 for d in drawn]),
            )
            for drawn in itertools.product((0, 1), repeat=3)
        ]
        for epsilon, bound in bounds.items():
            for p, q in ((drawn, [(0, 1.0)]), ([(0, 1.0)], drawn)):
                assert hockey_stick(p, q, 2.0, epsilon) <= bound
    all_along = [(k, stats.binom.pmf(k, 3, 0.1)) for k in range(4)]
    assert one_step_delta(run, 0.3) == pytest.approx(
        hockey_stick(all_along, [(0, 1.0)], 2.0, 0.3), rel=1e-3
    )


@pytest.mark.parametrize("sampling", ["cyclic", "with_replacement", "fixed_size"])
def test_add_or_remove_one_is_refused_without_poisson_lots(sampling):
    with pytest.raises(ValueError, match="zero_out"):
        proven(vary(SMALL, sampling=sampling), DELTA, "add_or_remove_one")


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(("noise", "epsilon"), [(1.5, 0.3), (4.0, 0.1)])
def test_fixed_size_lots_cover_the_adversarial_lot(noise, epsilon, adjacency):
    """All other gradients are +C: if the record is not drawn, another one is."""
    run = vary(
        SMALL, sampling="fixed_size", num_examples=20, lot_size=4, steps=1, noise_multiplier=noise
    )
    q = 0.2
    plus, nothing, minus = [(0, 1.0)], [(0, 1 - q), (1, q)], [(0, 1 - q), (2, q)]
    pairs = {"zero_out": [(minus, nothing)], "replace_one": [(minus, plus), (minus, nothing)]}
    for one, other in pairs[adjacency]:
        for p, r in ((one, other), (other, one)):
            truth = hockey_stick(p, r, noise, epsilon)  # by quadrature, to about 1e-8
            assert one_step_delta(run, epsilon, adjacency) >= truth * (1 - 1e-6)
    poisson = vary(run, sampling="poisson")
    assert proven(run, DELTA, adjacency).epsilon >= proven(poisson, DELTA, adjacency).epsilon


def test_fixed_size_lots_of_everything_are_plain_gaussians():
    run = vary(SMALL, sampling="fixed_size", lot_size=100)
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(20) / 2)
