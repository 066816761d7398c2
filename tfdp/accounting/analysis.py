"""Proven analysis of one run: privacy losses that compose, and the assumptions behind them.

Each mechanism contributes its own losses and assumptions. Only this module adds the assumptions that
all guarantees share: the origin of the initial weights, how lots are drawn, how one example's
influence is bounded, which noise is added, and that the noise is secret.
"""

import dataclasses
from typing import TYPE_CHECKING

from tfdp.accounting import assumptions
from tfdp.accounting.contribution import UnboundedSensitivity
from tfdp.accounting.numerics.privacy_loss import Loss

if TYPE_CHECKING:
    from tfdp.accounting.run import Run


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A run, translated into privacy losses that compose.

    `losses` dominate everything that the run released, if all `assumptions` are true; `reason` says why
    nothing finite can be proven, and `details` are JSON-safe numbers to report.
    """

    losses: tuple[Loss, ...] = ()
    assumptions: tuple[str, ...] = ()
    reason: str | None = None
    details: dict = dataclasses.field(default_factory=dict)

    def also(self, *assumptions: str, details: dict | None = None) -> "Analysis":
        """Returns the same losses with further assumptions and details."""
        return dataclasses.replace(
            self,
            assumptions=(*self.assumptions, *assumptions),
            details=self.details | (details or {}),
        )


def analyse(run: "Run", delta: float, adjacency: str) -> Analysis:
    """Translates a run into privacy losses; `reason` is set if nothing finite can be proven.

    `delta` determines how much tail mass is left out.
    """
    return _analyse(run, run, delta, adjacency)


def analyse_one_change(run: "Run", delta: float, adjacency: str) -> Analysis:
    """As `analyse`, with the losses of a change of a single clipped term, of the kind `adjacency`.

    A chain of these leads from one neighbour to the other (`Contribution.chains`). Every data set on
    the way has other terms, or leaves terms out, and the theorems hold for it as for any other. A
    microbatch is one term, as if it were one example.
    """
    return _analyse(run, run.of_single_terms(), delta, adjacency)


def _analyse(run: "Run", analysed: "Run", delta: float, adjacency: str) -> Analysis:
    """Losses of the run `analysed`, with the assumptions of `run`."""
    analysed.contribution.check_adjacency(adjacency)
    analysed.sampling.check_adjacency(adjacency)
    if run.steps == 0:
        return Analysis()
    reason = analysed.mechanism.nothing_proven(analysed, adjacency)
    if run.insecure_seed:
        reason = reason or assumptions.INSECURE_SEED
    if run.open_plan:
        reason = reason or assumptions.OPEN_PLAN
    if reason:
        return Analysis(reason=reason)
    try:
        found = analysed.mechanism.analyse(analysed, delta, adjacency)
    except UnboundedSensitivity as error:
        return Analysis(reason=str(error))
    if found.reason is not None:
        return Analysis(reason=found.reason)
    common = (
        assumptions.START[run.start],
        *assumptions.EVERY_RUN,
        *run.sampling.assumptions(),
        *run.contribution.assumptions(),
        run.mechanism.noise_sentence(run.steps),
    )
    return dataclasses.replace(found, assumptions=(*common, *found.assumptions))
