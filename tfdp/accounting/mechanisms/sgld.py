"""SGLD without dropout: the baseline that the dropout paper compares with.

Same noise, same releases, same composition by zCDP, hence the same accounting as `dp_dropout`; only
the network has no dropout interpretation.
"""

import dataclasses
from typing import ClassVar

from tfdp.accounting.mechanisms.dp_dropout import DPDropout


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGLD(DPDropout):
    """Stochastic gradient Langevin dynamics, as the dropout paper accounts it."""

    name: ClassVar[str] = "sgld"
    default_reading: ClassVar[str] = "zcdp"
