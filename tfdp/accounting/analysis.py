"""What is proven about one run: privacy losses that compose, and what has to be true for them.

A mechanism contributes its own losses and assumptions. What every guarantee shares is added here and
nowhere else: where the weights began, how lots were drawn, what bounds one example's influence, which
noise was added, and that nobody knows it.
"""

import dataclasses
from typing import TYPE_CHECKING

from tfdp.accounting.contribution import UnboundedSensitivity
from tfdp.accounting.numerics.privacy_loss import Loss

if TYPE_CHECKING:
    from tfdp.accounting.run import Run

START_WORDS = {
    "assumed": "The weights at the start, and any that were set or loaded later without their ledger "
    "(compile=False, say), do not depend on these data: they are fresh, or come from public data. "
    "Nobody checked this.",
    "public": "The user declared that the weights at the start do not depend on these data.",
}
INSECURE_SEED = (
    "The noise (or the secret choice of examples) came from a seed that somebody chose and may know. "
    "Two runs with one seed differ without any noise, so nothing is proven. Leave that "
    "seed away (--insecure_seed, seed=): a public --seed of the initial weights does no harm."
)
SECRET_SAMPLE = "Which examples were in a lot stays secret."


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A run, translated into privacy losses that compose.

    Attributes:
      losses: Pieces that together dominate what the run released.
      assumptions: Short sentences, each of which has to be true.
      reason: Why nothing finite can be proven, or None.
      details: JSON-safe numbers worth reporting.
      scales: Whether noise that is c times as large divides every mu by c and changes nothing else,
        so that calibration has to analyse the run only once.
    """

    losses: tuple[Loss, ...] = ()
    assumptions: tuple[str, ...] = ()
    reason: str | None = None
    details: dict = dataclasses.field(default_factory=dict)
    scales: bool = False


def check_adjacency_fits(run: "Run", adjacency: str) -> None:
    """Refuses a neighbouring relation that is not defined for the run.

    Raises:
      ValueError: For add_or_remove_one unless lots are drawn with a probability that was fixed
        without looking at the data, and with microbatches.
    """
    run.contribution.check_adjacency(adjacency)
    run.sampling.check_adjacency(adjacency)


def analyse(run: "Run", delta: float, adjacency: str) -> Analysis:
    """Translates `run` into privacy losses.

    Args:
      run: What was executed.
      delta: Decides how much tail mass is left out.
      adjacency: Neighbouring relation.

    Returns:
      An `Analysis`; `reason` is set where nothing finite can be proven.

    Raises:
      ValueError: Where the adjacency is not defined for the run.
    """
    check_adjacency_fits(run, adjacency)
    if run.steps == 0:
        return Analysis()
    reason = run.mechanism.nothing_proven(run, adjacency)
    if reason is None and run.insecure_seed:
        reason = INSECURE_SEED
    if reason is not None:
        return Analysis(reason=reason)
    try:
        found = run.mechanism.analyse(run, delta, adjacency)
    except UnboundedSensitivity as error:
        return Analysis(reason=str(error))
    if found.reason is not None:
        return Analysis(reason=found.reason)
    return dataclasses.replace(found, assumptions=(*_common(run), *found.assumptions))


def _common(run: "Run") -> tuple[str, ...]:
    """Assumptions that every finite proven guarantee makes; where the weights began comes first."""
    return (
        START_WORDS[run.start],
        *run.sampling.assumptions(),
        *run.contribution.assumptions(),
        run.mechanism.noise_sentence(run.steps),
    )
