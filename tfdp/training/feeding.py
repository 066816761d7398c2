"""Turns the arguments of `fit` into lots whose sampling is known.

The scheme that is accounted is the scheme that runs: this module draws lots from arrays,
`tfdp.data.Lots` state how they draw, and for any other dataset the sampling counts as unknown.
"""

import dataclasses
import math

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._validate import whole
from tfdp.accounting.sampling import sampling_class
from tfdp.data import SAMPLINGS, Lots, check_labels, make_lots, row_multiple_for
from tfdp.layers.public import public_layers
from tfdp.session import Plan


@dataclasses.dataclass(frozen=True)
class Feed:
    """The data arguments that Keras' `fit` gets.

    Attributes:
        dataset: the lots.
        plan: how the lots are drawn.
        steps: number of steps in an epoch.
        steps_per_epoch: the argument for Keras; None if the dataset ends with the epoch.
        validation_data: as in `fit`.
    """

    dataset: tf.data.Dataset
    plan: Plan
    steps: int
    steps_per_epoch: int | None
    validation_data: object


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
        validation_split,
        validation_data,
        physical_batch_size,
        steps_per_epoch,
        turn=0,
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
        lots = x if isinstance(x, Lots) else getattr(x, "tfdp_lots", None)
        if lots is not None and type(lots) not in SAMPLINGS.values():
            raise ValueError(
                "Nothing is known about how lots of this class are drawn. Expected tfdp.data.Lots as "
                f"make_lots gives them. Received: {type(lots).__name__}"
            )
        if lots is not None or isinstance(x, tf.data.Dataset):
            for_arrays = dict(
                y=y,
                batch_size=batch_size,
                class_weight=class_weight,
                sample_weight=sample_weight,
                validation_split=validation_split or None,
            )
            given = [name for name, value in for_arrays.items() if value is not None]
            if given:
                raise ValueError(
                    f"The arguments {given} go with arrays. Expected Lots or a dataset to hold "
                    "targets, sample weights and the lot size itself, and validation data by "
                    "`validation_data`."
                )
        if lots is None and isinstance(x, tf.data.Dataset):
            plan = plan_of_dataset(x, physical_batch_size, steps_per_epoch)
            return Feed(x, plan, plan.steps, steps_per_epoch, validation_data)
        if lots is None:
            if y is None or isinstance(x, keras.utils.PyDataset) or hasattr(x, "__next__"):
                raise ValueError(
                    "Private training needs to know how its batches are drawn. Expected arrays x "
                    "and y, tfdp.data.Lots, or a tf.data.Dataset with drop_remainder=True. "
                    f"Received: x of type {type(x).__name__}, y of type {type(y).__name__}."
                )
            if validation_split:
                (x, y, sample_weight), validation_data = _split(
                    x, y, sample_weight, validation_split, validation_data
                )
            check_targets(model, y)
            lot_size = 32 if batch_size is None else batch_size
            lots = make_lots(
                "poisson" if shuffle else "cyclic",
                x,
                y,
                lot_size=lot_size,
                physical_batch_size=physical_batch_size,
                sample_weight=_with_class_weight(y, class_weight, sample_weight),
                seed=self._next_seed(model),
                # XLA compiles for every new shape; without it, varying shapes save padding.
                row_multiple=None if model.jit_compile else row_multiple_for(lot_size),
            )
        check_disjoint(model, lots.inputs)
        plan = plan_of(lots, physical_batch_size, turn)
        steps = steps_per_epoch or lots.steps_per_epoch
        return Feed(lots.as_dataset(plan.turn), plan, steps, steps, validation_data)

    def _next_seed(self, model):
        if self._seed is None:
            return None
        # Neither another fit nor a resumed run may draw the same lots again: the accounting assumes
        # that lots are independent.
        words = [self._seed, self._fed, int(model.optimizer.iterations.numpy())]
        self._fed += 1
        return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


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
    return Plan(
        sampling=lots.sampling,
        num_examples=lots.num_examples,
        lot_size=lots.lot_size,
        groups=lots.groups,
        turn=turn % lots.groups,
        lots=lots,
        nominal=getattr(lots, "nominal", False),
        insecure_seed=lots.seeded and _relies_on_secret_lots(lots),
        physical_batch_size=physical_batch_size,
    )


def _relies_on_secret_lots(lots: Lots) -> bool:
    """Whether the proof rests on draws that are secret; the proof for whole epochs needs no secret."""
    kind = sampling_class(lots.sampling)
    return kind(num_examples=lots.num_examples, lot_size=lots.lot_size).random_lots


def plan_of_dataset(
    dataset: tf.data.Dataset,
    physical_batch_size: int | None = None,
    steps_per_epoch: int | None = None,
) -> Plan:
    """Returns the plan of one epoch of a dataset, of whose sampling nothing is known.

    Args:
        dataset: batches of one static size.
        physical_batch_size: number of rows in one chunk; None processes a batch as a whole.
        steps_per_epoch: number of batches in an epoch; None takes the length of the dataset.

    Raises:
        ValueError: the batches have no static size, or the length is unknown.
    """
    leaves = tf.nest.flatten(dataset.element_spec)
    lot_size = leaves[0].shape[0] if leaves and leaves[0].shape.rank else None
    if lot_size is None:
        raise ValueError(
            "The batches of this tf.data.Dataset have no static size, so a last, smaller batch "
            "would be divided by the wrong constant. Expected dataset.batch(n, "
            "drop_remainder=True), arrays, or tfdp.data.Lots."
        )
    batches = int(dataset.cardinality().numpy())
    steps = steps_per_epoch or (batches if batches > 0 else None)
    if steps is None:
        raise ValueError(
            "This tf.data.Dataset does not know its length. Expected the argument `steps_per_epoch`."
        )
    return Plan(
        sampling="unknown",
        num_examples=lot_size * (batches if batches > 0 else steps),
        lot_size=lot_size,
        steps=steps,
        physical_batch_size=physical_batch_size,
    )


def check_targets(model, y) -> None:
    """Raises ValueError if integer labels are not indices of the model's outputs.

    Args:
        model: a compiled Keras model.
        y: labels; only one array with a sparse categorical loss is checked.
    """
    loss = model.loss
    sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or (
        loss == "sparse_categorical_crossentropy"
    )
    if not sparse or not model.built or not hasattr(model, "outputs") or y is None:
        return
    classes = model.outputs[0].shape[-1] if len(model.outputs) == 1 else None
    if classes is None or isinstance(y, (dict, list, tuple)):
        return
    check_labels(y, classes)


def check_disjoint(model, x) -> None:
    """Raises ValueError if a private example is also one of the model's public examples.

    Examples are compared bit by bit (0.0 equals -0.0). They are compared only if private and public
    examples have the same shape, since layers before a `PublicExamples` layer may change the inputs.

    Args:
        model: a Keras model.
        x: private inputs, a structure of arrays.
    """
    private = keras.tree.flatten(x)
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


def _split(x, y, sample_weight, fraction, validation_data):
    """Takes the last part of the arrays as validation data, as Keras does, before N is counted."""
    if validation_data is not None or not 0.0 < fraction < 1.0:
        raise ValueError(
            "Invalid value received for argument `validation_split`. Expected a number between 0 "
            f"and 1, and no validation_data. Received: {fraction!r}"
        )
    total = len(tf.nest.flatten(x)[0])
    kept = math.floor(total * (1 - fraction))
    parts = (x, y) if sample_weight is None else (x, y, sample_weight)
    train = tf.nest.map_structure(lambda a: a[:kept], parts)
    held_out = tf.nest.map_structure(lambda a: a[kept:], parts)
    logging.info("validation_split: training on N = %d of %d examples.", kept, total)
    if sample_weight is None:
        train = (*train, None)
    return train, held_out


def _with_class_weight(y, class_weight, sample_weight):
    if class_weight is None:
        return sample_weight
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(axis=1)
    weights = np.array([class_weight.get(int(label), 1.0) for label in labels.ravel()], np.float32)
    return weights if sample_weight is None else weights * np.asarray(sample_weight, np.float32)
