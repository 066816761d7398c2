"""Audits on scikit-learn's digits: trainings with canaries, which show a lower bound on epsilon."""

import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

CANARIES = 500
# An epsilon is refuted if so many bounds above it had a smaller probability than this if it were true.
_REFUTED_BELOW = 1e-6
_CONFIDENCE = 0.95


def compute(*, coins: int, **settings) -> dict:
    """Audits one training.

    Args:
        coins: Seed of the coins that include canaries.
        settings: Settings of the training, as for `Experiment`.

    Returns:
        A dictionary with "bound" and its "ceiling" (the largest possible bound), and the "claimed" and
        "proven" epsilons.
    """
    # These import Keras, which other commands of the catalogue do not need.
    from tfdp.experiments import Experiment, audit_experiment

    found = audit_experiment(Experiment(**settings), canaries=CANARIES, seed=coins)
    # JSON has no infinity.
    stated = {kind: min(each.epsilon, 1e9) for kind, each in found.guarantees.items()}
    return {"bound": found.bound.epsilon, "ceiling": found.bound.ceiling, **stated}


def summary(audits: Sequence[Mapping]) -> dict:
    """Summarizes several audits for a page. Epsilons are medians."""
    bounds = [one["bound"] for one in audits]
    stated = {k: statistics.median(one[k] for one in audits) for k in ("claimed", "proven")}
    return {
        "audits": len(audits),
        "every": bounds,
        "bounds": (statistics.median(bounds), max(bounds)),
        **stated,
        **{f"above_{kind}": _above(audits, kind) for kind in stated},
        "of_proven": statistics.median(bounds) / stated["proven"],
    }


def _above(audits, kind) -> str:
    count = sum(one["bound"] > one[kind] for one in audits)
    p = stats.binom.sf(count - 1, len(audits), 1 - _CONFIDENCE)
    refuted = ", **refuted**" if p < _REFUTED_BELOW else ""
    return f"{count} (p = {p:.2g}){refuted}" if count else "0"
