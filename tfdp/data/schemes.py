"""The ways of drawing lots: one class for each sampling scheme, and `make_lots`, which takes a name.

Each class really draws what its `sampling` says, which is what is accounted.
"""

from collections.abc import Callable
from typing import Any

import scipy.stats
import tensorflow as tf

from tfdp._validate import one_of, whole
from tfdp.data.arrays import as_arrays, as_weights, common_length, each_array
from tfdp.data.coins import coins
from tfdp.data.lots import Lots, round_up

# Poisson lots grow beyond their padded size with at most this probability per lot.
OVERFLOW_PROBABILITY = 1e-9


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

    Example:
        >>> import numpy as np, tfdp
        >>> x, y = np.zeros((1000, 2)), np.arange(1000)
        >>> lots = tfdp.data.PoissonLots(x, y, 100)
        >>> sizes = [len(indices) for indices in lots.indices().take(20)]
        >>> len(set(sizes)) > 1, 50 < min(sizes), max(sizes) < 160  # of random size, about 100
        (True, True, True)
        >>> nominal = tfdp.data.PoissonLots(x, y, 100, nominal_examples=1200)
        >>> nominal.num_examples, nominal.available_examples
        (1200, 1000)
    """

    sampling = "poisson"

    def __init__(self, x, y, lot_size, *, nominal_examples=None, **options):
        if nominal_examples is not None:
            remedy = "Pass a number that was chosen without looking at the data."
            nominal_examples = whole("nominal_examples", nominal_examples, 1, remedy=remedy)
            self._nominal_examples = nominal_examples
        super().__init__(x, y, lot_size, **options)

    def _usual_rows(self):
        chance = self.lot_size / self.num_examples
        return self.microbatch_size * _usual_poisson_size(self._units, chance)

    def _draw(self, random, turn):
        del turn  # there is one group

        def draw(step):
            odds = self.lot_size, self.num_examples
            return coins(self._random, random, step, self._units, *odds)

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

    Example:
        >>> import numpy as np, tfdp
        >>> lots = tfdp.data.CyclicPoissonLots(np.zeros((100, 2)), np.arange(100), 20, groups=4)
        >>> drawn = [indices.numpy() for indices in lots.indices().take(8)]
        >>> [set(int(i) % 4 for i in indices) <= {turn % 4} for turn, indices in enumerate(drawn)]
        [True, True, True, True, True, True, True, True]
        >>> max(map(len, drawn)) > 0
        True
    """

    sampling = "cyclic_poisson"

    def __init__(self, x, y, lot_size, *, groups, sample_weight=None, microbatch_size=1, **options):
        x, y = as_arrays(x, "x"), as_arrays(y, "y")
        total = common_length(x, y)
        self.groups = whole("groups", groups, 1)
        lot_size = whole("lot_size", lot_size, 1)
        if self.groups * lot_size > total:
            raise ValueError(
                f"Expected groups * lot_size to be at most the number of examples, {total}. "
                f"Received {groups} * {lot_size}. Use fewer groups or smaller lots."
            )
        size = whole("microbatch_size", microbatch_size, 1)
        self._group_size = total // size // self.groups
        columns = (x, y, as_weights(sample_weight, total))
        used = self._group_size * self.groups * size
        x, y, sample_weight = each_array(lambda column: column[:used], columns)
        options |= {"sample_weight": sample_weight, "microbatch_size": size}
        super().__init__(x, y, lot_size, **options)

    def _usual_rows(self):
        chance = self._units_of_lot / self._group_size
        return self.microbatch_size * _usual_poisson_size(self._group_size, chance)

    def _draw(self, random, turn):
        def draw(step):
            odds = self._units_of_lot, self._group_size
            members = coins(self._random, random, step, self._group_size, *odds)
            return members * self.groups + (step + turn) % self.groups

        return tf.data.Dataset.counter().map(draw)


class CyclicLots(Lots):
    """The data in its given order, L examples at a time, the same lots in every epoch.

    The last N mod L examples are left out, so that no lot is partial; with `keep_last`, they are a last
    lot of their own, filled up with absent examples. For the accounting, absent examples count:
    `num_examples` is then N rounded up to whole lots, so that every example is in exactly one of the
    `steps_per_epoch` lots of an epoch.

    Args:
        x, y, lot_size: see `Lots`.
        keep_last: whether an epoch ends with a partial lot rather than without some examples.
        **options: see `Lots`.

    Example:
        >>> import numpy as np, tfdp
        >>> lots = tfdp.data.CyclicLots(np.zeros((7, 2)), np.arange(7), 3)
        >>> [indices.numpy().tolist() for indices in lots.indices().take(3)]
        [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
        >>> lots = tfdp.data.CyclicLots(np.zeros((7, 2)), np.arange(7), 3, keep_last=True)
        >>> [indices.numpy().tolist() for indices in lots.indices().take(4)]
        [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2]]
    """

    sampling = "cyclic"

    def __init__(self, x, y, lot_size, *, keep_last: bool = False, **options):
        super().__init__(x, y, lot_size, **options)
        if keep_last:
            self.num_examples = round_up(self.available_examples, self.lot_size)
            self.steps_per_epoch = self.num_examples // self.lot_size

    def _draw(self, random, turn):
        del random, turn  # the order is fixed
        everyone = tf.range(self.steps_per_epoch * self._units_of_lot, dtype=tf.int64)
        lots = self._cut(everyone).repeat()
        if self.num_examples <= self.available_examples:
            return lots
        return lots.map(lambda lot: tf.boolean_mask(lot, lot < self._units))


class ShuffledLots(Lots):
    """A fresh permutation of the data in each epoch, cut into N // L lots.

    The N mod L examples at the end of a permutation are left out of that epoch.

    Example:
        >>> import numpy as np, tfdp
        >>> lots = tfdp.data.ShuffledLots(np.zeros((6, 2)), np.arange(6), 3)
        >>> first, second = (indices.numpy() for indices in lots.indices().take(2))
        >>> sorted(int(i) for i in [*first, *second])  # an epoch has every example once
        [0, 1, 2, 3, 4, 5]
    """

    sampling = "shuffle"

    def _draw(self, random, turn):
        del turn

        def epoch(number):
            # The permutation sorts N random words of 64 bits. Two of them are equal with
            # probability below N**2 / 2**65.
            words = self._random.words(random, number, self._units, tf.int64)
            return self._cut(tf.argsort(words))

        return tf.data.Dataset.counter().flat_map(epoch)


class RandomAllocationLots(Lots):
    """In each epoch, every example is in one of the N // L lots, drawn uniformly and by itself.

    It is what people mean by a shuffled epoch, except that lots have random sizes, as Poisson lots
    have. Its accounting is amplified, and about as good as that of Poisson lots ("balls and bins",
    Chua et al. 2024).

    Example:
        >>> import numpy as np, tfdp
        >>> lots = tfdp.data.RandomAllocationLots(np.zeros((6, 2)), np.arange(6), 3)
        >>> first, second = (indices.numpy() for indices in lots.indices().take(2))
        >>> sorted(int(i) for i in [*first, *second])  # an epoch has every example once
        [0, 1, 2, 3, 4, 5]
    """

    sampling = "random_allocation"

    def _usual_rows(self):
        return self.microbatch_size * _usual_poisson_size(self._units, 1 / self.steps_per_epoch)

    def _draw(self, random, turn):
        del turn
        lots = self.steps_per_epoch

        def epoch(number):
            # Taking the remainder favours some lots by a factor below 1 + N / 2**64.
            words = self._random.words(random, number, self._units, tf.uint64)
            of_unit = tf.cast(words % tf.constant(lots, tf.uint64), tf.int64)
            return tf.data.Dataset.range(lots).map(lambda lot: tf.where(of_unit == lot)[:, 0])

        return tf.data.Dataset.counter().flat_map(epoch)


class WithReplacementLots(Lots):
    """L independent uniform draws per lot: an example may occur several times in one lot.

    Example:
        >>> import numpy as np, tfdp
        >>> lots = tfdp.data.WithReplacementLots(np.zeros((200, 2)), np.arange(200), 150)
        >>> (lot,) = (indices.numpy() for indices in lots.indices().take(1))
        >>> len(lot), len(set(lot)) < 150  # some examples occur more than once
        (150, True)
    """

    sampling = "with_replacement"

    def _draw(self, random, turn):
        del turn

        def draw(step):
            words = self._random.words(random, step, self._units_of_lot, tf.uint64)
            # Taking the remainder favours some examples by a factor below 1 + N / 2**64.
            return tf.cast(words % tf.constant(self._units, tf.uint64), tf.int64)

        return tf.data.Dataset.counter().map(draw)


class FixedSizeLots(Lots):
    """L different examples per lot; each lot is a new draw in which every set of L is equally likely.

    Most people imagine a batch like this. Every lot has L examples, so it is padded only to whole
    physical batches. Nevertheless it costs more privacy than a Poisson lot: if one example is not
    drawn, another one takes its place.

    Example:
        >>> import numpy as np, tfdp
        >>> lots = tfdp.data.FixedSizeLots(np.zeros((200, 2)), np.arange(200), 150)
        >>> (lot,) = (indices.numpy() for indices in lots.indices().take(1))
        >>> len(lot), len(set(lot))  # no example occurs more than once
        (150, 150)
    """

    sampling = "fixed_size"

    def _draw(self, random, turn):
        del turn

        def draw(step):
            # The lot has the positions of the L largest of N random words of 64 bits. Two words are
            # equal, which favours the first of the two, with probability below N**2 / 2**65.
            words = self._random.words(random, step, self._units, tf.int64)
            return tf.cast(tf.math.top_k(words, self._units_of_lot).indices, tf.int64)

        return tf.data.Dataset.counter().map(draw)


SAMPLINGS: dict[str, Callable[..., Lots]] = {
    kind.sampling: kind
    for kind in (
        PoissonLots,
        RandomAllocationLots,
        CyclicLots,
        ShuffledLots,
        WithReplacementLots,
        FixedSizeLots,
        CyclicPoissonLots,
    )
}


def make_lots(
    sampling: str,
    x: Any,
    y: Any = None,
    *,
    lot_size: int,
    physical_batch_size: int | None = None,
    sample_weight: Any = None,
    seed: int | None = None,
    row_multiple: int | None = None,
    microbatch_size: int = 1,
    groups: int | None = None,
    nominal_examples: int | None = None,
) -> Lots:
    """Makes lots of the named sampling scheme.

    Args:
        sampling: "poisson", "random_allocation", "cyclic", "shuffle", "with_replacement",
            "fixed_size" or "cyclic_poisson".
        x: see `Lots`.
        y: see `Lots`.
        lot_size: see `Lots`.
        physical_batch_size: see `Lots`.
        sample_weight: see `Lots`.
        seed: see `Lots`.
        row_multiple: see `Lots`.
        microbatch_size: see `Lots`.
        groups: see `CyclicPoissonLots`; required for "cyclic_poisson", and for no other scheme.
        nominal_examples: see `PoissonLots`; for "poisson" only.

    Returns:
        The `Lots`.

    Raises:
        ValueError: the scheme is unknown, or an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> x, y = np.zeros((1000, 2), "float32"), np.zeros(1000, "float32")
        >>> lots = tfdp.data.make_lots("fixed_size", x, y, lot_size=250)
        >>> lots
        FixedSizeLots(num_examples=1000, lot_size=250, padded_size=250, physical_batch_size=250,
        seeded=False)
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
        >>> _ = model.fit(lots, epochs=2, verbose=0)
        >>> model.privacy.current_run.sampling.name, model.privacy.steps_taken
        ('fixed_size', 8)
    """
    one_of("sampling", sampling, SAMPLINGS)
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
        microbatch_size=microbatch_size,
        **{name: value for name, value in own.items() if value is not None},
    )


def _usual_poisson_size(members: int, chance: float) -> int:
    """Returns a number that so many coins exceed with probability at most `OVERFLOW_PROBABILITY`."""
    return max(1, int(scipy.stats.binom.isf(OVERFLOW_PROBABILITY, members, chance)))
