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
  average of Gaussian profiles over the law of ||W m|| (Theorem B, see `participation`), with the
  sample revealed.
* "cyclic_poisson": the record is in every turn of one group; the worst group counts.

Theorems F and G count the sample as secret. The smallest epsilon is stated.

Theorem F (coin flips). Let each `length` steps in which a record can take part be a block, and let a
matrix K bound the inner products of columns of |W| from any two blocks (`joint_square`), with the
largest eigenvalue lambda^2. The releases are no easier to tell apart than those of DP-SGD with noise
z / lambda and one lot for each block, which has a record as often as `length` coin flips show heads.

Proof. 1. The lemma of `pairs` over time. Let p_i be the chance of the draws i, a_t^i and b_t^i the
shifts of release t under D and D' (functions of earlier releases, given the draws of all others), and
h_t^i = (|W| m^i)_t. For replace_one, |a_t^i| and |b_t^i| are at most h_t^i; for zero_out, b is 0. After
t releases, let v_i and w_i be p_i times their likelihood ratio: with the draws i, under D and D', over
noise alone. If all later shifts are h_t^i and -h_t^i (or 0) on a line, then H_alpha is V_t(v, w), with
V_T = max(sum v - alpha sum w, 0). Release t multiplies v_i and w_i by exp(<shift, x> - |shift|^2 / 2)
with Gaussian x. Factors are positive, so all V_t inherit from V_T that second derivatives are at least
0 within v and within w, and at most 0 for one of each. By the lemma's integration by parts, E V_t
increases with the inner products of two a_t or two b_t, and falls with those of an a_t and a b_t. These
are at most h_t^i h_t^j, and at least -h_t^i h_t^j (or 0). So no choice of shift t exceeds V_(t-1), and
backwards over t none of all shifts exceeds V_0.
2. V_0 is for the mixtures of N(|W| m^i) and N(-|W| m^i) (or N(0)). It is attained if W >= 0, by one
gradient in all steps. Its centres have the inner products <|W| m^i, |W| m^j>, at most the sum over
blocks of n_e^i n_f^j K_ef with n^i the numbers of draws in the blocks. By the same lemma, centres with
these products (K plus a multiple of the identity, if it has negative eigenvalues) give no less.
3. If vectors w_e have the inner products K, sum_e n_e w_e + z xi is sum_e w_e (n_e + z / lambda xi_e)
and independent noise of covariance z^2 (I - sum_e w_e w_e' / lambda^2), which is positive semidefinite.

Long blocks have a small lambda, since few columns add up, and short ones little chance of a draw. With
blocks of one step and much noise, the bound is nearly attained: all that is left is a shift by the
mean W q.

Theorem G (all random lots). With lambda = || |W| ||, the releases are W (G / C + z / lambda xi) and
independent noise, by 3. Row t has only the first t sums, so they are post-processing of DP-SGD with
noise z / lambda, whatever its theorem is.

SI-DPSGD. The paper's Lemma 4.1 compares the weights of one step as if the means of two neighbours
agreed before the step. They do not: the mean carries every earlier difference without noise. Theorem A
holds instead: the sequence of released weights is a matrix mechanism, tight for linear losses.
Publishing only the last weights has no better proven bound.

Matrix mechanisms. Releasing every clipped sum with noise C^-1 z is as private as releasing C G + z: a
matrix mechanism with W = C (Denisov et al. 2022, Theorem 2.1; several participations: Choquette-Choo et
al. 2023). A longer run only adds rows to C, so the same strategy applies to every number of steps. With
"cyclic_poisson" sampling and bands <= groups, the columns of two steps of a record have no nonzero row
in common, so Theorem F with blocks of one step is exact: ceil(steps / groups) rounds with probability
groups * L/N and multiplier z / ||c|| (Choquette-Choo et al. 2023, amplified banded matrix
factorization). One band is DP-SGD.
"""

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from tfdp.accounting import gaussian_steps
from tfdp.accounting.analysis import Analysis
from tfdp.accounting.mechanisms import Matrix, NoisyMechanism
from tfdp.accounting.numerics.linear_response import Dynamics, Toeplitz
from tfdp.accounting.numerics.participation import Law, draws, prefix_sum_law, triangle_law
from tfdp.accounting.numerics.privacy_loss import (
    GaussianLoss,
    Loss,
    RandomGaussianLoss,
    epsilon_of,
)
from tfdp.accounting.run import Run

# A function that returns the response W of a run.
ResponseOf = Callable[[Run], Dynamics | Toeplitz]

# Ratio between successive lengths of blocks that are tried.
_LENGTHS = 4
# Largest shift of a block with its mean number of draws, in standard deviations of its noise. Beyond
# it, epsilon is in the hundreds, and computing it takes long.
_LARGEST_SHIFT = 10.0


def prove_means(run: Run, delta: float, adjacency: str) -> Analysis:
    """Returns the privacy losses of SI-DPSGD by its theorem."""
    bare = Dynamics.of(run).bare_step
    if bare is not None:
        return Analysis(
            reason=f"The weights of step {bare} were released without noise: the learning rate "
            "that scales it is 0 there."
        )
    return _linear(run, Dynamics.of, delta, adjacency)


def prove_matrix(run: Run, delta: float, adjacency: str) -> Analysis:
    """Returns the privacy losses of matrix mechanisms by their theorem."""
    mechanism = run.mechanism
    assert isinstance(mechanism, Matrix)
    column, noise = mechanism.strategy.first(run.steps), mechanism.noise_multiplier
    if mechanism.strategy.bands == 1:  # DP-SGD with noise z / c_0 on every sum
        return gaussian_steps.analyse_sums(run, noise / float(column[0]), delta, adjacency)
    sampling, alone = run.sampling, run.contribution.max_examples_per_user == 1
    if (
        sampling.coin_flips
        and len(column) <= sampling.groups
        and alone
        and sampling.probability < 1
    ):
        # Theorem F for blocks of one step, whose columns are orthogonal, so the bound is exact.
        return gaussian_steps.amplified(run, noise / float(np.linalg.norm(column)), adjacency)
    return _linear(run, Toeplitz.of, delta, adjacency)


def _linear(run: Run, response: ResponseOf, delta: float, adjacency: str) -> Analysis:
    """The smallest loss by Theorem A, or B for independent draws, and by Theorems F and G."""
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
    revealed = Analysis((loss,), details={"sensitivity": sensitivity})
    secret = _secret(run, at_1, noise, response, delta, adjacency)
    return gaussian_steps.smallest([revealed, *secret], delta)


def _secret(
    run: Run, at_1: Run, noise: float, response: ResponseOf, delta: float, adjacency: str
) -> Iterator[Analysis]:
    """Theorem F for coin flips, Theorem G for other lots that are drawn at random."""
    sampling, users = run.sampling, run.contribution.max_examples_per_user
    if not sampling.random_lots or sampling.probability >= 1:
        return
    if not (sampling.coin_flips and (users == 1 or sampling.groups == 1)):
        independent = _independent_noise(at_1, noise, response, 1, 1)
        if independent * _LARGEST_SHIFT > 1:
            yield gaussian_steps.analyse_sums(run, independent, delta, adjacency)
        return
    length, turns, last = 1, sampling.participations(run.steps), math.inf
    while length < _LENGTHS * turns:
        independent = _independent_noise(at_1, noise, response, sampling.groups, length)
        drawn = max(length * users * sampling.probability, 1.0)
        if independent * _LARGEST_SHIFT > drawn:
            found = gaussian_steps.amplified(run, independent, adjacency, min(length, turns))
            yield found
            epsilon = epsilon_of(found.losses, delta).epsilon
            if epsilon > 2 * last:  # longer blocks cost even more
                return
            last = epsilon
        length *= _LENGTHS


def _independent_noise(
    at_1: Run, noise: float, response: ResponseOf, period: int, length: int
) -> float:
    """z / lambda, or 0 if there is no bound on lambda, or nothing is released."""
    square = _joint_square(at_1, response, period, length)
    return noise / math.sqrt(square) if square > 0 else 0.0


@functools.lru_cache(maxsize=8)  # calibration tries one run with many noises
def _largest_square(run: Run, response: ResponseOf) -> float:
    matrix, period = response(run), run.sampling.round_length
    return matrix.cyclic(period) if run.sampling.periodic else matrix.shuffled(period)


@functools.lru_cache(maxsize=64)
def _joint_square(run: Run, response: ResponseOf, period: int, length: int) -> float:
    return response(run).joint_square(period, length)


@functools.lru_cache(maxsize=8)
def _law(run: Run, response: ResponseOf, delta: float) -> Law:
    """The law of ||W m||^2, or of an upper bound."""
    matrix = response(run)
    prefix_sum = matrix.prefix_sum_scale()
    if prefix_sum is None:
        return triangle_law(run, matrix.column_norms(), delta)
    squares, probabilities, overflow = prefix_sum_law(run, delta)
    return squares * prefix_sum * prefix_sum, probabilities, overflow
