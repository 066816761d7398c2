"""Correlated noise: lower-triangular Toeplitz strategies C, their sensitivity and their error.

The mechanism releases every clipped sum with noise y = C^-1 z, where z are independent Gaussians.
With C = sum_j c_j S^j (S is the shift by one step) the noise of step t is

    y_t = (z_t - sum_{j >= 1} c_j y_{t-j}) / c_0,

so a strategy with few bands needs only the last bands - 1 values of y. Releasing G + C^-1 z is as
private as releasing C G + z, which gives the sensitivity. The weights follow the sums of all releases
so far. The noise on the sum of the first t of them is row t of B z, where B = A C^-1 and A is the
matrix of prefix sums.

* identity: c = (1). This is DP-SGD.
* prefix_sum: c = (1, 1, ...). This is fresh noise around exact sums, as in SI-DPSGD.
* sqrt_toeplitz: C = A^(1/2), c_j = binom(2j, j) / 4^j (Fichtenberger, Henzinger, Upadhyay 2022).
* banded_toeplitz: c of few bands, optimized numerically (Choquette-Choo et al. 2023).
"""

import dataclasses
import math

import numpy as np

from tfdp._validate import one_of, vector, whole
from tfdp.accounting.records import settle

STRATEGIES = ("identity", "prefix_sum", "sqrt_toeplitz", "banded_toeplitz")
OBJECTIVES = ("mean", "max")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """How the noise of different steps is correlated: a Toeplitz matrix C, given by its first column.

    Correlated noise partly cancels in the sum over the steps, and so in the weights. `strategy` makes
    a strategy for a training; `MatrixDPSGDOptimizer` trains with it.

    Attributes:
        name: "identity" (independent noise, as in DP-SGD), "prefix_sum", "sqrt_toeplitz" or
            "banded_toeplitz".
        bands: Number of coefficients after which all are 0; None if there is no such limit.
        coefficients: The first column of C, for banded_toeplitz only; `strategy` computes it.

    Example:
        >>> from tfdp.accounting import Strategy
        >>> Strategy(name="sqrt_toeplitz", bands=3).first(steps=100)
        array([1.   , 0.5  , 0.375])
    """

    name: str
    bands: int | None = None
    coefficients: tuple[float, ...] | None = None

    def __post_init__(self):
        one_of("strategy", self.name, STRATEGIES)
        if (self.coefficients is not None) != (self.name == "banded_toeplitz"):
            raise ValueError(
                "Expected coefficients with banded_toeplitz, and with no other strategy. Received "
                f"{self.name!r} with {self.coefficients!r}. Use tfdp.accounting.strategy, which "
                "computes them."
            )
        bands = whole("bands", self.bands, 1, optional=True)
        if self.name == "identity":
            bands = 1
        if self.coefficients is not None:
            c = tuple(vector("coefficients", self.coefficients).tolist())
            if not c[0] > 0:
                raise ValueError(
                    f"Expected the first of coefficients to be above 0. Received {c[0]}."
                )
            if bands not in (None, len(c)):
                raise ValueError(
                    f"Expected bands to be the number of coefficients ({len(c)}). Received {bands}. "
                    "Remove it."
                )
            settle(self, coefficients=c)
            bands = len(c)
        settle(self, bands=bands)

    def first(self, steps: int) -> np.ndarray:
        """Returns the first column of C, from the diagonal down: `min(bands, steps)` coefficients."""
        length = steps if self.bands is None else min(self.bands, steps)
        if self.name == "prefix_sum":
            return np.ones(length)
        if self.name == "sqrt_toeplitz":
            return sqrt_coefficients(length)
        return np.array((self.coefficients or (1.0,))[:length])


def strategy(name: str, steps: int, bands: int | None = None, objective: str = "mean") -> Strategy:
    """Makes the strategy that correlates the noise of a training's steps.

    Pass it to `MatrixDPSGDOptimizer`, or to `describe("matrix", strategy=...)`.

    Args:
        name: "identity" (independent noise, as in DP-SGD), "prefix_sum" (the noise of SI-DPSGD),
            "sqrt_toeplitz" (the square root of prefix sums) or "banded_toeplitz" (optimized
            numerically).
        steps: Planned number of steps, for which banded_toeplitz is optimized.
        bands: Number of coefficients; required for banded_toeplitz, and None for no limit with the
            others. It should be at most the number of steps between two lots with the same record.
        objective: The noise on the weights that banded_toeplitz minimizes: "mean", the root mean
            square over the steps, or "max", the largest.

    Returns:
        A `Strategy`.

    Raises:
        ValueError: If an argument is unknown, missing or out of range.

    Example:
        >>> from tfdp.accounting import strategy
        >>> print(strategy("banded_toeplitz", steps=100, bands=4).first(steps=100).round(2))
        [1.   0.71 0.61 0.53]
    """
    one_of("name", name, STRATEGIES)
    if name != "banded_toeplitz":
        return Strategy(name=name, bands=bands)
    return Strategy(name=name, coefficients=tuple(optimized(steps, bands, objective)))


def sqrt_coefficients(number: int) -> np.ndarray:
    """Returns coefficients of the square root of the prefix-sum matrix: 1, 1/2, 3/8, 5/16, ..."""
    j = np.arange(1, number)
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])[:number]


def inverse(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """Returns the first column of C^-1, shape (steps,)."""
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    return _filtered(coefficients, impulse)


def losses(coefficients: np.ndarray, steps: int) -> tuple[float, float]:
    """Returns the noise on the prefix sums for N(0, I) z: root mean square and largest over the steps.

    Multiplied by the sensitivity of the strategy, they are the noise on the prefix sums at mu = 1.
    """
    squares = np.cumsum(np.cumsum(inverse(coefficients, steps)) ** 2)
    return math.sqrt(np.mean(squares)), math.sqrt(squares[-1])


def optimized(steps: int, bands: int | None, objective: str = "mean") -> np.ndarray:
    """Computes coefficients (c_0 = 1) that minimize ||c|| times the mean or the largest prefix noise.

    With no more bands than steps between two participations, the sensitivity for k of them is
    sqrt(k) ||c||, so their number does not matter. L-BFGS starts from `sqrt_coefficients`.
    """
    from scipy import optimize, signal

    one_of("objective", objective, OBJECTIVES)
    steps = whole("steps", steps, 1)
    bands = whole("bands", bands, 1, steps, remedy="Pass at most as many as there are steps.")
    assert bands is not None  # `whole` raises for None
    start = sqrt_coefficients(bands)
    # Weight of the square of entry i of B's first column in the error: the share of the rows of B
    # that contain it for "mean", and 1 for "max", because the last row contains every entry.
    weight = (steps - np.arange(steps)) / steps if objective == "mean" else np.ones(steps)

    def loss(tail: np.ndarray):
        c = np.concatenate([[1.0], tail])
        with np.errstate(over="ignore", invalid="ignore"):
            b = _filtered(c, np.ones(steps))
            error, norm = weight @ (b * b), c @ c
            if not np.isfinite(error):
                return 1e300, np.zeros(bands - 1)
            slope = _filtered(c, b)  # -d b_i / d c_j = slope_{i-j}
            # sum_i weight_i b_i slope_{i-j} for j = 0 .. bands - 1
            pull = signal.correlate(weight * b, slope, method="fft")[steps - 1 :][:bands]
        gradient = -pull / error + c / norm
        return (math.log(error) + math.log(norm)) / 2, gradient[1:]

    if bands == 1:
        return start
    found = optimize.minimize(
        loss, start[1:], jac=True, method="L-BFGS-B",
        options={"maxiter": 500, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-9},
    )  # fmt: skip
    return np.concatenate([[1.0], found.x])


def _filtered(coefficients: np.ndarray, values: np.ndarray) -> np.ndarray:
    """C^-1 applied to a vector of one value per step."""
    from scipy import signal  # slow to import, and only some strategies need it

    return signal.lfilter([1.0], coefficients, values)
