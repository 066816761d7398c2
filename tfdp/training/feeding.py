"""Turns the arguments of `fit` into lots whose sampling is known.

The scheme that is accounted is the scheme that runs: this module draws lots from arrays,
`tfdp.data.Lots` state how they draw, and for all batches that a user draws (`training.batches`) the
sampling counts as unknown.
"""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import (
    DataAdapter,
    class_weight_to_sample_weights,
    train_validation_split,
)
from tfdp._validate import one_of, whole
from tfdp.accounting.sampling import Sampling, Unknown, sampling_class
from tfdp.data import SAMPLINGS, CyclicLots, Lots, row_multiple_for
from tfdp.data.arrays import all_arrays, as_arrays, common_length
from tfdp.layers.public import public_layers
from tfdp.plan import Plan
from tfdp.training.batches import batches_of, is_batches
from tfdp.training.checks import check_targets, check_tokens


@dataclasses.dataclass(frozen=True)
class Feed:
    """The data arguments that Keras' `fit` gets.

    Attributes:
        dataset: the lots; None for the single step of `train_on_batch`.
        plan: how the lots are drawn, with the number of planned steps (or None).
        steps: number of steps in an epoch; None if the epoch ends when the data do.
        steps_per_epoch: the argument for Keras; None if the dataset ends with the epoch.
        validation_data: as in `fit`.
        adapter: what Keras gets in place of the dataset, whose lots it gives; or None.
    """

    dataset: tf.data.Dataset | None
    plan: Plan
    steps: int | None
    steps_per_epoch: int | None = None
    validation_data: object = None
    adapter: DataAdapter | None = None

    def planned(self, epochs: int, behind: int = 0) -> "Feed":
        """The feed with the number of steps in so many epochs, less those that were taken before."""
        steps = None if self.steps is None else max(0, epochs * self.steps - behind)
        return dataclasses.replace(self, plan=dataclasses.replace(self.plan, steps=steps))


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
        lots = x if isinstance(x, Lots) else getattr(x, "tfdp_lots", None)
        if lots is not None and type(lots) not in SAMPLINGS.values():
            raise ValueError(
                "Nothing is known about how lots of this class are drawn. Expected tfdp.data.Lots as "
                f"make_lots gives them. Received: {type(lots).__name__}"
            )
        if lots is not None or is_batches(x):
            _refuse_arguments_of_arrays(
                y=y,
                batch_size=batch_size,
                class_weight=None if lots is None else class_weight,
                sample_weight=sample_weight,
                validation_split=validation_split or None,
            )
        if lots is None and is_batches(x):
            if public_layers(model):
                logging.warning(_NOT_COMPARED, model.name)
            batches = batches_of(x, class_weight, shuffle)
            plan = _plan_of_batches(batches, physical_batch_size, steps_per_epoch)
            data, adapter = batches.dataset, batches.adapter
            return Feed(data, plan, plan.steps, steps_per_epoch, validation_data, adapter)
        if lots is None:
            x, y = as_arrays(x, "x"), as_arrays(y, "y")
            if sample_weight is not None:
                sample_weight = as_arrays(sample_weight, "sample_weight")
            if validation_split and validation_data is None:
                parts = (x, y, sample_weight)
                parts, validation_data = train_validation_split(parts, validation_split)
                x, y, sample_weight = parts
            if class_weight is not None:
                if sample_weight is not None:
                    raise ValueError("Expected class_weight or sample_weight. Received both.")
                sample_weight = class_weight_to_sample_weights(y, class_weight)
            check_targets(model, x, y)
            lot_size = _lot_size(batch_size, common_length(x, y), steps_per_epoch)
            steps_per_epoch = _at_most_once(steps_per_epoch, common_length(x, y), lot_size)
            lots = _kind(shuffle)(
                x,
                y,
                lot_size,
                physical_batch_size=physical_batch_size,
                sample_weight=sample_weight,
                seed=self._next_seed(model),
                # XLA compiles for every new shape; without it, varying shapes save padding.
                row_multiple=None if model.jit_compile else row_multiple_for(lot_size),
                microbatch_size=model.optimizer.microbatch_size(lot_size),
            )
        check_disjoint(model, lots.inputs)
        check_tokens(model, lots.inputs)
        plan = plan_of(lots, physical_batch_size, turn)
        steps = _capped(steps_per_epoch or lots.steps_per_epoch)
        return Feed(lots.as_dataset(plan.turn), plan, steps, steps, validation_data)

    def _next_seed(self, model):
        if self._seed is None:
            return None
        # Neither another fit nor a resumed run may draw the same lots again: the accounting assumes
        # that lots are independent.
        words = [self._seed, self._fed, int(model.optimizer.iterations.numpy())]
        self._fed += 1
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


@dataclasses.dataclass(frozen=True)
class Place:
    """How far a training has come: the place of its next step.

    Attributes:
        epoch: index of the epoch, as Keras counts.
        step: number of steps of this epoch that lie behind.
        taken: number of lots that lie behind since the data began, in all epochs.
        order: secret order of shuffled lots, in hexadecimal digits, or None.
        longest: number of steps of the longest epoch that ended with its data; None before one did.
        planned: number of steps that earlier processes planned, in all; None if nobody knows it.
    """

    epoch: int
    step: int = 0
    taken: int = 0
    order: str | None = None
    longest: int | None = None
    planned: int | None = None

    def later(self, steps: int) -> "Place":
        """The place so many steps later in the same epoch."""
        return dataclasses.replace(self, step=self.step + steps, taken=self.taken + steps)

    def next_epoch(self) -> "Place":
        """The place at the beginning of the next epoch."""
        return dataclasses.replace(self, epoch=self.epoch + 1, step=0)


def placed(feed: Feed, place: Place, turn: int) -> Feed:
    """The feed of a training that begins at a place; its beginning is the feed itself.

    Args:
        feed: the feed, from its beginning.
        place: the place.
        turn: the group that the first lot comes from (modulo the number of groups).
    """
    lots = feed.plan.lots
    if lots is None:
        return feed  # the batches that lie behind are taken from the data, and thrown away
    if place.taken == 0 and place.order is None and turn % lots.groups == feed.plan.turn:
        return feed
    kind, start, left_out = sampling_class(lots.sampling), 0, 0
    if kind.whole_epochs:
        start = place.taken % lots.steps_per_epoch
    if kind.whole_epochs or lots.seeded:  # else lots are drawn afresh
        left_out = start if kind.fixed_order else place.taken
    plan = dataclasses.replace(feed.plan, turn=turn % lots.groups, start=start)
    first = (plan.turn - left_out) % lots.groups
    order = None if place.order is None else bytes.fromhex(place.order)
    dataset = lots.as_dataset(first, start=left_out, order=order)
    return dataclasses.replace(feed, dataset=dataset, plan=plan)


def needs_order(feed: Feed) -> bool:
    """Whether a place in the feed's lots means something only together with their secret order."""
    lots = feed.plan.lots
    kind = None if lots is None else sampling_class(lots.sampling)
    return kind is not None and kind.whole_epochs and not kind.fixed_order


def sampling_of(lots: Lots) -> Sampling:
    """Returns the sampling scheme of lots, as the accounting describes it."""
    kind = sampling_class(lots.sampling)
    return kind(**{field.name: getattr(lots, field.name) for field in dataclasses.fields(kind)})


def plan_of(lots: Lots, physical_batch_size: int | None = None, turn: int = 0) -> Plan:
    """Returns how lots are drawn, without a number of steps.

    Args:
        lots: the lots.
        physical_batch_size: number of rows in one chunk; None takes the size from the lots, or
            processes a lot as a whole.
        turn: the group that the first lot comes from (modulo the number of groups).
    """
    if physical_batch_size is None and lots.physical_batch_size < lots.padded_size:
        physical_batch_size = lots.physical_batch_size
    sampling = sampling_of(lots)
    return Plan(
        sampling=sampling,
        turn=turn % lots.groups,
        lots=lots,
        # The proof for whole epochs needs no secret draws.
        insecure_seed=lots.seeded and sampling.random_lots,
        physical_batch_size=physical_batch_size,
    )


def plan_of_dataset(
    dataset: tf.data.Dataset,
    physical_batch_size: int | None = None,
    steps_per_epoch: int | None = None,
) -> Plan:
    """Returns the plan of one epoch of a dataset, of whose sampling nothing is known.

    Args:
        dataset: batches; the first one has to be the largest.
        physical_batch_size: number of rows in one chunk; None processes a batch as a whole.
        steps_per_epoch: number of batches in an epoch; None takes the length of the dataset.

    Raises:
        ValueError: the length is unknown.
    """
    plan = _plan_of_batches(batches_of(dataset), physical_batch_size, steps_per_epoch)
    if plan.steps is None:
        raise ValueError(_LENGTH)
    return plan


def _plan_of_batches(batches, physical_batch_size, steps_per_epoch):
    known = batches.number if batches.number >= 0 else None
    steps = steps_per_epoch or known
    if steps is None and batches.number == tf.data.INFINITE_CARDINALITY:
        raise ValueError(_LENGTH)
    return Plan(
        sampling=Unknown(
            num_examples=batches.lot_size * (known or steps or 1), lot_size=batches.lot_size
        ),
        steps=_capped(steps),
        physical_batch_size=physical_batch_size,
    )


_LENGTH = (
    "These batches do not know their length, or have no end. Expected the argument "
    "`steps_per_epoch`."
)


_NOT_COMPARED = (
    "Model '%s' has public examples, and only arrays are compared with them, not batches of your own. "
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


def _kind(shuffle):
    """The way of drawing lots that an argument `shuffle` of `fit` means."""
    if isinstance(shuffle, str):
        one_of("shuffle", shuffle, ("epoch",), remedy="Use True, False or 'epoch'.")
        return SAMPLINGS["random_allocation"]
    # As in Keras, an epoch in fixed order has all examples.
    return SAMPLINGS["poisson"] if shuffle else functools.partial(CyclicLots, keep_last=True)


def _lot_size(batch_size, total, steps_per_epoch):
    """The lot size that the arguments of `fit` mean, as in Keras; the number of examples is public."""
    if batch_size is None:
        return min(32, total) if steps_per_epoch is None else -(-total // steps_per_epoch)
    return min(whole("batch_size", batch_size, 1), total)


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


def check_disjoint(model, x) -> None:
    """Raises ValueError if a private example is also one of the model's public examples.

    Examples are compared bit by bit (0.0 equals -0.0). They are compared only if private and public
    examples have the same shape, since layers before a `PublicExamples` layer may change the inputs.

    Args:
        model: a Keras model.
        x: private inputs, a structure of arrays.
    """
    private = all_arrays(x)
    for layer in public_layers(model):
        public = keras.tree.flatten(layer.examples)
        if [rows.shape[1:] for rows in public] != [rows.shape[1:] for rows in private]:
            continue
        known = set(_row_bytes(public, public))
        shared = [i for i, row in enumerate(_row_bytes(private, public)) if row in known]
        if shared:
            raise ValueError(
                f"{len(shared)} private examples (the first at index {shared[0]}) are also public "
                f"examples of layer '{layer.name}', so they would take part in every step without "
                "any noise. Expected public examples that are disjoint from the private data."
            )


def _row_bytes(arrays, like):
    """Yields the rows of several arrays as bytes, in the dtypes of the arrays `like`."""
    arrays = [
        np.ascontiguousarray(np.asarray(array).astype(other.dtype) + other.dtype.type(0))
        for array, other in zip(arrays, like, strict=True)
    ]
    for row in zip(*arrays, strict=True):
        yield b"".join(part.tobytes() for part in row)
