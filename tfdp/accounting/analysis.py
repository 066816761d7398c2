"""The translation of a run into privacy losses, which theorems return and `composition` composes."""

import dataclasses

from tfdp.accounting.numerics.privacy_loss import Loss


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Privacy losses that dominate everything that a run released, if all assumptions are true.

    Attributes:
      losses: Privacy losses that compose.
      secret_sample: Whether they rest on the secrecy of the sample.
      reason: Why nothing finite can be proven, or None.
      details: JSON-safe numbers to report.
      assumptions: Sentences that have to be true; `proofs.analyse` adds them.
    """

    losses: tuple[Loss, ...] = ()
    secret_sample: bool = False
    reason: str | None = None
    details: dict = dataclasses.field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
