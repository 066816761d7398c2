"""Training on several machines, each with a process that runs the same program.

The chief makes the secret of a training and sends it once, before the first step. Every process draws
the indices of all lots, and the noise, from it, so that only sums are sent afterwards. TensorFlow sends
the secret and the sums, which have no noise, over the network without encryption.

Formal guarantee: no step begins unless all processes describe the same run, from the same weights and
position, with the same versions and the same number of replicas, on data of the same size of which 32
rows are the same, with the same ids of people; with shards, these rows differ, and the sizes add up.
"""

import dataclasses
import functools
import hashlib
import os

import keras
import numpy as np
import tensorflow as tf

from tfdp._compat.keras import configured_rate
from tfdp._compat.replicas import several_machines
from tfdp.data.arrays import all_arrays
from tfdp.training.describe import continues, facts_of
from tfdp.training.feed import Feed
from tfdp.training.position import Position
from tfdp.training.replicas import of_all_replicas, on_replicas


def with_key(model, feed: Feed) -> Feed:
    """Sends the chief's secret to all machines, and returns the feed with it.

    On one machine, the feed is returned as it is.

    Raises:
        NotImplementedError: If the data are batches of a user.
        ValueError: If shards are the same, or other data differ.
    """
    strategy = model.distribute_strategy
    if not several_machines(strategy):
        return feed
    if feed.lots is None and feed.dataset is not None:
        raise NotImplementedError(
            "Your own batches cannot be used on several machines: each machine would draw its own, so "
            "an example might be in a lot twice. Pass arrays, a source, or tfdp.data.make_lots(...)."
        )
    words, lots = np.frombuffer(os.urandom(16), "<u4").tolist(), feed.lots
    sharded = lots is not None and lots.sharded
    found = _from_all(strategy, [*words, 0 if lots is None else _rows_of(lots), sharded])
    key, contents = found[0, :4].astype("<u4").tobytes(), found[:, 4].tolist()
    if np.ptp(found[:, 5]):
        raise ValueError(
            "Some machines have a shard and others do not. Pass shard_of on all of them."
        )
    if sharded and len(set(contents)) < len(contents):
        raise ValueError(
            "Two machines have the same examples, which would count twice. Pass each machine its shard."
        )
    if not sharded and len(set(contents)) > 1:
        raise ValueError(
            "The machines have different examples. Give all of them the same data. If each machine can "
            "read only its shard, pass make_lots(..., shard_of=n), with n examples in all shards."
        )
    return dataclasses.replace(feed, key=key, shards=tuple(contents) if sharded else ())


def _rows_of(lots) -> int:
    """Returns a digest of a few rows of the source."""
    places = np.unique(np.linspace(0, len(lots.source) - 1, 32).astype(np.int64))
    return _digest(_of_arrays(all_arrays(lots.source.rows(places))))


def check_agreement(model, feed: Feed, position: Position, batch=None) -> None:
    """Raises ValueError on all machines if their trainings differ.

    Args:
        model: The private model, compiled and built.
        feed: The data of a training that begins now.
        position: The position of its first step.
        batch: The arrays of `train_on_batch`, whose weights are compared when a run begins. None for
            other trainings.
    """
    strategy = model.distribute_strategy
    if not several_machines(strategy):
        return
    facts, lots = _facts(model, feed, position, batch), feed.lots
    here = 0 if lots is None else lots.available_examples
    *digests, examples = _from_all(strategy, [*map(_digest, facts.values()), here]).T
    if lots is not None and lots.sharded and sum(examples) != lots.num_examples:
        raise ValueError(
            f"shard_of={lots.num_examples}, but the shards of all machines have {sum(examples)} "
            "examples. Pass that number."
        )
    different = [name for name, column in zip(facts, digests, strict=True) if np.ptp(column)]
    if different:
        raise ValueError(
            f"The machines disagree on {' and '.join(different)}. Run the same program with the same "
            "data, weights and versions on all of them. All must be able to read a backup folder."
        )


def wait_for_all(strategy) -> None:
    """Waits until all machines have reached this call."""
    if several_machines(strategy):
        _from_all(strategy, [0])


def _facts(model, feed, position, batch) -> dict[str, str]:
    """Returns the facts that must be the same on all machines, by name."""
    from tfdp import __version__

    lots, strategy, account = feed.lots, model.distribute_strategy, model.privacy.account
    session, local = account.session, len(strategy.extended.worker_devices)
    size = None if lots is None else lots.spec
    if lots is not None and not lots.sharded:
        size = (size, len(lots.source), lots.available_examples, feed.physical_batch_size)
    people = None if lots is None or lots.sharded else lots.people
    optimizer, of_metrics = model.optimizer, {id(v) for v in model.metrics_variables}
    rate = configured_rate(optimizer)
    settings = optimizer.get_config() | {"name": None}  # Keras counts the optimizers of a process
    facts = facts_of(model, feed, optimizer, account.start)
    known = batch is not None and session is not None
    known = known and continues(session, facts, feed, optimizer, model.trainable_variables)
    of_model = (lambda _: "") if known else _of_arrays
    return {
        "the version": repr((__version__, tf.__version__, keras.__version__)),
        "the number of devices": repr((strategy.num_replicas_in_sync, local)),
        "the run": repr((facts, account.plan)),
        "the data": repr((size, feed.steps)),
        "the ids of people": "" if people is None else people.digest,
        "the budgets": repr(account.ledger.budgets),
        "the position": repr((position, None if session is None else session.entry.taken)),
        "the batch": _of_arrays(leaf for leaf in tf.nest.flatten(batch) if leaf is not None),
        "the learning rate": repr(settings.pop("learning_rate")),
        "the settings of the optimizer": repr(settings),
        "the state of the optimizer": of_model(v for v in optimizer.variables if v is not rate),
        "the weights": of_model(v for v in model.variables if id(v) not in of_metrics),
    }


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def _of_arrays(arrays) -> str:
    found = hashlib.sha256()
    for array in arrays:
        array = np.ascontiguousarray(keras.ops.convert_to_numpy(array))
        found.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return found.hexdigest()


def _from_all(strategy, numbers: list[int]) -> np.ndarray:
    """Returns the integers of every machine, int64 [machines, numbers]."""
    rows = _exchange(strategy, len(numbers))(tf.constant(numbers, tf.int64)).numpy()
    return rows[:: len(strategy.extended.worker_devices)]


@functools.lru_cache(maxsize=8)  # tracing takes a hundred times as long as a call
def _exchange(strategy, count: int):
    """Returns a function that maps a replica's integers to those of all replicas, [replicas, count]."""
    return on_replicas(strategy, of_all_replicas, tf.TensorSpec([count], tf.int64))
