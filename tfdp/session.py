"""Sessions: an entry of the ledger with its optimizer, its variables and the number of its step.

Formal guarantee: a step takes everything that its run's proof depends on from the frozen run (noise
multiplier, clip norm, strategy, momentum, the table of learning rates, the largest lot). The other
choices that decide how a step is bounded (the kind of clipping, the codebook) are set once by the
optimizer's constructor, and the resulting sensitivity is compared with the run's when the step is
traced. Steps are counted by the entry (`entry.Entry`), on the host, before they run.
"""

import contextlib
import math
import os
import threading
from collections.abc import Sequence

import tensorflow as tf

from tfdp.accounting import Run
from tfdp.accounting.contribution import UnboundedSensitivity
from tfdp.data.words import derived
from tfdp.entry import Entry

_STEP_STRIDE = 0x85EBCA6B  # odd, so that no two of the first 2^32 steps share a seed


class Session:
    """An entry of the ledger with the optimizer and the variables of its steps.

    A session is a plain object, which Keras neither tracks nor saves.

    Attributes:
        entry: Counts the steps.
        optimizer: The optimizer that takes the steps.
        variables: The trainable variables.
        facts: The accounted facts of the steps: a run without steps and without tables over them.
        first_iteration: The optimizer's iteration at the run's first step.
        physical_batch_size: Number of rows in one chunk; None processes a lot as a whole.
        lots: The `tfdp.data.Lots` that the steps draw from; None for other batches.
        key: The secret that several machines share, 16 bytes. None on one machine, where the secrets
            of noise and masks come from the operating system.
        equal_copies: A function that compares the replicas' copies of weights and state; None before
            its first use.
    """

    def __init__(
        self,
        entry: Entry,
        optimizer,
        variables: Sequence,
        facts: Run,
        first_iteration: int = 0,
        *,
        physical_batch_size: int | None = None,
        lots=None,
        turn: int = 0,
        key: bytes | None = None,
    ):
        self.entry, self.optimizer, self.variables = entry, optimizer, list(variables)
        self.facts, self.first_iteration = facts, first_iteration
        self.physical_batch_size, self.lots = physical_batch_size, lots
        self._first_turn = turn - entry.taken
        # Counts the steps that begin on the device, each replica in its own copy. Nothing saves it.
        self._begun = tf.Variable(entry.taken, False, name="steps_begun", dtype=tf.int64)
        self._fixed = threading.local()  # replicas are traced in threads, which take turns
        self.key, self.equal_copies = key, None
        masks = os.urandom(8) if key is None else derived(key, "masks")
        self._secret = int.from_bytes(masks[:4]), int.from_bytes(masks[4:8])

    # -- values that a step takes from the run ---------------------------------------------------

    @property
    def run(self) -> Run:
        """The description of the training; `Entry` says how many of its steps count."""
        return self.entry.run

    @property
    def divisor(self) -> int:
        """Number of microbatches in a nominal lot; every sum is divided by this public constant."""
        return self.run.sampling.lot_size // self.run.contribution.microbatch_size

    @property
    def lot_rows(self) -> int:
        """Number of rows of a nominal lot: all views of its examples."""
        return self.run.sampling.lot_size * self.run.contribution.views

    @property
    def place(self) -> tf.Tensor:
        """Number of the present step in the run, from 0: an int64 scalar tensor."""
        fixed = getattr(self._fixed, "place", None)
        return self._begun - 1 if fixed is None else fixed

    @contextlib.contextmanager
    def step(self):
        """Context that fixes `place`, and so the noise, before the step begins."""
        self._fixed.place = self._begun.read_value()
        try:
            yield
        finally:
            self._fixed.place = None

    def value(self, name: str) -> float | tf.Tensor:
        """Returns the value of a field of the run's mechanism at the present step.

        Args:
            name: Name of the field.

        Returns:
            A constant as it is; the entry of a table over steps as a float64 scalar tensor.
        """
        value = getattr(self.run.mechanism, name)
        if not isinstance(value, tuple):
            return value
        return tf.gather(tf.constant(value, tf.float64), self.place)

    def seed_shift(self) -> tf.Tensor:
        """Returns the numbers that this step adds to the seeds of random layers: int64 tensor [2].

        A row's dropout mask depends on its place in the lot, and drawing one more example moves others
        to other places. Amplification by sampling requires that the others reveal nothing about it, so
        nobody may know which mask belongs to which place. Therefore masks depend on a secret of the
        session and on the step, which a model's seeds do not reveal. All replicas have the same secret,
        and count the places in the whole lot.

        With a user's seed for noise or lots, nothing is proven, and masks are as in Keras.
        """
        if self.run.insecure_seed:
            return tf.zeros([2], tf.int64)
        return tf.stack([self._secret[0], self._secret[1] + self.place * _STEP_STRIDE])

    def check_step(self, variables: Sequence, optimizer) -> None:
        """Raises RuntimeError if the variables or the optimizer differ from the session's."""
        if not self.trains(variables, optimizer):
            raise RuntimeError(
                "The optimizer or the set of trainable weights changed during a training, but the "
                "accounting describes the ones at its start. Change them only between calls of "
                "fit() or train_on_batch()."
            )

    def trains(self, variables: Sequence, optimizer) -> bool:
        """Returns whether the session's steps train these variables, in order, by this optimizer."""
        same = [id(v) for v in variables] == [id(v) for v in self.variables]
        return same and optimizer is self.optimizer

    def check_sensitivity(self, declared: float) -> None:
        """Raises RuntimeError if an engine declares a larger sensitivity than the accounting assumes.

        Args:
            declared: The engine's sensitivity, in the units of `assumed_sensitivity`.
        """
        assumed = assumed_sensitivity(self.run)
        if not declared <= assumed * (1 + 1e-9):
            raise RuntimeError(
                f"The engine lets one example move the sum by {declared:g} clip norms, but the "
                f"accounting of this run assumes {assumed:g}. The weights are unchanged. Report "
                "this model as a bug."
            )

    def admitted(self, sample_weight: tf.Tensor, first: int | tf.Tensor = 0) -> tf.Tensor:
        """Sets the sample weights of rows beyond the largest lot of the proof to zero.

        These rows are chosen by their place alone, so no example affects the choice of another.

        Args:
            sample_weight: The sample weights [rows].
            first: Place of the first row in the lot.
        """
        largest = self.run.sampling.largest_lot
        if largest is None:
            return sample_weight
        largest *= self.run.contribution.views
        inside = first + tf.range(tf.shape(sample_weight)[0]) < largest
        return tf.where(inside, sample_weight, tf.zeros_like(sample_weight))

    @property
    def fixes_rows(self) -> bool:
        """Whether the proof needs lots of one fixed number of rows.

        It does if the network normalizes with statistics of the lot and the sampling limits its size.
        """
        return self.run.contribution.batch_statistics and self.run.sampling.largest_lot is not None

    # -- steps that begin ------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Marks on the device that a step has begun, which `Entry.authorize` counted on the host.

        The mark gives the step its `place`, and shows which authorized steps never began.
        """
        self._begun.assign_add(1)

    def take_back(self) -> None:
        """Takes back authorized steps that never began: the data ended before them, or they failed.

        A step begins when its sum is computed, before anything is released.
        """
        self.entry.taken = int(self._begun.numpy())

    def keep(self) -> None:
        """Counts all authorized steps, including those that never began."""
        self._begun.assign(self.entry.taken)

    @property
    def next_turn(self) -> int:
        """Number of the next lot, counted from the first turn of the first group."""
        return self._first_turn + self.entry.taken


def assumed_sensitivity(run: Run) -> float:
    """Returns the sensitivity that the accounting of a run assumes, in clip norms.

    It is the largest distance by which a sum may move when one example becomes a null example;
    infinite if there is no bound.
    """
    try:
        factor = run.contribution.sensitivity(run.sampling, "zero_out")
    except UnboundedSensitivity:
        return math.inf
    return factor * run.contribution.noise_divisor
