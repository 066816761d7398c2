"""Correlated noise: matrix mechanisms with a Toeplitz strategy, and what is proven about them.

Releasing every clipped sum with noise C^-1 z is as private as releasing C G + z: a matrix mechanism
with W = C (Denisov et al. 2022, Theorem 2.1; several participations: Choquette-Choo et al. 2023),
analysed together with SI-DPSGD in `matrix_mechanism`. There is one amplified case:

* "cyclic_poisson" sampling with bands <= groups. A record can be drawn in every groups-th step
  only, and the traces of two draws never meet in one row of C. Each turn of its group is therefore
  one Poisson-subsampled Gaussian whose shift is the first column of C: ceil(steps / groups) rounds
  with probability groups * L/N and multiplier z / ||c|| (Choquette-Choo et al. 2023, amplified
  banded matrix factorization). One band is DP-SGD.

A longer run only adds rows, so the same strategy serves every number of steps.
"""

import dataclasses
import math

import numpy as np

from tfdp.accounting import dpsgd, matrix_mechanism, privacy_loss
from tfdp.accounting.analysis import (
    Analysis,
    UnboundedSensitivity,
    common_assumptions,
    sensitivity,
    with_one_clip_group,
)
from tfdp.accounting.claims import Claim
from tfdp.accounting.run import Run
from tfdp.accounting.strategies import leftmost_squares, non_increasing

RELEASED = dpsgd.RELEASED
CLAIM_ASSUMPTIONS = ("The literature's accounting of matrix mechanisms is the proven one.",)
_ASSUMPTIONS = (
    "The strategy was fixed in advance, and its noise is one stream over all steps: no value of it "
    "was drawn twice or started anew.",
)


@dataclasses.dataclass(frozen=True)
class Toeplitz:
    """A lower-triangular Toeplitz matrix as a `matrix_mechanism.Response`.

    Attributes:
      first: Magnitudes of its first column, at most `steps` of them.
      steps: Number of rows.
    """

    first: np.ndarray
    steps: int

    @classmethod
    def of(cls, run: Run) -> "Toeplitz":
        """The strategy of a run."""
        return cls(np.abs(run.strategy.first(run.steps)), run.steps)

    def cyclic(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """Starting later is the same pattern with its end cut off, so offset 0 is the worst."""
        return leftmost_squares(self.first, self.steps, period)[np.asarray(steps) - 1], (
            "worst participation pattern (offset 0)"
        )

    def shuffled(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """Sum of the largest inner products that columns of two epochs can have.

        In epoch e the record is at s >= e b, and two such steps of epochs e < e' are at least
        (e' - e - 1) b + 1 apart. Inner products of a non-increasing sequence fall in both.
        """
        c = np.zeros(self.steps)
        c[: len(self.first)] = non_increasing(self.first)
        rows = -(-self.steps // period)
        steps = np.asarray(steps)
        total = np.zeros(len(steps))
        for gap in range(rows):  # e' - e
            lag = 0 if gap == 0 else (gap - 1) * period + 1
            products = np.concatenate([[0.0], np.cumsum(c[: self.steps - lag] * c[lag:])])
            twice = 1.0 if gap == 0 else 2.0
            for i, count in enumerate(steps):
                # The later column starts at e' b and has count - e' b rows.
                left = count - np.arange(gap, -(-count // period)) * period
                total[i] += twice * products[np.minimum(left, len(products) - 1)].sum()
        return total, "largest inner products of columns, epoch by epoch"

    def every_step(self, steps: np.ndarray) -> np.ndarray:
        return leftmost_squares(self.first, self.steps, 1)[np.asarray(steps) - 1]

    def column_norms(self) -> np.ndarray:
        squares = np.zeros(self.steps)
        squares[: len(self.first)] = self.first**2
        return np.sqrt(np.cumsum(squares))[::-1]

    def prefix_sum_scale(self) -> float | None:
        constant = len(self.first) == self.steps and np.all(self.first == self.first[0])
        return float(self.first[0]) if constant else None


def analyse(run: Run, delta: float, adjacency: str) -> Analysis:
    """Translates a run with correlated noise into privacy losses.

    Args:
      run: The run, with mechanism "matrix".
      delta: Decides how much tail mass is left out under random sampling.
      adjacency: Neighbouring relation.

    Returns:
      An `Analysis`; `reason` is set where nothing finite can be proven.

    Raises:
      ValueError: Where the adjacency is not defined for the run's sampling.
    """
    if run.strategy.bands == 1:
        return _one_band(run, delta, adjacency)
    try:
        factor = sensitivity(run, adjacency)
    except UnboundedSensitivity as error:
        return Analysis((), RELEASED, (), reason=str(error))
    if run.noise_multiplier == 0:
        return Analysis((), RELEASED, (), reason="No noise was added (noise_multiplier is 0).")
    assumptions = (*common_assumptions(run), *_ASSUMPTIONS)
    if run.steps == 0:
        return Analysis((), RELEASED, assumptions)
    effective = _effective(run)
    if amplifies(run):
        column = np.linalg.norm(run.strategy.first(run.steps))
        scaled = effective.with_(noise_multiplier=effective.noise_multiplier / float(column))
        loss, details = dpsgd.amplified(scaled, factor, adjacency)
        details["response_norm"] = float(column)
        assumptions += ("Which examples were in a lot stays secret.",)
    else:
        loss, details = matrix_mechanism.loss_of(effective, Toeplitz.of(run), factor, delta)
    details["sensitivity"] = factor * math.sqrt(run.clip_groups)
    return Analysis((loss,), RELEASED, assumptions, details=details)


def _one_band(run: Run, delta: float, adjacency: str) -> Analysis:
    """DP-SGD with noise z / c_0 on every sum."""
    scale = run.strategy.first(1)[0]
    plain = run.with_(
        mechanism="dpsgd", strategy=None, noise_multiplier=run.noise_multiplier / scale
    )
    return dpsgd.analyse(plain, delta, adjacency)


def _effective(run: Run) -> Run:
    """The run with one clip group and one draw per value that is exactly as private."""
    draws = float(run.schedule("draws").max(initial=1))
    run = with_one_clip_group(run)
    return run.with_(noise_multiplier=run.noise_multiplier / math.sqrt(draws), draws=1)


def amplifies(run: Run) -> bool:
    """Whether the secrecy of the sample counts: see the module's docstring."""
    return (
        run.sampling == "cyclic_poisson"
        and len(run.strategy.first(run.steps)) <= run.groups
        and run.microbatch_size == 1
        and run.sampling_probability < 1
    )


def curve(run: Run, counts: np.ndarray, delta: float, adjacency: str) -> list[float]:
    """Proven epsilon after each of `counts` steps (see `matrix_mechanism.curve`)."""
    if run.strategy.bands == 1 or amplifies(run):
        return [
            privacy_loss.epsilon_of(
                analyse(run.with_(steps=int(n)), delta, adjacency).losses, delta
            ).epsilon
            for n in counts
        ]
    factor = sensitivity(run, adjacency)
    return matrix_mechanism.curve(_effective(run), Toeplitz.of, counts, factor, delta)


def claimed_epsilon(run: Run, delta: float) -> Claim:
    """The proven bound for zero_out."""
    analysis = analyse(run, delta, "zero_out")
    if analysis.reason:
        return Claim(math.inf, reason=analysis.reason)
    spent = privacy_loss.epsilon_of(analysis.losses, delta)
    return Claim(spent.epsilon, analysis.details)
