"""Warns of the cost of batches of which nothing is known, beside lots that tfdp draws."""

import dataclasses
import math

from absl import logging

from tfdp.accounting import proven
from tfdp.accounting.guarantee import format_epsilon
from tfdp.accounting.sampling import OncePerEpoch, Poisson, Unknown
from tfdp.training.describe import planned_run
from tfdp.training.feed import Feed


def warn_of_cost(model, feed: Feed, epochs: int) -> None:
    """Warns if a feed is batches of a user, with the epsilons of this training and of better ones.

    Args:
        model: a private model that is compiled and built.
        feed: the data of the training.
        epochs: number of planned epochs.
    """
    if type(feed.sampling) is Unknown and epochs > 0:
        logging.warning("%s", _warning(model, feed, epochs))


def _warning(model, feed, epochs) -> str:
    if feed.steps is None:
        return (
            f"{_UNKNOWN} Epsilon cannot be computed beforehand, since the number of batches in an "
            f"epoch is unknown. Pass steps_per_epoch, or let tfdp draw the lots: {_ARRAYS}"
        )
    examples, size = feed.sampling.num_examples, feed.sampling.lot_size
    budget = model.privacy.budget
    delta = min(1e-5, 1 / examples) if budget is None else budget.delta
    adjacency = "zero_out" if budget is None else budget.adjacency
    run = planned_run(
        model, feed, epochs * feed.steps, model.optimizer, model.privacy.account.start
    )

    def epsilon(kind) -> float:
        lots = kind(num_examples=examples, lot_size=size)
        return proven(dataclasses.replace(run, sampling=lots), delta, adjacency).epsilon

    now = epsilon(Unknown)
    if math.isinf(now):
        return f"{_UNKNOWN} Lots that tfdp draws have a smaller epsilon: {_ARRAYS}"
    cost = f"The {run.steps:,} planned steps have epsilon {format_epsilon(now)} at delta {delta:g}."
    better = {
        f"in Poisson lots of {size} out of {examples:,} examples, which tfdp draws: {_ARRAYS}": Poisson,
        "if each example is at most once in an epoch, which you can declare: "
        "fit(tfdp.data.OncePerEpoch(batches)).": OncePerEpoch,
    }
    found = [(epsilon(kind), words) for words, kind in better.items()]
    less = [f"It is {format_epsilon(each)} {words}" for each, words in found if each < now]
    return " ".join([_UNKNOWN, cost, *less])


_UNKNOWN = (
    "Nothing is known about how these batches are drawn, so they are accounted as if every example "
    "were in every lot."
)
_ARRAYS = "fit(x, y, batch_size=...) or tfdp.data.make_lots('poisson', x, y, lot_size=...)."
