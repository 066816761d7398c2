"""How many bands correlated noise should have: few are amplified much, many cancel much.

With cyclic Poisson lots and as many groups as bands, the noise on the prefix sums (what the weights
feel) is the noise multiplier that a budget needs times the error of the strategy. One band is DP-SGD
with Poisson lots, so the best choice is never worse than that.
"""

import dataclasses
import math
from collections.abc import Iterator

from tfdp.accounting.calibration import CalibrationError, noise_for, quick_noise_for
from tfdp.accounting.mechanisms.matrix import Matrix
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import CyclicPoisson
from tfdp.accounting.strategies import losses, strategy

# Rényi bounds rank the candidates; those that come this close to the best are judged exactly.
_CLOSE = 1.08


@dataclasses.dataclass(frozen=True)
class BandChoice:
    """A number of bands and groups.

    Attributes:
      bands: Bands of the strategy, and groups of the sampling.
      noise_multiplier: What the budget needs then.
      error: Noise on the prefix sums over clip norm: root mean square over the steps, or the
        largest.
    """

    bands: int
    noise_multiplier: float
    error: float


def best_bands(
    epsilon: float,
    delta: float,
    run: Run,
    adjacency: str = "zero_out",
    objective: str = "mean",
    most: int = 128,
) -> BandChoice:
    """The power of two with the least noise on the prefix sums at a proven epsilon.

    Args:
      epsilon: Budget, finite and above 0.
      delta: Probability in (0, 1).
      run: What will be executed; its sampling, groups, strategy and noise are left open.
      adjacency: Neighbouring relation.
      objective: "mean" or "max" error.
      most: No more bands than this, which bounds the memory.

    Raises:
      CalibrationError: No noise meets the budget.
    """
    quick = {}
    for candidate in _candidates(run, objective, most):
        try:
            noise = quick_noise_for(epsilon, delta, candidate, adjacency)
        except CalibrationError:
            continue
        quick[candidate] = noise * _error(candidate, objective)
    if not quick:
        raise CalibrationError(
            f"No number of bands meets epsilon {epsilon:g}. Expected a larger epsilon or fewer steps."
        )
    least = min(quick.values())
    choices = []
    for candidate, rough in quick.items():
        if rough <= _CLOSE * least:
            noise = noise_for(epsilon, delta, candidate, "proven", adjacency)
            choices.append(
                BandChoice(candidate.groups, noise, noise * _error(candidate, objective))
            )
    return min(choices, key=lambda choice: choice.error)


def _candidates(run: Run, objective: str, most: int) -> Iterator[Run]:
    """Runs with 1, 2, 4, ... bands and groups, as many examples left out as the groups require."""
    bands = 1
    while bands <= min(most, run.steps) and bands * run.lot_size <= run.num_examples:
        yield run.with_(
            mechanism=Matrix(
                strategy=strategy("banded_toeplitz", run.steps, bands, objective),
                noise_multiplier=1.0,
            ),
            sampling=CyclicPoisson(
                groups=bands,
                num_examples=run.num_examples - run.num_examples % bands,
                lot_size=run.lot_size,
            ),
        )
        bands *= 2


def _error(run: Run, objective: str) -> float:
    mean, largest = losses(run.strategy.first(run.steps), run.steps)
    error = mean if objective == "mean" else largest
    return error if math.isfinite(error) else math.inf
