"""Advice for users of SI-DPSGD: the noise of DP-SGD at the same proven epsilon.

Theorem E. At a constant learning rate in fixed-order epochs, the largest noise on the prefix sums
of SI-DPSGD is sqrt((k+1)(2k+1)/(6k)) >= 1 times that of DP-SGD without amplification, where k is the
number of participations. The noise of SI-DPSGD does not accumulate over the steps, but its un-noised
means require at least as much additional noise as this saves.
"""

import dataclasses
import math

import numpy as np

from tfdp.accounting.calibration import CalibrationError, noise_for
from tfdp.accounting.comparison import Advice
from tfdp.accounting.composition import proven
from tfdp.accounting.guarantee import VACUOUS_ABOVE, format_epsilon
from tfdp.accounting.mechanisms.dpsgd import DPSGD
from tfdp.accounting.numerics.linear_response import Dynamics, full_columns
from tfdp.accounting.run import Run
from tfdp.accounting.sampling import Poisson


def advise(run: Run, delta: float, adjacency: str) -> Advice | None:
    """Compares an SI-DPSGD run with DP-SGD at the same proven epsilon.

    DP-SGD's noise passes through the update rule: its standard deviation in the final weights is
    z' C/L sqrt(sum of H_s^2), where H_s is the change of the final weights per unit of the gradient
    of step s (without momentum, the learning rate of step s). The standard deviation of SI-DPSGD's
    noise in the final weights is z C/L times the last noise learning rate.

    Args:
      run: Run of the SI-DPSGD mechanism.
      delta: Probability in (0, 1).
      adjacency: Neighbouring relation.

    Returns:
      An `Advice`, or None for a run without steps.
    """
    if run.steps == 0:
        return None
    target = proven(run, delta, adjacency)
    if math.isinf(target.epsilon):
        return Advice(
            math.inf, None, None, None, None, None,
            f"Nothing finite is proven for this run: {target.reason}",
        )  # fmt: skip
    other = run.with_(mechanism=DPSGD(noise_multiplier=1.0))
    same = _noise(target.epsilon, delta, other, adjacency)
    poisson = None
    if target.epsilon <= VACUOUS_ABOVE:
        poisson = _noise(target.epsilon, delta, other.with_(sampling=_poisson(run)), adjacency)
    walk = float(np.linalg.norm(full_columns(Dynamics.of(run))))
    noise_rates = run.schedule("noise_learning_rates") * run.schedule("noise_multiplier")

    def ratio(noise: float, noise_rate: float) -> float | None:
        return float(noise_rate) / (noise * walk) if noise and walk else None

    result = Advice(
        epsilon=target.epsilon,
        noise_same_sampling=same,
        noise_poisson=poisson,
        final_noise_ratio=ratio(same, noise_rates[-1]),
        final_noise_ratio_poisson=ratio(poisson, noise_rates[-1]),
        prefix_noise_ratio=ratio(same, noise_rates.max()),
        sentence="",
    )
    return dataclasses.replace(result, sentence=_sentence(result))


def _poisson(run: Run) -> Poisson:
    return Poisson(num_examples=run.num_examples, lot_size=run.lot_size)


def _noise(epsilon: float, delta: float, run: Run, adjacency: str) -> float | None:
    try:
        return noise_for(epsilon, delta, run, "proven", adjacency)
    except CalibrationError:
        return None


def _sentence(advice: Advice) -> str:
    if advice.noise_same_sampling is None and advice.noise_poisson is None:
        return "DP-SGD has no finite proven guarantee for such a run either."
    ratio, lots = advice.final_noise_ratio_poisson, "Poisson lots"
    if ratio is None:
        ratio, lots = advice.final_noise_ratio, "the same lots"
    same = f"the same proven epsilon ({format_epsilon(advice.epsilon)}) and number of steps"
    if ratio is None:
        return f"DP-SGD with {lots} can have {same}."
    carry = (
        f"At {same}, SI-DPSGD's final weights carry {ratio:.3g} times the noise of DP-SGD "
        f"with {lots}."
    )
    if not ratio > 1:
        return carry
    return (
        f"{carry} SI-DPSGD needs more because earlier gradients stay in its means without noise, and "
        "the noise of every later step has to hide them again."
    )
