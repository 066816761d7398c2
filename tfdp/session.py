"""The open entry of the ledger (a session): the one source of what a private step uses.

Formal guarantees:

* A session holds one frozen run. A step takes everything that the run's proof depends on from that run
  (noise multiplier, clip norm, strategy, momentum, the table of learning rates, the largest lot). The
  other choices that decide how a step is bounded (the kind of clipping, the codebook) are set once by
  the optimizer's constructor, and the resulting sensitivity is compared with the run's.
* Whatever runs a step (`fit`, `train_on_batch`, a function that was traced long ago), the weights
  change only after the session that the step was traced for has counted it, and never beyond that
  session's limit. A closed session allows no further step, so no step is accounted under the
  description of another.
"""

import dataclasses
import math
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdp.accounting import BudgetExhausted, Ledger, PrivacyBudget, Run, max_steps
from tfdp.accounting.contribution import UnboundedSensitivity

_UNLIMITED = np.iinfo(np.int64).max
# Steps that a run without a planned end (train_on_batch) describes, and is extended by, at a time.
OPEN_ENDED = 10_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the steps that are about to run draw their examples.

    Attributes:
        sampling, num_examples, lot_size: as in `accounting.Run`.
        steps: number of steps; None if it is unknown.
        groups: as in `accounting.Run`.
        turn: the group that the first lot comes from, if groups take turns.
        nominal: whether `num_examples` was fixed without looking at the data.
        lots: the `tfdp.data.Lots` that the steps draw from; None for other batches.
        insecure_seed: whether secret draws come from a user's seed.
        physical_batch_size: number of rows in one chunk; None processes a lot as a whole.
        start: place of the first lot in its epoch, where epochs are whole.
    """

    sampling: str
    num_examples: int
    lot_size: int
    steps: int | None = None
    groups: int = 1
    turn: int = 0
    nominal: bool = False
    lots: object = None
    insecure_seed: bool = False
    physical_batch_size: int | None = None
    start: int = 0


class Session:
    """One run in a ledger, open for steps.

    A session is a plain object, which Keras does not track, so no file holds its counters.

    Args:
        ledger: the ledger that the run is entered into.
        run: the description of the training; `run.steps` is the number of planned steps.
        plan: the plan that `run` was made from.
        fields: the fields of `run` that every further step has to share: all but steps and tables.
        optimizer: the optimizer that takes the steps.
        variables: the trainable variables.
        first_iteration: the optimizer's iteration at the run's first step.
        resumed: id of the run in the ledger, if the run was begun earlier; None enters a new run.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        plan: Plan,
        fields: dict,
        optimizer,
        variables: Sequence,
        first_iteration: int = 0,
        resumed: str | None = None,
    ):
        self.run, self.plan, self.optimizer = run, plan, optimizer
        self._fields = fields
        self.variables, self.first_iteration = list(variables), first_iteration
        self.limit = 0
        if resumed is None:
            resumed = ledger.open(run)
        else:
            ledger.extend(resumed, run)
        self._ledger, self.run_id = ledger, resumed
        spent = ledger.steps(resumed)
        # Steps that the host let through. The device counts the steps that it began (`_spent`).
        self.authorized = spent
        self._first_turn = plan.turn - spent
        self._spent = tf.Variable(spent, dtype=tf.int64, trainable=False, name="steps_spent")
        self._limit = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_allowed")
        self._budget: PrivacyBudget | None = None
        self._limited_for, self._seen_changes = None, None
        # What tables and budgets allow, which the limit of a closed session is not.
        self._allowed, self._left_out = 0, 0
        self._process = os.getpid()

    # -- what a step takes from the run ----------------------------------------------------------

    @property
    def divisor(self) -> int:
        """Number of microbatches in a nominal lot; every sum is divided by this public constant."""
        return self.run.lot_size // self.run.microbatch_size

    def value(self, name: str) -> float | tf.Tensor:
        """The value of a field of the run at the step that was counted last.

        Args:
            name: name of a field that is one number, or a table with one number for each step.

        Returns:
            The number itself, or the table's entry as a float64 scalar tensor.
        """
        value = getattr(self.run, name)
        if not isinstance(value, tuple):
            return value
        return tf.gather(tf.constant(value, tf.float64), self._spent - 1)

    def check_step(self, variables: Sequence, optimizer) -> None:
        """Raises RuntimeError if a step does not belong to this session.

        Args:
            variables: the trainable variables of the step, in order.
            optimizer: the optimizer of the step.
        """
        if optimizer is not self.optimizer or [id(v) for v in variables] != [
            id(v) for v in self.variables
        ]:
            raise RuntimeError(
                "The optimizer or the set of trainable weights changed in the middle of a training, "
                "and the accounting describes the ones that it began with. Expected changes between "
                "calls of fit() or train_on_batch() only."
            )
        self._check_process()

    def check_sensitivity(self, declared: float) -> None:
        """Compares the sensitivity that an engine declares with the one that the accounting assumes.

        Args:
            declared: distance by which the sum moves when one example becomes a null example, in
                clip norms.

        Raises:
            RuntimeError: the accounting assumes a smaller sensitivity.
        """
        assumed = assumed_sensitivity(self.run)
        if not declared <= assumed * (1 + 1e-9):
            raise RuntimeError(
                f"The engine lets one example move the sum by {declared:g} clip norms, and the "
                f"accounting of this run assumes {assumed:g}. Expected no more than that. Nothing was "
                "changed; report this model as a bug."
            )

    def admits(self, sample_weight: tf.Tensor) -> tf.Tensor:
        """Whether a lot has no more examples than the proof allows: a bool scalar tensor.

        Args:
            sample_weight: tensor [rows]; examples of weight zero are absent.
        """
        largest = self.run.sampling.largest_lot
        if largest is None:
            return tf.constant(True)
        return tf.math.count_nonzero(sample_weight, dtype=tf.int64) <= largest

    @property
    def fixes_rows(self) -> bool:
        """Whether the proof needs lots of one fixed number of rows.

        This is so if the network normalizes with statistics of the whole lot and the sampling scheme
        limits the size of a lot.
        """
        return self.run.batch_statistics and self.run.sampling.largest_lot is not None

    def count(self, admitted: tf.Tensor) -> tf.Tensor:
        """Counts a step on the device that runs it.

        Args:
            admitted: bool scalar; a step that is not admitted is not counted.

        Returns:
            A bool scalar tensor: whether the step is allowed, and so was counted.
        """
        allowed = (self._spent < self._limit) & admitted
        with tf.control_dependencies([self._spent.assign_add(tf.cast(allowed, tf.int64))]):
            return tf.identity(allowed)

    @property
    def counted(self) -> tf.Tensor:
        """Number of steps that the device has counted, as an int64 scalar tensor."""
        return tf.identity(self._spent)

    # -- the ledger ------------------------------------------------------------------------------

    @property
    def spent(self) -> int:
        """Number of steps taken."""
        return int(self._spent.numpy())

    @property
    def next_turn(self) -> int:
        """Number of the next lot, counted from the first turn of the first group."""
        return self._first_turn + self.spent

    @property
    def left(self) -> float:
        """Number of steps that are still allowed; infinite without a limit."""
        return math.inf if self.limit == _UNLIMITED else self.limit - self.authorized

    @property
    def is_limited(self) -> bool:
        """Whether a budget bounds the number of steps."""
        return self._budget is not None

    @property
    def planned(self) -> int:
        """Number of steps of the plan, as far as budgets allow them; at least those taken."""
        return max(self.spent, min(self.run.steps, self._allowed))

    def count_left_out(self, steps: float) -> None:
        """Counts planned steps that are left out because of what earlier steps released.

        The session allows no further step then, since lots and noise of these steps are not drawn.

        Args:
            steps: number of these steps; those beyond what budgets allow are not counted.
        """
        self._left_out = int(max(0, min(self._left_out + steps, self._allowed - self.spent)))
        self.close()

    def record(self) -> None:
        """Records the steps taken so far in the ledger, and those that count though left out.

        A file that was loaded meanwhile may have told the ledger of more steps of this run.
        """
        self._ledger.record(self.run_id, max(self.total, self._ledger.steps(self.run_id)))

    @property
    def total(self) -> int:
        """Number of steps taken, and of those that count though they were left out."""
        return self.spent + self._left_out

    def counted_with(self, left_out: float) -> int:
        """Number of steps that count if so many more are left out, as far as budgets allow them."""
        return int(max(self.total, min(self.spent + left_out, self._allowed)))

    def earlier(self) -> list[Run]:
        """The other runs in the ledger that have steps."""
        return [run for i, run in self._ledger.entries.items() if i != self.run_id and run.steps]

    def continues_with(self, fields: dict, plan: Plan, optimizer, variables) -> bool:
        """Whether further steps belong to this session.

        Each `fit` starts new lots, which does not matter where lots are random. Epochs in a fixed
        order have to be whole, and of the same data in the same order, so that an example keeps its
        place in the epoch. Where groups take turns, the data have to be the same and the turns have
        to go on where they stopped.

        Args:
            fields, plan, optimizer, variables: those of the further steps, as in `Session`.
        """
        same = (
            fields == self._fields
            and not self._left_out
            and plan.physical_batch_size == self.plan.physical_batch_size
            and optimizer is self.optimizer
            and [id(v) for v in variables] == [id(v) for v in self.variables]
            and self.first_iteration == int(optimizer.iterations.numpy()) - self.spent
            and os.getpid() == self._process
        )
        if not same:
            return False
        if plan.groups > 1:
            return plan.lots is self.plan.lots and plan.turn == self.next_turn % plan.groups
        if not self.run.sampling.whole_epochs:
            return True
        at = self.spent % self.run.steps_per_epoch
        return plan.lots is self.plan.lots and plan.start == at

    def extend(self, run: Run) -> None:
        """Replaces the run by a longer description of the same training.

        Args:
            run: this session's run with more steps (and longer tables).
        """
        self._ledger.extend(self.run_id, run)
        self.run = run

    def close(self) -> None:
        """Allows no further step, not even in functions that were traced for this session."""
        self.record()
        self._set_limit(self.spent)

    def limit_steps(self) -> None:
        """Sets the limit to the steps that every budget leaves after the ledger's other runs.

        Steps that no table describes cannot be accounted, so the length of a table is a limit, too.
        """
        wanted = (self._ledger.budgets, self.run, self.earlier())
        self.authorized, self._seen_changes = self.spent, self._ledger.changes
        if wanted == self._limited_for:
            return
        described = self.run.described_steps
        limit = _UNLIMITED if described is None else described
        self._budget = None
        for budget in wanted[0]:
            affordable = max_steps(
                budget.epsilon,
                budget.delta,
                self.run,
                kind=budget.kind,
                adjacency=budget.adjacency,
                earlier=wanted[2],
            )
            if affordable < limit:
                limit, self._budget = affordable, budget
        self._limited_for, self._allowed = wanted, limit
        self._set_limit(limit)

    def _set_limit(self, limit):
        self.limit = limit
        self._limit.assign(limit)

    def authorize(self, steps: int) -> None:
        """Lets `steps` more steps through, on the host, before they are started.

        Raises:
            BudgetExhausted: the steps are beyond the limit.
            RuntimeError: the process was forked since the session was opened.
        """
        self._check_process()
        # The ledger may have been merged with another, or given a budget, since the last call.
        if self._ledger.changes != self._seen_changes:
            self.limit_steps()
        if self.left < steps:
            # An execution whose data ended took fewer steps than it was allowed.
            self.authorized = self.spent
        if self.authorized + steps > self.limit:
            self.refuse()
        self.authorized += steps

    def _check_process(self):
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked in the middle of a training: both would draw the same noise. "
                "Expected fit() or train_on_batch() to be called anew after os.fork()."
            )

    def refuse(self):
        """Raises BudgetExhausted and says which budget, or which plan, sets the limit."""
        taken = f"{self.spent} were taken"
        if self._budget is None:
            raise BudgetExhausted(
                f"This training was planned for {self.limit} steps, and {taken}. Start further steps "
                "with fit() or train_on_batch(), so that they are accounted."
            )
        raise BudgetExhausted(
            f"The privacy budget is exhausted: {self._budget.kind} epsilon {self._budget.epsilon:g} "
            f"at delta {self._budget.delta:g} ({self._budget.adjacency}) allows {self.limit} steps of "
            f"this training, and {taken}. Stop here, or start with more noise."
        )


def assumed_sensitivity(run: Run) -> float:
    """The sensitivity that the accounting of a run assumes.

    Returns:
        The distance, in clip norms, by which the accounting lets a sum move when one example becomes
        a null example; infinite if nothing bounds it.
    """
    try:
        factor = run.contribution.sensitivity(run.sampling, "zero_out")
    except UnboundedSensitivity:
        return math.inf
    return factor * run.contribution.noise_divisor
