"""The statistical checks of a replay: sound lots and noise pass, wrong ones do not."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tfdp.accounting import Run
from tfdp.auditing.checks import noise_law, whiteness
from tfdp.auditing.lot_checks import check_lots
from tfdp.data import SAMPLINGS, CyclicLots, make_lots

N, L, STEPS = 120, 12, 60
LIMIT = 1e-6


def p_value(findings):
    return min(1.0, len(findings) * min(f.p_value for f in findings)) if findings else 1.0


# -- lots --------------------------------------------------------------------------------------------


def run_of(sampling, **fields):
    fields = {"mechanism": "dpsgd", "num_examples": N, "lot_size": L} | fields
    groups = {"groups": 4} if sampling == "cyclic_poisson" else {}
    return Run(sampling=sampling, steps=STEPS, noise_multiplier=1.0, **fields, **groups)


def drawn(lots):
    return [lot.tolist() for lot in itertools.islice(lots.indices().as_numpy_iterator(), STEPS)]


def lots_of(sampling, **options):
    groups = 4 if sampling == "cyclic_poisson" else None
    return drawn(make_lots(sampling, np.zeros(N), lot_size=L, seed=3, groups=groups, **options))


def checked(lots, run, examples=None):
    examples = list(range(N)) if examples is None else examples
    return p_value(check_lots(lots, range(len(lots)), run, examples))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_sound_lots_pass(sampling):
    lots, run = lots_of(sampling), run_of(sampling)
    assert checked(lots, run) > LIMIT
    # Records that look alike may be in a lot as often as there are copies of them.
    alike = [[i // 4 for i in lot] for lot in lots]
    if sampling != "cyclic_poisson":  # copies are in different groups
        assert checked(alike, run, [i // 4 for i in range(N)]) > LIMIT


def test_a_partial_last_lot_and_a_nominal_number_pass():
    kept = drawn(CyclicLots(np.zeros(50), np.zeros(50), L, keep_last=True))
    assert checked(kept, run_of("cyclic", num_examples=60), list(range(50))) > LIMIT
    nominal = lots_of("poisson", nominal_examples=160)
    assert checked(nominal, run_of("poisson", num_examples=160, nominal=True)) > LIMIT


def overlapping(lots):
    return [[(6 * step + i) % N for i in range(L)] for step in range(STEPS)]


def with_the_first(lots):
    """The first example is in every lot, in the place of another one."""
    return [[0, *[i for i in lot if i][: len(lot) - 1]] for lot in lots]


WRONG_LOTS = {
    "lots that overlap": ("cyclic", overlapping),
    "the same lot always": ("cyclic", lambda lots: [lots[0]] * STEPS),
    "one example in every lot of an epoch": ("shuffle", with_the_first),
    "one example in every lot of fixed size": ("fixed_size", with_the_first),
    "fixed order as Poisson": ("poisson", lambda lots: lots_of("cyclic")),
    "lots cut": ("poisson", lambda lots: [lot[:11] for lot in lots]),
    "groups without turns": ("cyclic_poisson", lambda lots: [[i - i % 4 for i in x] for x in lots]),
    "foreign examples": ("poisson", lambda lots: [[*lots[0], N], *lots[1:]]),
}


@pytest.mark.parametrize("name", WRONG_LOTS)
def test_wrong_lots_do_not_pass(name):
    sampling, wrong = WRONG_LOTS[name]
    assert checked(wrong(lots_of(sampling)), run_of(sampling)) < LIMIT


# -- noise -------------------------------------------------------------------------------------------

SIZES = [60, 40]


def noise(seed=0):
    return np.random.default_rng(seed).normal(size=(STEPS, sum(SIZES)))


def noise_checked(values, cdf=stats.norm.cdf):
    sums = np.random.default_rng(1).normal(size=values.shape)
    found, normal = noise_law(values, cdf, SIZES)
    return p_value(found + (whiteness(normal, sums) if p_value(found) > LIMIT else []))


def correlated_in_time(values):
    mixed = [values[0]]
    for new in values[1:]:
        mixed.append(0.3 * mixed[-1] + (1 - 0.3**2) ** 0.5 * new)
    return np.stack(mixed)


def in_other_places(values):
    return np.where(
        np.arange(STEPS)[:, None] % 2 == 1, np.roll(np.roll(values, 1, 0), 4, 1), values
    )


def without(values, places):
    values[:, places] = 0.0
    return values


WRONG_NOISE = {
    "two thirds": lambda values: 2 / 3 * values,
    "three halves": lambda values: 3 / 2 * values,
    "the same twice": lambda values: values[np.arange(STEPS) // 2],
    "the same in other places": in_other_places,
    "correlated in time": correlated_in_time,
    "shared by weights": lambda values: np.hstack([values[:, :60], values[:, :40]]),
    "none on one variable": lambda values: without(values, slice(60, 100)),
    "without tails": lambda values: np.clip(values, -2.0, 2.0),
}


def test_sound_noise_passes():
    assert noise_checked(noise()) > LIMIT
    heavy = stats.t(5).rvs(size=noise().shape, random_state=0)
    assert noise_checked(heavy, stats.t(5).cdf) > LIMIT > noise_checked(heavy)


@pytest.mark.parametrize("name", WRONG_NOISE)
def test_wrong_noise_does_not_pass(name):
    assert noise_checked(WRONG_NOISE[name](noise())) < LIMIT


def test_noise_that_follows_the_sums_does_not_pass():
    values = noise()
    assert p_value(whiteness(values, values)) < LIMIT
