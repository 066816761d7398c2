"""Training without privacy, to compare with, and training that nobody accounted."""

import dataclasses
from typing import ClassVar

import numpy as np

from tfdp._validate import flag, text
from tfdp.accounting.claims import ORDERS_2020
from tfdp.accounting.mechanisms.base import Mechanism
from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoMechanism(Mechanism):
    """Weights that were trained without noise that hides an example: every epsilon is infinite.

    Attributes:
      reason: Sentence that says why nothing is proven, for example that it is not known how the
        weights were trained before.
      declarable: Whether the run stands for plain training that was found and not accounted. The user
        may declare that it was on public data.
    """

    reason: str = "The run was not private: no noise hides an example."
    declarable: bool = False

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "no noise and no privacy, to compare with"
    released: ClassVar[str] = "weights trained without privacy"

    def __post_init__(self):
        text("reason", self.reason, remedy="Leave it out, or say why nothing is proven.")
        flag("declarable", self.declarable)

    def nothing_proven(self, run: Run, adjacency: str) -> str:
        return self.reason

    def claimed_rdp(self, run: Run) -> np.ndarray:
        return np.full(len(ORDERS_2020), np.inf if run.steps else 0.0)

    @property
    def no_claim(self) -> str:
        return self.reason

    def executed_words(self, run: Run) -> str | None:
        # A run that stands for unaccounted training has num_examples 1 as a placeholder; only its
        # reason is known.
        return None if run.sampling.num_examples > 1 else self.reason

    def noise_words(self, steps: int) -> str:
        return ", without privacy"
