"""Proven analysis of linear functions of all clipped sums with Gaussian noise: SI-DPSGD and matrices.

Both mechanisms release y = W G / C + z xi, where G are the clipped sums of all steps, W is a
lower-triangular matrix of public numbers and xi are independent Gaussians. Given the multiplicities m
of a record, the release is mu-GDP for zero_out with mu = ||W m|| / z if W >= 0 (Theorem A, see
`linear_response`; with entries of both signs, |W| replaces W), and replace_one doubles mu.
The sampling determines the possible m:

* "cyclic": the record is in every steps_per_epoch-th step; the worst offset counts.
* "shuffle": the record is in one step of every epoch.
* "unknown": the record is in every step.
* independent draws in every step ("poisson", "with_replacement", "fixed_size"): the profile is an
  average of Gaussian profiles over the law of ||W m|| (Theorem B, see `participation`). The secrecy
  of the sample amplifies nothing here: a dense column reveals when the record took part.
* "cyclic_poisson": the record is in every turn of one group; the worst group counts.

SI-DPSGD. The paper's Lemma 4.1 compares the weights of one step as if the means of two neighbours
agreed before the step. They do not: the mean carries every earlier difference without noise. Theorem A
holds instead: the sequence of released weights is a matrix mechanism, tight for linear losses.
Publishing only the last weights has no better proven bound.

Matrix mechanisms. Releasing every clipped sum with noise C^-1 z is as private as releasing C G + z: a
matrix mechanism with W = C (Denisov et al. 2022, Theorem 2.1; several participations: Choquette-Choo
et al. 2023). A longer run only adds rows to C, so the same strategy applies to every number of steps.
There is one amplified case, "cyclic_poisson" sampling with bands <= groups. A record can be drawn in
every groups-th step only, and the columns of C of two such steps have no nonzero row in common. Each
turn of the record's group is therefore one Poisson-subsampled Gaussian whose shift is the first column
of C: ceil(steps / groups) rounds with probability groups * L/N and multiplier z / ||c||
(Choquette-Choo et al. 2023, amplified banded matrix factorization). One band is DP-SGD.
"""

import functools
import math
from collections.abc import Callable

import numpy as np

from tfdp.accounting import gaussian_steps
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.mechanisms import Matrix, NoisyMechanism
from tfdp.accounting.numerics.linear_response import Dynamics, Toeplitz, largest_square
from tfdp.accounting.numerics.participation import Law, draws, prefix_sum_law, triangle_law
from tfdp.accounting.numerics.privacy_loss import GaussianLoss, Loss, RandomGaussianLoss
from tfdp.accounting.run import Run

# Makes the response W of a run.
ResponseOf = Callable[[Run], Dynamics | Toeplitz]


def prove_means(run: Run, delta: float, adjacency: str) -> Analysis:
    """The theorem of SI-DPSGD."""
    bare = Dynamics.of(run).bare_step
    if bare is not None:
        return Analysis(
            reason=f"The weights of step {bare} were released without noise: the learning rate "
            "that scales it is 0 there."
        )
    return _linear(run, Dynamics.of, delta, adjacency)


def prove_matrix(run: Run, delta: float, adjacency: str) -> Analysis:
    """The theorem of matrix mechanisms."""
    mechanism = run.mechanism
    assert isinstance(mechanism, Matrix)
    column, noise = mechanism.strategy.first(run.steps), mechanism.noise_multiplier
    if mechanism.strategy.bands == 1:  # DP-SGD with noise z / c_0 on every sum
        return gaussian_steps.analyse_sums(run, noise / float(column[0]), delta, adjacency)
    if _amplifies(run, len(column)):
        return gaussian_steps.amplified(run, noise / float(np.linalg.norm(column)), adjacency)
    return _linear(run, Toeplitz.of, delta, adjacency)


def _amplifies(run: Run, bands: int) -> bool:
    """Whether the secrecy of the sample amplifies the steps (see the module's docstring)."""
    sampling = run.sampling
    return (
        sampling.coin_flips
        and sampling.draws(1, 0.0) is None
        and bands <= sampling.groups
        and run.contribution.max_examples_per_user == 1
        and sampling.probability < 1
    )


def _linear(run: Run, response: ResponseOf, delta: float, adjacency: str) -> Analysis:
    """The loss by Theorem A, or by Theorem B for independent draws."""
    assert isinstance(run.mechanism, NoisyMechanism)
    noise = float(run.schedule("noise_multiplier")[0])
    constant = not isinstance(run.mechanism.noise_multiplier, tuple)
    at_1 = run.with_noise(1.0 if constant else 1 / noise)
    sensitivity = gaussian_steps.sensitivity(run, adjacency)
    if draws(run, 0.0) is None:
        mu = sensitivity * math.sqrt(_largest_square(at_1, response)) / noise
        loss: Loss = GaussianLoss(mu)
    else:
        # The law of the draws counts all examples of a user, so one occurrence is meant here.
        scale = gaussian_steps.sensitivity(run.for_users(1), adjacency)
        squares, probabilities, overflow = _law(at_1, response, delta)
        squares = squares * scale * scale / (noise * noise)
        loss = RandomGaussianLoss(squares, probabilities, overflow)
    return Analysis((loss,), details={"sensitivity": sensitivity})


@functools.lru_cache(maxsize=8)  # calibration tries one run with many noises
def _largest_square(run: Run, response: ResponseOf) -> float:
    return largest_square(run.sampling, response(run))


@functools.lru_cache(maxsize=8)
def _law(run: Run, response: ResponseOf, delta: float) -> Law:
    """The law of ||W m||^2, or of an upper bound."""
    matrix = response(run)
    prefix_sum = matrix.prefix_sum_scale()
    if prefix_sum is None:
        return triangle_law(run, matrix.column_norms(), delta)
    squares, probabilities, overflow = prefix_sum_law(run, delta)
    return squares * prefix_sum * prefix_sum, probabilities, overflow
