"""Matrix mechanisms: noise that a Toeplitz strategy correlates over steps, and its proven guarantee.

Releasing every clipped sum with noise C^-1 z is as private as releasing C G + z. This is a matrix
mechanism with W = C (Denisov et al. 2022, Theorem 2.1; several participations: Choquette-Choo et al.
2023), which `linear_releases` analyses together with SI-DPSGD. There is one amplified case:

* "cyclic_poisson" sampling with bands <= groups. A record can be drawn in every groups-th step
  only, and the columns of C of two such steps have no nonzero row in common. Each turn of the
  record's group is therefore one Poisson-subsampled Gaussian whose shift is the first column of C:
  ceil(steps / groups) rounds with probability groups * L/N and multiplier z / ||c|| (Choquette-Choo
  et al. 2023, amplified banded matrix factorization). One band is DP-SGD.

A longer run only adds rows to C, so the same strategy applies to every number of steps.
"""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from tfdp._validate import instance
from tfdp.accounting import gaussian_steps
from tfdp.accounting.analysis import Analysis, analyse
from tfdp.accounting.assumptions import SECRET_SAMPLE
from tfdp.accounting.claims import Claim
from tfdp.accounting.mechanisms.base import NoisyMechanism
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.numerics import linear_releases, privacy_loss
from tfdp.accounting.run import Run
from tfdp.accounting.strategies import Strategy, leftmost_square, non_increasing

_ASSUMPTIONS = (
    "The strategy was fixed in advance, and its noise is one stream over all steps: no value of it "
    "was drawn twice or started anew.",
)


@dataclasses.dataclass(frozen=True)
class Toeplitz:
    """A lower-triangular Toeplitz matrix as a `linear_releases.Response`.

    `first` has the magnitudes of the first column from the diagonal downwards, then zeros.
    """

    first: np.ndarray
    steps: int

    @classmethod
    def of(cls, run: Run) -> "Toeplitz":
        """Makes the response of a run of the `Matrix` mechanism."""
        return cls(np.abs(run.mechanism.strategy.first(run.steps)), run.steps)

    def cyclic(self, period: int) -> tuple[float, str]:
        """Offset 0 is the worst: a later start gives the same pattern, cut short."""
        square = leftmost_square(self.first, self.steps, period)
        return square, "worst participation pattern (offset 0)"

    def shuffled(self, period: int) -> tuple[float, str]:
        """Upper bound: sum of the largest inner products that columns of two epochs can have.

        In epoch e the record takes part in a step s >= e b, and two such steps of epochs e < e' are at
        least (e' - e - 1) b + 1 apart. The inner product of two columns of a non-increasing sequence
        falls both with the later step and with the distance of the steps.
        """
        c = np.zeros(self.steps)
        c[: len(self.first)] = non_increasing(self.first)
        rows, total = -(-self.steps // period), 0.0
        for gap in range(rows):  # e' - e
            lag = 0 if gap == 0 else (gap - 1) * period + 1
            products = np.concatenate([[0.0], np.cumsum(c[: self.steps - lag] * c[lag:])])
            # The later column starts at row e' b at the earliest, so at most steps - e' b of its rows
            # are nonzero.
            left = self.steps - np.arange(gap, rows) * period
            twice = 1.0 if gap == 0 else 2.0
            total += twice * products[np.minimum(left, len(products) - 1)].sum()
        return float(total), "largest inner products of columns, epoch by epoch"

    def column_norms(self) -> np.ndarray:
        squares = np.zeros(self.steps)
        squares[: len(self.first)] = self.first**2
        return np.sqrt(np.cumsum(squares))[::-1]

    def prefix_sum_scale(self) -> float | None:
        constant = len(self.first) == self.steps and np.all(self.first == self.first[0])
        return float(self.first[0]) if constant else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Matrix(NoisyMechanism):
    """Gaussian noise that a Toeplitz strategy correlates over steps.

    Attributes:
      noise_multiplier: Standard deviation of the noise before it is correlated, over the clip norm;
        one number for all steps.
      strategy: Strategy C by whose inverse the noise is correlated.
    """

    strategy: Strategy

    name: ClassVar[str] = "matrix"
    summary: ClassVar[str] = (
        "noise that is correlated over the steps, so that the weights carry less"
    )
    settings: ClassVar[tuple[str, ...]] = ("strategy", "bands", "objective")
    released: ClassVar[str] = DPSGD.released
    claim_assumptions: ClassVar[tuple[str, ...]] = (
        "The literature's accounting of matrix mechanisms is the proven one.",
    )
    schedules: ClassVar[tuple[str, ...]] = ()
    usual_sampling: ClassVar[str] = "cyclic_poisson"

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.noise_multiplier, tuple):
            raise ValueError(
                "Expected one noise_multiplier for all steps: with a table over steps the strategy "
                "is no Toeplitz matrix, and nothing here accounts for another. Received "
                f"{len(self.noise_multiplier)} values. Pass one number."
            )
        instance("strategy", self.strategy, Strategy, remedy="Pass tfdp.accounting.Strategy(...).")

    def analyse(self, run: Run, delta: float, adjacency: str) -> Analysis:
        if self.strategy.bands == 1:  # DP-SGD with noise z / c_0 on every sum
            noise = self.noise_multiplier / float(self.strategy.first(1)[0])
            return gaussian_steps.analyse_sums(run, noise, delta, adjacency)
        if self._amplifies(run):
            column = float(np.linalg.norm(self.strategy.first(run.steps)))
            noise = self.noise_multiplier / column
            return gaussian_steps.amplified(run, noise, adjacency).also(
                *_ASSUMPTIONS, SECRET_SAMPLE
            )
        loss, details = linear_releases.loss_of(run, adjacency, delta)
        return Analysis((loss,), _ASSUMPTIONS, details=details)

    def response(self, run: Run) -> Toeplitz:
        """The matrix W of `linear_releases`."""
        return Toeplitz.of(run)

    def _amplifies(self, run: Run) -> bool:
        """Whether the secrecy of the sample amplifies the steps (see the module's docstring)."""
        sampling = run.sampling
        return (
            sampling.coin_flips
            and sampling.draws(1, 0.0) is None
            and len(self.strategy.first(run.steps)) <= sampling.groups
            and run.contribution.max_examples_per_user == 1
            and sampling.probability < 1
        )

    def claimed_epsilon(self, run: Run, delta: float) -> Claim:
        """The proven epsilon of one example for zero_out, as if the seed of the noise were secret."""
        run = dataclasses.replace(run.for_users(1), insecure_seed=False)
        analysis = analyse(run, delta, "zero_out")
        if analysis.reason:
            return Claim(math.inf, reason=analysis.reason)
        spent = privacy_loss.epsilon_of(analysis.losses, delta)
        return Claim(spent.epsilon, analysis.details)

    def noise_words(self, steps: int) -> str:
        bands = "" if self.strategy.bands is None else f" of {self.strategy.bands} bands"
        return f"{super().noise_words(steps)} correlated by {self.strategy.name}{bands}"
