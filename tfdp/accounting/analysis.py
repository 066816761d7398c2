"""Proven analysis of one run: privacy losses that compose, and the assumptions behind them.

Each mechanism contributes its own losses and assumptions. Only this module adds the assumptions that
all guarantees share: the origin of the initial weights, how lots are drawn, how one example's
influence is bounded, which noise is added, and that the noise is secret.
"""

import dataclasses
from typing import TYPE_CHECKING

from tfdp.accounting.contribution import UnboundedSensitivity
from tfdp.accounting.numerics.privacy_loss import Loss

if TYPE_CHECKING:
    from tfdp.accounting.run import Run

START_WORDS = {
    "assumed": "The weights at the start (with the statistics in frozen layers), and any that were set "
    "or loaded later without their ledger (compile=False, say), do not depend on these data: they are "
    "fresh, or come from public data. Nobody checked this.",
    "public": "The user declared that the weights at the start do not depend on these data.",
}
# A run may be several fits.
BETWEEN_FITS = "Between the fits nothing else trained these weights."
INSECURE_SEED = (
    "The noise (or the secret choice of examples) came from a seed that somebody chose and may know. "
    "Two runs with one seed differ without any noise, so nothing is proven. Leave that "
    "seed away (--insecure_seed, seed=): a public --seed of the initial weights does no harm."
)
FIXED_LENGTH = (
    "No more steps were taken than are counted, and their number was fixed beforehand. Stopping "
    "earlier, or choosing among the weights, by what was released or by held-out data is covered."
)
RECORD = (
    "A record is one row of what was given to training, computed from that record alone, by constants "
    "that do not depend on the others. Scalers, vocabularies, windows or class weights that were made "
    "from all rows break this. Somebody with several records is protected less (max_examples_per_user)."
)
SECRET_SAMPLE = "Which examples were in a lot stays secret."


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A run, translated into privacy losses that compose.

    Attributes:
      losses: Privacy losses whose composition dominates everything that the run released.
      assumptions: Short sentences, each of which has to be true.
      reason: Reason why nothing finite can be proven, or None.
      details: JSON-safe numbers to report.
      scales: Whether multiplying the noise by c divides every mu by c and changes nothing else, so
        that calibration has to analyse the run only once.
    """

    losses: tuple[Loss, ...] = ()
    assumptions: tuple[str, ...] = ()
    reason: str | None = None
    details: dict = dataclasses.field(default_factory=dict)
    scales: bool = False

    def also(self, *assumptions: str, details: dict | None = None) -> "Analysis":
        """Returns the same losses with further assumptions and details."""
        return dataclasses.replace(
            self,
            assumptions=(*self.assumptions, *assumptions),
            details=self.details | (details or {}),
        )


def check_adjacency_fits(run: "Run", adjacency: str) -> None:
    """Raises ValueError for a neighbouring relation that is not defined for the run."""
    run.contribution.check_adjacency(adjacency)
    run.sampling.check_adjacency(adjacency)


def analyse(run: "Run", delta: float, adjacency: str) -> Analysis:
    """Translates a run into privacy losses; `reason` is set if nothing finite can be proven.

    Args:
      run: Description of what was executed.
      delta: Probability in (0, 1); it determines how much tail mass is left out.
      adjacency: Neighbouring relation, which has to be defined for the run.
    """
    check_adjacency_fits(run, adjacency)
    if run.steps == 0:
        return Analysis()
    reason = run.mechanism.nothing_proven(run, adjacency)
    if reason or run.insecure_seed:
        return Analysis(reason=reason or INSECURE_SEED)
    try:
        found = run.mechanism.analyse(run, delta, adjacency)
    except UnboundedSensitivity as error:
        return Analysis(reason=str(error))
    if found.reason is not None:
        return Analysis(reason=found.reason)
    common = (
        START_WORDS[run.start],
        BETWEEN_FITS,
        RECORD,
        FIXED_LENGTH,
        *run.sampling.assumptions(),
        *run.contribution.assumptions(),
        run.mechanism.noise_sentence(run.steps),
    )
    return dataclasses.replace(found, assumptions=(*common, *found.assumptions))
