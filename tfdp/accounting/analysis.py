"""The privacy losses of a run, as theorems return them and `composition` composes them."""

import dataclasses

from tfdp.accounting.numerics.privacy_loss import Loss


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Privacy losses that dominate everything that a run released, provided all assumptions hold.

    Attributes:
        losses: Privacy losses, which add up over steps.
        secret_sample: Whether they rely on nobody knowing which examples were in a lot.
        reason: Why nothing finite can be proven, a sentence; None if something is.
        details: JSON-safe numbers to report.
        assumptions: The assumptions in sentences; `proofs.analyse` adds them.
    """

    losses: tuple[Loss, ...] = ()
    secret_sample: bool = False
    reason: str | None = None
    details: dict = dataclasses.field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
