"""Warns what a training costs if a callback ends it early.

An epsilon is proven for a number of steps that was fixed without looking at what the steps release. If
released weights or held-out data decide when a training ends, its output is a function of what all
planned steps would have released, so their guarantee covers it and that of the steps taken does not.
"""

import keras
from absl import logging

from tfdp.accounting.composition import proven_composition
from tfdp.accounting.guarantee import format_epsilon
from tfdp.session import Plan
from tfdp.training.opening import planned_run
from tfdp.training.steering import list_of


def warn_of_early_ends(model, callbacks, plan: Plan, start: str) -> None:
    """Warns if there is an `EarlyStopping`, and says what all planned steps will cost.

    Args:
        model: a private model that is compiled and built.
        callbacks: those of the training.
        plan: how the steps are drawn, with their number.
        start: as in `accounting.Run`.
    """
    stopping = keras.callbacks.EarlyStopping
    names = [type(each).__name__ for each in list_of(callbacks) if isinstance(each, stopping)]
    if not (names and plan.steps):
        return
    logging.warning(
        "%s may end this training early. All %s planned steps are counted then%s, because results "
        "decide when it ends. Plan fewer epochs, or end by a PrivacyBudget with "
        "tfdp.callbacks.StopAtBudget, which counts only the steps taken.",
        " and ".join(names),
        f"{plan.steps:,}",
        _cost(model, callbacks, plan, start),
    )


def _cost(model, callbacks, plan, start) -> str:
    budget = model.privacy.budget
    deltas = [getattr(each, "delta", None) for each in list_of(callbacks)]
    deltas += [] if budget is None else [budget.delta]
    delta = next((each for each in deltas if isinstance(each, float)), None)
    if delta is None:
        return ""
    runs = [*model.privacy.ledger.runs, planned_run(model, plan, model.optimizer, start)]
    epsilon = proven_composition(runs, delta, "zero_out").epsilon
    return f" (proven epsilon {format_epsilon(epsilon)} at delta {delta:g})"
