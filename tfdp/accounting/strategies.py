"""Correlated noise: lower-triangular Toeplitz strategies C, their sensitivity and their error.

The mechanism releases every clipped sum with noise y = C^-1 z, where z are independent Gaussians.
With C = sum_j c_j S^j (S is the shift by one step) the noise of step t is

    y_t = (z_t - sum_{j >= 1} c_j y_{t-j}) / c_0,

so a strategy with few bands needs the last bands - 1 values of y only. Releasing G + C^-1 z is as
private as releasing C G + z, which gives the sensitivity. The noise on the sum of the first t releases
(to which the weights are exposed) is row t of B z, where B = A C^-1 and A is the matrix of prefix sums.

* identity: c = (1). This is DP-SGD.
* prefix_sum: c = (1, 1, ...). This is fresh noise around exact sums, as in SI-DPSGD.
* sqrt_toeplitz: C = A^(1/2), c_j = binom(2j, j) / 4^j (Fichtenberger, Henzinger, Upadhyay 2022).
* banded_toeplitz: c of few bands, optimized numerically (Choquette-Choo et al. 2023).
"""

import dataclasses
import math
from typing import Any

import numpy as np

from tfdp._validate import one_of, refuse, vector, whole

STRATEGIES = ("identity", "prefix_sum", "sqrt_toeplitz", "banded_toeplitz")
OBJECTIVES = ("mean", "max")
_MOST_STEPS = 10**9  # arrays with a number for each step fit into memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """A Toeplitz strategy, described by public numbers.

    Attributes:
      name: One of `STRATEGIES`.
      bands: Number of coefficients after which all are 0; None if there is no such limit.
      coefficients: First column of C, for banded_toeplitz (see `optimized`); None for the other
        strategies, whose coefficients have a closed form.

    Example:
      >>> from tfdp.accounting import Strategy
      >>> Strategy(name="sqrt_toeplitz", bands=3).first(steps=100)
      array([1.   , 0.5  , 0.375])
      >>> Strategy(name="prefix_sum").first(steps=4)
      array([1., 1., 1., 1.])
    """

    name: str
    bands: int | None = None
    coefficients: tuple[float, ...] | None = None

    def __post_init__(self):
        one_of("strategy", self.name, STRATEGIES)
        if (self.coefficients is not None) != (self.name == "banded_toeplitz"):
            raise ValueError(
                "Expected coefficients with banded_toeplitz, and with no other strategy. Received "
                f"{self.name!r} with {self.coefficients!r}. See tfdp.accounting.strategies.strategy."
            )
        if self.coefficients is not None:
            c = tuple(vector("coefficients", self.coefficients).tolist())
            if not c[0] > 0:
                raise ValueError(
                    "Expected coefficients to be finite numbers, the first above 0. Received "
                    f"{self.coefficients!r}."
                )
            if whole("bands", self.bands, 1, optional=True) not in (None, len(c)):
                raise ValueError(
                    f"Expected bands to be the number of coefficients ({len(c)}). Received "
                    f"{self.bands}. Leave it out."
                )
            object.__setattr__(self, "coefficients", c)
            object.__setattr__(self, "bands", len(c))
        elif self.name == "identity":
            object.__setattr__(self, "bands", 1)
        object.__setattr__(self, "bands", whole("bands", self.bands, 1, optional=True))

    def first(self, steps: int) -> np.ndarray:
        """The first column of C: its `min(bands, steps)` coefficients from the diagonal downwards."""
        length = steps if self.bands is None else min(self.bands, steps)
        if self.name == "prefix_sum":
            return np.ones(length)
        if self.name == "sqrt_toeplitz":
            return sqrt_coefficients(length)
        return np.array((self.coefficients or (1.0,))[:length])

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe fields."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Strategy":
        """Inverse of `to_dict`, also for fields that were written to JSON and read again."""
        fields = dict(fields)
        if fields.get("coefficients") is not None:
            fields["coefficients"] = tuple(fields["coefficients"])
        return cls(**fields)


def strategy(name: str, steps: int, bands: int | None = None, objective: str = "mean") -> Strategy:
    """Makes a strategy for a training of `steps` steps.

    Args:
      name: One of `STRATEGIES`.
      steps: Planned number of steps, for which banded_toeplitz is optimized.
      bands: Number of coefficients; required for banded_toeplitz. It should be at most the number of
        steps between two participations of a record.
      objective: "mean" or "max" error that banded_toeplitz minimizes (see `losses`).

    Returns:
      A `Strategy`.

    Raises:
      ValueError: If an argument is unknown, missing or out of range.

    Example:
      >>> from tfdp.accounting import strategy
      >>> banded = strategy("banded_toeplitz", steps=100, bands=4)
      >>> banded.name, banded.bands
      ('banded_toeplitz', 4)
      >>> print(banded.first(steps=100).round(2))
      [1.   0.71 0.61 0.53]
    """
    one_of("name", name, STRATEGIES)
    if name != "banded_toeplitz":
        return Strategy(name=name, bands=bands)
    return Strategy(name=name, coefficients=tuple(optimized(steps, bands, objective)))


def sqrt_coefficients(number: int) -> np.ndarray:
    """First coefficients of the square root of the prefix-sum matrix: 1, 1/2, 3/8, 5/16, ..."""
    j = np.arange(1, whole("number", number, 0, _MOST_STEPS))
    return np.concatenate([[1.0], np.cumprod((2 * j - 1) / (2 * j))])[:number]


def inverse(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """First column of C^-1, shape (steps,)."""
    coefficients = vector("coefficients", coefficients)
    if coefficients[0] == 0:
        refuse("the first of coefficients", "other than 0", 0.0, "Only then is there an inverse.")
    return _filtered(coefficients, _unit(whole("steps", steps, 1, _MOST_STEPS)))


def prefix_noise(coefficients: np.ndarray, steps: int) -> np.ndarray:
    """Standard deviation of the noise on every prefix sum if z has standard deviation 1."""
    return np.sqrt(np.cumsum(np.cumsum(inverse(coefficients, steps)) ** 2))


def losses(coefficients: np.ndarray, steps: int) -> tuple[float, float]:
    """Root mean square and largest value of `prefix_noise`.

    Multiplied by the sensitivity of the strategy, they are the noise on the prefix sums at mu = 1.
    """
    deviations = prefix_noise(coefficients, steps)
    return float(np.sqrt(np.mean(deviations**2))), float(deviations[-1])


def sensitivity(
    coefficients: np.ndarray, steps: int, participations: int = 1, separation: int = 1
) -> float:
    """Largest ||C m|| over records that take part at most k times, at least b steps apart.

    Each participation may move the sum by a vector of norm 1, whatever was released before.

    Formal guarantees: let G(s, s') be the inner product of columns s < s'. If |c| does not
    increase, |G| falls with s' and with s' - s, so taking part at 0, b, 2b, ... is the worst
    pattern term by term. If |c| increases somewhere, it is replaced by the smallest sequence above
    it that does not increase. Columns whose bands do not overlap (bands <= b) need no replacement.

    Args:
      coefficients: First column of C.
      steps: Number of steps.
      participations: k.
      separation: b.
    """
    steps = whole("steps", steps, 1, _MOST_STEPS)
    c = np.abs(vector("coefficients", coefficients))[:steps]
    if len(c) > whole("separation", separation, 1, _MOST_STEPS):
        c = non_increasing(c)
    return math.sqrt(leftmost_squares(c, steps, separation, participations)[-1])


def non_increasing(coefficients: np.ndarray) -> np.ndarray:
    """Smallest sequence above |c| that does not increase."""
    return np.maximum.accumulate(np.abs(vector("coefficients", coefficients))[::-1])[::-1]


def leftmost_squares(
    coefficients: np.ndarray, steps: int, separation: int, participations: int | None = None
) -> np.ndarray:
    """||C m||^2 up to every step, for a record that takes part in steps 0, b, 2b, ...

    Args:
      coefficients: First column of C (at most `steps` numbers).
      steps: Number of steps T.
      separation: b.
      participations: Largest number of participations; None for all that fit.

    Returns:
      Array of shape (steps,).
    """
    steps = whole("steps", steps, 1, _MOST_STEPS)
    separation = whole("separation", separation, 1, _MOST_STEPS)
    participations = whole("participations", participations, 1, optional=True)
    coefficients = vector("coefficients", coefficients)
    if len(coefficients) > steps:
        refuse("coefficients", f"at most {steps} numbers, one a step", coefficients, "Cut them.")
    rows = -(-steps // separation)
    padded = np.zeros(rows * separation)
    padded[: len(coefficients)] = coefficients
    # Entry t of C m is the sum of c_t, c_{t-b}, c_{t-2b}, ...: a running sum down the columns.
    response = np.cumsum(padded.reshape(rows, separation), axis=0)
    if participations is not None and participations < rows:
        response[participations:] -= response[: rows - participations].copy()
    return np.cumsum(response.reshape(-1)[:steps] ** 2)


def optimized(
    steps: int, bands: int, objective: str = "mean", max_iterations: int = 500
) -> np.ndarray:
    """Coefficients (c_0 = 1) that minimize ||c|| times the mean or the largest prefix noise.

    The sensitivity of a strategy whose bands do not exceed the separation b is sqrt(k) ||c||, so
    the number of participations does not matter.

    Args:
      steps: Number of steps T.
      bands: Number of coefficients, at most T.
      objective: "mean" (root mean square) or "max".
      max_iterations: Largest number of iterations of L-BFGS, which starts from `sqrt_coefficients`.

    Returns:
      Array of shape (bands,).

    Raises:
      ValueError: For an unknown objective, or a number of bands outside 1..T.
    """
    from scipy import optimize

    one_of("objective", objective, OBJECTIVES)
    steps = whole("steps", steps, 1, _MOST_STEPS)
    bands = whole("bands", bands, 1, steps, remedy="Pass at most as many as there are steps.")
    max_iterations = whole("max_iterations", max_iterations, 1)
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
            pull = _correlation(weight * b, slope, bands)
        gradient = -pull / error + c / norm
        return (math.log(error) + math.log(norm)) / 2, gradient[1:]

    if bands == 1:
        return start
    found = optimize.minimize(
        loss, start[1:], jac=True, method="L-BFGS-B",
        options={"maxiter": max_iterations, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-9},
    )  # fmt: skip
    return np.concatenate([[1.0], found.x])


def _unit(steps: int) -> np.ndarray:
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    return impulse


def _filtered(coefficients: np.ndarray, signal: np.ndarray) -> np.ndarray:
    """C^-1 applied to a vector of one value per step."""
    from scipy import signal as signals

    return signals.lfilter([1.0], coefficients, signal)


def _correlation(left: np.ndarray, right: np.ndarray, lags: int) -> np.ndarray:
    """sum_i left_i right_{i - j} for j = 0 .. lags - 1."""
    size = 1 << (2 * len(left) - 1).bit_length()
    spectrum = np.fft.rfft(left, size) * np.conj(np.fft.rfft(right, size))
    return np.fft.irfft(spectrum, size)[:lags]
