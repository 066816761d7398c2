"""SGLD without dropout: the baseline with which the dropout paper compares its method.

Noise, releases and composition by zCDP are those of `dp_dropout`, hence the accounting is the same.
Only the interpretation of the noise as dropout of the network is missing.
"""

import dataclasses
from typing import ClassVar

from tfdp.accounting.mechanisms.dp_dropout import DPDropout


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGLD(DPDropout):
    """Stochastic gradient Langevin dynamics, as the dropout paper accounts it."""

    name: ClassVar[str] = "sgld"
    summary: ClassVar[str] = "Langevin steps without dropout, the baseline of dp_dropout"
    default_reading: ClassVar[str] = "zcdp"
