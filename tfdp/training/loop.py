"""Private training step by step, for custom loops.

Formal guarantee: the same as that of `fit`. The lots come from the same feed, and every step is taken
by the model's own train function, which counts it first.
"""

import itertools
from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdp.training.cost_of_batches import warn_of_cost
from tfdp.training.machines import check_agreement, with_key
from tfdp.training.position import Position


def steps_of(model, x, feed, epochs: int) -> Iterator[dict[str, float]]:
    """Trains on a feed of the data `x` and yields the logs of each step; see `ModelPrivacy.steps`."""
    warn_of_cost(model, x, feed, epochs)
    start = Position(until=epochs)
    feed = with_key(model, feed)
    check_agreement(model, feed, start)
    feed = feed.at(start, feed.turn, model)
    with model._training(feed, start, epochs) as training:
        iterator = None
        for _ in range(epochs):
            if iterator is None or feed.steps_per_epoch is None:
                iterator = iter(feed.dataset)  # the dataset ends with the epoch
            model.reset_metrics()
            if feed.adapter is not None:
                feed.adapter.on_epoch_begin()
            try:
                for _ in _executions(feed.steps, model.steps_per_execution):
                    model.make_train_function()  # the loop may have compiled the model anew
                    try:
                        logs = model.train_function(iterator)
                    except (StopIteration, tf.errors.OutOfRangeError):
                        iterator = None  # the data ended before the epoch
                        break
                    yield keras.tree.map_structure(_number, logs)
            finally:
                if feed.adapter is not None:
                    feed.adapter.on_epoch_end()
        training.end(stopped=False)


def _executions(steps, several):
    """Counts the executions of an epoch, without end if its number of steps is unknown."""
    return itertools.count() if steps is None else range(-(-steps // several))


def _number(value):
    return float(value) if tf.is_tensor(value) and value.shape.rank == 0 else value
