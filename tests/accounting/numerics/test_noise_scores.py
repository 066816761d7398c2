"""Noise of any family against Gaussian noise: the theorem by brute force, and its proof."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, special

from tfdp.accounting.numerics.gaussian import log_delta
from tfdp.accounting.numerics.noise_families import FAMILIES, fisher_information, log_density, score
from tfdp.accounting.numerics.noise_scores import _growth, square_of
from tfdp.accounting.numerics.pairs import Component, orders

CASES = [(f, None) for f in FAMILIES if f not in ("gaussian", "student_t")]
CASES += [("student_t", nu) for nu in (1.5, 3.0, 5.0, 9.0, 20.0, 50.0, 300.0)]
GAMMAS = np.array([0.2, 0.5, 0.8, 1.0, 1.3, 2.0, 5.0, 20.0])
X = np.linspace(-60.0, 60.0, 240_001)


def shifted(family, nu, at):
    return np.exp(log_density(family, X - at, nu))


def divergences(p, q, gammas=GAMMAS):
    return np.array([integrate.trapezoid(np.maximum(p - g * q, 0.0), X) for g in gammas])


def of_gaussian(mu):
    """The profile of N(0, 1) against N(mu, 1) at `GAMMAS`."""
    above = np.exp([float(log_delta(abs(math.log(g)), mu)) for g in GAMMAS])
    return np.where(GAMMAS < 1, 1 - GAMMAS + GAMMAS * above, above)


@pytest.mark.parametrize(("family", "nu"), CASES)
@pytest.mark.parametrize("shift", [0.05, 0.5, 2.0])
def test_one_coordinate_by_brute_force(family, nu, shift):
    found = divergences(shifted(family, nu, shift), shifted(family, nu, 0.0))
    bound = of_gaussian(math.sqrt(square_of(family, nu, shift**2, shift)))
    assert np.all(found <= bound + 1e-7)


def test_less_than_the_bound_is_not_enough_for_a_small_shift():
    square = square_of("laplace", None, 1e-4, 1e-2)
    p, q = (np.exp(log_density("laplace", X - at)) for at in (0.01, 0.0))
    found = divergences(p, q, [1.0])[0]
    assert found > math.exp(float(log_delta(0.0, math.sqrt(square * 0.98))))


@pytest.mark.parametrize(("family", "nu"), [("laplace", None), ("sech", None), ("student_t", 9.0)])
@pytest.mark.parametrize("shifts", [(0.3, 0.3), (0.9, 0.2), (1.0, 1.5)])
def test_two_coordinates_by_brute_force(family, nu, shifts):
    x = np.linspace(-30.0, 30.0, 1201)
    p, q = (
        np.multiply.outer(*(np.exp(log_density(family, x - at * t, nu)) for t in shifts))
        for at in (1, 0)
    )
    found = np.array([np.maximum(p / p.sum() - g * q / q.sum(), 0.0).sum() for g in GAMMAS])
    square = square_of(family, nu, sum(t * t for t in shifts), max(shifts))
    assert np.all(found <= of_gaussian(math.sqrt(square)) + 1e-4)


@pytest.mark.parametrize("pair", ["add", "replace", "slot", "triangle"])
@pytest.mark.parametrize(
    ("family", "nu"), [("laplace", None), ("variance_gamma", None), ("cauchy", None)]
)
def test_mixtures_are_those_of_gaussian_noise(pair, family, nu):
    """Shifts by one step (of 0.8) for each unit of a Gaussian pair's centres, on the line."""
    unit, q = 0.8, 0.3
    centres = {"add": (1, 0), "replace": (1, -1), "slot": (2, 1), "triangle": (1, 0)}
    of_p, of_q = (
        (1 - q) * shifted(family, nu, 0.0) + q * shifted(family, nu, unit * centre)
        for centre in centres[pair]
    )
    square = square_of(family, nu, (2 * unit) ** 2, 2 * unit) / 4  # for shifts of up to two units
    part = Component(1.0, q, 1 / math.sqrt(square), pair)
    pairs = [
        np.exp(each.log_over_standard(X) - X**2 / 2) / math.sqrt(2 * math.pi)
        for each in orders(part)[0]
    ]
    above = GAMMAS >= 1 if pair in ("slot", "triangle") else GAMMAS > 0
    assert np.all((divergences(of_p, of_q) <= divergences(*pairs) + 1e-7)[above])


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_scores_are_below_the_normal_distribution(family, nu):
    """E max(S + sqrt(k) N - y, 0) against that of N(0, k + h(k)), at equal intervals of x = sinh(u)."""
    u = np.linspace(0.0, 40.0, 8001)
    chances = np.exp(log_density(family, np.sinh(u), nu)) * np.cosh(u) * 2 * (u[1] - u[0])
    chances[[0, -1]] /= 2
    scores = np.ones_like(u) if family == "laplace" else score(family, np.sinh(u), nu)
    chances /= chances.sum()

    def excess(deviation, y):
        return deviation * np.exp(-((y / deviation) ** 2) / 2) / math.sqrt(
            2 * math.pi
        ) - y * special.ndtr(-y / deviation)

    for k in (1e-6, 0.01, 0.1, 1.0, 10.0, 100.0):
        mean = float(chances @ (excess(math.sqrt(k), -scores) + excess(math.sqrt(k), scores)))
        deviation = mean * math.sqrt(math.pi / 2)
        for y in np.linspace(0.0, 5.0, 21) * deviation:
            both = excess(math.sqrt(k), y - scores) + excess(math.sqrt(k), y + scores)
            assert float(chances @ both) / 2 <= excess(deviation, y) * (1 + 1e-7)
        bounds, _, _ = _growth(family, nu)
        # The bound grows at the rate of an earlier k, which is larger.
        assert bounds[1] - 0.02 == pytest.approx(
            2 * math.pi * np.exp(log_density(family, 0.0, nu)) ** 2
        )


@pytest.mark.parametrize("nu", [*np.arange(1.0, 12.0, 0.25), 12.0])
def test_the_density_of_scores_of_students_t_crosses_the_normal_one_once(nu):
    """The inequality of the proof, whose two sides differ by more than their change between points."""
    c, j = np.linspace(0.0, 1.0, 20_001)[1:-1], (nu - 1) / 2
    left = j * ((1 + c) ** (j - 1) - (1 - c) ** (j - 1)) / ((1 + c) ** j + (1 - c) ** j)
    largest = (nu + 1) / (2 * math.sqrt(nu))
    at_zero = 2 * math.pi * math.exp(2 * log_density("student_t", np.zeros(1), nu)[0])
    assert np.all(left + 0.1 <= 1 / c + largest**2 * c / at_zero)


@pytest.mark.parametrize("seed", range(5))
def test_random_vectors_of_laplace_noise(seed):
    """Scores of Laplace noise are signs, so sums of them can be enumerated."""
    rng = np.random.default_rng(seed)
    shifts = rng.uniform(size=10) ** rng.uniform(0.2, 4)
    sums = np.array([np.dot(signs, shifts) for signs in itertools.product((-1, 1), repeat=10)])
    square = square_of("laplace", None, float(shifts @ shifts), float(shifts.max()))
    deviation = math.sqrt(square)
    for y in np.linspace(0.0, 4.0, 33) * deviation:
        normal = deviation * np.exp(-((y / deviation) ** 2) / 2) / math.sqrt(2 * math.pi)
        normal -= y * special.ndtr(-y / deviation)
        assert np.maximum(sums - y, 0.0).mean() <= normal


@pytest.mark.parametrize(("family", "nu"), CASES)
def test_many_small_shifts_cost_their_fisher_information(family, nu):
    information = fisher_information(family, nu)
    assert 1 < square_of(family, nu, 1.0, 0.01) / information < 1.001
    assert 1 < square_of(family, nu, 1.0, 1e-5) / information < 1.0001
    found = [square_of(family, nu, 1.0, largest) for largest in (0.01, 0.1, 0.3, 1.0)]
    assert np.all(np.diff(found) > 0)
    assert square_of(family, nu, 0.0, 1.0) == 0
