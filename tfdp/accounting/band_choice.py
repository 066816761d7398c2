"""Defaults of correlated noise: its strategy, number of bands and groups.

The number of bands is a trade-off. With few bands, sampling amplifies more. With many bands, the noise
of different steps cancels more. The choice minimizes the noise on the prefix sums of the gradients,
because the weights follow these sums. With cyclic Poisson lots and as many groups as bands, this noise
is the noise multiplier that a budget needs, times the error of the strategy.

One band is DP-SGD with Poisson lots, so the best choice is never worse than that. Several bands with
fewer groups, such as plain Poisson lots, are not compared: they never had the least noise
(docs/decisions/tightness.md).
"""

import contextlib
import dataclasses
import math
from typing import Any

from tfdp._validate import one_of, whole
from tfdp.accounting.calibration import CalibrationError, noise_for
from tfdp.accounting.described import describe
from tfdp.accounting.guarantee import check_delta, check_epsilon
from tfdp.accounting.mechanisms import Matrix
from tfdp.accounting.run import Run, check_run
from tfdp.accounting.sampling import CyclicPoisson
from tfdp.accounting.strategies import OBJECTIVES, losses, strategy

_USUAL_STRATEGY = "banded_toeplitz"
# Strategies whose number of bands may be limited.
_CUT = ("banded_toeplitz", "sqrt_toeplitz")


@dataclasses.dataclass(frozen=True)
class BandChoice:
    """The number of bands that `best_bands` found for correlated noise, and its noise.

    Attributes:
        bands: Number of bands of the strategy, and of groups of the sampling.
        noise_multiplier: The noise multiplier that meets the budget with this number of bands.
        error: Standard deviation of the noise on the sums of all gradients so far (the prefix sums),
            divided by the clip norm. It is the root mean square or the maximum over the steps, as
            the objective says.

    Example:
        >>> from tfdp.accounting import BandChoice
        >>> BandChoice(bands=2, noise_multiplier=1.1, error=1.7).bands
        2
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
    """Finds the number of bands with which correlated noise disturbs the weights least, for a budget.

    Use it before a training with `MatrixDPSGDOptimizer` and cyclic Poisson lots, with as many groups
    as bands. It tries the powers of two, calibrates the noise for each, and compares the noise on the
    prefix sums of the gradients.

    Args:
        epsilon: The largest proven epsilon, finite and above 0.
        delta: Probability in (0, 1), well below 1/N.
        run: The planned training. Its mechanism is ignored; of its sampling, only the number of
            examples and the lot size are used.
        adjacency: "zero_out" or "replace_one".
        objective: The error to compare: "mean", the root mean square over the steps, or "max", the
            largest.
        most: Largest number of bands to try, which limits the memory.

    Returns:
        A `BandChoice`.

    Raises:
        CalibrationError: If no noise meets the budget with any number of bands.
        ValueError: If an argument is invalid.

    Example:
        >>> from tfdp.accounting import best_bands, describe
        >>> run = describe("dpsgd", "poisson", num_examples=64, lot_size=32, steps=8,
        ...                noise_multiplier=1.0)
        >>> best_bands(8.0, 1e-3, run)
        BandChoice(bands=2, noise_multiplier=1.08..., error=1.6...)
    """
    check_run(run)
    epsilon = check_epsilon(epsilon)
    check_delta(delta)
    one_of("objective", objective, OBJECTIVES)
    most = whole("most", most, 1)
    lots, bands, choices = run.sampling, 1, []
    while bands <= min(most, run.steps) and bands * lots.lot_size <= lots.num_examples:
        plan = strategy(_USUAL_STRATEGY, run.steps, bands, objective)
        # Examples that do not fill the groups are left out.
        whole_groups = lots.num_examples - lots.num_examples % bands
        candidate = dataclasses.replace(
            run,
            mechanism=Matrix(strategy=plan, noise_multiplier=1.0),
            sampling=CyclicPoisson(groups=bands, num_examples=whole_groups, lot_size=lots.lot_size),
        )
        with contextlib.suppress(CalibrationError):
            noise = noise_for(epsilon, delta, candidate, "proven", adjacency)
            error = losses(plan.first(run.steps), run.steps)[OBJECTIVES.index(objective)]
            if noise * error < math.inf:
                choices.append(BandChoice(bands, noise, noise * error))
        bands *= 2
    if not choices:
        raise CalibrationError(
            f"No number of bands meets epsilon {epsilon:g}. Use a larger epsilon or fewer steps."
        )
    return min(choices, key=lambda choice: choice.error)


def completed(
    settings: Any,
    num_examples: int,
    lot_size: int,
    steps: int,
    without_budget: float | None = None,
) -> dict[str, Any]:
    """Returns strategy, bands and groups, with defaults filled in.

    With cyclic Poisson lots, there are as many bands as groups. If neither is given, `best_bands`
    chooses them for the budget. In a fixed order, there are as many bands as steps in an epoch.

    Args:
        settings: An object with the attributes `strategy`, `bands`, `groups` and `objective`, each of
            which may be None; `sampling`, `delta` and `adjacency`; and `epsilon`, the proven budget
            or None.
        num_examples, lot_size, steps: Public numbers of the training.
        without_budget: The epsilon for which bands are chosen if there is no budget.

    Raises:
        ValueError: If a setting that has no default here is missing.
    """
    budget = settings.epsilon or without_budget
    strategy, bands, groups = settings.strategy or _USUAL_STRATEGY, settings.bands, settings.groups
    best = strategy == _USUAL_STRATEGY
    if settings.sampling == "cyclic_poisson":
        if not (groups or bands or (best and budget is not None)):
            raise ValueError(
                "--sampling=cyclic_poisson needs --groups or --bands. They have a default only with "
                "--strategy=banded_toeplitz and --epsilon."
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
                f"--sampling={settings.sampling} needs --bands. Pass it, or use "
                "--sampling=cyclic_poisson, which has a default."
            )
        bands = min(max(1, num_examples // lot_size), steps)
    return {"strategy": strategy, "bands": bands, "groups": groups}
