"""Group privacy: the guarantee for several changes that follows from the guarantee for one.

Lemma (Vadhan 2017, "The complexity of differential privacy", lemma 2.2). Let data sets D_0, D_1, ...,
D_k be such that a mechanism is (e, d)-DP for each D_i and D_(i+1), in both orders. Then, for D_0 and
D_k, it is (k e, d S)-DP with

    S = 1 + exp(e) + ... + exp((k - 1) e) = (exp(k e) - 1) / (exp(e) - 1).

It holds for the mechanism as a whole, so `losses` here are those of everything that was released,
composed; their epsilons bound both orders. Each point of the curve of one change gives a point of the
curve of k changes.
"""

import math
from collections.abc import Sequence

from scipy import optimize

from tfdp.accounting.numerics import attacks, privacy_loss
from tfdp.accounting.numerics.privacy_loss import Loss, Spent

# Tolerance and least value of the logarithm of the delta of one change.
_TOLERANCE, _LEAST = 1e-6, -600.0


def log_sum(epsilon: float, changes: int) -> float:
    """Returns log S for the epsilon of one change, which is at least 0."""
    if epsilon == 0:
        return math.log(changes)
    rest = math.log(math.expm1(-changes * epsilon) / math.expm1(-epsilon))
    return (changes - 1) * epsilon + rest


def epsilon_of(
    losses: Sequence[Loss], delta: float, changes: int, below: float = math.inf
) -> Spent | None:
    """Returns epsilon for two or more `changes`, each with these `losses`.

    Returns:
        The epsilon at `delta`; None if it is not below `below`.
    """
    target = math.log(delta)

    def of_one(log_delta: float) -> Spent:
        return privacy_loss.epsilon_of(losses, math.exp(log_delta))

    def excess(log_delta: float) -> float:
        return log_delta + log_sum(of_one(log_delta).epsilon, changes) - target

    # The largest delta of one change that fits gives the smallest epsilon.
    high = low = target - math.log(changes)
    step = 1.0
    while not excess(low) <= 0:
        if low < _LEAST or not changes * of_one(low).epsilon < below:
            return None
        high, low, step = low, low - step, 2 * step
    if low < high:
        root = optimize.brentq(excess, low, high, xtol=_TOLERANCE)
        near = root - 2 * _TOLERANCE
        low = near if near > low and excess(near) <= 0 else low
    one = of_one(low)
    epsilon = changes * one.epsilon
    if not epsilon < below:
        return None
    details = one.details | {
        "conversion": f"group privacy (Vadhan 2017, lemma 2.2) of {one.details['conversion']}",
        "changes": changes,
        "epsilon_of_one_change": one.epsilon,
        "delta_of_one_change": math.exp(low),
    }
    return Spent(epsilon, None, details)


def curve_of(
    losses: Sequence[Loss], delta: float, epsilon: float, changes: int = 1
) -> attacks.Curve:
    """Returns the curve of proven delta over epsilon, of at least 0, for a number of changes.

    Args:
        losses: The losses of one change.
        delta: Probability at which the curve is accurate; see `privacy_loss.curve_of`.
        epsilon: The finite epsilon at `delta`.
        changes: Number of changes.
    """
    one = privacy_loss.curve_of(losses, delta * math.exp(-log_sum(epsilon / changes, changes)))

    def curve(at: float) -> float:
        log_delta = math.log(max(one(at / changes), 1e-300))
        return math.exp(min(log_delta + log_sum(at / changes, changes), 0.0))

    return curve
