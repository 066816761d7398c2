"""Training with several replicas: each gets its share of every lot, and the sums of shares are added.

Formal guarantee: the bounded sum of a lot is the sum over the shares, which have every row once
(`data.shares`), in float32 at least. So it has the sensitivity of the lot on one device, and the
noise is added to it once: each replica draws the same from the session's key and the place of the step.
"""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdp._compat.keras import TFDatasetAdapter, given_strategy
from tfdp._compat.replicas import MIRRORED
from tfdp._compat.tensorflow import concrete_function
from tfdp.data.shares import Shares, share_of
from tfdp.gradients.chunks import with_copies
from tfdp.gradients.contract import BoundedSum
from tfdp.layers.lot_statistics import uses_batch_statistics


def several(strategy) -> bool:
    """Whether a strategy has several replicas."""
    return strategy.num_replicas_in_sync > 1


def writes(model) -> bool:
    """Whether the process of a model writes files, since it is the chief or the only one."""
    return model.distribute_strategy.extended.should_checkpoint


def check_replicas(model) -> None:
    """Raises NotImplementedError or ValueError for a model that its strategy cannot train."""
    strategy, counter = given_strategy(model), model.optimizer.iterations.value
    inside = isinstance(counter, tf.distribute.DistributedValues)
    if strategy is None:
        if inside or tf.distribute.has_strategy():
            raise ValueError(
                "The model was made outside of the strategy's scope. Make all of its layers, the "
                "optimizer and the private model inside: with strategy.scope(): ..."
            )
        return
    if not isinstance(strategy, (*MIRRORED, tf.distribute.OneDeviceStrategy)):
        raise NotImplementedError(
            f"{type(strategy).__name__} cannot train privately: each replica needs its own copy of the "
            "weights, and all of them must add the same noise in one step. Use "
            "tf.distribute.MirroredStrategy or tf.distribute.MultiWorkerMirroredStrategy."
        )
    if not several(strategy):
        return
    for found, what, reason in (
        (uses_batch_statistics(model), "statistics='batch'", "a replica sees a part of the lot"),
        (model.jit_compile, "jit_compile=True", "XLA cannot add sums across replicas on a CPU"),
    ):
        if found:
            raise NotImplementedError(
                f"{what} cannot be combined with several replicas: {reason}. Use a strategy with one "
                "replica, or another setting."
            )
    if not inside:
        raise ValueError(
            "The optimizer was made outside of the strategy's scope, so all replicas would count in "
            "one variable. Make it inside: with strategy.scope(): optimizer = ..."
        )


# -- dividing lots -----------------------------------------------------------------------------------


class ShareAdapter(TFDatasetAdapter):
    """Passes a distributed dataset to Keras, with the number of lots instead of that of shares."""

    def __init__(self, dataset, number: int | None):
        super().__init__(dataset)
        self._number = number

    @property
    def num_batches(self):
        return self._number


def distributed(strategy, dataset_of) -> tf.distribute.DistributedDataset:
    """Returns the dataset from which each replica reads its own shares.

    Args:
        strategy: A strategy with several replicas.
        dataset_of: A function that maps `Shares` to the dataset of these shares, in order.
    """

    def of_machine(context):
        local = context.num_replicas_in_sync // context.num_input_pipelines
        first = context.input_pipeline_id * local
        return dataset_of(Shares(context.num_replicas_in_sync, first, local))

    return strategy.distribute_datasets_from_function(of_machine)


def shares_of_batches(dataset: tf.data.Dataset, shares: Shares, unit: int) -> tf.data.Dataset:
    """Returns a dataset of the shares of a user's batches. `unit` consecutive rows stay together."""

    def cut(*batch):
        own = tf.data.Dataset.range(shares.first, shares.first + shares.local)
        return own.map(lambda share: share_of(batch, shares.parts, share, unit))

    number = int(dataset.cardinality())
    dataset = dataset.flat_map(tf.autograph.experimental.do_not_convert(cut))
    if number == tf.data.UNKNOWN_CARDINALITY:
        return dataset
    number = number * shares.local if number > 0 else number
    return dataset.apply(tf.data.experimental.assert_cardinality(number))


def as_shares(strategy, batch, unit: int):
    """Divides a batch of tensors into one value for each replica, its share."""
    leaves: list = []

    def of(context):
        share = share_of(
            batch, strategy.num_replicas_in_sync, context.replica_id_in_sync_group, unit
        )
        leaves[:] = [share]
        return [leaf for leaf in tf.nest.flatten(share) if leaf is not None]

    values = strategy.experimental_distribute_values_from_function(of)
    left = iter(values)
    return tf.nest.map_structure(lambda leaf: None if leaf is None else next(left), leaves[0])


# -- adding sums -------------------------------------------------------------------------------------


def first_place(sample_weight: tf.Tensor, sharded: bool) -> int | tf.Tensor:
    """Returns the place of this replica's first row in the whole lot.

    Args:
        sample_weight: Weights of this replica's rows.
        sharded: Whether machines draw from shards, so that shares have different numbers of rows.
    """
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return 0
    return _places(tf.shape(sample_weight)[0], sharded)[0]


def _places(rows, sharded) -> tuple:
    """Returns the number of rows before this replica's own, and the number of all rows."""
    context = tf.distribute.get_replica_context()
    number, parts = context.replica_id_in_sync_group, context.num_replicas_in_sync
    if not sharded:
        return tf.cast(number, tf.int32) * rows, parts * rows
    every = of_all_replicas(tf.reshape(rows, [1]))
    return tf.reduce_sum(every[:number]), tf.reduce_sum(every)


def of_all_replicas(own: tf.Tensor) -> tf.Tensor:
    """Collects integers of all replicas, [replicas, n], from those of each replica, [n]."""
    context = tf.distribute.get_replica_context()
    number, parts = context.replica_id_in_sync_group, context.num_replicas_in_sync
    return context.all_reduce("SUM", tf.one_hot(number, parts, dtype=own.dtype)[:, None] * own)


def on_replicas(strategy, function, *specs):
    """Returns a concrete function that runs on all replicas and returns the result of the first."""

    def run(*inputs):
        return strategy.experimental_local_results(strategy.run(function, args=inputs))[0]

    return concrete_function(tf.function(run, autograph=False), *specs)


def whole_lot(share: BoundedSum, sharded: bool) -> BoundedSum:
    """Adds the bounded sums of all replicas' shares to that of the lot.

    Norms, and figures that are counted from them, are those of all rows. Losses and outputs stay those
    of the replica.

    Args:
        share: The bounded sum of this replica's rows.
        sharded: As in `first_place`.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return share
    figures = tf.stack([share.norms, tf.cast(share.present, tf.float32), share.clipped])
    rows = tf.shape(figures)[1]
    before, total = _places(rows, sharded)
    # Each replica adds its figures at their places, where the others have zeros.
    figures = tf.pad(figures, [[0, 0], [before, total - rows - before]])
    non_finite = tf.cast(share.non_finite, tf.float32)
    *sums, non_finite, figures = context.all_reduce("SUM", [*share.sums, non_finite, figures])
    norms, present, clipped = tf.unstack(figures)
    return dataclasses.replace(
        share,
        sums=sums,
        norms=norms,
        present=present > 0,
        clipped=clipped,
        non_finite=tf.cast(non_finite, tf.int32),
    )


def evaluate_share(model, step, data) -> dict:
    """Runs a `test_step` on this replica's rows of a batch. Without rows, the metrics do not change.

    Keras gives a replica no rows if the last batch has fewer rows than there are replicas, and the mean
    over no rows is NaN.
    """
    leaves = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    if not several(tf.distribute.get_strategy()) or leaves[0].shape[0]:
        return step(data)
    rows = tf.shape(leaves[0])[0]
    data = tf.nest.map_structure(
        lambda leaf: None if leaf is None else with_copies(leaf, tf.maximum(rows, 1)), data
    )
    before = [(v, tf.convert_to_tensor(v)) for v in model.metrics_variables]
    logs = step(data)
    for variable, value in before:
        variable.assign(tf.where(rows > 0, tf.convert_to_tensor(variable), value))
    metrics = model.get_metrics_result()
    return metrics if metrics.keys() == logs.keys() else logs


# -- equal copies ------------------------------------------------------------------------------------


def copies_of(model) -> Callable[[], bool]:
    """Returns a function that checks whether the replicas' copies of weights and state are equal.

    Equal processors and one compilation give equal copies, bit for bit. Otherwise rounding may differ,
    and the copies drift apart. Then the function gives all replicas the copies of the first one, and
    returns False.
    """
    strategy, optimizer = model.distribute_strategy, model.optimizer
    of_metrics = {id(v) for v in model.metrics_variables}
    variables = [*model.variables, *optimizer.variables, *optimizer.hidden_variables]
    variables = [v for v in variables if id(v) not in of_metrics and v.dtype != "string"]

    def digest():
        bits = [_bits(tf.convert_to_tensor(v)) * (2 * i + 1) for i, v in enumerate(variables)]
        return of_all_replicas(tf.reshape(tf.add_n(bits), [1]))

    def copy():
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        for variable in variables:
            value = tf.convert_to_tensor(variable)
            sent = value if value.dtype.is_floating else tf.cast(value, tf.int64)
            sent = context.all_reduce("SUM", tf.where(is_first, sent, tf.zeros_like(sent)))
            variable.assign(tf.cast(sent, value.dtype))

    compare = on_replicas(strategy, digest)

    def equal():
        found = compare().numpy()
        same = bool((found == found[0]).all())
        if not same:
            on_replicas(strategy, copy)()
        return same

    return equal


def _bits(value: tf.Tensor) -> tf.Tensor:
    """Returns the sum of all entries, whose bits are read as integers: an int64 scalar."""
    if value.dtype.is_floating:
        value = tf.bitcast(value, {2: tf.uint16, 4: tf.int32, 8: tf.int64}[value.dtype.size])
    return tf.reduce_sum(tf.cast(value, tf.int64))
