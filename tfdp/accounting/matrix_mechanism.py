"""What SI-DPSGD and correlated noise share: noise on linear functions of all clipped sums.

Both release y = W G / C + z xi, with G the clipped sums of all steps, W a lower-triangular matrix of
public numbers and xi independent Gaussians. Given the multiplicities m of a record, the release is
mu-GDP for zero_out with mu = ||W m|| / z where W >= 0 (Theorem A, see `linear_response`; with
entries of both signs, |W| stands for W), and replace_one doubles it. What m can be is decided by the
sampling:

* "cyclic": in every steps_per_epoch-th step; the worst offset.
* "shuffle": somewhere in every epoch.
* "unknown": in every step.
* "poisson", "with_replacement": an average of Gaussian profiles over the law of ||W m|| (Theorem B,
  see `participation`). Nothing is amplified here: a dense column gives away when it was used.
* "cyclic_poisson": in every turn of one group.
"""

import math
from typing import Protocol

import numpy as np

from tfdp.accounting import gaussian
from tfdp.accounting.participation import prefix_sum_law, triangle_law
from tfdp.accounting.privacy_loss import GaussianLoss, Loss, RandomGaussianLoss
from tfdp.accounting.run import Run


class Response(Protocol):
    """How far a record moves a release: ||W m||^2 for the patterns m that a sampling allows.

    Step counts come in increasing order, at least 1, and every method returns one number for each.
    """

    def cyclic(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """Worst record in every `period`-th step; and how it was found, in words."""

    def shuffled(self, period: int, steps: np.ndarray) -> tuple[np.ndarray, str]:
        """Bound for a record somewhere in every epoch of `period` steps; and how."""

    def every_step(self, steps: np.ndarray) -> np.ndarray:
        """A record in every step."""

    def column_norms(self) -> np.ndarray:
        """Norms of all columns."""

    def prefix_sum_scale(self) -> float | None:
        """w where W is w times the matrix of prefix sums, else None."""


def is_random(run: Run) -> bool:
    """Whether the number of participations of a record is random, with a law to average over."""
    return run.sampling == "with_replacement" or (
        run.sampling == "poisson" and run.lot_size < run.num_examples
    )


def loss_of(run: Run, response: Response, factor: float, delta: float) -> tuple[Loss, dict]:
    """The privacy loss of a run with at least one step.

    Args:
      run: The run.
      response: Its matrix.
      factor: Sensitivity of one participation in clip norms.
      delta: Decides how much tail mass is left out under random sampling.

    Returns:
      (loss, details).
    """
    if is_random(run):
        return _random(run, response, factor, delta)
    squares, details = squared_norms(run, response, np.array([run.steps]))
    norm = math.sqrt(squares[0])
    details["response_norm"] = norm
    return GaussianLoss(factor * norm / run.noise_multiplier), details


def squared_norms(run: Run, response: Response, steps: np.ndarray) -> tuple[np.ndarray, dict]:
    """||W m||^2 of the worst record after each of `steps`, for non-random participation.

    Args:
      run: The run; a Poisson run only where every lot is the whole data set.
      response: Its matrix.
      steps: Step counts in 1..T, increasing.

    Returns:
      (squares, details).
    """
    if run.sampling == "cyclic":
        squares, how = response.cyclic(run.steps_per_epoch, steps)
    elif run.sampling == "cyclic_poisson":
        squares, how = response.cyclic(run.groups, steps)
    elif run.sampling == "shuffle":
        squares, how = response.shuffled(run.steps_per_epoch, steps)
    else:
        squares, how = response.every_step(steps), "participation in every step"
    return squares, {"bound": how}


def _random(run: Run, response: Response, factor: float, delta: float) -> tuple[Loss, dict]:
    scale = response.prefix_sum_scale()
    if scale is not None:
        squares, probabilities, overflow = prefix_sum_law(run, delta)
        squares = squares * scale * scale
        details = {"bound": "Theorem B, binned law of prefix sums"}
    else:
        squares, probabilities, overflow = triangle_law(run, response, delta)
        details = {"bound": "Theorem B, law of the sum of column norms"}
    scale = factor / run.noise_multiplier
    details["response_norm_mean"] = float(np.sqrt(squares) @ probabilities)
    return RandomGaussianLoss(squares * scale * scale, probabilities, overflow), details


def curve(run: Run, response_of, counts: np.ndarray, factor: float, delta: float) -> list[float]:
    """Proven epsilon after each of `counts` steps, from one pass over the steps.

    Args:
      run: With `steps` the largest of `counts`, and a finite guarantee there.
      response_of: Function from a run to its `Response`.
      counts: Step counts, increasing, at least 0.
      factor: Sensitivity of one participation in clip norms.
      delta: Probability in (0, 1).

    Returns:
      One upper bound for each of `counts`.
    """
    scale = factor / run.noise_multiplier
    if is_random(run):
        return [
            _coarse(run.with_(steps=int(n)), response_of, scale, delta) if n else 0.0
            for n in counts
        ]
    positive = counts[counts > 0]
    squares = squared_norms(run, response_of(run), positive)[0] if len(positive) else []
    zeros = [0.0] * (len(counts) - len(positive))
    return zeros + [gaussian.epsilon_of_mu(scale * math.sqrt(s), delta) for s in squares]


def _coarse(run: Run, response_of, scale: float, delta: float) -> float:
    """Valid but not tight: the law of the sum of column norms."""
    squares, probabilities, overflow = triangle_law(run, response_of(run), delta, levels=100)
    return gaussian.epsilon_of_mixture(squares * scale * scale, probabilities, overflow, delta)
