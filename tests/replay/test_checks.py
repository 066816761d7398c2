"""The statistical checks of a replay: sound lots and noise pass, wrong ones do not."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tests.replay.lots import check_lots
from tests.replay.noise import check_noise
from tests.replay.replaying import p_value
from tfdp.accounting import describe
from tfdp.data import SCHEMES, make_lots

N, L, STEPS = 120, 12, 60
LIMIT = 1e-6


def run_of(sampling):
    groups = {"groups": 4} if sampling == "cyclic_poisson" else {}
    return describe(
        mechanism="dpsgd", num_examples=N, lot_size=L, sampling=sampling, steps=STEPS,
        noise_multiplier=1.0, **groups,
    )  # fmt: skip


def lots_of(sampling):
    groups = 4 if sampling == "cyclic_poisson" else None
    lots = make_lots(sampling, np.zeros(N), lot_size=L, seed=3, groups=groups)
    return [lot.tolist() for lot in itertools.islice(lots.indices().as_numpy_iterator(), STEPS)]


@pytest.mark.parametrize("sampling", SCHEMES)
def test_sound_lots_pass(sampling):
    assert p_value(check_lots(lots_of(sampling), run_of(sampling))) > LIMIT


def with_the_first(lots):
    """The first example is in every lot, in the place of another one."""
    return [[0, *[i for i in lot if i][: len(lot) - 1]] for lot in lots]


WRONG_LOTS = {
    "lots that overlap": (
        "cyclic",
        lambda lots: [[(6 * step + i) % N for i in range(L)] for step in range(STEPS)],
    ),
    "the same lot always": ("cyclic", lambda lots: [lots[0]] * STEPS),
    "one example in every lot of an epoch": ("shuffle", with_the_first),
    "one example in every lot of fixed size": ("fixed_size", with_the_first),
    "each lot twice": ("poisson", lambda lots: [lots[step // 2] for step in range(STEPS)]),
    "fixed order as Poisson": ("poisson", lambda lots: lots_of("cyclic")),
    "lots cut": ("poisson", lambda lots: [lot[:11] for lot in lots]),
    "groups without turns": ("cyclic_poisson", lambda lots: [[i - i % 4 for i in x] for x in lots]),
    "foreign examples": ("poisson", lambda lots: [[*lots[0], N], *lots[1:]]),
}


@pytest.mark.parametrize("name", WRONG_LOTS)
def test_wrong_lots_do_not_pass(name):
    sampling, wrong = WRONG_LOTS[name]
    assert p_value(check_lots(wrong(lots_of(sampling)), run_of(sampling))) < LIMIT


def noise():
    return np.random.default_rng(0).normal(size=(STEPS, 100))


def checked(values, cdf=stats.norm.cdf):
    sums = np.random.default_rng(1).normal(size=values.shape)
    return p_value(check_noise(values, sums, [60, 40], cdf))


def test_sound_noise_passes():
    assert checked(noise()) > LIMIT
    heavy = stats.t(5).rvs(size=noise().shape, random_state=0)
    assert checked(heavy, stats.t(5).cdf) > LIMIT > checked(heavy)


def correlated_in_time(values):
    mixed = [values[0]]
    for new in values[1:]:
        mixed.append(0.3 * mixed[-1] + (1 - 0.3**2) ** 0.5 * new)
    return np.stack(mixed)


WRONG_NOISE = {
    "two thirds": lambda values: 2 / 3 * values,
    "three halves": lambda values: 3 / 2 * values,
    "the same twice": lambda values: values[np.arange(STEPS) // 2],
    "correlated in time": correlated_in_time,
    "shared by weights": lambda values: np.hstack([values[:, :60], values[:, :40]]),
    "none on one variable": lambda values: np.where(np.arange(100) < 60, values, 0.0),
    "without tails": lambda values: np.clip(values, -2.0, 2.0),
}


@pytest.mark.parametrize("name", WRONG_NOISE)
def test_wrong_noise_does_not_pass(name):
    assert checked(WRONG_NOISE[name](noise())) < LIMIT


def test_noise_that_follows_the_sums_does_not_pass():
    values = noise()
    assert p_value(check_noise(values, values, [100])) < LIMIT
