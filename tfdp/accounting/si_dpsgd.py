"""SI-DPSGD: weight noise around un-noised means, and what it really guarantees.

The paper's Lemma 4.1 compares the weights of one step as if the means of two neighbours agreed
before it. They do not: the mean carries every earlier, un-noised difference. What is true is
Theorem A (see `linear_response`): the sequence of released weights is a matrix mechanism with
mu = factor * ||W m|| / z, tight for linear losses, and publishing the last weights only proves
nothing better. With W >= 0, replace_one doubles mu.

What m can be is decided by the sampling (see `matrix_mechanism`, which other matrix mechanisms
share). Amplification by secrecy is not claimed: the dense columns of W give away when the record
took part.
"""

import math

import numpy as np

from tfdp.accounting import claims, matrix_mechanism
from tfdp.accounting.analysis import (
    Analysis,
    UnboundedSensitivity,
    common_assumptions,
    sensitivity,
    with_one_clip_group,
)
from tfdp.accounting.linear_response import Dynamics
from tfdp.accounting.run import LINEAR_OPTIMIZERS, Run

RELEASED = "one noisy draw of the weights per step; the means are never released"
CLAIM_ASSUMPTIONS = (
    *claims.ASSUMPTIONS,
    "The paper treats every step as fresh, although its means carry all earlier gradients without "
    "noise; momentum and learning rates are ignored.",
)
claimed_rdp = claims.poisson_rdp


def analyse(run: Run, delta: float, adjacency: str) -> Analysis:
    """Translates an SI-DPSGD run into privacy losses.

    Args:
      run: The run, with mechanism "si_dpsgd".
      delta: Decides how much tail mass is left out under random sampling.
      adjacency: Neighbouring relation.

    Returns:
      An `Analysis`; `reason` is set where nothing finite can be proven.

    Raises:
      ValueError: Where the adjacency is not defined for the run's sampling.
    """
    try:
        factor = sensitivity(run, adjacency)
    except UnboundedSensitivity as error:
        return Analysis((), RELEASED, (), reason=str(error))
    reason = _no_guarantee(run)
    if reason:
        return Analysis((), RELEASED, (), reason=reason)
    if run.steps == 0:
        return Analysis((), RELEASED, common_assumptions(run))
    dynamics = Dynamics.of(run)
    if dynamics.bare_step is not None:
        return Analysis(
            (),
            RELEASED,
            (),
            reason=f"The weights of step {dynamics.bare_step} were released without noise: the "
            "learning rate that scales it is 0 there.",
        )
    assumptions = (
        *common_assumptions(run),
        "The means started from public values, and each step's noise was drawn around its mean as "
        "often as the run says.",
        "Learning rates and momentum were fixed in advance.",
    )
    effective = with_one_clip_group(run)
    loss, details = matrix_mechanism.loss_of(effective, dynamics, factor, delta)
    details["sensitivity"] = factor * math.sqrt(run.clip_groups)
    return Analysis((loss,), RELEASED, assumptions, details=details)


def _no_guarantee(run: Run) -> str | None:
    """Why nothing finite can be proven for `run`, or None."""
    if run.release == "mu":
        return (
            "The un-noised means were released (or evaluated): a record that was drawn changes "
            "them for certain, so no finite epsilon exists."
        )
    if run.noise_multiplier == 0:
        return "No noise was added (noise_multiplier is 0)."
    if run.optimizer not in LINEAR_OPTIMIZERS:
        return (
            f"The update rule {run.optimizer!r} is not linear in the gradients, and its un-noised "
            "state is private. Use SGD, momentum or Nesterov momentum."
        )
    return None


def curve(run: Run, counts: np.ndarray, delta: float, adjacency: str) -> list[float]:
    """Proven epsilon after each of `counts` steps (see `matrix_mechanism.curve`)."""
    factor = sensitivity(run, adjacency)
    return matrix_mechanism.curve(with_one_clip_group(run), Dynamics.of, counts, factor, delta)
