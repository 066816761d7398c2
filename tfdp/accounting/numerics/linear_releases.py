"""Releases of linear functions of all clipped sums with Gaussian noise: SI-DPSGD, correlated noise.

Both mechanisms release y = W G / C + z xi, where G are the clipped sums of all steps, W is a
lower-triangular matrix of public numbers and xi are independent Gaussians. Given the multiplicities m
of a record, the release is mu-GDP for zero_out with mu = ||W m|| / z if W >= 0 (Theorem A, see
`linear_response`; with entries of both signs, |W| takes the place of W), and replace_one doubles mu.
The sampling determines the possible m:

* "cyclic": the record is in every steps_per_epoch-th step; the worst offset counts.
* "shuffle": the record is in one step of every epoch.
* "unknown": the record is in every step.
* independent draws in every step ("poisson", "with_replacement", "fixed_size"): the profile is an
  average of Gaussian profiles over the law of ||W m|| (Theorem B, see `participation`). The secrecy
  of the sample amplifies nothing here: a dense column reveals when the record took part.
* "cyclic_poisson": the record is in every turn of one group; the worst group counts.
"""

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tfdp.accounting.numerics.participation import draws, prefix_sum_law, triangle_law
from tfdp.accounting.numerics.privacy_loss import GaussianLoss, RandomGaussianLoss

if TYPE_CHECKING:
    from tfdp.accounting.run import Run


class Response(Protocol):
    """The matrix W: bounds on ||W m||^2 over all steps, for the patterns m that a sampling allows."""

    def cyclic(self, period: int) -> tuple[float, str]:
        """||W m||^2 of the worst record that is in every `period`-th step; and the method in words."""

    def shuffled(self, period: int) -> tuple[float, str]:
        """Bound for a record in one step of every epoch of `period` steps; and the method in words."""

    def column_norms(self) -> np.ndarray:
        """Norms of all columns, shape (number of steps,)."""

    def prefix_sum_scale(self) -> float | None:
        """The number w if W is w times the matrix of prefix sums, else None."""


def loss_of(run: "Run", adjacency: str, delta: float):
    """(privacy loss, JSON-safe facts about it) of a run whose mechanism has a `response`.

    `delta` determines how much tail mass of a random sampling is left out.
    """
    noise = float(run.schedule("noise_multiplier")[0])
    constant = not isinstance(run.mechanism.noise_multiplier, tuple)
    loss, details = _at_noise_1(run.with_noise(1.0 if constant else 1 / noise), adjacency, delta)
    if isinstance(loss, GaussianLoss):
        return GaussianLoss(loss.mu / noise), dict(details)
    return dataclasses.replace(loss, squares=loss.squares / (noise * noise)), dict(details)


@functools.lru_cache(maxsize=8)  # calibration tries one run with many noises
def _at_noise_1(run: "Run", adjacency: str, delta: float):
    contribution, sampling, response = run.contribution, run.sampling, run.mechanism.response(run)
    divisor, examples = contribution.noise_divisor, contribution.max_examples_per_user
    details = {"sensitivity": divisor * contribution.sensitivity(sampling, adjacency, examples)}
    if draws(run, 0.0) is None:
        square, details["bound"] = sampling.squares(response)
        return GaussianLoss(details["sensitivity"] * math.sqrt(square)), details
    # The law of the draws counts all examples of a user, so one occurrence is meant here.
    scale = divisor * contribution.sensitivity(sampling, adjacency)
    prefix_sum = response.prefix_sum_scale()
    if prefix_sum is not None:
        squares, probabilities, overflow = prefix_sum_law(run, delta)
        squares = squares * prefix_sum * prefix_sum
        details["bound"] = "Theorem B, binned law of prefix sums"
    else:
        squares, probabilities, overflow = triangle_law(run, response.column_norms(), delta)
        details["bound"] = "Theorem B, law of the sum of column norms"
    return RandomGaussianLoss(squares * scale * scale, probabilities, overflow), details
