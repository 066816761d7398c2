"""DP-SGD: clipped sums with fresh Gaussian noise in every step (Abadi et al. 2016).

The proven guarantee depends on the sampling scheme; `gaussian_steps` has the dominating pairs.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfdp.accounting import claims, gaussian_steps
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.mechanisms.base import NoisyMechanism
from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPSGD(NoisyMechanism):
    """Fresh Gaussian noise on every clipped sum; the noise multiplier may be a table over steps."""

    name: ClassVar[str] = "dpsgd"
    summary: ClassVar[str] = "fresh noise on every sum of clipped gradients"
    released: ClassVar[str] = "all noisy gradients, hence every intermediate and final weight"
    claim_assumptions: ClassVar[tuple[str, ...]] = claims.ASSUMPTIONS
    adaptive_clipping: ClassVar[bool] = True
    settings: ClassVar[tuple[str, ...]] = ("noise_decay",)

    def analyse(self, run: Run, delta: float, adjacency: str) -> Analysis:
        return gaussian_steps.analyse_sums(run, self.noise_multiplier, delta, adjacency)

    def claimed_rdp(self, run: Run) -> np.ndarray | None:
        return claims.poisson_rdp(run.sampling, self.noise_multiplier, run.steps)
