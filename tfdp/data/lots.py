"""Lots: the logical batches of private training, and how they are drawn.

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
"""

import abc
import functools
import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.stats
import tensorflow as tf

from tfdp.data.arrays import as_arrays, as_weights, common_length, with_padding_row
from tfdp.data.randomness import RandomWords

# Poisson lots grow beyond their padded size with at most this probability per lot.
OVERFLOW_PROBABILITY = 1e-9
# Lots are padded to a multiple of this number of rows if no physical batch size is given.
_ROUNDING = 8


class Lots(abc.ABC):
    """Endless lots from arrays that fit in memory (they are copied once).

    Every iteration over the dataset starts a new epoch with fresh randomness: two iterators never
    have the same draws, not even under a seed. A seeded run is nevertheless reproducible, since the
    draws of the k-th iterator are a function of the seed and of k only.

    Attributes:
        sampling: "poisson", "cyclic", "shuffle", "with_replacement", "fixed_size" or
            "cyclic_poisson".
        num_examples: N, the public number of examples that the accounting uses. It is the number of
            examples in the data, unless `nominal`.
        available_examples: number of examples that lots are drawn from.
        nominal: whether N was given (`nominal_examples` of `PoissonLots`) and not counted.
        lot_size: L, the nominal size of a lot; the divisor of the summed gradient, however many
            examples were drawn.
        padded_size: number of rows in a lot as it is yielded, a multiple of `physical_batch_size`; only
            an overflowing lot has more. With a `row_multiple`, lots have the next multiple of that
            number of rows instead.
        physical_batch_size: number of rows in one chunk.
        steps_per_epoch: N // L.
        groups: number of groups, which take turns, that the examples are divided into; 1 unless the
            sampling is "cyclic_poisson".
        seeded: whether the user chose the seed, so that anyone who knows the seed knows the draws.
        process_id: id of the process that made the lots; no other process may draw them.

    Args:
        x: inputs; an array or a nested dict, tuple or list of arrays, first dimension N.
        y: targets; likewise.
        lot_size: L, an integer from 1 to N.
        physical_batch_size: number of rows in one chunk; the whole padded lot by default.
        sample_weight: (N,) float weights, finite and not negative; 1 by default.
        seed: an integer that makes the draws reproducible, for tests and debugging. By default the
            draws come from the operating system's entropy.
        row_multiple: None gives every lot one fixed number of rows, so that XLA compiles once. With an
            integer, the number of rows is the next multiple of it: less padding, but shapes that
            vary from lot to lot.

    Raises:
        ValueError: an argument is invalid.
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
        sample_weight: np.ndarray | None = None,
        seed: int | None = None,
        row_multiple: int | None = None,
    ):
        x, y = as_arrays(x, "x"), as_arrays(y, "y")
        self.available_examples = common_length(x, y)
        self.nominal = self._nominal_examples is not None
        self.num_examples = self._nominal_examples if self.nominal else self.available_examples
        self.process_id = os.getpid()
        if not _is_positive_integer(lot_size) or lot_size > self.num_examples:
            raise ValueError(
                "Invalid value received for argument `lot_size`. Expected an integer from 1 to the "
                f"{'nominal ' if self.nominal else ''}number of examples, {self.num_examples}. "
                f"Received: {lot_size}"
            )
        if physical_batch_size is not None and not _is_positive_integer(physical_batch_size):
            raise ValueError(
                "Invalid value received for argument `physical_batch_size`. Expected a positive "
                f"integer or None. Received: {physical_batch_size}"
            )
        if row_multiple is not None and not _is_positive_integer(row_multiple):
            raise ValueError(
                "Invalid value received for argument `row_multiple`. Expected a positive integer "
                f"or None. Received: {row_multiple}"
            )
        if seed is not None and not (isinstance(seed, int | np.integer) and seed >= 0):
            raise ValueError(
                "Invalid value received for argument `seed`. Expected a non-negative integer or "
                f"None. Received: {seed}"
            )
        sample_weight = as_weights(sample_weight, self.available_examples)
        self.lot_size = int(lot_size)
        self.steps_per_epoch = self.num_examples // self.lot_size
        self.seeded = seed is not None
        self._random = RandomWords(seed)
        rows = self._usual_rows()
        self._row_multiple = row_multiple
        if physical_batch_size is None:
            physical_batch_size = rows if rows == self.lot_size else _round_up(rows, _ROUNDING)
        # The rest of a physical batch that is larger than the lot would only be padding.
        self.physical_batch_size = min(int(physical_batch_size), _round_up(rows, _ROUNDING))
        self.padded_size = _round_up(rows, self.physical_batch_size)
        with tf.device("CPU:0"):  # lots are assembled on the CPU, whichever device trains
            self._columns = tf.nest.map_structure(with_padding_row, (x, y, sample_weight))

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

    __reduce_ex__ = __copy__ = lambda self, *_: self.__reduce__()
    __deepcopy__ = __copy__

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
        return tf.nest.map_structure(lambda column: column.numpy()[:-1], self._columns[0])

    @abc.abstractmethod
    def _draw(self, random: tf.Tensor, turn: int) -> tf.data.Dataset:
        """Returns the infinite dataset of the int64 indices of each lot, beginning with a new epoch.

        Args:
            random: number of the iterator's own random stream in `self._random`.
            turn: as in `as_dataset`.
        """

    def _cut(self, order: tf.Tensor) -> tf.data.Dataset:
        """Cuts one epoch's order of the examples into its N // L lots."""
        used = order[: self.steps_per_epoch * self.lot_size]
        lots = tf.reshape(used, (self.steps_per_epoch, self.lot_size))
        return tf.data.Dataset.from_tensor_slices(tf.cast(lots, tf.int64))

    def _usual_rows(self) -> int:
        """The number of rows that is enough for (nearly) every lot."""
        return self.lot_size

    def indices(self, turn: int = 0) -> tf.data.Dataset:
        """Returns the infinite dataset of the example indices of each lot, for inspection.

        Every iterator has its own draws, which are not the draws of `as_dataset()`.

        Args:
            turn: as in `as_dataset`.

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
        if not 0 <= turn < self.groups:
            raise ValueError(
                "Invalid value received for argument `turn`. Expected the number of a group, from 0 "
                f"to {self.groups - 1}. Received: {turn}"
            )
        return self._random.new_stream().flat_map(lambda random: self._draw(random, turn))

    def as_dataset(self, turn: int = 0) -> tf.data.Dataset:
        """Returns the lots as an infinite dataset of `(x, y, sample_weight)`.

        Every element has `padded_size` rows (more only when a Poisson lot overflows; with
        `row_multiple`, see `Lots`), real rows first. The leading dimension of the element spec is None,
        so that an overflowing lot is no error. `sample_weight` is float32 [rows], 0 for padding.
        Lists in `x` and `y` become tuples, since `tf.data` converts a list to a tensor.

        Args:
            turn: the group that the first lot comes from, if groups take turns.

        Returns:
            A `tf.data.Dataset` with this object as its attribute `tfdp_lots`.

        Raises:
            ValueError: `turn` is not the number of a group.
            RuntimeError: this process is not the one that made the lots.
        """
        dataset = self.indices(turn).map(self._gather)
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
        """A digest of the examples in their order, equal for two `Lots` that hold the same data.

        The digest depends on every example without noise, so it is as secret as the examples.
        """
        digest = hashlib.sha256()
        for column in tf.nest.flatten(self._columns):
            digest.update(f"{column.dtype.name} {tuple(column.shape)} ".encode())
            digest.update(np.ascontiguousarray(column.numpy()).data)
        return digest.hexdigest()

    def _gather(self, indices: tf.Tensor) -> Any:
        """Copies the examples at `indices`, and the padding row up to the padded size."""
        # The placeholder hides the static number of rows, so that all schemes have the same element
        # spec.
        indices = tf.compat.v1.placeholder_with_default(indices, (None,))
        size = tf.shape(indices)[0]
        if self._row_multiple is None:
            overflow = tf.maximum(size - self.padded_size, 0)
            rows = self.padded_size + _round_up(overflow, self.physical_batch_size)
        else:
            rows = _round_up(tf.maximum(size, 1), self._row_multiple)
        padding = self.available_examples  # the row behind the last example
        padded = tf.pad(indices, [[0, rows - size]], constant_values=padding)
        return tf.nest.map_structure(lambda column: tf.gather(column, padded), self._columns)


class PoissonLots(Lots):
    """Poisson sampling: every example joins every lot independently, with probability L / N.

    A lot may be empty, and still counts as a step. A lot exceeds the padded size with probability at
    most `OVERFLOW_PROBABILITY`. Such a lot is padded to the next multiple of the physical batch size
    and never cut, because cutting would break the independence that amplification needs.

    With `nominal_examples` the probability is L / nominal_examples, whatever the number of examples
    is. The adjacency add_or_remove_one needs that: if the number of examples decided the probability,
    removing one record would change how often all others are drawn. The number of examples is then as
    private as the examples, and so are the attributes that depend on it (`available_examples`,
    `padded_size`, `physical_batch_size`).

    Args:
        x, y, lot_size: see `Lots`; `lot_size` is at most `nominal_examples`, if that is given.
        nominal_examples: a positive integer that was chosen without looking at the data, such as the
            number of people who were asked. The data may have more examples or fewer; the average
            size of a lot is then larger or smaller than L accordingly.
        **options: see `Lots`.
    """

    sampling = "poisson"

    def __init__(self, x, y, lot_size, *, nominal_examples=None, **options):
        if nominal_examples is not None:
            if not _is_positive_integer(nominal_examples):
                raise ValueError(
                    "Invalid value received for argument `nominal_examples`. Expected a positive "
                    "integer that was chosen without looking at the data, or None. Received: "
                    f"{nominal_examples}"
                )
            self._nominal_examples = int(nominal_examples)
        super().__init__(x, y, lot_size, **options)

    def _usual_rows(self):
        return _usual_poisson_rows(self.available_examples, self.lot_size, out_of=self.num_examples)

    def _draw(self, random, turn):
        del turn  # there is one group

        def draw(step):
            members, out_of = self.available_examples, self.num_examples
            return _coins(self._random, random, step, members, self.lot_size, out_of=out_of)

        return tf.data.Dataset.counter().map(draw)


class CyclicPoissonLots(Lots):
    """Cyclic Poisson sampling: groups take turns, and a lot is a Poisson sample of one group.

    Each example of the group joins the lot independently, with probability groups * L / N. Example i is
    in group i mod groups, whatever its content. Lot t comes from group t mod groups, so that two lots
    with the same example are at least `groups` steps apart, which amplified banded matrix mechanisms
    need (Choquette-Choo et al. 2023). With one group, this is Poisson sampling.

    All groups have the same size: the last (number of examples) mod groups examples are always left
    out and do not count in `num_examples`. A lot may be empty; no lot is ever cut.

    Args:
        x, y, lot_size: see `Lots`; groups * lot_size is at most the number of examples.
        groups: number of groups.
        sample_weight: see `Lots`.
        **options: see `Lots`.
    """

    sampling = "cyclic_poisson"

    def __init__(self, x, y, lot_size, *, groups, sample_weight=None, **options):
        x, y = as_arrays(x, "x"), as_arrays(y, "y")
        total = common_length(x, y)
        if not _is_positive_integer(groups):
            raise ValueError(
                "Invalid value received for argument `groups`. Expected a positive integer. "
                f"Received: {groups}"
            )
        if not _is_positive_integer(lot_size) or groups * lot_size > total:
            raise ValueError(
                "Invalid value received for arguments `lot_size` and `groups`. Expected a positive "
                f"integer lot_size with groups * lot_size at most the number of examples, {total}. "
                f"Received: {groups} * {lot_size}. Use fewer groups or smaller lots."
            )
        self.groups = int(groups)
        self._group_size = total // self.groups
        columns = (x, y, as_weights(sample_weight, total))
        used = self._group_size * self.groups
        x, y, sample_weight = tf.nest.map_structure(lambda column: column[:used], columns)
        super().__init__(x, y, lot_size, sample_weight=sample_weight, **options)

    def _usual_rows(self):
        return _usual_poisson_rows(self._group_size, self.lot_size)

    def _draw(self, random, turn):
        def draw(step):
            members = _coins(self._random, random, step, self._group_size, self.lot_size)
            return members * self.groups + (step + turn) % self.groups

        return tf.data.Dataset.counter().map(draw)


class CyclicLots(Lots):
    """The data in its given order, L examples at a time, the same N // L lots in every epoch.

    The last N mod L examples are always left out, so that no lot is partial.
    """

    sampling = "cyclic"

    def _draw(self, random, turn):
        del random, turn  # nothing here is random
        everyone = tf.range(self.num_examples, dtype=tf.int64)
        return self._cut(everyone).repeat()


class ShuffledLots(Lots):
    """A fresh permutation of the data in each epoch, cut into N // L lots.

    The N mod L examples at the end of a permutation are left out of that epoch.
    """

    sampling = "shuffle"

    def _draw(self, random, turn):
        del turn

        def epoch(number):
            # The permutation sorts N words of 64 bits; ties have probability below N**2 / 2**65.
            words = self._random.words(random, number, self.num_examples, tf.int64)
            return self._cut(tf.argsort(words))

        return tf.data.Dataset.counter().flat_map(epoch)


class WithReplacementLots(Lots):
    """L independent uniform draws per lot: an example may occur several times in one lot."""

    sampling = "with_replacement"

    def _draw(self, random, turn):
        del turn

        def draw(step):
            words = self._random.words(random, step, self.lot_size, tf.uint64)
            # The remainder favours some examples by a factor below 1 + N / 2**64.
            return tf.cast(words % tf.constant(self.num_examples, tf.uint64), tf.int64)

        return tf.data.Dataset.counter().map(draw)


class FixedSizeLots(Lots):
    """L different examples per lot; each lot is a new draw in which every set of L is equally likely.

    Most people imagine a batch like this. Every lot has L examples, so it is padded only to whole
    physical batches. Nevertheless it costs more privacy than a Poisson lot: if one example is not
    drawn, another one takes its place.
    """

    sampling = "fixed_size"

    def _draw(self, random, turn):
        del turn

        def draw(step):
            # The lot is the places of the L largest of N words of 64 bits. A tie, which favours the
            # first of two places, has probability below N**2 / 2**65.
            words = self._random.words(random, step, self.num_examples, tf.int64)
            return tf.cast(tf.math.top_k(words, self.lot_size).indices, tf.int64)

        return tf.data.Dataset.counter().map(draw)


# The same classes under names in the style of functions.
poisson_lots = PoissonLots
cyclic_lots = CyclicLots
shuffled_lots = ShuffledLots
with_replacement_lots = WithReplacementLots
fixed_size_lots = FixedSizeLots
cyclic_poisson_lots = CyclicPoissonLots

SAMPLINGS: dict[str, Callable[..., Lots]] = {
    kind.sampling: kind
    for kind in (
        PoissonLots,
        CyclicLots,
        ShuffledLots,
        WithReplacementLots,
        FixedSizeLots,
        CyclicPoissonLots,
    )
}


def row_multiple_for(lot_size: int) -> int:
    """A `row_multiple` that needs little padding and gives only a handful of different shapes."""
    return max(_ROUNDING, _round_up(lot_size // 16, _ROUNDING))


def make_lots(
    sampling: str,
    x: Any,
    y: Any,
    *,
    lot_size: int,
    physical_batch_size: int | None = None,
    sample_weight: np.ndarray | None = None,
    seed: int | None = None,
    row_multiple: int | None = None,
    groups: int | None = None,
    nominal_examples: int | None = None,
) -> Lots:
    """Makes lots of the named sampling scheme.

    Args:
        sampling: "poisson", "cyclic", "shuffle", "with_replacement", "fixed_size" or
            "cyclic_poisson".
        x: see `Lots`.
        y: see `Lots`.
        lot_size: see `Lots`.
        physical_batch_size: see `Lots`.
        sample_weight: see `Lots`.
        seed: see `Lots`.
        row_multiple: see `Lots`.
        groups: see `CyclicPoissonLots`; required for "cyclic_poisson", and for no other scheme.
        nominal_examples: see `PoissonLots`; for "poisson" only.

    Returns:
        The `Lots`.

    Raises:
        ValueError: the scheme is unknown, or an argument is invalid.

    Example:

        lots = tfdp.data.make_lots("poisson", x, y, lot_size=256)
        model.fit(lots.as_dataset(), epochs=15, steps_per_epoch=lots.steps_per_epoch)
    """
    if sampling not in SAMPLINGS:
        raise ValueError(
            "Invalid value received for argument `sampling`. Expected one of "
            f"{sorted(SAMPLINGS)}. Received: {sampling!r}"
        )
    if (groups is None) == (sampling == "cyclic_poisson"):
        raise ValueError(
            "Invalid value received for argument `groups`. Expected an integer with sampling "
            f"'cyclic_poisson', and None with any other. Received: {groups!r} with {sampling!r}"
        )
    if nominal_examples is not None and sampling != "poisson":
        raise ValueError(
            "Invalid value received for argument `nominal_examples`. Expected None with sampling "
            f"{sampling!r}, whose lots depend on the real number of examples. Received: "
            f"{nominal_examples}. Use sampling 'poisson', or leave it out."
        )
    own = {"groups": groups, "nominal_examples": nominal_examples}
    return SAMPLINGS[sampling](
        x,
        y,
        lot_size,
        physical_batch_size=physical_batch_size,
        sample_weight=sample_weight,
        seed=seed,
        row_multiple=row_multiple,
        **{name: value for name, value in own.items() if value is not None},
    )


def _usual_poisson_rows(members: int, expected: int, out_of: int | None = None) -> int:
    chance = expected / (out_of or members)
    return max(1, int(scipy.stats.binom.isf(OVERFLOW_PROBABILITY, members, chance)))


def _coins(
    words: RandomWords, stream, step, members: int, expected: int, out_of: int | None = None
) -> tf.Tensor:
    """Draws each of the `members` by an independent coin; returns the numbers (int64) of the chosen.

    The chance of a coin is expected / out_of, and `out_of` is `members` by default.

    A coin compares 40 random bits with the chance, rounded *down* to a multiple of 2**-40, so a member
    is never chosen with a larger chance than the accounting assumes. The first eight bits decide for
    nearly all members. The other 32 bits are drawn only for the members that the first eight leave
    undecided (half the time of 32 bits for each member).
    """
    out_of = out_of or members
    if expected == out_of:
        return tf.range(members, dtype=tf.int64)
    first, rest = divmod((expected << 40) // out_of, 1 << 32)
    bits = tf.bitcast(words.words(stream, 2 * step, -(-members // 8), tf.uint64), tf.uint8)
    bits = tf.reshape(bits, [-1])[:members]
    first = tf.constant(first, tf.uint8)
    near = tf.where(bits <= first)[:, 0]
    more = words.words(stream, 2 * step + 1, tf.size(near), tf.uint32)
    chosen = (tf.gather(bits, near) < first) | (more < tf.constant(rest, tf.uint32))
    return tf.boolean_mask(near, chosen)


def _is_positive_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1


def _round_up(value, multiple: int):
    return -(-value // multiple) * multiple
