"""Losses of a few shifted coordinates: against integrals of the densities."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate

from tfdp.accounting.numerics import loss_grid
from tfdp.accounting.numerics.noise_families import log_density
from tfdp.accounting.numerics.pairs import Component, positive_losses
from tfdp.accounting.numerics.shifted_noise import Shifts, coordinate

CASES = [("laplace", None), ("sech", None), ("variance_gamma", None), ("student_t", 3.0)]
CASES += [("cauchy", None), ("gaussian", None)]
EPSILONS = (0.0, 0.01, 0.1, 0.3, 1.0, 2.0)


def delta(losses, epsilon):
    gain = -np.expm1(np.minimum(epsilon - losses.values, 0.0))
    return losses.infinite + float(gain @ losses.chances)


@pytest.mark.parametrize(("family", "nu"), CASES)
@pytest.mark.parametrize("shift", [0.02, 0.7, 3.0])
def test_one_coordinate(family, nu, shift):
    losses = coordinate(family, shift, nu)

    for epsilon in EPSILONS:

        def gain(x, epsilon=epsilon):
            p, q = (math.exp(log_density(family, x - at, nu)) for at in (shift, 0.0))
            return max(p - math.exp(epsilon) * q, 0.0)

        ends = [shift / 2, shift, shift + 3, shift + 30, 1e4, 1e8]
        exact = sum(
            integrate.quad(gain, *of, limit=200, epsabs=1e-13)[0] for of in itertools.pairwise(ends)
        )
        assert -1e-9 <= delta(losses, epsilon) - exact <= 1e-4 * shift


@pytest.mark.parametrize(("family", "nu"), CASES[:4])
@pytest.mark.parametrize("probability", [0.2, 1.0])
def test_a_lot_of_two_coordinates_in_both_orders(family, nu, probability):
    shifts, scale = (0.5, 0.8), 1.3
    x = np.linspace(-60.0, 60.0, 2401)
    moved, still = (
        np.multiply.outer(
            *(np.exp(log_density(family, (x - at * t) / scale, nu)) / scale for t in shifts)
        )
        for at in (1, 0)
    )
    mixture = probability * moved + (1 - probability) * still
    values = tuple((t, 1) for t in shifts)
    part = Component(1.0, probability, scale, "shifted_noise", shifts=Shifts(family, nu, values))
    for (p, q), losses in zip(
        ((mixture, still), (still, mixture)), positive_losses(part, 1e-3), strict=True
    ):
        for epsilon in EPSILONS:
            exact = np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * (x[1] - x[0]) ** 2
            assert delta(losses, epsilon) == pytest.approx(exact, abs=2e-4)


def test_equal_coordinates_count_each():
    one, other = (
        Component(1.0, 0.1, 2.0, "shifted_noise", shifts=Shifts("laplace", None, values))
        for values in (((0.5, 1), (0.5 + 1e-12, 2)), ((0.5, 3),))
    )
    for epsilon in EPSILONS:
        found = [delta(positive_losses(part, 1e-3)[0], epsilon) for part in (one, other)]
        assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-12)


def test_all_other_coordinates_are_gaussian():
    """Without single coordinates, the pair is "add"."""
    shifts = Shifts("laplace", None, (), 1.44)
    pairs = (
        Component(1.0, 0.05, 2.0, "shifted_noise", shifts=shifts),
        Component(1.0, 0.05, 2.0 / 1.2, "add"),
    )
    found, exact = (
        loss_grid.one_round([(1.0, positive_losses(part, 1e-4))], 1e-4) for part in pairs
    )
    for epsilon in EPSILONS:
        low = exact.delta(epsilon)
        assert low * (1 - 1e-6) <= found.delta(epsilon) <= 1.01 * low + 1e-12
