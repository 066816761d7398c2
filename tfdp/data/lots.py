"""Base class of the lots: the logical batches of private training.

A *lot* is the logical batch of one training step. Its sampling scheme decides how much privacy a step
costs, so the scheme that is accounted must be the scheme that ran: every `Lots` object really draws by
the scheme that its `sampling` names, and its dataset refers to it by the attribute `tfdp_lots`.

Formal guarantees:

* The draw depends on the number of examples and on nothing else in the data.
* No example that was drawn is ever dropped to make a lot fit, and none is added.
* Lots are drawn only in the process that made them: two forks would draw the same secret lots.
* The draws come from 128 bits of the operating system's entropy unless the user passes a seed,
  whatever `np.random.seed` or `keras.utils.set_random_seed` were given. The choice of the examples is
  a secret, on which the amplification by sampling rests.

The `tf.data` pipeline runs without Python: a background thread that waits for the interpreter can hang
a process that is about to exit.

Padding rows exist only to keep the shape fixed. They have a sample weight of zero, and an example of
weight zero is absent.

This module holds what all lots share; the ways of drawing them are in `tfdp.data.schemes`.
"""

import abc
import functools
import hashlib
import os
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.autograph.experimental import do_not_convert

from tfdp._validate import whole
from tfdp.data.arrays import (
    all_arrays,
    as_arrays,
    as_weights,
    common_length,
    each_array,
    with_padding_row,
)
from tfdp.data.randomness import RandomWords, RepeatedWords

# Lots are padded to a multiple of this number of rows if no physical batch size is given.
_ROUNDING = 8


class Lots(abc.ABC):
    """Endless lots from arrays that fit in memory (they are copied once).

    Every iteration over the dataset starts a new epoch with fresh randomness: two iterators never
    have the same draws, not even under a seed (unless one order is asked for). A seeded run is
    nevertheless reproducible, since the draws of the k-th iterator are a function of the seed and of
    k only.

    Attributes:
        sampling: name of the scheme, such as "poisson".
        num_examples: N, the public number of examples that the accounting uses. It is the number of
            examples in the data, unless `nominal`, and up to L - 1 more with `keep_last` of
            `CyclicLots`.
        available_examples: number of examples that lots are drawn from.
        nominal: whether N was given (`nominal_examples` of `PoissonLots`) and not counted.
        lot_size: L, the nominal size of a lot; the divisor of the summed gradient, however many
            examples were drawn.
        padded_size: number of rows in a lot as it is yielded, a multiple of `physical_batch_size`; only
            an overflowing lot has more. With a `row_multiple`, lots have the next multiple of that
            number of rows instead.
        physical_batch_size: number of rows in one chunk.
        microbatch_size: number of neighbours in the data that come together, in one microbatch.
        steps_per_epoch: number of lots in an epoch, N // L.
        groups: number of groups, which take turns, that the examples are divided into; 1 unless the
            sampling is "cyclic_poisson".
        seeded: whether the user chose the seed, so that anyone who knows the seed knows the draws.
        process_id: id of the process that made the lots; no other process may draw them.

    Args:
        x: inputs; an array or a nested dict, tuple or list of arrays, first dimension N. Floats of
            any precision become `keras.config.floatx()`, as in Keras. None is an optional input that
            is absent.
        y: targets; likewise. None if the loss needs none.
        lot_size: L, an integer from 1 to N.
        physical_batch_size: number of rows in one chunk; the whole padded lot by default.
        sample_weight: float weights, finite and not negative; 1 by default. One array (N,), with a
            number for each example, or (N, tokens, ...), with one for each token; or one such array
            for each target, in the structure of `y`. An example without any weight above 0 is absent.
        seed: an integer that makes the draws reproducible, for tests and debugging. By default the
            draws come from the operating system's entropy.
        microbatch_size: m, a divisor of L, for an optimizer that clips the mean gradient of m examples:
            whole groups of m neighbours in the data are drawn, which sampling amplifies. Without
            `num_microbatches`, leave it out.
        row_multiple: None gives every lot one fixed number of rows, so that XLA compiles once. With an
            integer, the number of rows is the next multiple of it: less padding, but shapes that
            vary from lot to lot.

    Raises:
        ValueError: an argument is invalid.

    Example:
        >>> import numpy as np, tfdp
        >>> x, y = np.arange(10.0), np.arange(10)
        >>> lots = tfdp.data.make_lots("cyclic", x, y, lot_size=4)
        >>> lots.steps_per_epoch  # two lots of 4; the last two examples are left out
        2
        >>> first, second = lots.as_dataset().take(2)
        >>> second[1].numpy()
        array([4, 5, 6, 7])
        >>> [indices.numpy().tolist() for indices in lots.indices().take(1)]
        [[0, 1, 2, 3]]
    """

    sampling: str
    groups = 1
    _nominal_examples: int | None = None

    def __init__(
        self,
        x: Any,
        y: Any,
        lot_size: int,
        *,
        physical_batch_size: int | None = None,
        sample_weight: Any = None,
        seed: int | None = None,
        row_multiple: int | None = None,
        microbatch_size: int = 1,
    ):
        x, y = as_arrays(x, "x"), as_arrays(y, "y")
        self.available_examples = common_length(x, y)
        self.nominal = self._nominal_examples is not None
        self.num_examples: int = self._nominal_examples or self.available_examples
        self.process_id = os.getpid()
        limit = f"Use at most the {'nominal ' if self.nominal else ''}number of examples."
        self.lot_size = whole("lot_size", lot_size, 1, self.num_examples, remedy=limit)
        physical_batch_size = whole("physical_batch_size", physical_batch_size, 1, optional=True)
        row_multiple = whole("row_multiple", row_multiple, 1, optional=True)
        seed = whole("seed", seed, 0, optional=True)
        sample_weight = as_weights(sample_weight, self.available_examples)
        self.steps_per_epoch = self.num_examples // self.lot_size
        self.microbatch_size = whole("microbatch_size", microbatch_size, 1, self.lot_size)
        if self.lot_size % self.microbatch_size:
            raise ValueError(
                f"Expected microbatch_size to divide the lot size {self.lot_size}. Received "
                f"{microbatch_size}. Use another one."
            )
        # What is drawn: groups of neighbours, or single examples.
        self._units = -(-self.available_examples // self.microbatch_size)
        self._units_of_lot = self.lot_size // self.microbatch_size
        self.seeded = seed is not None
        self._random = RandomWords(seed)
        rows = self._usual_rows()
        self._row_multiple = row_multiple
        if physical_batch_size is None:
            physical_batch_size = rows if rows == self.lot_size else round_up(rows, _ROUNDING)
        # A physical batch larger than the padded lot would only hold more padding.
        self.physical_batch_size = min(physical_batch_size, round_up(rows, _ROUNDING))
        self.padded_size = round_up(rows, self.physical_batch_size)
        with tf.device("CPU:0"):  # lots are assembled on the CPU, whichever device trains
            self._columns = each_array(with_padding_row, (x, y, sample_weight))

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        made = cls.__init__

        @functools.wraps(made)
        def closed(self, *args, **options):
            made(self, *args, **options)
            if type(self) is cls:
                self.__dict__["_closed"] = True

        cls.__init__ = closed

    def __setattr__(self, name, value):
        if self.__dict__.get("_closed"):
            raise AttributeError(
                f"{type(self).__name__}.{name} says how lots are drawn, and the accounting relies on "
                "it, so it cannot be assigned. Expected make_lots(...) with other arguments."
            )
        super().__setattr__(name, value)

    def __reduce__(self):
        raise TypeError(
            f"{type(self).__name__} holds the secret that its lots are drawn with, and a copy would "
            "draw the same ones again. Expected make_lots(...) of the same arrays instead of a copy."
        )

    def __repr__(self):
        return (
            f"{type(self).__name__}(num_examples={self.num_examples}, lot_size={self.lot_size}, "
            f"padded_size={self.padded_size}, physical_batch_size={self.physical_batch_size}, "
            f"seeded={self.seeded})"
        )

    @property
    def inputs(self) -> Any:
        """The inputs of all examples, NumPy arrays in the structure of `x`."""
        # The last row is the padding.
        return each_array(lambda column: column.numpy()[:-1], self._columns[0])

    def arrays(self) -> list[np.ndarray]:
        """All arrays of inputs and targets, in the order in which `tf.nest` flattens them."""
        return [column.numpy()[:-1] for column in all_arrays(self._columns[:2])]

    @abc.abstractmethod
    def _draw(self, random: tf.Tensor, turn: int) -> tf.data.Dataset:
        """Returns the infinite dataset of the int64 units of each lot, beginning with a new epoch.

        A unit is an example, or a group of `microbatch_size` neighbours.

        Args:
            random: number of the iterator's own random stream in `self._random`.
            turn: as in `as_dataset`.
        """

    def _cut(self, order: tf.Tensor) -> tf.data.Dataset:
        """Cuts one epoch's order of the units into its N // L lots."""
        used = order[: self.steps_per_epoch * self._units_of_lot]
        lots = tf.reshape(used, (self.steps_per_epoch, self._units_of_lot))
        return tf.data.Dataset.from_tensor_slices(tf.cast(lots, tf.int64))

    def _usual_rows(self) -> int:
        """Returns a number of rows that is enough for every lot, or for nearly every Poisson lot."""
        return self.lot_size

    def new_order(self) -> bytes:
        """Returns a new secret for the argument `order` of `as_dataset`."""
        return self._random.new_secret()

    def _in_order(self, order: bytes | None) -> "Lots":
        """These lots with the draws of a given secret; None leaves them as they are."""
        if order is None:
            return self
        lots = object.__new__(type(self))
        lots.__dict__.update(self.__dict__ | {"_random": RepeatedWords(order)})
        return lots

    def indices(
        self, turn: int = 0, *, start: int = 0, order: bytes | None = None
    ) -> tf.data.Dataset:
        """Returns the infinite dataset of the example indices of each lot, for inspection.

        Every iterator has its own draws, which are not the draws of `as_dataset()`. An index of
        `available_examples` stands for an absent row of a microbatch.

        Args:
            turn, start, order: as in `as_dataset`.

        Raises:
            ValueError: `turn` is not the number of a group.
            RuntimeError: this process is not the one that made the lots.
        """
        if os.getpid() != self.process_id:
            raise RuntimeError(
                "Expected lots that this process made, because a fork draws the same lots as its "
                "parent and its siblings, and lots have to be secret and independent. Received "
                f"lots of process {self.process_id} in process {os.getpid()}. Call make_lots after "
                "the fork, in every process."
            )
        remedy = "Pass the number of a group."
        turn = whole("turn", turn, 0, self.groups - 1, remedy=remedy)
        start, lots = whole("start", start, 0), self._in_order(order)
        # Nothing here needs AutoGraph, whose conversion takes a fifth of the time to a first step.
        draw = do_not_convert(lambda random: lots._draw(random, turn))
        drawn = lots._random.new_stream().flat_map(draw)
        if self.microbatch_size > 1:
            drawn = drawn.map(do_not_convert(self._members))
        return drawn.skip(start) if start else drawn

    def as_dataset(
        self, turn: int = 0, *, start: int = 0, order: bytes | None = None
    ) -> tf.data.Dataset:
        """Returns the lots as an infinite dataset of `(x, y, sample_weight)`.

        Every element has `padded_size` rows (more only when a Poisson lot overflows; with
        `row_multiple`, see `Lots`), real rows first. The leading dimension of the element spec is None,
        so that an overflowing lot is no error. `sample_weight` is float32, 0 for padding: [rows], or of
        the shape and structure of the weights that were given. What is None in the data stays None.
        Lists become tuples, since `tf.data` converts a list to a tensor.

        Args:
            turn: the group that the first lot comes from, if groups take turns.
            start: number of lots that are left out at the beginning.
            order: secret of `new_order`, with which every iterator draws the same lots, for a training
                that goes on in another process. None gives every iterator draws of its own.

        Returns:
            A `tf.data.Dataset` with this object as its attribute `tfdp_lots`.

        Raises:
            ValueError: `turn` is not the number of a group.
            RuntimeError: this process is not the one that made the lots.
        """
        dataset = self.indices(turn, start=start, order=order).map(do_not_convert(self._gather))
        # Declares that the dataset is infinite, so that a trainer can require a number of steps.
        dataset = dataset.apply(
            tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        )
        # Lots are drawn while a step runs. Splitting the work for all cores, which the step occupies,
        # saves no processor time and makes a lot wait longer (1.2 ms against 0.7 on busy cores).
        options = tf.data.Options()
        options.threading.max_intra_op_parallelism = 1
        dataset = dataset.with_options(options).prefetch(2)
        dataset.tfdp_lots = self
        return dataset

    def fingerprint(self) -> str:
        """Returns a digest of the examples in order; two `Lots` with the same data have the same.

        The digest depends on every example without noise, so it is as secret as the examples.
        """
        digest = hashlib.sha256()
        for column in all_arrays(self._columns):
            digest.update(f"{column.dtype.name} {tuple(column.shape)} ".encode())
            if column.dtype == tf.string:
                column = tf.io.serialize_tensor(column)  # NumPy has places in memory for texts
                digest.update(column.numpy())
            else:
                digest.update(np.ascontiguousarray(column.numpy()).data)
        return digest.hexdigest()

    def _members(self, units: tf.Tensor) -> tf.Tensor:
        """The examples of groups of neighbours; the last group of the data may have absent rows."""
        size = tf.constant(self.microbatch_size, tf.int64)
        rows = tf.reshape(units[:, None] * size + tf.range(size), [-1])
        return tf.minimum(rows, self.available_examples)

    def _gather(self, indices: tf.Tensor) -> Any:
        """Copies the examples at `indices`, and the padding row up to the padded size."""
        # The placeholder hides the static number of rows, so that all schemes have the same element
        # spec.
        indices = tf.compat.v1.placeholder_with_default(indices, (None,))
        size = tf.shape(indices)[0]
        if self._row_multiple is None:
            overflow = tf.maximum(size - self.padded_size, 0)
            rows = self.padded_size + round_up(overflow, self.physical_batch_size)
        else:
            rows = round_up(tf.maximum(size, 1), self._row_multiple)
        padding = self.available_examples  # the row behind the last example
        padded = tf.pad(indices, [[0, rows - size]], constant_values=padding)
        return each_array(lambda column: tf.gather(column, padded), self._columns)


def row_multiple_for(lot_size: int) -> int:
    """Returns a `row_multiple` that needs little padding and gives only a few different shapes.

    Example:
        >>> import tfdp
        >>> tfdp.data.row_multiple_for(256)
        16
    """
    return max(_ROUNDING, round_up(whole("lot_size", lot_size, 1) // 16, _ROUNDING))


def round_up(value, multiple: int):
    """Rounds a number or an integer tensor up to the next multiple of `multiple`."""
    return -(-value // multiple) * multiple
