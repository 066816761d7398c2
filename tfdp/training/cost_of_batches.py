"""Warns if delta is too large, or if batches cost much because nothing is known of their sampling."""

import dataclasses
import math

import tensorflow as tf
from absl import logging

from tfdp import accounting  # whose theorems are imported for such batches
from tfdp.accounting import PrivacyBudget, Run, delta_warning
from tfdp.accounting.guarantee import VACUOUS_ABOVE, format_epsilon
from tfdp.accounting.sampling import OncePerEpoch, Poisson, Unknown
from tfdp.training.describe import planned_run
from tfdp.training.feed import Feed


def warn_of_cost(model, x, feed: Feed, epochs: int, callbacks=()) -> None:
    """Warns if the delta of a budget or callback is not below 1/N, and of a user's own batches.

    Args:
        model: A compiled private model.
        x: The data, as the user passed them.
        feed: The data of the training.
        epochs: Number of epochs of the training.
        callbacks: The callbacks of the training, some of which have a delta.
    """
    examples, budgets = feed.sampling.num_examples, model.privacy.ledger.budgets
    stated = [*budgets, *(each for each in callbacks if hasattr(each, "adjacency"))]
    stated = [each for each in stated if getattr(each, "delta", None) is not None]
    for delta in dict.fromkeys(each.delta for each in stated):
        if too_large := delta_warning(delta, examples):
            logging.warning("%s", too_large)
    if type(feed.sampling) is Unknown and epochs > 0:
        usual = PrivacyBudget(1.0, min(1e-5, 0.5 / examples))
        shown = (stated or [usual])[0]
        call = _ways_to_lots(x, feed.sampling.lot_size)
        logging.warning("%s", " ".join([_UNKNOWN, *_costs(model, call, feed, epochs, shown)]))


def warn_of_noise(data, run: Run, noise: float, budget: PrivacyBudget) -> None:
    """Warns if noise was computed for a user's own batches, and states the noise that lots need."""
    if type(run.sampling) is Unknown:
        size = run.sampling.lot_size
        lots = Poisson(num_examples=run.sampling.num_examples, lot_size=size)
        drawn = dataclasses.replace(run, sampling=lots)
        less = accounting.noise_for(
            budget.epsilon, budget.delta, drawn, budget.kind, budget.adjacency
        )
        logging.warning(
            "The noise multiplier is %.3g, because nothing is known about how these batches are drawn. "
            "It is %.3g for lots that tfdp draws: %s",
            *(noise, less, _ways_to_lots(data, size)),
        )


def _costs(model, call, feed, epochs, shown) -> list[str]:
    """Sentences about epsilon, for these batches and for lots that tfdp draws.

    Args:
        call: The code that makes such lots, for the sentences.
        shown: A budget or a callback, whose delta and adjacency are used.
    """
    if feed.steps is None:
        return [
            "Epsilon cannot be computed in advance, since the number of batches in an epoch is "
            f"unknown. Pass steps_per_epoch, or let tfdp draw the lots: {call}"
        ]
    examples, size, privacy = feed.sampling.num_examples, feed.sampling.lot_size, model.privacy
    delta, adjacency = privacy.delta_and_adjacency(shown.delta, shown.adjacency)
    run = planned_run(model, feed, epochs * feed.steps, model.optimizer, privacy.account.start)

    def epsilon(kind) -> float:
        lots = kind(num_examples=examples, lot_size=size)
        return accounting.proven(dataclasses.replace(run, sampling=lots), delta, adjacency).epsilon

    now, drawn, declared = map(epsilon, (Unknown, Poisson, OncePerEpoch))
    if math.isinf(now):
        return [f"Lots that tfdp draws have a smaller epsilon: {call}"]
    shown = format_epsilon(now) if now <= VACUOUS_ABOVE else f"{math.ceil(now):,} (no protection)"
    found = [f"The {run.steps:,} planned steps have epsilon {shown} at delta {delta:g}."]
    if drawn < now:
        found.append(
            f"It is {format_epsilon(drawn)} in Poisson lots of {size} out of {examples:,} examples, "
            f"which tfdp draws: {call}"
        )
    if declared < now:
        found.append(
            f"It is {format_epsilon(declared)} if each example is at most once in an epoch, which you "
            "can declare: fit(tfdp.data.OncePerEpoch(batches))."
        )
    return found


_UNKNOWN = (
    "Nothing is known about how these batches are drawn, so they are accounted as if every example "
    "were in every lot."
)


def _ways_to_lots(x, lot_size) -> str:
    """Returns the code that makes lots from the data of a user's batches."""
    if hasattr(x, "class_names"):  # Keras' datasets of directories
        return (
            "tfdp.data.make_lots('poisson', source, "
            f"lot_size={lot_size}) with source = tfdp.data.images_from_directory(...) or "
            "texts_from_directory(...), which take the arguments of Keras' functions."
        )
    if isinstance(x, tf.data.Dataset):
        return (
            f"tfdp.data.make_lots('poisson', dataset.unbatch(), lot_size={lot_size}), which reads the "
            "examples once. Remove shuffle and repeat, and move augmentation into lots.map(f)."
        )
    return (
        "fit(x, y, batch_size=...) or tfdp.data.make_lots('poisson', x, y, lot_size=...). x may also "
        "be an object that returns one example by its index."
    )
