"""Training without privacy, for comparison: every guarantee is infinite, and says why."""

import dataclasses
from typing import ClassVar

import numpy as np

from tfdp._validate import text
from tfdp.accounting.claims import ORDERS_2020
from tfdp.accounting.mechanisms.base import Mechanism
from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoMechanism(Mechanism):
    """Weights that were trained without noise.

    Attributes:
      reason: Why, in a sentence; for example that nobody knows how they were trained before.
    """

    reason: str = "The run was not private: no noise was added."

    name: ClassVar[str] = "none"
    released: ClassVar[str] = "weights trained without noise"
    ignored: ClassVar[tuple[str, ...]] = ("optimizer", "noise_multiplier")

    def __post_init__(self):
        text("reason", self.reason, remedy="Leave it out, or say why nothing is proven.")

    def nothing_proven(self, run: Run, adjacency: str) -> str:
        del run, adjacency
        return self.reason

    def claimed_rdp(self, run: Run) -> np.ndarray:
        return np.full(len(ORDERS_2020), np.inf if run.steps else 0.0)

    @property
    def no_claim(self) -> str:
        return self.reason

    def executed_words(self, run: Run) -> str | None:
        # What somebody else did is known by its reason only.
        return None if run.num_examples > 1 else self.reason

    def noise_words(self, steps: int) -> str:
        del steps
        return ", without noise"
