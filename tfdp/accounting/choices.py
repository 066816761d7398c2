"""Chooses the strategy, bands and groups of correlated noise that a command leaves open."""

from typing import Any

from tfdp.accounting.band_choice import best_bands
from tfdp.accounting.described import describe

USUAL_STRATEGY = "banded_toeplitz"
# Strategies whose number of bands may be limited.
_CUT = ("banded_toeplitz", "sqrt_toeplitz")


def completed(
    settings: Any,
    num_examples: int,
    lot_size: int,
    steps: int,
    without_budget: float | None = None,
) -> dict[str, Any]:
    """Returns strategy, bands and groups, with everything chosen that has a default.

    With cyclic Poisson lots there are as many bands as groups; if neither is given, `best_bands`
    chooses for the budget. In a fixed order, there are as many bands as steps in an epoch.

    Args:
      settings: An object with the attributes strategy, bands, groups and objective, each of which may
        be None, and sampling, delta, adjacency and epsilon, the proven budget, if there is one.
      num_examples, lot_size, steps: Public numbers of the training.
      without_budget: Epsilon for which the number of bands is chosen where there is no budget.

    Raises:
      ValueError: If a setting that has no default here is left open.
    """
    budget = settings.epsilon or without_budget
    strategy, bands, groups = settings.strategy or USUAL_STRATEGY, settings.bands, settings.groups
    best = strategy == USUAL_STRATEGY
    if settings.sampling == "cyclic_poisson":
        if not (groups or bands or (best and budget is not None)):
            raise ValueError(
                "Expected --groups or --bands with --sampling=cyclic_poisson. Found neither. They "
                "are chosen for --strategy=banded_toeplitz and a given --epsilon only."
            )
        if not (groups or bands):
            run = describe(
                sampling="poisson", num_examples=num_examples, lot_size=min(lot_size, num_examples),
                steps=steps, noise_multiplier=0.0,
            )  # fmt: skip
            assert budget is not None
            how = settings.adjacency, settings.objective or "mean"
            groups = best_bands(budget, settings.delta, run, *how).bands
        groups = groups or bands
        if bands is None and strategy in _CUT:
            bands = min(groups, steps)
    elif best and bands is None:
        if settings.sampling != "cyclic":
            raise ValueError(
                f"Expected --bands with --sampling={settings.sampling}. Found none. Or take "
                "--sampling=cyclic_poisson, for which they are chosen."
            )
        bands = min(max(1, num_examples // lot_size), steps)
    return {"strategy": strategy, "bands": bands, "groups": groups}
