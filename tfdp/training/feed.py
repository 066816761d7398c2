"""Turns the arguments of `fit` into lots whose sampling is known.

The accounted scheme is the scheme that runs. tfdp draws lots from arrays and other sources.
`tfdp.data.Lots` state how they draw. For batches that a user draws (`training.batches`), the sampling
counts as unknown, unless the user declares it.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import DataAdapter, class_weight_to_sample_weights
from tfdp._compat.replicas import several_machines
from tfdp._compat.tensorflow import repeats
from tfdp._validate import one_of, whole
from tfdp.accounting.sampling import Sampling, sampling_class
from tfdp.data import Lots, OncePerEpoch, as_source, make_lots, row_multiple_for
from tfdp.data.batches import SourceBatches, have_common_rows, split_last, to_evaluate
from tfdp.data.shares import Shares
from tfdp.data.sources import Source, is_source
from tfdp.data.words import derived
from tfdp.training.batches import Batches, batches_of, is_batches
from tfdp.training.data_checks import check_examples, check_finite, check_validation
from tfdp.training.position import Position
from tfdp.training.replicas import ShareAdapter, distributed, several, shares_of_batches


@dataclasses.dataclass(frozen=True)
class Feed:
    """The data of a training, and how its steps draw from them.

    Attributes:
        sampling: The sampling scheme, as in `accounting.Run`.
        steps: Number of steps in an epoch. None if the epoch ends with the data.
        lots: The `tfdp.data.Lots` that the steps draw from. None for a user's batches.
        physical_batch_size: Number of rows in one chunk. None processes a lot as a whole.
        turn: The group that the first lot comes from, if groups take turns.
        start: Place of the first lot in its epoch, where epochs are whole.
        dataset: The lots. None before `at`, and for the single step of `train_on_batch`.
        steps_per_epoch: The argument for Keras. None if the dataset ends with the epoch.
        adapter: An adapter with the same lots, for Keras in place of the dataset. None if not needed.
        validation_data: As in `fit`.
        key: The secret of the training that several machines share, 16 bytes. None on one machine.
        shards: A digest of a few rows of each machine's shard, in order. Empty without shards.
    """

    sampling: Sampling
    steps: int | None = None
    lots: Lots | None = None
    physical_batch_size: int | None = None
    turn: int = 0
    start: int = 0
    dataset: tf.data.Dataset | None = None
    steps_per_epoch: int | None = None
    adapter: DataAdapter | None = None
    validation_data: object = None
    key: bytes | None = None
    shards: tuple[int, ...] = ()

    @property
    def insecure_seed(self) -> bool:
        """Whether a user's seed determines draws that must be secret for the proof."""
        return self.lots is not None and self.lots.seeded and self.sampling.random_lots

    @property
    def holds_out(self) -> bool:
        """Whether the validation data have no known examples of the training data."""
        given: Any = self.validation_data
        if isinstance(given, tuple):
            given = as_source(given)
        held_out = given.source if isinstance(given, SourceBatches) else given
        if self.lots is None or not isinstance(held_out, Source):
            return True
        return not have_common_rows(self.lots.source, held_out)

    @property
    def needs_order(self) -> bool:
        """Whether a position in the lots has a meaning only together with their secret order."""
        kind = None if self.lots is None else sampling_class(self.lots.sampling)
        return kind is not None and kind.whole_epochs and not kind.fixed_order

    @functools.cached_property
    def spec(self) -> Any:
        """The structure of `tf.TensorSpec`s of a lot. Undefined for the step of `train_on_batch`."""
        given: Any = self.dataset if self.lots is None else self.lots
        return given.element_spec if self.lots is None else given.spec

    @property
    def inputs(self) -> Any:
        """The structure of `tf.TensorSpec`s of the inputs in a lot."""
        return keras.utils.unpack_x_y_sample_weight(self.spec)[0]

    def at(self, position: Position, turn: int, model) -> "Feed":
        """Returns the feed of a training that begins at a position, with its dataset.

        Args:
            position: The position of the first step.
            turn: The group that the first lot comes from (modulo the number of groups).
            model: The model. The replicas of its strategy get shares of each lot.
        """
        lots, strategy = self.lots, model.distribute_strategy
        if lots is None:  # the training skips earlier batches
            return self._in_shares(model) if several(strategy) else self
        kind, start, left_out = sampling_class(lots.sampling), 0, 0
        if kind.whole_epochs:
            start = position.taken % lots.steps_per_epoch
        if kind.whole_epochs or lots.seeded:  # else lots are drawn afresh
            left_out = start if kind.fixed_order else position.taken
        order = None if position.order is None else bytes.fromhex(position.order)
        if order is None and self.key is not None and not lots.seeded:
            order = derived(self.key, "lots")
        if lots.sharded and not several_machines(strategy):
            raise ValueError(
                "These lots come from one shard (shard_of), and only several machines have all shards. "
                "Remove shard_of, or use tf.distribute.MultiWorkerMirroredStrategy."
            )
        turn %= lots.groups
        drawn = functools.partial(lots.as_dataset, (turn - left_out) % lots.groups, start=left_out)
        if not several(strategy):
            return dataclasses.replace(self, dataset=drawn(order=order), turn=turn, start=start)

        def of_machine(shares):
            if not lots.sharded:
                return drawn(order=order, shares=shares)
            own = order_of_shard(order or lots.new_order(), shares.first // shares.local)
            return drawn(order=own, shares=Shares(shares.local, 0, shares.local))

        dataset = distributed(strategy, of_machine)
        adapter = ShareAdapter(dataset, None)
        return dataclasses.replace(self, dataset=dataset, turn=turn, start=start, adapter=adapter)

    def _in_shares(self, model) -> "Feed":
        """Returns the feed of a user's batches for several replicas."""
        batches: Any = self.dataset
        unit = model.optimizer.microbatch_size(self.sampling.lot_size)
        dataset = distributed(
            model.distribute_strategy, lambda shares: shares_of_batches(batches, shares, unit)
        )
        adapter = self.adapter
        if adapter is None:
            adapter = ShareAdapter(dataset, self.steps)
        else:
            adapter.get_tf_dataset = lambda: dataset  # type: ignore[method-assign]
        return dataclasses.replace(self, dataset=dataset, adapter=adapter)


def order_of_shard(order: bytes, number: int) -> bytes:
    """Returns the secret order of a shard's lots, independent of that of all other shards.

    With a common order, records of several shards would always enter lots together. Sampling would not
    amplify the privacy of such a group.
    """
    return derived(order, f"shard {number}")


def feed_for(
    model,
    x,
    y=None,
    *,
    batch_size: int | None = None,
    shuffle: bool | str = True,
    class_weight: dict | None = None,
    sample_weight=None,
    steps_per_epoch: int | None = None,
    validation_split: float = 0.0,
    validation_data=None,
    validation_batch_size: int | None = None,
) -> Feed:
    """Returns the feed for the arguments of `fit`. Each feed draws its own lots.

    Args:
        model: A compiled private model.
        **arguments: As in `fit`.

    Raises:
        ValueError: If the sampling of the data cannot be accounted, or an argument does not fit them.
    """
    steps_per_epoch = whole("steps_per_epoch", steps_per_epoch, 1, optional=True)
    if class_weight is not None and not isinstance(class_weight, Mapping):
        raise ValueError(
            "Invalid value received for argument `class_weight`. Expected a dictionary from classes to "
            f"weights. Received: {class_weight!r}. Choose the weights without looking at these data: "
            "the guarantee does not cover balanced weights, which are computed from all records."
        )
    privacy, x = model.privacy, getattr(x, "tfdp_lots", x)
    given = isinstance(x, Lots | OncePerEpoch) or (is_batches(x) and not is_source(x))
    validation_data = to_evaluate(validation_data, validation_batch_size or batch_size)
    if isinstance(x, Lots) and type(x) is not Lots:
        raise ValueError(
            f"Nothing is known about how lots of the class {type(x).__name__} are drawn. Use lots of "
            "tfdp.data.make_lots."
        )
    if given:
        refuse_arguments_of_arrays(
            y=y,
            batch_size=batch_size,
            sample_weight=sample_weight,
            validation_split=validation_split or None,
        )
    else:
        if isinstance(x, tuple) and y is None and sample_weight is None:
            x = (x,)  # as in Keras, a tuple in `fit` is the inputs alone
        source = as_source(x, y, sample_weight)
        if validation_split and validation_data is None:
            source, validation_data = split_last(source, validation_split, batch_size)
            check_finite(validation_data, "validation_split")
        lot_size = _lot_size(batch_size, len(source), steps_per_epoch)
        if batch_size is None and steps_per_epoch is None and privacy.budget is not None:
            logging.warning(
                "The model has a budget, and fit draws lots of %d, the default batch_size. Pass the "
                "size of the planned lots, or the data that make_private_with_epsilon returned.",
                lot_size,
            )
        if steps_per_epoch is not None:
            steps_per_epoch = _at_most_once(steps_per_epoch, len(source), lot_size)
        x = make_lots(
            _sampling(shuffle),
            source,
            lot_size=lot_size,
            physical_batch_size=privacy.physical_batch_size,
            seed=privacy.next_seed(),
            # XLA compiles for every new shape; without it, varying shapes save padding.
            row_multiple=None if model.jit_compile else row_multiple_for(lot_size),
            microbatch_size=model.optimizer.microbatch_size(lot_size),
            # As in Keras, an epoch in fixed order has all examples.
            keep_last=shuffle is False,
        )
    check_examples(model, x)
    if isinstance(x, Lots) and class_weight is not None:
        x = x.weighted(lambda y: class_weight_to_sample_weights(y, class_weight))
        x.some(1)  # raises if examples have weights, too
    feed = feed_of(
        x,
        privacy.physical_batch_size,
        steps_per_epoch,
        turn=privacy.account.next_turn,
        class_weight=class_weight,
        shuffle=shuffle,
    )
    if validation_data is not None:
        check_validation(model, validation_data, feed.spec)
    return dataclasses.replace(feed, validation_data=validation_data)


def feed_of(
    data: Any,
    physical_batch_size: int | None = None,
    steps_per_epoch: int | None = None,
    *,
    turn: int = 0,
    class_weight: dict | None = None,
    shuffle: bool | str = True,
) -> Feed:
    """Returns the feed of lots or batches.

    Args:
        data: `tfdp.data.Lots`; or batches, with a declaration or without.
        physical_batch_size: Number of rows in one chunk. None takes the size from the lots, or
            processes a lot as a whole.
        turn: The group that the first lot comes from (modulo the number of groups).
        steps_per_epoch, class_weight, shuffle: As in `fit`. The last two are for batches.
    """
    if not isinstance(data, Lots):
        batches = _declared_batches(data) if isinstance(data, OncePerEpoch) else data
        batches = batches_of(batches, class_weight, bool(shuffle))
        declared = isinstance(data, OncePerEpoch)
        return _feed_of_batches(batches, physical_batch_size, steps_per_epoch, declared)
    if physical_batch_size is None and data.physical_batch_size < data.padded_size:
        physical_batch_size = data.physical_batch_size
    steps = _capped(steps_per_epoch or data.steps_per_epoch)
    return Feed(
        sampling_of(data),
        steps,
        data,
        physical_batch_size,
        turn=turn % data.groups,
        steps_per_epoch=steps,
    )


def sampling_of(lots: Lots) -> Sampling:
    """Returns the sampling scheme of lots, as the accounting describes it."""
    kind = sampling_class(lots.sampling)
    return kind(**{field.name: getattr(lots, field.name) for field in dataclasses.fields(kind)})


def _declared_batches(declared: OncePerEpoch):
    """Returns the batches of a declaration. Raises ValueError for lots, arrays and repeated data."""
    x = declared.batches
    if not is_batches(x) or hasattr(x, "tfdp_lots"):
        raise ValueError(
            "OncePerEpoch declares how your own batches are drawn. Expected a tf.data.Dataset of "
            f"batches, a PyDataset or a loader. Received: {type(x).__name__}. Pass lots and arrays "
            "without a declaration."
        )
    if isinstance(x, tf.data.Dataset) and repeats(x):
        raise ValueError(
            "OncePerEpoch declares that an epoch has each example at most once, but the dataset "
            "repeats them. Remove `repeat`: Keras restarts the dataset in every epoch."
        )
    return x


def _feed_of_batches(
    batches: Batches, physical_batch_size, steps_per_epoch, declared: bool
) -> Feed:
    """Returns the feed of batches. `declared`: the user declares each example at most once per epoch.

    Formal guarantee of a declaration: every pass has the same number of lots, and a pass begins with
    the first step and after each multiple of that number; other passes raise. So an example is in at
    most one lot of each epoch that the accounting counts.
    """
    known = batches.number if batches.number >= 0 else None
    steps, dataset = _capped(steps_per_epoch or known), batches.dataset
    if known is None and declared:
        raise ValueError(f"OncePerEpoch requires a known number of batches. {STATE_LENGTH}")
    if steps is None and batches.number == tf.data.INFINITE_CARDINALITY:
        raise ValueError(f"The batches are infinite. Pass steps_per_epoch. {STATE_LENGTH}")
    if declared and steps != known:
        raise ValueError(
            f"OncePerEpoch declares epochs of all {known} batches. Received steps_per_epoch={steps}. "
            "Remove it."
        )
    if declared and batches.adapter is not None:
        # TensorFlow checks the number of a dataset's elements; other batches may state a wrong one.
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(known))
        batches.adapter.get_tf_dataset = lambda: dataset
    size = batches.lot_size
    return Feed(
        sampling_class("once_per_epoch" if declared else "unknown")(
            num_examples=size * (known or steps_per_epoch or 1), lot_size=size
        ),
        steps,
        physical_batch_size=physical_batch_size,
        dataset=dataset,
        steps_per_epoch=None if declared else steps_per_epoch,
        adapter=batches.adapter,
    )


STATE_LENGTH = (
    "Remove `repeat`, and state the number: "
    "dataset.apply(tf.data.experimental.assert_cardinality(n))."
)


def _capped(steps):
    """Applies `keras.config.set_max_steps_per_epoch`, with which Keras ends epochs early."""
    most = keras.config.max_steps_per_epoch()
    return min(steps, most) if steps and most else steps


def refuse_arguments_of_arrays(**arguments) -> None:
    """Raises ValueError if an argument is not None that lots and batches already determine."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"{' and '.join(given)} can only be used with arrays: lots and batches have a size, "
            "targets and weights already. Remove them. To validate, pass validation_data."
        )


def _sampling(shuffle) -> str:
    """Returns the sampling scheme for the argument `shuffle` of `fit`."""
    if isinstance(shuffle, str):
        one_of("shuffle", shuffle, ("epoch",), remedy="Use True, False or 'epoch'.")
        return "random_allocation"
    return "poisson" if shuffle else "cyclic"


def _lot_size(batch_size, total, steps_per_epoch):
    """Returns the lot size for arguments of `fit`, as in Keras. The number of examples is public."""
    if batch_size is None:
        return min(32, total) if steps_per_epoch is None else -(-total // steps_per_epoch)
    if whole("batch_size", batch_size, 1) > total:
        logging.warning(
            "batch_size=%d is more than the %d examples, so every lot has all of them, and there is no "
            "amplification by sampling. A smaller batch_size costs less.",
            *(batch_size, total),
        )
    return min(int(batch_size), total)


def _at_most_once(steps_per_epoch, total, lot_size):
    """Limits an epoch of arrays to one pass over them, with a warning, as Keras does."""
    most = -(-total // lot_size)
    if steps_per_epoch <= most:
        return steps_per_epoch
    logging.warning(
        "steps_per_epoch=%d, but the epoch ends after %d lots of %d, which are all %d examples. For "
        "longer epochs, pass tfdp.data.make_lots(...): lots never run out.",
        *(steps_per_epoch, most, lot_size, total),
    )
    return most
