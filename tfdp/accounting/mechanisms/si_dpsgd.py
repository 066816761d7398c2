"""SI-DPSGD: weight noise around un-noised means, and its proven guarantee.

The paper's Lemma 4.1 compares the weights of one step as if the means of two neighbours agreed
before the step. They do not: the mean carries every earlier difference without noise. Theorem A holds
instead (see `linear_response`): the sequence of released weights is a matrix mechanism with
mu = factor * ||W m|| / z, tight for linear losses. Publishing the last weights only gives no better
proven bound. With W >= 0, replace_one doubles mu.

The sampling determines the possible multiplicities m (see `linear_releases`, which other matrix
mechanisms share). Amplification by the secrecy of the sample does not apply: the dense columns of W
reveal when the record took part.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from tfdp._validate import Schedule, flag, one_of, schedule, text
from tfdp.accounting import claims, noise_tables
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.assumptions import Declared
from tfdp.accounting.mechanisms.base import NoisyMechanism
from tfdp.accounting.numerics import linear_releases
from tfdp.accounting.numerics.linear_response import Dynamics
from tfdp.accounting.records import settle
from tfdp.accounting.run import Run

RELEASES = ("theta", "mu")
# Update rules that are linear in the gradients. Theorem A requires that the means are a linear
# function of the gradients.
LINEAR_OPTIMIZERS = ("sgd", "momentum", "nesterov")
_ASSUMPTIONS = (
    "The means started from public values, and each step's noise was drawn once around its mean.",
    Declared("Learning rates and momentum were fixed in advance."),
    "Means, velocities and updates were float64 and are taken for exact numbers.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SIDPSGD(NoisyMechanism):
    """Noise on the weights around means that are updated without noise.

    Attributes:
      noise_multiplier: z_t, constant or per step: the weight noise of step t has standard deviation
        z_t C lr_t / L.
      learning_rates: Learning rates lr_t of the means, constant or per step; None for an unknown
        constant.
      momentum: Momentum coefficient, constant or per step.
      nesterov: Whether the momentum is Nesterov's.
      optimizer: Name of the update rule of the means.
      release: "theta" (the noised weights) or "mu" (the un-noised means).
    """

    learning_rates: Schedule = None
    momentum: float | tuple[float, ...] = 0.0
    nesterov: bool = False
    optimizer: str = "sgd"
    release: str = "theta"

    name: ClassVar[str] = "si_dpsgd"
    summary: ClassVar[str] = "noise in the weights, around means that carry none"
    settings: ClassVar[tuple[str, ...]] = ("release",)
    update_rules: ClassVar[str] = "linear"
    claim_assumptions: ClassVar[tuple[str, ...]] = (
        *claims.ASSUMPTIONS,
        "The paper treats every step as fresh, although its means carry all earlier gradients "
        "without noise; momentum and learning rates are ignored.",
    )
    schedules: ClassVar[tuple[str, ...]] = ("noise_multiplier", "learning_rates", "momentum")
    segments_note: ClassVar[str | None] = (
        "Every SI-DPSGD segment started from released weights, not from earlier means."
    )
    advice: ClassVar[str] = (
        "At a constant learning rate, with the same fixed order of lots and the same proven epsilon, "
        "SI-DPSGD's final weights carry at least the noise of DP-SGD's, and about twice as much after "
        "ten epochs: its means keep earlier gradients without noise, and each later step has to hide "
        "them again."
    )

    def __post_init__(self):
        super().__post_init__()
        rule = "Pass the name of an update rule, for example 'sgd'."
        settle(
            self,
            learning_rates=schedule("learning_rates", self.learning_rates, optional=True),
            momentum=schedule("momentum", self.momentum),
            nesterov=flag("nesterov", self.nesterov),
            optimizer=text("optimizer", self.optimizer, remedy=rule).lower(),
            release=one_of("release", self.release, RELEASES),
        )

    @property
    def released(self) -> str:
        """Description of the released values, which `release` decides."""
        if self.release != "theta":
            return "one noisy draw of the weights per step, and the un-noised means at the end"
        return "one noisy draw of the weights per step; the means are never released"

    def nothing_proven(self, run: Run, adjacency: str) -> str | None:
        if self.release == "mu":
            return (
                "The un-noised means were released (or evaluated): a record that was drawn changes "
                "them for certain, so no finite epsilon exists."
            )
        bare = super().nothing_proven(run, adjacency)
        if bare is None and self.optimizer not in LINEAR_OPTIMIZERS:
            return (
                f"The update rule {self.optimizer!r} is not linear in the gradients, and its "
                "un-noised state is private. Use SGD, momentum or Nesterov momentum."
            )
        return bare

    def noise_words(self, steps: int) -> str:
        words = f"{super().noise_words(steps)}, update rule {self.optimizer}"
        if self.schedule("momentum", steps).any():
            kind = "Nesterov momentum" if self.nesterov else "momentum"
            words += f" with {kind} {noise_tables.words(self.momentum, steps)}"
        if isinstance(self.learning_rates, tuple):
            words += f", learning rates {noise_tables.words(self.learning_rates, steps)}"
        return words

    def response(self, run: Run) -> Dynamics:
        """The matrix W of `linear_releases`."""
        return Dynamics.of(run)

    def analyse(self, run: Run, delta: float, adjacency: str) -> Analysis:
        bare = Dynamics.of(run).bare_step
        if bare is not None:
            return Analysis(
                reason=f"The weights of step {bare} were released without noise: the learning rate "
                "that scales it is 0 there."
            )
        loss, details = linear_releases.loss_of(run, adjacency, delta)
        return Analysis((loss,), _ASSUMPTIONS, details=details)

    def claimed_rdp(self, run: Run) -> np.ndarray | None:
        return claims.poisson_rdp(run.sampling, self.noise_multiplier, run.steps)
