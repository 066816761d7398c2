"""Lots of fixed size: the pairs against brute force over all lots, the curve, the composition."""

import functools
import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as plds
from dp_accounting.pld.pld_pmf import DensePLDPmf
from scipy import stats

from tests.accounting.varying import vary
from tfdp.accounting import describe, proven
from tfdp.accounting.numerics import fixed_size
from tfdp.accounting.numerics.gaussian import epsilon_of_mu
from tfdp.accounting.numerics.pairs import Component
from tfdp.accounting.numerics.privacy_loss import epsilon_of
from tfdp.accounting.numerics.subsampled import SubsampledLoss, one_round, renyi_divergences
from tfdp.accounting.proofs import analyse
from tfdp.accounting.sampling import FixedSize, WithReplacement

DELTA = 1e-5
PAIRS = ("slot", "triangle")
EPSILONS = np.array([0.0, 0.02, 0.1, 0.3, 0.7, 1.2, 2.0])


def loss_of(examples, lot, noise, adjacency, steps, replacement=False, tail=0.0, users=1, way=0):
    scheme = WithReplacement if replacement else FixedSize
    draws, overflow = scheme(num_examples=examples, lot_size=lot).draws(users, tail)
    rounds = fixed_size.ways(draws, noise, adjacency == "replace_one")[way]
    return SubsampledLoss(rounds, steps, overflow)


def spent(examples, lot, noise, adjacency, steps, delta=DELTA, **options):
    args = (examples, lot, noise, adjacency, steps)
    ways = range(2 if options.get("replacement") else 1)
    losses = [loss_of(*args, way=way, **options) for way in ways]
    return min(epsilon_of([loss], delta).epsilon for loss in losses)


# ------------------------------------------------ brute force over all lots


def mixture(centres, weights, points, scale):
    total = np.zeros(len(points))
    for centre, weight in zip(centres, weights, strict=True):
        total += weight * np.exp(-((points - centre) ** 2).sum(1) / (2 * scale**2))
    return total / (2 * math.pi * scale**2) ** (points.shape[1] / 2)


def profile(p, q, cell):
    """Returns H_{e^epsilon}(P || Q) at EPSILONS from densities on a grid."""
    return np.array([np.maximum(p - math.exp(e) * q, 0).sum() * cell for e in EPSILONS])


def all_lots(examples, lot, replacement):
    lots = (
        itertools.product(range(examples), repeat=lot)
        if replacement
        else itertools.combinations(range(examples), lot)
    )
    return np.array(list(lots))


@functools.cache
def grid(dimension, reach, points):
    axis = np.linspace(-reach, reach, points)
    mesh = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), -1)
    return mesh.reshape(-1, dimension), (axis[1] - axis[0]) ** dimension


def both_orders(gradients, other_gradients, lots, scale):
    """Returns the exact profiles of one step, a mixture over all lots, in both orders."""
    dimension, size = gradients.shape[1], lots.shape[1]
    points, cell = grid(dimension, size + 7 * scale, 1201 if dimension == 1 else 91)

    def density(g):
        # With replacement, many lots hold the same examples.
        sums, counts = np.unique(np.round(g[lots].sum(1), 10), axis=0, return_counts=True)
        return mixture(sums, counts / len(lots), points, scale)

    p, q = density(gradients), density(other_gradients)
    return profile(p, q, cell), profile(q, p, cell)


def divergences(pair, q, noise, epsilons=EPSILONS, interval=1e-3):
    """The curves of a pair in both orders, from its distribution on a fine grid."""
    return divergences_of((Component(1.0, q, noise, pair),), epsilons, interval)


def divergences_of(components, epsilons=EPSILONS, interval=1e-3):
    halves = one_round(components, interval).halves
    return [np.array([half.delta(float(e)) for e in epsilons]) for half in (halves[0], halves[-1])]


def bounds(examples, lot, scale, adjacency, replacement, users=1, way=0):
    options = {"replacement": replacement, "users": users, "way": way}
    rounds = loss_of(examples, lot, scale, adjacency, 1, **options).components
    return np.array(divergences_of(rounds))


def neighbour(gradients, last, adjacency):
    other = gradients.copy()
    other[: len(last)] = 0 if adjacency == "zero_out" else last
    return other


CASES = [(2, 1, 1), (4, 2, 1), (4, 2, 2), (5, 3, 2)]


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize(("examples", "lot", "users"), CASES)
def test_no_lot_exceeds_the_bound(examples, lot, users, replacement, adjacency):
    """Random gradients in the unit ball in one and two dimensions, improved by hill climbing."""
    rng = np.random.default_rng(1000 * examples + 10 * lot + replacement + 100 * (users - 1))
    lots = all_lots(examples, lot, replacement)
    scale = 0.6
    ways = range(2 if lot > 1 and (replacement or users > 1) else 1)
    known = [bounds(examples, lot, scale, adjacency, replacement, users, way) for way in ways]
    found = np.zeros_like(known[0])

    def attempt(vectors):
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        g = vectors / np.maximum(norms, 1)
        g, last = g[:-users], g[-users:]
        got = np.array(both_orders(g, neighbour(g, last, adjacency), lots, scale))
        np.maximum(found, got, out=found)
        return got

    for corner in itertools.product((-1.0, 1.0), repeat=examples + users):
        attempt(np.array(corner)[:, None])
    for dimension, tries, climbs in ((1, 12, 20), (2, 1, 1)):
        for _ in range(tries):
            attempt(rng.normal(scale=2, size=(examples + users, dimension)))
        for order, index in ((0, 1), (0, 5), (1, 1), (1, 5)):
            best, value = rng.normal(size=(examples + users, dimension)), -1.0
            for _ in range(climbs):
                step = best + rng.normal(scale=0.7, size=best.shape)
                if (new := attempt(step)[order, index]) > value:
                    best, value = step, new
    for bound in known:
        assert np.all(found <= bound * (1 + 1e-3) + 1e-6)
    best = np.min(known, axis=0)
    assert np.all(found[:, 1:] >= 0.3 * best[:, 1:])  # the search finds lots near the bound


@pytest.mark.parametrize("scale", [0.6, 1.5])
@pytest.mark.parametrize(("examples", "lot"), [(2, 1), (4, 2)])
def test_without_replacement_the_bound_is_attained_in_both_orders(examples, lot, scale):
    lots = all_lots(examples, lot, False)
    others = np.ones((examples, 1))
    against, along = others.copy(), others.copy()
    against[0] = -1
    removed, kept = (
        both_orders(g, neighbour(g, [1], "zero_out"), lots, scale) for g in (against, along)
    )
    bound = bounds(examples, lot, scale, "zero_out", False)
    np.testing.assert_allclose(removed[0], bound[0], rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(kept[1], bound[1], rtol=2e-3, atol=1e-7)
    replaced = both_orders(against, neighbour(against, [1.0], "replace_one"), lots, scale)
    bound = bounds(examples, lot, scale, "replace_one", False)
    np.testing.assert_allclose(replaced[0], bound[0], rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(replaced[0], bound[1], rtol=2e-3, atol=1e-7)
    # The pair of Poisson sampling is no bound here.
    poisson = divergences("triangle", lot / examples, scale, EPSILONS)[0]
    assert np.all(removed[0][2:] > 1.02 * poisson[2:])


def test_the_pair_of_a_user_whose_records_all_pull_one_way_is_no_bound():
    """With centres 2i against i for i draws, every lot would have the worst signs at once."""
    lots, scale = all_lots(4, 2, False), 0.4
    draws, _ = FixedSize(num_examples=4, lot_size=2).draws(2, 0.0)
    points, cell = grid(1, 2 + 7 * scale, 1201)
    steep, flat = (mixture(c * np.arange(3.0)[:, None], draws, points, scale) for c in (2, 1))
    gradients = np.array([[1.0], [1.0], [0.0], [0.0]])
    found, _ = both_orders(gradients, neighbour(gradients, [0, 0], "zero_out"), lots, scale)
    assert found[-1] > 2 * profile(steep, flat, cell)[-1]
    assert np.all(found <= bounds(4, 2, scale, "zero_out", False, users=2)[0])


# ------------------------------------------------ the curve


@pytest.mark.parametrize(("q", "noise"), [(0.1, 1.0), (0.016, 0.3), (0.9, 5.0), (1.0, 0.7)])
def test_divergences_are_those_of_the_pairs(q, noise):
    shift = 1 / noise
    x = np.linspace(-12, 12 + 3 * shift, 400_001)
    cell = x[1] - x[0]
    zero, one, two = (stats.norm.pdf(x, c * shift) for c in range(3))
    without = (1 - q) * zero
    removed = profile(without + q * one, zero, cell)
    slot = profile(without + q * two, without + q * one, cell)
    for found, right in (
        (divergences("triangle", q, noise, EPSILONS)[0], removed),
        (divergences("slot", q, noise, EPSILONS)[0], slot),
        (divergences("slot", q, noise, EPSILONS)[1], removed),
    ):
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-12 + 1e-9 * shift * q)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(("noise", "interval"), [(0.3, 1e-3), (50.0, 1e-5)])
def test_a_lot_of_everything_is_a_gaussian(pair, noise, interval):
    pld = one_round((Component(1.0, 1.0, noise, pair),), interval)
    exact = epsilon_of_mu(1 / noise, DELTA)
    assert exact <= pld.epsilon(DELTA) <= exact + interval


# ------------------------------------------------ Rényi divergences


def test_renyi_divergences_are_those_of_the_densities():
    q, noise, orders = 0.1, 2.0, (1.5, 2.0, 8.0)
    x = np.linspace(-12, 14, 400_001)
    r = stats.norm.pdf(x)
    p = (1 - q) * r + q * stats.norm.pdf(x, 1 / noise)
    loss = SubsampledLoss((Component(1.0, q, noise, "add"),), 1)
    found, left_out = renyi_divergences(loss, orders)
    for order, divergence in zip(orders, found, strict=True):
        integral = (p**order * r ** (1 - order)).sum() * (x[1] - x[0])
        assert divergence == pytest.approx(math.log(integral) / (order - 1), rel=2e-3)
    assert 0 < left_out < 1e-18


# ------------------------------------------------ composition


def floor_of_losses(p, q, x, interval):
    """Returns the masses under P of the losses, rounded down: a lower bound on the leakage."""
    index = np.floor((np.log(p) - np.log(q)) / interval).astype(int)
    low = index.min()
    return low, np.bincount(index - low, weights=p * (x[1] - x[0]))


def adaptive_delta(pairs, x, steps, interval, reach):
    """Returns delta at 0, interval, ... for an adversary who adapts its pair in every step."""
    size = int(reach / interval)
    value = np.maximum(-np.expm1(np.arange(-size, size + 1) * interval), 0)
    laws = [floor_of_losses(p, q, x, interval) for p, q in pairs]
    for _ in range(steps):
        padded = np.concatenate([np.full(size, value[0]), value, np.zeros(size)])
        options = []
        for low, masses in laws:
            losses = low + np.arange(len(masses))
            kernel = np.zeros(2 * size + 1)
            inside = np.abs(losses) <= size
            kernel[losses[inside] + size] = masses[inside]
            full = np.fft.irfft(
                np.fft.rfft(padded, 8 * size) * np.fft.rfft(kernel, 8 * size), 8 * size
            )
            options.append(full[2 * size : 4 * size + 1] + masses[losses > size].sum())
        value = np.max(options, axis=0)
    return value[size:]


def test_an_adversary_who_adapts_beats_one_order_alone_but_not_the_joined_curve():
    """Lots have one of ten examples; others choose in every step which neighbour they imitate.

    The pair (1-q) N(0) + q N(1) against N(0), composed with itself in either order, is no bound.
    """
    q, noise, steps, interval = 0.1, 1.0, 10, 5e-4
    x = np.linspace(-10, 12, 500_001)
    mixed = (1 - q) * stats.norm.pdf(x) + q * stats.norm.pdf(x, 1 / noise)
    pure = stats.norm.pdf(x)
    delta = adaptive_delta([(mixed, pure), (pure, mixed)], x, steps, interval, 8.0)
    attack = interval * int(np.argmax(delta <= DELTA))
    one_order = plds.from_gaussian_mechanism(
        noise, sampling_prob=q, value_discretization_interval=1e-4
    ).self_compose(steps)
    assert attack - interval > one_order.get_epsilon_for_delta(DELTA)
    bound = spent(10, 1, 2 * noise, "replace_one", steps)
    assert attack <= bound <= 1.03 * attack


@pytest.mark.parametrize(
    ("examples", "lot", "steps", "noise", "delta"),
    [(1000, 16, 128, 1.0, 1e-6)],
)
def test_the_worst_lot_repeated_is_just_below_the_bound(examples, lot, steps, noise, delta):
    """An attack for zero_out: in every step, all other examples pull against the record."""
    q, shift, interval = lot / examples, 1 / noise, 2e-4
    x = np.linspace(-10, 10 + 3 * shift, 400_001)
    without = (1 - q) * stats.norm.pdf(x)
    p, r = (without + q * stats.norm.pdf(x, c * shift) for c in (2, 1))
    # Losses are rounded down by half an interval on average, which is added: close, but no bound.
    low, masses = floor_of_losses(p * math.exp(interval / 2), r, x, interval)
    pld = DensePLDPmf(interval, int(low), masses * math.exp(-interval / 2), 0.0, True)
    attack = pld.self_compose(steps).get_epsilon_for_delta(delta)
    bound = spent(examples, lot, noise, "zero_out", steps, delta=delta)
    assert 0.9 * bound < attack < bound


# ------------------------------------------------ golden values and order


@pytest.mark.parametrize(
    ("examples", "lot", "steps", "noise", "delta", "adjacency", "without", "with_"),
    [
        (60_000, 256, 2344, 1.1, 1e-5, "zero_out", 5.6838, 7.0644),
        (60_000, 2048, 580, 3.212, 1e-5, "zero_out", 1.4086, 1.4886),
        (1000, 16, 128, 1.0, 1e-6, "zero_out", 8.1829, 11.864),
        (1000, 16, 128, 1.0, 1e-6, "replace_one", 11.2495, 18.181),
    ],
)
def test_golden_values(examples, lot, steps, noise, delta, adjacency, without, with_):
    fixed = spent(examples, lot, noise, adjacency, steps, delta=delta)
    assert fixed == pytest.approx(without, rel=1e-4)
    tail = 1e-3 * delta / steps
    drawn = spent(examples, lot, noise, adjacency, steps, delta=delta, replacement=True, tail=tail)
    assert drawn == pytest.approx(with_, rel=2e-3)
    pair = "replace" if adjacency == "replace_one" else "add"
    poisson = SubsampledLoss((Component(1.0, lot / examples, noise, pair),), steps)
    assert epsilon_of([poisson], delta).epsilon < fixed < drawn


@pytest.mark.parametrize(("q", "noise"), [(1e-3, 1.0), (0.2, 0.3), (0.2, 1e3)])
@pytest.mark.parametrize("pair", PAIRS)
def test_every_scale_is_finite_and_agrees(pair, q, noise):
    loss = SubsampledLoss((Component(1.0, q, noise, pair),), 20)
    result = epsilon_of([loss], DELTA)  # raises if the two accountants contradict each other
    assert 0 <= result.epsilon < math.inf
    assert result.epsilon <= epsilon_of_mu(math.sqrt(20) / noise, DELTA) + 0.01


LOTS = dict(mechanism="dpsgd", sampling="fixed_size", num_examples=100, lot_size=20, steps=1)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_batch_statistics_move_the_whole_lot(adjacency):
    run = describe(noise_multiplier=30.0, batch_statistics=True, **LOTS)
    (loss,) = analyse(run, DELTA, adjacency).losses
    (part,) = loss.components
    assert (part.probability, part.multiplier) == pytest.approx((0.2, 30 / 40))
    assert part.pair == "triangle"


def test_lots_of_all_groups_are_no_draws():
    run = vary(describe(noise_multiplier=2.0, microbatch_size=2, **LOTS), lot_size=99, steps=5)
    every_step = proven(vary(run, sampling="unknown"), DELTA).epsilon
    assert proven(run, DELTA).epsilon == every_step
