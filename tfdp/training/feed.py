"""Turns the arguments of `fit` into lots whose sampling is known.

The scheme that is accounted is the scheme that runs: this module draws lots from arrays,
`tfdp.data.Lots` state how they draw, and for all batches that a user draws (`training.batches`) the
sampling counts as unknown.
"""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import (
    DataAdapter,
    class_weight_to_sample_weights,
)
from tfdp._validate import one_of, whole
from tfdp.accounting.sampling import Sampling, Unknown, sampling_class
from tfdp.data import (
    Lots,
    OncePerEpoch,
    as_source,
    make_lots,
    row_multiple_for,
)
from tfdp.data.batches import split_last, to_evaluate
from tfdp.data.sources import is_source
from tfdp.layers.public import public_layers
from tfdp.training.batches import Batches, batches_of, is_batches
from tfdp.training.data_checks import check_disjoint, check_finite, check_targets, check_tokens
from tfdp.training.position import Position


@dataclasses.dataclass(frozen=True)
class Feed:
    """The data of a training, and how its steps draw from them.

    Attributes:
        sampling: how lots are drawn, as in `accounting.Run`.
        steps: number of steps in an epoch; None if the epoch ends when the data do.
        lots: the `tfdp.data.Lots` that the steps draw from; None for other batches.
        insecure_seed: whether secret draws come from a user's seed.
        physical_batch_size: number of rows in one chunk; None processes a lot as a whole.
        turn: the group that the first lot comes from, if groups take turns.
        start: place of the first lot in its epoch, where epochs are whole.
        dataset: the lots; None for the single step of `train_on_batch`.
        steps_per_epoch: the argument for Keras; None if the dataset ends with the epoch.
        adapter: what Keras gets in place of the dataset, whose lots it gives; or None.
        validation_data: as in `fit`.
    """

    sampling: Sampling
    steps: int | None = None
    lots: Lots | None = None
    insecure_seed: bool = False
    physical_batch_size: int | None = None
    turn: int = 0
    start: int = 0
    dataset: tf.data.Dataset | None = None
    steps_per_epoch: int | None = None
    adapter: DataAdapter | None = None
    validation_data: object = None

    @property
    def needs_order(self) -> bool:
        """Whether a position in the lots means something only together with their secret order."""
        kind = None if self.lots is None else sampling_class(self.lots.sampling)
        return kind is not None and kind.whole_epochs and not kind.fixed_order

    def at(self, position: Position, turn: int) -> "Feed":
        """The feed of a training that begins at a position.

        Args:
            position: the position; its beginning is the feed itself.
            turn: the group that the first lot comes from (modulo the number of groups).
        """
        lots = self.lots
        if lots is None:
            return self  # earlier batches are taken from the data, and thrown away
        turn %= lots.groups
        if position.taken == 0 and position.order is None and turn == self.turn:
            return self
        kind, start, left_out = sampling_class(lots.sampling), 0, 0
        if kind.whole_epochs:
            start = position.taken % lots.steps_per_epoch
        if kind.whole_epochs or lots.seeded:  # else lots are drawn afresh
            left_out = start if kind.fixed_order else position.taken
        order = None if position.order is None else bytes.fromhex(position.order)
        first = (turn - left_out) % lots.groups
        dataset = lots.as_dataset(first, start=left_out, order=order)
        return dataclasses.replace(self, dataset=dataset, turn=turn, start=start)


class Feeder:
    """Makes feeds. Each feed draws its own lots.

    Args:
        seed: non-negative integer that makes the lots drawn from arrays reproducible; None takes the
            operating system's entropy.
    """

    def __init__(self, seed: int | None):
        self._seed = whole("seed", seed, 0, optional=True)
        self._fed = 0

    def feed(
        self,
        model,
        x,
        y,
        *,
        batch_size,
        shuffle,
        class_weight,
        sample_weight,
        physical_batch_size,
        steps_per_epoch,
        turn,
        validation_split=0.0,
        validation_data=None,
        validation_batch_size=None,
    ) -> Feed:
        """Returns the feed for the arguments of `fit`.

        Args:
            model: a compiled private model.
            physical_batch_size: number of rows in one chunk; None takes the size from the lots, or
                processes a lot as a whole.
            turn: the group that the first lot comes from (modulo the number of groups), if groups
                take turns.
            **arguments: those of `fit`.

        Raises:
            ValueError: the sampling of the data cannot be accounted, or arguments do not fit the data.
        """
        steps_per_epoch = whole("steps_per_epoch", steps_per_epoch, 1, optional=True)
        declared = isinstance(x, OncePerEpoch)
        if declared:
            x = _declared_batches(x)
        lots = x if isinstance(x, Lots) else getattr(x, "tfdp_lots", None)
        if lots is not None and type(lots) is not Lots:
            raise ValueError(
                "Nothing is known about how lots of this class are drawn. Expected tfdp.data.Lots as "
                f"make_lots gives them. Received: {type(lots).__name__}"
            )
        batches = lots is None and not is_source(x) and is_batches(x)
        validation_data = to_evaluate(validation_data, validation_batch_size or batch_size)
        if lots is not None or batches:
            _refuse_arguments_of_arrays(
                y=y,
                batch_size=batch_size,
                sample_weight=sample_weight,
                validation_split=validation_split or None,
            )
        if batches:
            if public_layers(model):
                logging.warning(_NOT_COMPARED, model.name)
            given = batches_of(x, class_weight, shuffle)
            made = _feed_of_epochs if declared else _feed_of_batches
            feed = made(given, physical_batch_size, steps_per_epoch)
            return dataclasses.replace(feed, validation_data=validation_data)
        if lots is not None:
            _check_arrays(model, lots.in_memory())
        else:
            source = as_source(x, y, sample_weight)
            _check_arrays(model, source.in_memory())
            if validation_split and validation_data is None:
                source, validation_data = split_last(source, validation_split, batch_size)
            lot_size = _lot_size(batch_size, len(source), steps_per_epoch)
            steps_per_epoch = _at_most_once(steps_per_epoch, len(source), lot_size)
            lots = make_lots(
                _sampling(shuffle),
                source,
                lot_size=lot_size,
                physical_batch_size=physical_batch_size,
                seed=self._next_seed(model),
                # XLA compiles for every new shape; without it, varying shapes save padding.
                row_multiple=None if model.jit_compile else row_multiple_for(lot_size),
                microbatch_size=model.optimizer.microbatch_size(lot_size),
                # As in Keras, an epoch in fixed order has all examples.
                keep_last=shuffle is False,
            )
        if class_weight is not None:
            lots = lots.weighted(lambda y: class_weight_to_sample_weights(y, class_weight))
        if (held := lots.in_memory()) is not None:
            check_disjoint(model, held[0])
            check_tokens(model, held[0])
        else:
            _check_some(model, lots)
        feed = feed_of_lots(lots, physical_batch_size, turn, steps_per_epoch)
        dataset = lots.as_dataset(feed.turn)
        return dataclasses.replace(feed, dataset=dataset, validation_data=validation_data)

    def _next_seed(self, model):
        if self._seed is None:
            return None
        # Neither another fit nor a resumed run may draw the same lots again: the accounting assumes
        # that lots are independent.
        words = [self._seed, self._fed, int(model.optimizer.iterations.numpy())]
        self._fed += 1
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


def _check_arrays(model, rows):
    """Checks inputs, targets and weights, where they are arrays in memory."""
    for values, name in zip(rows or (), ("x", "y", "sample_weight"), strict=False):
        check_finite(values, name)
    if rows is not None:
        check_targets(model, *rows[:2])


def _check_some(model, lots):
    """Checks a few examples of lots that are not in memory."""
    indices, rows = lots.some()
    try:
        check_targets(model, *rows)
    except ValueError as error:
        error.add_note(f"(among the rows {indices.tolist()} of the source)")
        raise
    if public_layers(model):
        logging.warning(_NOT_COMPARED, model.name)


def feed_of(
    data: Lots | tf.data.Dataset | OncePerEpoch, physical_batch_size: int | None = None
) -> Feed:
    """Returns how steps draw from lots, or from a dataset of batches whose length is known.

    Args:
        data: lots; or batches, the first of which has to be the largest, with a declaration or without.
        physical_batch_size: number of rows in one chunk; None takes the size from the lots, or
            processes a lot as a whole.

    Raises:
        ValueError: the length is unknown.
    """
    if isinstance(data, Lots):
        return feed_of_lots(data, physical_batch_size)
    if isinstance(data, OncePerEpoch):
        return _feed_of_epochs(batches_of(_declared_batches(data)), physical_batch_size, None)
    feed = _feed_of_batches(batches_of(data), physical_batch_size, None)
    if feed.steps is None:
        raise ValueError(_LENGTH)
    return feed


def sampling_of(lots: Lots) -> Sampling:
    """Returns the sampling scheme of lots, as the accounting describes it."""
    kind = sampling_class(lots.sampling)
    return kind(**{field.name: getattr(lots, field.name) for field in dataclasses.fields(kind)})


def feed_of_lots(
    lots: Lots,
    physical_batch_size: int | None = None,
    turn: int = 0,
    steps_per_epoch: int | None = None,
) -> Feed:
    """Returns how steps draw from lots, without the dataset; arguments as in `Feeder.feed`."""
    if physical_batch_size is None and lots.physical_batch_size < lots.padded_size:
        physical_batch_size = lots.physical_batch_size
    sampling, steps = sampling_of(lots), _capped(steps_per_epoch or lots.steps_per_epoch)
    return Feed(
        sampling,
        steps,
        lots,
        # The proof for whole epochs needs no secret draws.
        insecure_seed=lots.seeded and sampling.random_lots,
        physical_batch_size=physical_batch_size,
        turn=turn % lots.groups,
        steps_per_epoch=steps,
    )


def _feed_of_batches(batches: Batches, physical_batch_size, steps_per_epoch) -> Feed:
    known = batches.number if batches.number >= 0 else None
    steps = steps_per_epoch or known
    if steps is None and batches.number == tf.data.INFINITE_CARDINALITY:
        raise ValueError(_LENGTH)
    rows = batches.lot_size * (known or steps or 1)
    return Feed(
        Unknown(num_examples=rows, lot_size=batches.lot_size),
        _capped(steps),
        physical_batch_size=physical_batch_size,
        dataset=batches.dataset,
        steps_per_epoch=steps_per_epoch,
        adapter=batches.adapter,
    )


def _declared_batches(declared: OncePerEpoch):
    """The batches of a declaration, which have to be batches of a user."""
    x = declared.batches
    if not is_batches(x) or hasattr(x, "tfdp_lots"):
        raise ValueError(
            "OncePerEpoch declares how batches of your own are drawn. Expected a tf.data.Dataset of "
            f"batches, a PyDataset or a loader. Received: {type(x).__name__}. tfdp draws lots of "
            "arrays itself, and knows how."
        )
    return x


def _feed_of_epochs(batches: Batches, physical_batch_size, steps_per_epoch) -> Feed:
    """The feed of batches whose user declared that each example is at most once in an epoch.

    Formal guarantee: every pass has the same number of lots, and a pass begins with the first step
    and after each multiple of that number; other passes raise. So an example is in at most one lot of
    each epoch that the accounting counts.
    """
    number = batches.number
    if number < 0:
        raise ValueError(
            "OncePerEpoch needs the number of batches in an epoch, which these do not know, or have no "
            "end. Leave out `repeat`, and state the number by "
            "dataset.apply(tf.data.experimental.assert_cardinality(n))."
        )
    if _capped(steps_per_epoch or number) != number:
        raise ValueError(
            f"OncePerEpoch is about epochs of all {number} batches. Received steps_per_epoch="
            f"{_capped(steps_per_epoch or number)}. Leave it out."
        )
    adapter, dataset = batches.adapter, batches.dataset
    if (
        adapter is not None
    ):  # TensorFlow knows the number of a dataset; others may be wrong about it
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(number))
        adapter.get_tf_dataset = lambda: dataset
    size = batches.lot_size
    return Feed(
        sampling_class("once_per_epoch")(num_examples=number * size, lot_size=size),
        number,
        physical_batch_size=physical_batch_size,
        dataset=dataset,
        adapter=adapter,
    )


_LENGTH = (
    "These batches do not know their length, or have no end. Expected the argument "
    "`steps_per_epoch`."
)


_NOT_COMPARED = (
    "Model '%s' has public examples, and only arrays in memory are compared with them. "
    "Make sure that no private example is among the public ones."
)


def _capped(steps):
    """Applies `keras.config.set_max_steps_per_epoch`, with which Keras ends epochs early."""
    most = keras.config.max_steps_per_epoch()
    return min(steps, most) if steps and most else steps


def _refuse_arguments_of_arrays(**arguments):
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ValueError(
            f"The arguments {given} go with arrays. Expected Lots or a dataset to hold targets, sample "
            "weights and the lot size itself, and validation data by `validation_data`."
        )


def _sampling(shuffle) -> str:
    """The way of drawing lots that an argument `shuffle` of `fit` means."""
    if isinstance(shuffle, str):
        one_of("shuffle", shuffle, ("epoch",), remedy="Use True, False or 'epoch'.")
        return "random_allocation"
    return "poisson" if shuffle else "cyclic"


def _lot_size(batch_size, total, steps_per_epoch):
    """The lot size that the arguments of `fit` mean, as in Keras; the number of examples is public."""
    if batch_size is None:
        return min(32, total) if steps_per_epoch is None else -(-total // steps_per_epoch)
    if whole("batch_size", batch_size, 1) > total:
        logging.warning(
            "batch_size=%d, and there are %d examples, so a lot is all of them. Nothing is amplified "
            "by sampling then; a smaller batch_size costs less.",
            *(batch_size, total),
        )
    return min(int(batch_size), total)


def _at_most_once(steps_per_epoch, total, lot_size):
    """Ends an epoch of arrays after one pass over them, as Keras does with a warning."""
    most = -(-total // lot_size)
    if steps_per_epoch is None or steps_per_epoch <= most:
        return steps_per_epoch
    logging.warning(
        "steps_per_epoch=%d, and %d lots of %d are all %d examples, so an epoch ends there. Pass "
        "tfdp.data.make_lots(...) for longer epochs: lots do not run out.",
        *(steps_per_epoch, most, lot_size, total),
    )
    return most
