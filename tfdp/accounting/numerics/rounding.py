"""Privacy loss by the rounding of SI-DPSGD's un-noised means, which happens before noise is added.

Two trainings on neighbouring data round different numbers. In every step and every weight they may
therefore differ by the rounding errors of both, besides the contribution of the record. With
u = 2^-53, means of at most M, velocities of at most V and a rate eta, the rounding errors of one update
(sum, product, velocity, division) are at most u (M + 8 eta V) together, so over d weights and both
trainings a step adds

    2 sqrt(d) u (8 V + M / eta)

to the gradient. In units of C / L, the size of one participation, this is a participation of size r in
*every* step. If W >= 0 (see `linear_response`), it moves the release by at most r ||W 1||, whatever
the signs of the errors are. Norms add, so mu grows by r ||W 1|| / z. M and V come from public numbers;
they assume that no lot has more rows than `Sampling.usual_rows`. Each lot has more with a probability
below 1e-30, which is left out.
"""

import math
from typing import TYPE_CHECKING

import numpy as np

from tfdp.accounting.numerics.linear_response import Dynamics

if TYPE_CHECKING:
    from tfdp.accounting.run import Run

_UNIT = 2.0**-53


def added_mu(run: "Run", dynamics: Dynamics, per_clip_norm: float) -> float:
    """Increase of mu by rounding.

    Args:
      run: Run of SI-DPSGD with at least one step.
      dynamics: Coefficients of the run.
      per_clip_norm: mu that belongs to a shift of the first step's sum by one clip norm.

    Returns:
      A number of at least 0: 0 if the run takes its means for exact numbers, infinite if the clip norm
      or the learning rates are not known.
    """
    mechanism, clip = run.mechanism, run.contribution.l2_norm_clip
    if mechanism.num_weights is None:
        return 0.0
    if clip is None or mechanism.learning_rates is None:
        return math.inf  # the size of a step is not known
    largest_mean = run.sampling.usual_rows() / run.lot_size * clip
    velocity = largest_mean / (1.0 - float(np.max(dynamics.beta, initial=0.0)))
    mean = mechanism.largest_start + float(dynamics.lr.sum()) * velocity
    velocity += mean  # bound on the gradient of a weight regularizer
    rates = dynamics.lr[dynamics.lr > 0]
    if not len(rates):
        return 0.0
    step = 2 * math.sqrt(mechanism.num_weights) * _UNIT * (8 * velocity + mean / rates.min())
    relative = step * run.lot_size / clip
    return per_clip_norm * relative * math.sqrt(dynamics.every_step(np.array([run.steps]))[0])
