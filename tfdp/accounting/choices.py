"""Chooses the strategy, bands and groups of correlated noise that a command leaves open."""

import dataclasses
from typing import Any

from tfdp.accounting.band_choice import best_bands
from tfdp.accounting.mechanisms import DPSGD
from tfdp.accounting.records import field_names
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import Poisson

USUAL_STRATEGY = "banded_toeplitz"
# Strategies whose number of bands may be limited.
_CUT = ("banded_toeplitz", "sqrt_toeplitz")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorrelatedNoise:
    """Public facts of a training with correlated noise; None stands for a setting that is left open.

    `sampling` and `strategy` are names, `epsilon` is the proven budget, if there is one, and
    `objective` is the error that banded_toeplitz minimizes.
    """

    num_examples: int
    lot_size: int
    steps: int
    sampling: str
    delta: float
    epsilon: float | None = None
    adjacency: str = "zero_out"
    strategy: str | None = None
    bands: int | None = None
    groups: int | None = None
    objective: str | None = None

    @classmethod
    def of(cls, settings: object, **facts: Any) -> "CorrelatedNoise":
        """Returns the noise of an object with these attributes; `facts` replace some of them."""
        own = {name: getattr(settings, name) for name in field_names(cls) if name not in facts}
        return cls(**own, **facts)

    def completed(self, without_budget: float | None = None) -> "CorrelatedNoise":
        """Returns the same noise with everything chosen that has a default.

        With cyclic Poisson lots there are as many bands as groups; if neither is given, `best_bands`
        chooses for the budget, or for `without_budget`. In a fixed order, there are as many
        bands as steps in an epoch.

        Raises:
          ValueError: If a setting that has no default here is left open.
        """
        budget = self.epsilon or without_budget
        self._check_open(budget)
        strategy = self.strategy or USUAL_STRATEGY
        bands, groups = self.bands, self.groups
        if self.sampling == "cyclic_poisson":
            groups = groups or bands or self._best(budget)
            if bands is None and strategy in _CUT:
                bands = min(groups, self.steps)
        elif bands is None and strategy == "banded_toeplitz":
            bands = min(max(1, self.num_examples // self.lot_size), self.steps)
        return dataclasses.replace(self, strategy=strategy, bands=bands, groups=groups)

    def _check_open(self, budget: float | None) -> None:
        best = self.strategy in (None, USUAL_STRATEGY)
        if self.sampling == "cyclic_poisson":
            if not (self.groups or self.bands or (best and budget is not None)):
                raise ValueError(
                    "Expected --groups or --bands with --sampling=cyclic_poisson. Found neither. They "
                    "are chosen for --strategy=banded_toeplitz and a given --epsilon only."
                )
        elif best and self.bands is None and self.sampling != "cyclic":
            raise ValueError(
                f"Expected --bands with --sampling={self.sampling}. Found none. Or take "
                "--sampling=cyclic_poisson, for which they are chosen."
            )

    def _best(self, epsilon: float) -> int:
        lots = Poisson(
            num_examples=self.num_examples, lot_size=min(self.lot_size, self.num_examples)
        )
        run = Run(mechanism=DPSGD(noise_multiplier=0.0), sampling=lots, steps=self.steps)
        objective = self.objective or "mean"
        return best_bands(epsilon, self.delta, run, self.adjacency, objective).bands
