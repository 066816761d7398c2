"""The guarantee of a search for the best of several trainings on the same data.

Choosing the best of all trials costs as much as releasing all of them, so their costs add up. The cost
is smaller if the number of trials is drawn at random before the search, and only the best one is
released. Then it is about that of two or three trials, however many there are (Papernot and
Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", Theorem 2). For a geometric
number of mean m, and trials with Rényi divergences e(order),

    e(order) + 2 (1 - 1/o) e(o) + 2 log(m) / o + log(m) / (order - 1)

bounds the divergence of the release, for every other order o. The trials are analysed by the theorems
about their neighbours, without group privacy.
"""

import dataclasses
import math
import secrets
from collections.abc import Sequence

import numpy as np

from tfdp._validate import positive
from tfdp.accounting.composition import directly_proven, in_equal_terms
from tfdp.accounting.guarantee import Guarantee
from tfdp.accounting.numerics.privacy_loss import ORDERS, RenyiLoss, rdp_to_epsilon, renyi_of
from tfdp.accounting.proofs import analyse
from tfdp.accounting.run import Run
from tfdp.accounting.sentences import Declared

# Outcomes that are left out count e^epsilon times, so they have to be much rarer than delta.
_TAILS = 1e-9
_ASSUMPTIONS = {
    "a number of trials by draw_trials": (
        "The number of trials was drawn before the search, by draw_trials({mean:g}), and kept to."
    ),
    "settings drawn at random": (
        "Each trial drew its settings at random, independently of the other results, and no setting "
        "that could have been drawn costs more than the most expensive trial here."
    ),
    "only the best trial released": (
        "Only the best trial is released: not the number of trials, the others or their ledgers."
    ),
}


def draw_trials(mean: float) -> int:
    """Draws the number of trials of a random hyperparameter search, from a geometric distribution.

    A search with such a number costs less privacy than one with a fixed number, if only its best
    training is released. Draw the number before the search, keep it secret, and pass the same mean to
    `Statement.of_search`. The randomness comes from the operating system.

    Args:
        mean: Mean number of trials, above 1.

    Returns:
        The number of trials, at least 1.

    Raises:
        ValueError: If the mean is not above 1.

    Example:
        >>> from tfdp.accounting import draw_trials
        >>> draw_trials(10) >= 1
        True
    """
    stop, number = 1 / _mean(mean), 1
    while secrets.randbelow(1 << 53) >= stop * (1 << 53):
        number += 1
    return number


def of_random_search(
    trials: Sequence[Sequence[Run]], delta: float, adjacency: str, mean: float
) -> Guarantee:
    """Returns the proven guarantee of the best of a random number of trials (see `draw_trials`).

    Args:
        trials: The runs of each trial.
        delta: Probability in (0, 1).
        adjacency: The neighbouring relation.
        mean: Mean number of trials, above 1.

    Returns:
        The guarantee; infinite, with a reason, if nothing finite is proven about a trial.
    """
    mean = _mean(mean)
    trials = in_equal_terms(trials)
    alone = [directly_proven(runs, delta, adjacency) for runs in trials]
    if (
        len({guarantee.unit for guarantee in alone}) > 1
    ):  # people in some trials, examples in others
        return directly_proven([run for runs in trials for run in runs], delta, adjacency)
    dearest = max(alone, key=lambda guarantee: guarantee.epsilon)
    if math.isinf(dearest.epsilon):
        return dearest
    orders = np.asarray(ORDERS)
    divergences, missing = np.zeros(len(orders)), 0.0
    for runs in trials:
        tails = _TAILS * delta
        losses = [loss for run in runs for loss in analyse(run, tails, adjacency).losses]
        found, left_out = renyi_of(losses)
        divergences, missing = np.maximum(divergences, found), max(missing, left_out)
    chosen = np.min(2 * (1 - 1 / orders) * divergences + 2 * math.log(mean) / orders)
    together = divergences + chosen + math.log(mean) / (orders - 1)
    epsilon, order = _epsilon(together, delta, mean * missing)
    reason = None if epsilon < math.inf else "The noise is too small for a finite bound."
    return dataclasses.replace(
        dearest,
        epsilon=epsilon,
        mu=None,
        losses=(RenyiLoss(tuple(together), 1),),
        reason=reason,
        details={"conversion": "RDP of the best of a random number of trials", "rdp_order": order},
        assumptions=(
            *dearest.assumptions,
            *(Declared(words.format(mean=mean), name) for name, words in _ASSUMPTIONS.items()),
        ),
    )


def _epsilon(divergences: np.ndarray, delta: float, missing: float) -> tuple[float, float]:
    """(epsilon, order) if outcomes of probability `missing` are left out, under either neighbour.

    These outcomes add up to (1 + e^epsilon) * missing to delta.
    """
    epsilon = 0.0
    for _ in range(100):
        left = delta - (1.0 + math.exp(min(epsilon, 700.0))) * missing
        if not left > 0:
            break
        found, order = rdp_to_epsilon(divergences, left)
        if not found > epsilon:
            return epsilon, order
        epsilon = found * (1 + 1e-12)
    return math.inf, math.nan


def _mean(mean: float) -> float:
    mean = positive("mean", mean, remedy="Pass the mean number of trials, above 1.")
    if not mean > 1:
        raise ValueError(f"Expected mean to be above 1. Received {mean}. Pass a larger number.")
    return mean
