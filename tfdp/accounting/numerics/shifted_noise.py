"""Losses of one Poisson lot if a record shifts a few coordinates of noise by known amounts.

Let P_0 be the law of the noise and P_t the one shifted by t. The pair of a lot that has the record with
probability q is (1-q) P_0 + q P_t against P_0. The loss of P_t from P_0 is a sum of independent losses,
one of each coordinate. Their distributions are cut into cells as in `pairs`, whose losses lie between
those of their ends, since the loss of a coordinate has one maximum at most. Then they are put onto a
grid and added. With an outcome of loss l > 0 and chance p under P_t, there is one of loss -l and the
same chance under P_0, as the noise is symmetric. So the pair of a lot has, under the mixture, the loss
log(1 - q + q e^l) with chance q p + (1 - q) p e^-l, and in the other order, under P_0, the loss
-log(1 - q + q e^-l) with chance p.

Shifts that are too many or too small for a grid count together as one of Gaussian noise (see
`noise_scores`).
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from tfdp.accounting.numerics import loss_grid
from tfdp.accounting.numerics.loss_grid import Losses, of_cells
from tfdp.accounting.numerics.noise_families import (
    GAUSSIAN,
    degrees,
    fisher_information,
    log_density,
    log_ratio,
)

# Cells of a coordinate are even in u with x = t/2 + sinh(u), up to an end with a negligible tail, and
# points from t/2 to t, where the loss of Laplace noise rises.
_CELLS, _END, _AMONG = 4000, 40.0, 65
# Chance beyond the cells of Gaussian noise, and points of the grid for each standard deviation.
_TAIL, _POINTS = 1e-20, 2000


@dataclasses.dataclass(frozen=True)
class Shifts:
    """Shifts of coordinates of noise of scale 1, in units of a record's largest norm.

    Attributes:
        family: Family of the noise.
        degrees_of_freedom: Degrees of freedom of student_t.
        values: Pairs (shift, number of coordinates).
        square: All other coordinates together count as Gaussian noise, shifted by the root of this.
    """

    family: str
    degrees_of_freedom: float | None
    values: tuple[tuple[float, int], ...]
    square: float = 0.0

    @property
    def mu(self) -> float:
        """Shift of the Gaussian noise that is about as private."""
        information = fisher_information(self.family, self.degrees_of_freedom)
        squares = math.fsum(number * shift**2 for shift, number in self.values)
        return math.sqrt(self.square + information * squares)


def coordinate(family: str, shift: float, degrees_of_freedom: float | None = None) -> Losses:
    """Returns the losses of at least 0 of noise shifted by `shift`; both orders are alike."""
    nu = degrees(family, degrees_of_freedom)
    # The maximum of the loss of Student's t is the end of a cell.
    among = np.linspace(shift / 2, shift, _AMONG)[1:]
    top = [] if nu is None else [shift / 2 + math.sqrt(nu + shift**2 / 4)]
    x = shift / 2 + np.sinh(np.linspace(0.0, _END, _CELLS + 1))
    if family == GAUSSIAN:
        x = x[x < shift - special.ndtri(_TAIL)]
    x = np.sort(np.concatenate([x, among, top]))

    def logs(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        density = log_density(family, x - shift, degrees_of_freedom)
        return density, log_ratio(family, x, shift, degrees_of_freedom)

    return of_cells(x, logs, _TAIL)


@functools.lru_cache(maxsize=8)
def _together(shifts: Shifts, scale: float) -> Losses:
    """Positive losses of all coordinates if the record is in the lot."""
    interval = shifts.mu / scale / _POINTS
    parts = [
        (coordinate(shifts.family, shift / scale, shifts.degrees_of_freedom), number)
        for shift, number in shifts.values
    ]
    if shifts.square:
        parts.append((coordinate(GAUSSIAN, math.sqrt(shifts.square) / scale), 1))
    rounds = [
        (loss_grid.one_round([(1.0, (losses, losses))], interval).halves[0], number)
        for losses, number in parts
    ]
    total = loss_grid.sum_of(rounds)
    some = (total.losses > 0) & (total.chances > 0)
    return Losses(total.losses[some], total.chances[some], total.infinite)


def positive_losses(shifts: Shifts, scale: float, probability: float) -> tuple[Losses, Losses]:
    """Returns the losses of a lot in both orders; `scale` is the noise over the largest norm."""
    q, sure = probability, _together(shifts, scale)
    values, chances, without = sure.values, sure.chances, np.exp(-sure.values)
    forward = Losses(
        values + np.log(q + (1 - q) * without),
        chances * (q + (1 - q) * without),
        q * sure.infinite,
    )
    # Where P_0 has outcomes that P_t has not, the loss is as large as with l = infinity.
    backward = -np.log1p(q * np.expm1(-values))
    if q == 1:
        return forward, Losses(backward, chances, sure.infinite)
    backward = np.append(backward, -math.log1p(-q))
    return forward, Losses(backward, np.append(chances, sure.infinite), 0.0)
