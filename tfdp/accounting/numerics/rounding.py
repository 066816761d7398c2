"""What rounding of SI-DPSGD's un-noised means adds: numbers that are rounded before the noise.

Two trainings on neighbouring data round different numbers, so that in every step and every weight they
may differ by what both roundings do, besides what the record does. With u = 2^-53, means of at most M,
velocities of at most V and a rate eta, the roundings of one update (sum, product, velocity, division)
come to at most u (M + 8 eta V), so that over d weights and both trainings a step adds

    2 sqrt(d) u (8 V + M / eta)

to the gradient. In units of C / L, which is what one participation adds, that is a participation of the
size r in *every* step; where W >= 0 (see `linear_response`) it moves the release by at most r ||W 1||,
whatever the signs are. Norms add, so mu grows by r ||W 1|| / z. M and V come from public numbers: lots
with more rows than `Sampling.usual_rows` have a chance below 1e-30, which is left out.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from tfdp.accounting.numerics.linear_response import Dynamics

if TYPE_CHECKING:
    from tfdp.accounting.run import Run

_UNIT = 2.0**-53


def added_mu(run: "Run", dynamics: Dynamics, per_clip_norm: float) -> float:
    """What rounding adds to mu.

    Args:
      run: Of SI-DPSGD, with at least one step; 0 where its means are exact numbers.
      dynamics: Of the run.
      per_clip_norm: mu of a shift of one clip norm of the first step's sum.
    """
    mechanism, clip = run.mechanism, run.contribution.l2_norm_clip
    if mechanism.num_weights is None:
        return 0.0
    if clip is None or mechanism.learning_rates is None:
        return math.inf  # the size of a step is not known
    largest_mean = run.sampling.usual_rows() / run.lot_size * clip
    velocity = largest_mean / (1.0 - float(np.max(dynamics.beta, initial=0.0)))
    mean = mechanism.largest_start + float(dynamics.lr.sum()) * velocity
    velocity += mean  # what a weight regularizer may add
    rates = dynamics.lr[dynamics.lr > 0]
    if not len(rates):
        return 0.0
    step = 2 * math.sqrt(mechanism.num_weights) * _UNIT * (8 * velocity + mean / rates.min())
    relative = step * run.lot_size / clip
    return per_clip_norm * relative * math.sqrt(dynamics.every_step(np.array([run.steps]))[0])
