"""What SI-DPSGD and correlated noise share: noise on linear functions of all clipped sums.

Both release y = W G / C + z xi, with G the clipped sums of all steps, W a lower-triangular matrix of
public numbers and xi independent Gaussians. Given the multiplicities m of a record, the release is
mu-GDP for zero_out with mu = ||W m|| / z where W >= 0 (Theorem A, see `linear_response`; with
entries of both signs, |W| stands for W), and replace_one doubles it. What m can be is decided by the
sampling:

* "cyclic": in every steps_per_epoch-th step; the worst offset.
* "shuffle": somewhere in every epoch.
* "unknown": in every step.
* independent draws in every step ("poisson", "with_replacement", "fixed_size"): an average of
  Gaussian profiles over the law of ||W m|| (Theorem B, see `participation`). Nothing is amplified
  here: a dense column gives away when it was used.
* "cyclic_poisson": in every turn of one group.
"""

import dataclasses
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tfdp.accounting.numerics import gaussian
from tfdp.accounting.numerics.participation import prefix_sum_law, triangle_law
from tfdp.accounting.numerics.privacy_loss import GaussianLoss, Loss, RandomGaussianLoss

if TYPE_CHECKING:
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


def loss_of(run: "Run", response: Response, scale: float, delta: float) -> tuple[Loss, dict]:
    """The privacy loss of a run with at least one step.

    Args:
      run: The run.
      response: Its matrix.
      scale: Sensitivity of one participation over the noise, both in clip norms.
      delta: Decides how much tail mass is left out under random sampling.

    Returns:
      (loss, details).
    """
    if run.sampling.trials() is not None:
        return _random(run, response, scale, delta)
    squares, how = run.sampling.squares(response, np.array([run.steps]))
    norm = math.sqrt(squares[0])
    return GaussianLoss(scale * norm), {"bound": how, "response_norm": norm}


def _random(run: "Run", response: Response, scale: float, delta: float) -> tuple[Loss, dict]:
    prefix_sum = response.prefix_sum_scale()
    if prefix_sum is not None:
        squares, probabilities, overflow = prefix_sum_law(run, delta)
        squares = squares * prefix_sum * prefix_sum
        details = {"bound": "Theorem B, binned law of prefix sums"}
    else:
        squares, probabilities, overflow = triangle_law(run, response, delta)
        details = {"bound": "Theorem B, law of the sum of column norms"}
    details["response_norm_mean"] = float(np.sqrt(squares) @ probabilities)
    return RandomGaussianLoss(squares * scale * scale, probabilities, overflow), details


def moved_further(loss: Loss, added: float) -> Loss:
    """The loss of a release that a record moves by up to `added` standard deviations more."""
    if isinstance(loss, GaussianLoss):
        return GaussianLoss(loss.mu + added)
    return dataclasses.replace(loss, squares=(np.sqrt(loss.squares) + added) ** 2)


def typical_mu(loss: Loss) -> float:
    """mu, or the root of its mean square where it is random."""
    if isinstance(loss, GaussianLoss):
        return loss.mu
    return math.sqrt(float(loss.squares @ loss.probabilities))


def curve(
    run: "Run",
    response_of,
    counts: np.ndarray,
    scale: float,
    delta: float,
    added: float = 0.0,
) -> list[float]:
    """Proven epsilon after each of `counts` steps, from one pass over the steps.

    Args:
      run: With `steps` the largest of `counts`, and a finite guarantee there.
      response_of: Function from a run to its `Response`.
      counts: Step counts, increasing, at least 0.
      scale: Sensitivity of one participation over the noise, both in clip norms.
      delta: Probability in (0, 1).
      added: What is added to mu, as by `moved_further`.

    Returns:
      One upper bound for each of `counts`.
    """
    if run.sampling.trials() is not None:
        return [
            _coarse(run.with_(steps=int(n)), response_of, scale, delta, added) if n else 0.0
            for n in counts
        ]
    positive = counts[counts > 0]
    squares = run.sampling.squares(response_of(run), positive)[0] if len(positive) else []
    zeros = [0.0] * (len(counts) - len(positive))
    return zeros + [gaussian.epsilon_of_mu(scale * math.sqrt(s) + added, delta) for s in squares]


def _coarse(run: "Run", response_of, scale: float, delta: float, added: float) -> float:
    """Valid but not tight: the law of the sum of column norms."""
    squares, probabilities, overflow = triangle_law(run, response_of(run), delta, levels=100)
    squares = (np.sqrt(squares) * scale + added) ** 2
    return gaussian.epsilon_of_mixture(squares, probabilities, overflow, delta)
