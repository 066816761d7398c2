"""The privacy losses of a run: theorems return them, and `composition` composes them."""

import dataclasses

from tfdp.accounting.numerics.privacy_loss import Loss


@dataclasses.dataclass(frozen=True)
class Analysis:
    """Privacy losses that dominate everything that a run released, provided all assumptions hold.

    Attributes:
        losses: Privacy losses that compose.
        secret_sample: Whether they rely on the secrecy of the sample.
        reason: Why nothing finite can be proven, or None.
        details: JSON-safe numbers to report.
        assumptions: The assumptions in words; `proofs.analyse` adds them.
    """

    losses: tuple[Loss, ...] = ()
    secret_sample: bool = False
    reason: str | None = None
    details: dict = dataclasses.field(default_factory=dict)
    assumptions: tuple[str, ...] = ()
