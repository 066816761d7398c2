"""Lots: the logical batches of private training, drawn by a scheme from a source.

A *lot* is the logical batch of one training step. The cost of a step depends on the sampling scheme of
its lot, so the accounted scheme must be the one that ran. `Lots` draw from any source of rows
(`tfdp.data.sources`) by the scheme that their `sampling` names (`tfdp.data.schemes`). Their dataset
refers to them by its attribute `tfdp_lots`.

Formal guarantees:

* The draw depends on the number of examples (or people) and on nothing else in the data.
* No drawn example is dropped to make a lot fit, and none is added.
* Lots are drawn only in the process that made them: two forks would draw the same secret lots.
* The draws come from 128 bits of the operating system's entropy unless the user passes a seed;
  `np.random.seed` and `keras.utils.set_random_seed` have no effect. Amplification by sampling relies
  on the secrecy of the drawn examples.
"""

import dataclasses
import functools
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfdp._validate import whole
from tfdp.data.arrays import all_arrays, with_arrays
from tfdp.data.assembly import Assembly
from tfdp.data.calls import Calls
from tfdp.data.computed import computed, number_together
from tfdp.data.examples import spec_of
from tfdp.data.mapping import RowFunction
from tfdp.data.people import People
from tfdp.data.schemes import Scheme
from tfdp.data.shares import Shares
from tfdp.data.sources import Source
from tfdp.data.words import PEOPLE, VIEWS, Words

# Lots are padded to a multiple of this number of rows if no physical batch size is given.
_ROUNDING = 8
_WHOLE = Shares()


class Lots:
    """An endless sequence of lots (logical batches), the training data of a private model.

    `make_lots` creates it from data and the name of a sampling scheme. Pass it to `fit`, or to
    `model.privacy.steps` in your own loop.

    Every iterator has fresh random draws, even with a seed (unless iterators get the same `order`).
    With a seed, the draws of the k-th iterator depend on the seed and k only. The draws depend on the
    number of examples, not on their contents.

    Args:
        scheme: The `schemes.Scheme` that draws the lots.
        source: The `sources.Source` of examples.
        physical_batch_size: Number of rows in one chunk. None means the whole lot.
        seed: Insecure seed of the draws. None draws from the operating system's entropy.
        row_multiple: Lots are padded to a multiple of this number of rows. None pads all lots to one
            size.
        augmentations: Number of views of each example.
        people: The examples of each person, if lots draw people. None if they draw examples.

    Attributes:
        scheme, source, augmentations: As the arguments.
        sampling: Name of the scheme, such as "poisson".
        num_examples: N, the public number of examples (or people) that the accounting uses: the number
            in the data, unless it is nominal. It is up to L - 1 larger where `fit(shuffle=False)`
            keeps the last lot of an epoch.
        available_examples: Number of examples (or people) that lots are drawn from.
        nominal: Whether N was given (`nominal_examples`) rather than counted.
        lot_size: L, the nominal size of a lot. The summed gradient is divided by L, however many
            examples were drawn.
        padded_size: Number of rows in a lot with its padding, a multiple of `physical_batch_size`.
            Only an overflowing lot has more. With a `row_multiple`, a lot has the next multiple of
            that number of rows instead.
        physical_batch_size: Number of rows in one chunk.
        microbatch_size: Number of neighbouring examples in the data that are drawn together, as a
            microbatch.
        views: Number of consecutive rows of a lot that belong to one example (or person) and are
            averaged before clipping: `augmentations`, multiplied by `examples_per_person` for people.
        steps_per_epoch: Number of lots in an epoch, N // L.
        groups: Number of groups of examples that take turns. 1 unless the sampling is
            "cyclic_poisson".
        sharded: Whether the data are the shard that only this machine can read.
        seeded: Whether the user chose the seed. Anyone who knows the seed then knows the draws.
        process_id: Id of the process that made the lots. No other process may draw them.

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

    def __init__(
        self,
        scheme: Scheme,
        source: Source,
        *,
        physical_batch_size: int | None = None,
        seed: int | None = None,
        row_multiple: int | None = None,
        augmentations: int = 1,
        people: People | None = None,
    ):
        augmentations = whole("augmentations", augmentations, 1)
        self._scheme, self.process_id = scheme, os.getpid()
        self._assembly = Assembly(source, scheme.available, scheme.unit_size, augmentations, people)
        seed = whole("seed", seed, 0, optional=True)
        self._seeded = seed is not None
        self._words = Words.of_seed(seed)
        # Draws of random functions are as secret as the noise, so the seed does not reveal them.
        self._view_words = Words.of_seed(None)
        self._calls = Calls()
        self._row_multiple = whole("row_multiple", row_multiple, 1, optional=True)
        self._set_sizes(whole("physical_batch_size", physical_batch_size, 1, optional=True))

    def _set_sizes(self, physical_batch_size):
        unit = self.scheme.unit_size * self.views
        rows = self.scheme.usual_units() * unit
        if physical_batch_size is None:
            nominal = self.lot_size * self.views
            physical_batch_size = (
                rows if rows == nominal else round_up(rows, _ROUNDING * self.views)
            )
        elif physical_batch_size % self.views:
            raise ValueError(
                f"Expected physical_batch_size to be a multiple of {self.views}, since it counts rows "
                f"and each example (or person) has {self.views}. Received: {physical_batch_size}"
            )
        # A physical batch larger than the padded lot would only add padding.
        self.physical_batch_size = min(physical_batch_size, round_up(rows, _ROUNDING * self.views))
        self.padded_size = round_up(rows, self.physical_batch_size)

    def __reduce__(self):
        raise TypeError(
            "Lots cannot be copied, because a copy would draw the same secret lots again. Call "
            "make_lots(...) on the same data instead."
        )

    def __repr__(self):
        return (
            f"Lots({self.sampling!r}, num_examples={self.num_examples}, lot_size={self.lot_size}, "
            f"padded_size={self.padded_size}, physical_batch_size={self.physical_batch_size}, "
            f"seeded={self.seeded})"
        )

    scheme = property(lambda self: self._scheme)
    seeded = property(lambda self: self._seeded)
    sampling = property(lambda self: self.scheme.sampling)
    num_examples = property(lambda self: self.scheme.num_examples)
    available_examples = property(lambda self: self.scheme.available)
    nominal = property(lambda self: self.scheme.nominal)
    lot_size = property(lambda self: self.scheme.lot_size)
    microbatch_size = property(lambda self: self.scheme.unit_size)
    steps_per_epoch = property(lambda self: self.scheme.steps_per_epoch)
    groups = property(lambda self: self.scheme.groups)
    sharded = property(lambda self: getattr(self.scheme, "shard_of", None) is not None)
    source = property(lambda self: self._assembly.source)
    people = property(lambda self: self._assembly.people)
    views = property(lambda self: self._assembly.views)
    augmentations = property(lambda self: self._assembly.augmentations)
    mapped = property(lambda self: bool(self._assembly.functions))

    @property
    def examples_per_person(self) -> int | None:
        """Largest number of a person's examples in a lot; None if lots draw examples."""
        return None if self.people is None else self.people.max_examples

    def map(self, function: Callable, *, python: bool = False) -> "Lots":
        """Returns lots whose examples are decoded, augmented or tokenized by a function.

        The function gets one example at a time, so it cannot mix examples. It runs for the next lots
        while a step computes. The sampling scheme stays the same.

        tfdp does not check what the function reads or draws elsewhere. The statement names this
        assumption.

        Args:
            function: `f(example)` or `f(example, seed)`. An example is x, (x, y) or (x, y,
                sample_weight), and so is the result. The seed consists of two integers from 0 to
                2**31 - 1, for functions such as `tf.image.stateless_random_flip_left_right` or
                `np.random.default_rng`. It is derived from a secret, the step, the index of the
                example and the number of the view. The `seed` of the lots does not reveal it.
            python: False traces the function with TensorFlow, as `tf.data.Dataset.map` does. True
                calls it in Python, in several threads, with NumPy arrays.

        Returns:
            New `Lots`. The old ones are unchanged.

        Example:
            >>> import numpy as np, tensorflow as tf, tfdp
            >>> x, y = np.zeros((100, 8, 8, 3), "uint8"), np.arange(100)
            >>> def augment(example, seed):
            ...     image, label = example
            ...     image = tf.image.stateless_random_flip_left_right(image, seed)
            ...     return tf.cast(image, tf.float32) / 255.0, label
            >>> lots = tfdp.data.make_lots("poisson", x, y, lot_size=10).map(augment)
            >>> images, labels, weights = next(iter(lots.as_dataset()))
            >>> images.dtype, lots.steps_per_epoch
            (tf.float32, 10)
        """
        return self._with(functions=(*self._assembly.functions, RowFunction(function, python)))

    def weighted(self, weights_of: Callable) -> "Lots":
        """Returns lots whose sample weights are computed from the targets.

        Use it to weight classes. The data must not have sample weights of their own.

        Args:
            weights_of: Maps an array of targets [rows, ...] to their weights [rows]. It gets the
                targets that functions of `map` return.

        Returns:
            New `Lots`. The old ones are unchanged.

        Example:
            >>> import numpy as np, tfdp
            >>> x, y = np.zeros((100, 2)), np.arange(100) % 2
            >>> lots = tfdp.data.make_lots("cyclic", x, y, lot_size=4).weighted(lambda y: 1 + 2 * y)
            >>> next(iter(lots.as_dataset()))[2].numpy().tolist()
            [1.0, 3.0, 1.0, 3.0]
        """
        return self._with(weights_of=weights_of)

    def draws_as(self, other: "Lots | None") -> bool:
        """Whether both draw the same examples, apart from functions and weights (`map`, `weighted`)."""
        return other is not None and other._words is self._words

    def _with(self, **changes) -> "Lots":
        lots = object.__new__(Lots)
        assembly = dataclasses.replace(self._assembly, **changes)
        lots.__dict__.update(self.__dict__ | {"_assembly": assembly})
        lots.__dict__.pop("spec", None)
        return lots

    @functools.cached_property
    def spec(self) -> tuple:
        """A `tf.TensorSpec` for each array of a lot, in the structure (x, y, sample_weight)."""
        none, secret = np.zeros(0, np.int64), functools.partial(bytes, 16)
        places = self._assembly.places(none, self._rows(0), secret)
        return spec_of(self._assembly.rows(*places, secret, 0))

    def in_memory(self) -> tuple | None:
        """Returns the examples (x, y) as arrays, None if not in memory or changed by a function."""
        held = None if self.mapped else self.source.in_memory()
        return None if held is None else held[:2]

    def some(self, number: int = 32) -> tuple[np.ndarray, tuple]:
        """Returns evenly spaced indices of the source, and the examples (x, y) there as in lots."""
        indices = np.unique(np.linspace(0, len(self.source) - 1, number).astype(np.int64))
        return indices, self._assembly.examples(indices)[:2]

    def fingerprint(self) -> str:
        """Returns a digest of the examples in their order, which is equal for the same data.

        The digest is computed from the examples without noise, so it is as secret as they are.
        """
        return self.source.fingerprint()

    def cause_of(self, error: tf.errors.OpError) -> Exception:
        """Returns the Python exception behind an error that TensorFlow raised while it read lots."""
        return self._calls.cause_of(error)

    def new_order(self) -> bytes:
        """Returns a new secret, 16 bytes, for the argument `order` of `as_dataset`."""
        return self._words.new_secret()

    # -- drawing ---------------------------------------------------------------------------------

    def indices(
        self, turn: int = 0, *, start: int = 0, order: bytes | None = None
    ) -> tf.data.Dataset:
        """Returns an infinite dataset of the indices of the examples in each lot, for inspection.

        Every iterator draws its own lots, not those of `as_dataset()`. Lots of people return indices
        of people. The index `available_examples` marks an absent row of a microbatch.

        Args:
            turn, start, order: As for `as_dataset`, with the same errors.
        """
        spec = [tf.TensorSpec((None,), tf.int64)]

        def members(stream, steps, words):
            drawn = (self.scheme.draw(words, stream, step, turn) for step in steps)
            found = [*map(self._assembly.neighbours, drawn)]
            return [*map(len, found)], [np.concatenate(found)]

        return self._computed(members, spec, turn, start, order, lambda indices: indices)

    def as_dataset(
        self,
        turn: int = 0,
        *,
        start: int = 0,
        order: bytes | None = None,
        shares: Shares = _WHOLE,
    ) -> tf.data.Dataset:
        """Returns the lots as an infinite `tf.data.Dataset` of `(x, y, sample_weight)`.

        `fit` and `privacy.steps` call it. Use it to look at lots. Every element has `padded_size`
        rows; only an overflowing lot has more (with `row_multiple`, see `make_lots`). So the leading
        dimension of the element spec is None. `sample_weight` is float32, 0 for padding, of shape
        [rows] or of the shape and structure of the given weights. None in the data stays None. Lists
        become tuples, since `tf.data` converts a list to a tensor.

        Args:
            turn: The group that the first lot comes from, if groups take turns.
            start: Number of lots to skip at the beginning.
            order: A secret of `new_order`, with which every iterator draws the same lots, to resume a
                training in another process. None gives every iterator its own draws.
            shares: The shares of each lot to read, one after the other. By default whole lots.

        Returns:
            A `tf.data.Dataset`, whose attribute `tfdp_lots` is this object.

        Raises:
            ValueError: If `turn` is not the number of a group.
            RuntimeError: If this process is not the one that made the lots.
        """
        spec, unit = self.spec, self.microbatch_size * self.views
        draw = functools.lru_cache(maxsize=1)(self.scheme.draw)  # once for all shares of a lot

        def rows(stream, numbers, words):
            # Words of a given order are secret, and those of a user's seed are not.
            viewing = self._view_words if order is None else words
            views = functools.partial(viewing.secret, stream, purpose=VIEWS)
            lots = []
            for number in numbers:
                step, share = shares.at(number)
                drawn = draw(words, stream, step, turn)
                units, size = shares.units(drawn, share, self._rows(len(drawn) * unit), unit)
                people = functools.partial(words.secret, stream, step, PEOPLE)
                lots.append(self._assembly.places(units, size, people))
            taken, weights = map(np.concatenate, zip(*lots, strict=True))
            lot = self._assembly.rows(taken, weights, views, step, spec)
            return [len(each) for each, _ in lots], all_arrays(lot)

        def packed(*columns):
            return with_arrays(spec, columns)

        dataset = self._computed(rows, all_arrays(spec), turn, start, order, packed, shares)
        # Declares that the dataset is infinite, so that a trainer can require a number of steps.
        infinite = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        dataset = dataset.apply(infinite).prefetch(2)  # lots are drawn while a step runs
        dataset.tfdp_lots = self
        return dataset

    def _computed(self, lots, specs, turn, start, order, pack, shares=_WHOLE) -> tf.data.Dataset:
        """Returns a dataset of what `lots(stream, numbers, words)` computes, from share `start` on."""
        if os.getpid() != self.process_id:
            raise RuntimeError(
                "Lots can only be drawn in the process that made them, since a fork would draw the "
                "same secret lots as its parent and its siblings. Received lots of process "
                f"{self.process_id} in process {os.getpid()}. Call make_lots after the fork, in "
                "every process."
            )
        remedy = "Pass the number of a group."
        whole("turn", turn, 0, self.groups - 1, remedy=remedy)
        first = whole("start", start, 0) * shares.local
        words = self._words if order is None else Words(order, streams=False)
        held = self.in_memory() is not None
        # Lots that are not in memory take long to read, or have functions with a secret for each lot.
        together = number_together(specs, self.padded_size) if held else 1
        return computed(lots, specs, pack, words, self._calls, first, self.lot_size, held, together)

    def _rows(self, needed: int) -> int:
        """Returns the number of rows of a lot of which `needed` rows are used."""
        if self._row_multiple is not None:
            return round_up(max(needed, 1), self._row_multiple * self.views)
        overflow = max(needed - self.padded_size, 0)
        return self.padded_size + round_up(overflow, self.physical_batch_size)


def row_multiple_for(lot_size: int) -> int:
    """Returns a value for `row_multiple` of `make_lots` that suits a lot size.

    It is a sixteenth of the lot size, so that lots have little padding and only a few different shapes.

    Args:
        lot_size: Nominal lot size, at least 1.

    Example:
        >>> import tfdp
        >>> tfdp.data.row_multiple_for(256)
        16
    """
    return max(1, whole("lot_size", lot_size, 1) // 16)


def round_up(value: int, multiple: int) -> int:
    """Rounds a number up to the next multiple of `multiple`."""
    return -(-value // multiple) * multiple
