"""SI-DPSGD: weight noise around un-noised means, and what it really guarantees.

The paper's Lemma 4.1 compares the weights of one step as if the means of two neighbours agreed
before it. They do not: the mean carries every earlier, un-noised difference. What is true is
Theorem A (see `linear_response`): the sequence of released weights is a matrix mechanism with
mu = factor * ||W m|| / z, tight for linear losses, and publishing the last weights only proves
nothing better. With W >= 0, replace_one doubles mu.

* "cyclic": m is in every steps_per_epoch-th step; the maximum over all offsets.
* "shuffle": offset 0 where no rate increases, else an envelope over every epoch.
* "unknown": once in every step.
* "poisson", "with_replacement": Theorem B, an average of Gaussian profiles over the law of ||W m||
  (see `participation`). Amplification by secrecy is not claimed: the dense columns of W give away
  when the record took part.
"""

import math

import numpy as np

from tfdp.accounting import claims, gaussian
from tfdp.accounting.analysis import (
    Analysis,
    UnboundedSensitivity,
    common_assumptions,
    sensitivity,
)
from tfdp.accounting.linear_response import (
    Dynamics,
    cyclic_squared_response,
    envelope_squared_response,
    squared_response,
)
from tfdp.accounting.participation import prefix_sum_law, triangle_law
from tfdp.accounting.privacy_loss import GaussianLoss, RandomGaussianLoss
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
    if run.sampling == "with_replacement" or (
        run.sampling == "poisson" and run.lot_size < run.num_examples
    ):
        loss, details = _random(run, dynamics, factor, delta)
    else:
        squares, details = squared_norms(run, dynamics, np.array([run.steps]))
        norm = math.sqrt(squares[0])
        details["response_norm"] = norm
        loss = GaussianLoss(factor * norm / run.noise_multiplier)
    details["sensitivity"] = factor
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


def squared_norms(run: Run, dynamics: Dynamics, steps: np.ndarray) -> tuple[np.ndarray, dict]:
    """||W m||^2 of the worst record after each of `steps`, for non-random participation.

    Args:
      run: The run; a Poisson run only where every lot is the whole data set.
      dynamics: Coefficients of `run`.
      steps: Step counts in 1..T, increasing.

    Returns:
      (squares, details).
    """
    if run.sampling == "cyclic" or (run.sampling == "shuffle" and dynamics.non_increasing):
        squares = cyclic_squared_response(dynamics, run.steps_per_epoch, steps)
        scan = "offset 0" if dynamics.non_increasing else "all offsets"
        return squares, {"bound": f"worst participation pattern ({scan})"}
    if run.sampling == "shuffle":
        squares = envelope_squared_response(dynamics, run.steps_per_epoch, steps)
        return squares, {"bound": "envelope over every epoch"}
    squares = squared_response(dynamics, np.ones(dynamics.steps))
    return squares[steps - 1], {"bound": "participation in every step"}


def _random(run: Run, dynamics: Dynamics, factor: float, delta: float):
    if dynamics.is_prefix_sum:
        squares, probabilities, overflow = prefix_sum_law(run, delta)
        # The draws around one mean, and the ratio of the two rates, scale every row alike.
        squares = squares * dynamics.row_weight[0] * dynamics.lr[0] ** 2
        details = {"bound": "Theorem B, binned law of prefix sums"}
    else:
        squares, probabilities, overflow = triangle_law(run, dynamics, delta)
        details = {"bound": "Theorem B, law of the sum of column norms"}
    scale = factor / run.noise_multiplier
    details["response_norm_mean"] = float(np.sqrt(squares) @ probabilities)
    return RandomGaussianLoss(squares * scale * scale, probabilities, overflow), details


def curve(run: Run, counts: np.ndarray, delta: float, adjacency: str) -> list[float]:
    """Proven epsilon after each of `counts` steps, from one pass over the steps.

    Args:
      run: With `steps` the largest of `counts`, and a finite guarantee there.
      counts: Step counts, increasing, at least 0.
      delta: Probability in (0, 1).
      adjacency: Neighbouring relation.

    Returns:
      One upper bound for each of `counts`.
    """
    dynamics = Dynamics.of(run)
    scale = sensitivity(run, adjacency) / run.noise_multiplier
    if not isinstance(analyse(run, delta, adjacency).losses[0], GaussianLoss):
        return [_random_epsilon(run.with_(steps=int(n)), scale, delta) for n in counts]
    positive = counts[counts > 0]
    squares = squared_norms(run, dynamics, positive)[0] if len(positive) else []
    zeros = [0.0] * (len(counts) - len(positive))
    return zeros + [gaussian.epsilon_of_mu(scale * math.sqrt(s), delta) for s in squares]


def _random_epsilon(run: Run, scale: float, delta: float) -> float:
    """Coarse but valid: the law of the sum of column norms."""
    if run.steps == 0:
        return 0.0
    squares, probabilities, overflow = triangle_law(run, Dynamics.of(run), delta, levels=100)
    return gaussian.epsilon_of_mixture(squares * scale * scale, probabilities, overflow, delta)
