"""Workarounds for Keras 3.15 with several replicas of a model, on one machine or on several.

The docstring of each function reports what Keras does, as an issue for Keras would.
"""

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer

from tfdp._compat.keras import given_strategy

# Strategies that give each replica a copy of all variables.
MIRRORED = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy)


def number_of_machines(strategy) -> int:
    """Returns the number of machines, each with one process, that have replicas of a strategy."""
    number = strategy.num_replicas_in_sync
    return number // len(strategy.extended.worker_devices) if number > 1 else 1


def several_machines(strategy) -> bool:
    """Returns whether some replicas of a strategy are on other machines."""
    return number_of_machines(strategy) > 1


def build_symbolically_once(model, iterator=None, data_batch=None) -> None:
    """Builds layers, metrics and losses under the model's strategy, as `Trainer._symbolic_build`.

    Report: `TensorFlowTrainer._maybe_symbolic_build` reads a batch for shapes only. (1) It reads one
    even if everything is built. The iterator is created anew afterwards, so with random data, the first
    batch of training depends on whether the model was built. (2) It averages the batches of the
    replicas, which fails for texts. (3) Under MultiWorkerMirroredStrategy with one device for each
    worker, it passes a PerReplica to the model, which raises an error.

    Args:
        model: A compiled model.
        iterator: Keras' epoch iterator; a batch is read only if something is not built.
        data_batch: A batch, or its structure of `tf.TensorSpec`s.
    """
    strategy = given_strategy(model)
    parts = [*model._flatten_layers(), model._compile_metrics, model._compile_loss, model.optimizer]
    if strategy is None or all(part.built for part in parts if part is not None):
        return
    for _, _, batches in () if iterator is None else iterator:
        data_batch = keras.tree.map_structure(
            lambda v: v if v is None else strategy.experimental_local_results(v)[0], next(batches)
        )
        break
    with strategy.scope():
        model._symbolic_build(data_batch=data_batch)


def over_replicas(model, strategy, step, data) -> dict:
    """Runs a step on every replica, and returns the logs of all of them together.

    Report: Keras returns the mean of the replicas' logs, not the mean over examples, if the replicas
    had different numbers of them, though it reads the metrics of all replicas at the end of an epoch.
    """
    if strategy.num_replicas_in_sync == 1:
        # Variables of these strategies are assigned in a replica, even if there is only one.
        return strategy.run(step, args=(data,)) if isinstance(strategy, MIRRORED) else step(data)
    logs = strategy.run(step, args=(data,))
    metrics = model.get_metrics_result()  # which adds the replicas' sums and counts
    if logs.keys() == metrics.keys():
        return metrics
    return keras.tree.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), logs)


def _reduce(values, strategy, reduction):
    """Reduces logs as Keras does, and scalars of several machines, too.

    Report: under MultiWorkerMirroredStrategy, `reduce_per_replica` with "auto" or "mean" calls
    `strategy.reduce("MEAN", v, axis=0)`, which raises for a scalar, as most logs are.
    """
    if reduction in ("auto", "mean") and several_machines(strategy):
        return keras.tree.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)
    return _REDUCE(values, strategy, reduction)


_REDUCE = trainer.reduce_per_replica
trainer.reduce_per_replica = _reduce  # which Keras looks up in its module
