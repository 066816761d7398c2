"""DP-SGD: golden values, sampling schemes, and brute-force checks of the dominating pairs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tfdp.accounting import Run, claimed, proven
from tfdp.accounting.analysis import analyse
from tfdp.accounting.numerics.gaussian import log_delta
from tfdp.accounting.numerics.privacy_loss import RandomGaussianLoss
from tfdp.accounting.numerics.subsampled import composed_pld

DELTA = 1e-5
BASE = Run(
    mechanism="dpsgd",
    num_examples=60000,
    lot_size=256,
    steps=14062,
    sampling="poisson",
    noise_multiplier=1.1,
)
DROPOUT = BASE.with_(num_examples=10000, lot_size=100, steps=20000)  # q = 0.01
SMALL = BASE.with_(num_examples=100, lot_size=10, steps=20, noise_multiplier=2.0)


@pytest.mark.parametrize(
    ("noise", "epsilon"), [(10.88, 0.37224), (3.23, 1.50519), (21.76, 0.17062), (6.46, 0.67186)]
)
def test_golden_poisson(noise, epsilon):
    # The golden values use a coarse grid. A finer grid can only give lower values.
    found = proven(DROPOUT.with_(noise_multiplier=noise), 1e-4)
    assert found.epsilon == pytest.approx(epsilon, rel=5e-3)
    assert found.epsilon <= epsilon * (1 + 1e-4)
    nominal = DROPOUT.with_(noise_multiplier=noise, nominal=True)
    same = proven(nominal, 1e-4, "add_or_remove_one")
    assert same.epsilon == found.epsilon


@pytest.mark.parametrize(("noise", "epsilon"), [(21.76, 0.3710), (6.46, 1.4591)])
def test_golden_poisson_replace_one(noise, epsilon):
    """`noise_multiplier` is relative to the clip norm, even if two records differ by twice that."""
    found = proven(DROPOUT.with_(noise_multiplier=noise), 1e-4, "replace_one")
    assert found.epsilon == pytest.approx(epsilon, rel=2e-3)


def test_golden_tutorial():
    guarantee = proven(BASE, DELTA)
    assert guarantee.epsilon == pytest.approx(2.3817, rel=1e-3)
    assert guarantee.details["epsilon_rdp"] == pytest.approx(2.596981, rel=2e-4)
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
    guarantee = proven(BASE.with_(**dict(zip(names, fields, strict=True))), DELTA)
    assert guarantee.epsilon == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize(
    ("lot", "noise", "epochs", "mu", "epsilon", "alone"),
    [(32, 7.1, 10, 28.06, 512.4, 1.752), (256, 1.1, 60, 3598.0, 6.49e6, 54.0)],
)
def test_golden_batch_statistics(lot, noise, epochs, mu, epsilon, alone):
    run = BASE.with_(
        sampling="cyclic",
        lot_size=lot,
        noise_multiplier=noise,
        steps=epochs * (60000 // lot),
        batch_statistics=True,
    )
    assert proven(run, DELTA).mu == pytest.approx(mu, rel=1e-3)
    assert proven(run, DELTA).epsilon == pytest.approx(epsilon, rel=2e-3)
    assert proven(run.with_(batch_statistics=False), DELTA).epsilon == pytest.approx(
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
    run = SMALL.with_(sampling="cyclic", num_examples=512, lot_size=lot, batch_statistics=True)
    assert change == analyse(run, DELTA, "zero_out").details["sensitivity"] == 2 * lot - 1


def test_epochs_are_not_amplified():
    for sampling in ("cyclic", "shuffle"):
        run = SMALL.with_(sampling=sampling, steps=21)  # two epochs of ten lots, and one lot
        assert proven(run, DELTA).mu == pytest.approx(math.sqrt(3) / 2)
        assert proven(run, DELTA, "replace_one").mu == pytest.approx(math.sqrt(3))
    run = SMALL.with_(sampling="unknown", steps=21)
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(21) / 2)


def test_a_lot_of_everything_is_a_plain_gaussian():
    run = SMALL.with_(lot_size=100)
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(20) / 2)
    assert proven(run, DELTA, "replace_one").mu == pytest.approx(math.sqrt(20))


# ------------------------------------------------ lots that are cut, grouped or mixed


def test_cut_lots_cost_a_little_and_then_a_lot():
    base = proven(SMALL, DELTA).epsilon
    rarely = proven(SMALL.with_(max_lot_size=40), DELTA)
    assert base <= rarely.epsilon <= base * (1 + 1e-3)
    often = proven(SMALL.with_(max_lot_size=11), DELTA)
    assert base < often.epsilon
    never = proven(SMALL.with_(max_lot_size=100), DELTA)
    assert never.epsilon == base


def test_full_lots_have_the_pair_of_fixed_sizes():
    def parts(adjacency, **changes):
        run = SMALL.with_(max_lot_size=11, **changes)
        return [
            (part.pair, part.multiplier)
            for part in analyse(run, DELTA, adjacency).losses[0].components
        ]

    assert parts("zero_out") == [("add", 2.0), ("slot", 2.0)]
    assert parts("replace_one") == [("replace", 2.0), ("triangle", 1.0)]
    assert parts("add_or_remove_one", nominal=True) == [("add", 1.0)]


def test_microbatches_reveal_the_sample():
    run = SMALL.with_(microbatch_size=2)
    loss = analyse(run, DELTA, "zero_out").losses[0]
    assert isinstance(loss, RandomGaussianLoss)
    # Given K participations, mu = 2 sqrt(K) / z.
    k = np.arange(len(loss.squares))
    np.testing.assert_allclose(loss.squares, 4 * k / 4.0)
    np.testing.assert_allclose(loss.probabilities, stats.binom.pmf(k, 20, 0.1), rtol=1e-9)
    assert proven(run, DELTA).epsilon == proven(run, DELTA, "replace_one").epsilon
    with pytest.raises(ValueError, match="regroup"):
        proven(run, DELTA, "add_or_remove_one")
    assert proven(run.with_(sampling="cyclic"), DELTA).mu == pytest.approx(
        2 * proven(SMALL.with_(sampling="cyclic"), DELTA).mu
    )


def test_batch_statistics_of_poisson_lots_need_a_largest_lot():
    run = SMALL.with_(batch_statistics=True)
    guarantee = proven(run, DELTA)
    assert guarantee.epsilon == math.inf
    assert "max_lot_size" in guarantee.reason
    part = analyse(run.with_(max_lot_size=20), DELTA, "zero_out").losses[0].components[0]
    assert part.multiplier == pytest.approx(2.0 / 40)  # a cut lot: all of its gradients may change
    part = analyse(run.with_(max_lot_size=100), DELTA, "zero_out").losses[0].components[0]
    assert part.multiplier == pytest.approx(2.0 / 199)  # 2 Bmax - 1


# ------------------------------------------------ brute force


def hockey_stick(centres_p, centres_q, scale, epsilon):
    """H_{e^epsilon}(P || Q) of two mixtures on the line, by quadrature."""
    x = np.linspace(-14 * scale, 14 * scale + 30, 60001)

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
    pld, _ = composed_pld([loss], 0.0, 1e-3)
    return pld.delta(epsilon) + loss.overflow


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_with_replacement_covers_the_adversarial_lot(epsilon):
    """All other gradients are +C: k draws of the record at -C move the sum by 2k, of 0 by k.

    The mixture of Gaussians with sensitivities k is below this, so it is no bound.
    """
    noise = 1.5
    run = SMALL.with_(
        sampling="with_replacement", num_examples=20, lot_size=4, steps=1, noise_multiplier=noise
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


def test_microbatch_profile_covers_a_shifted_group():
    """Poisson lots, microbatches of two: the sum without the record may be anywhere."""
    run = SMALL.with_(steps=1, microbatch_size=2)
    for far, epsilon in itertools.product((0.0, 3.0, 25.0), (0.1, 0.6)):
        truth = hockey_stick([(far, 0.9), (2, 0.1)], [(far, 0.9), (0, 0.1)], 2.0, epsilon)
        assert one_step_delta(run, epsilon) >= truth * (1 - 1e-6)


@pytest.mark.parametrize("sampling", ["cyclic", "with_replacement", "fixed_size"])
def test_add_or_remove_one_is_refused_without_poisson_lots(sampling):
    with pytest.raises(ValueError, match="zero_out"):
        proven(SMALL.with_(sampling=sampling), DELTA, "add_or_remove_one")


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize(("noise", "epsilon"), [(1.5, 0.3), (4.0, 0.1)])
def test_fixed_size_lots_cover_the_adversarial_lot(noise, epsilon, adjacency):
    """All other gradients are +C: if the record is not drawn, another one is."""
    run = SMALL.with_(
        sampling="fixed_size", num_examples=20, lot_size=4, steps=1, noise_multiplier=noise
    )
    q = 0.2
    plus, nothing, minus = [(0, 1.0)], [(0, 1 - q), (1, q)], [(0, 1 - q), (2, q)]
    pairs = {"zero_out": [(minus, nothing)], "replace_one": [(minus, plus), (minus, nothing)]}
    for one, other in pairs[adjacency]:
        for p, r in ((one, other), (other, one)):
            truth = hockey_stick(p, r, noise, epsilon)  # by quadrature, to about 1e-8
            assert one_step_delta(run, epsilon, adjacency) >= truth * (1 - 1e-6)
    poisson = run.with_(sampling="poisson")
    assert proven(run, DELTA, adjacency).epsilon >= proven(poisson, DELTA, adjacency).epsilon


def test_fixed_size_lots_of_everything_are_plain_gaussians():
    run = SMALL.with_(sampling="fixed_size", lot_size=100)
    assert proven(run, DELTA).mu == pytest.approx(math.sqrt(20) / 2)
    grouped = SMALL.with_(sampling="fixed_size", microbatch_size=2)
    assert isinstance(analyse(grouped, DELTA, "zero_out").losses[0], RandomGaussianLoss)


def test_nominal_lots_may_always_be_cut():
    """The number of examples is not public, so it is unknown whether a lot reaches Bmax."""
    run = SMALL.with_(batch_statistics=True, max_lot_size=100)
    exact = analyse(run, DELTA, "zero_out").losses[0].components[0].multiplier
    nominal = analyse(run.with_(nominal=True), DELTA, "zero_out").losses[0].components[0].multiplier
    assert (exact, nominal) == (2.0 / 199, 2.0 / 200)
