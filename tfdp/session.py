"""The open entry of the ledger (a session): the one source of what a private step uses.

Formal guarantees:

* A session holds one frozen run. A step takes everything that the run's proof depends on from that run
  (noise multiplier, clip norm, strategy, momentum, the table of learning rates, the largest lot). The
  other choices that decide how a step is bounded (the kind of clipping, the codebook) are set once by
  the optimizer's constructor, and the resulting sensitivity is compared with the run's when the step is
  traced.
* The host authorizes steps before they start, never beyond the session's limit, and the count of
  authorized steps is what the ledger records. It only decreases by steps that are known not to have
  begun, because the data ended before them, or because they failed before any update.
* A training that ends before its plan counts all planned steps, as far as budgets allow them: its end
  may depend on what earlier steps released (docs/decisions/chosen_ends.md).
"""

import math
import os
from collections.abc import Sequence

import tensorflow as tf

from tfdp import accounting  # whose max_steps is imported for the first budget
from tfdp.accounting import BudgetExhausted, Ledger, PrivacyBudget, Run
from tfdp.accounting.contribution import UnboundedSensitivity
from tfdp.plan import Facts, Plan

_STEP_STRIDE = 0x85EBCA6B  # odd, so that no two of the first 2^32 steps share a seed
# Steps that a run without a planned end (train_on_batch) describes, and is extended by, at a time.
OPEN_ENDED = 10_000


class Session:
    """One run in a ledger, open for steps.

    A session is a plain object, which Keras does not track, so no file holds its counters.

    Args:
        ledger: the ledger that the run is entered into.
        run: the description of the training; `run.steps` is the number of planned steps.
        plan: the plan that `run` was made from.
        optimizer: the optimizer that takes the steps.
        variables: the trainable variables.
        first_iteration: the optimizer's iteration at the run's first step.
        resumed: (id of the run in the ledger, number of its steps) if the run was begun earlier; None
            enters a new run.

    Attributes:
        ledger, run, plan, optimizer, variables, first_iteration: the arguments.
        run_id: id of the run in the ledger.
        taken: number of authorized steps of the run, in all trainings.
        limit: number of steps that budgets and tables allow; infinite without either.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        plan: Plan,
        optimizer,
        variables: Sequence,
        first_iteration: int = 0,
        resumed: tuple[str, int] | None = None,
    ):
        self.run, self.plan, self.optimizer = run, plan, optimizer
        self._facts: Facts | None = None  # of further steps, which were found to hold for the run
        self.variables, self.first_iteration = list(variables), first_iteration
        if resumed is None:
            self.run_id, self.taken = ledger.open(run), 0
        else:
            self.run_id, self.taken = resumed
        self.ledger = ledger
        self._first_turn = plan.turn - self.taken
        # Counts the steps that begin on the device, one copy for each replica. Nothing saves it.
        self._begun = tf.Variable(
            self.taken,
            dtype=tf.int64,
            trainable=False,
            name="steps_begun",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        self.limit: float = 0
        self._budget: PrivacyBudget | None = None
        self._limited_for, self._seen_changes = None, None
        self._closed = False
        self._process = os.getpid()
        self._secret = tuple(int.from_bytes(os.urandom(4)) for _ in range(2))

    # -- what a step takes from the run ----------------------------------------------------------

    @property
    def divisor(self) -> int:
        """Number of microbatches in a nominal lot; every sum is divided by this public constant."""
        return self.run.sampling.lot_size // self.run.contribution.microbatch_size

    def begin_step(self) -> None:
        """Counts a step on the device that runs it, before the step uses `place` or `value`."""
        self._begun.assign_add(1)

    @property
    def place(self) -> tf.Tensor:
        """Number of the present step in the run, from 0: an int64 scalar tensor."""
        return self._begun - 1

    def value(self, name: str) -> float | tf.Tensor:
        """The value of a field of the run's mechanism at the present step.

        Args:
            name: name of a field that is one number, or a table with one number for each step.

        Returns:
            The number itself, or the table's entry as a float64 scalar tensor.
        """
        value = getattr(self.run.mechanism, name)
        if not isinstance(value, tuple):
            return value
        return tf.gather(tf.constant(value, tf.float64), self.place)

    def seed_shift(self) -> tf.Tensor:
        """What this step adds to the seeds of random layers: an int64 tensor [2].

        A row gets its dropout mask by its place in the lot, and an example that is drawn moves others
        to other places. Only because nobody knows which mask belongs to which place do the others tell
        nothing of it, as amplification by sampling needs. So a secret of the session decides, which
        the seeds of a model do not show, and which is another one for every step and replica.

        Where a user's seed decides about noise or lots, nothing is proven, and masks are as in Keras.
        """
        if self.run.insecure_seed:
            return tf.zeros([2], tf.int64)
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        number = self.place * context.num_replicas_in_sync + replica
        return tf.stack([self._secret[0], self._secret[1] + number * _STEP_STRIDE])

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

    def admitted(self, sample_weight: tf.Tensor) -> tf.Tensor:
        """Sets the weights of rows beyond the largest lot of the proof to zero.

        Which rows these are depends on their place alone, so no example decides about another one.

        Args:
            sample_weight: tensor [rows]; examples of weight zero are absent.
        """
        largest = self.run.sampling.largest_lot
        if largest is None:
            return sample_weight
        inside = tf.range(tf.shape(sample_weight)[0]) < largest
        return tf.where(inside, sample_weight, tf.zeros_like(sample_weight))

    @property
    def fixes_rows(self) -> bool:
        """Whether the proof needs lots of one fixed number of rows.

        This is so if the network normalizes with statistics of the whole lot and the sampling scheme
        limits the size of a lot.
        """
        return self.run.contribution.batch_statistics and self.run.sampling.largest_lot is not None

    # -- the ledger ------------------------------------------------------------------------------

    @property
    def next_turn(self) -> int:
        """Number of the next lot, counted from the first turn of the first group.

        A closed session does not say where another one begins.
        """
        return 0 if self._closed else self._first_turn + self.taken

    @property
    def left(self) -> float:
        """Number of steps that are still allowed; infinite without a limit."""
        return 0 if self._closed else self.limit - self.taken

    @property
    def left_out(self) -> int:
        """Number of steps that are counted and were not taken."""
        return max(0, self.ledger.steps(self.run_id) - self.taken)

    def record(self) -> None:
        """Records the steps taken so far in the ledger."""
        if self._closed:
            return
        self._record_in(self.ledger, 0)

    def end_early(self, left_out: float) -> None:
        """Closes the session and counts planned steps that were left out.

        Args:
            left_out: number of these steps; those beyond what budgets allow are not counted.
        """
        self._record_in(self.ledger, left_out)
        self._closed = True

    def planned_ledger(self, more: float) -> Ledger:
        """A copy of the ledger in which planned steps are counted.

        Args:
            more: number of planned steps that are not taken yet.
        """
        copy = Ledger.from_json(self.ledger.to_json())
        self._record_in(copy, more)
        return copy

    def planned_steps(self, more: float) -> float:
        """Number of steps that count if planned steps are left out; infinite if nobody knows it.

        Args:
            more: number of planned steps that are not taken yet.
        """
        return max(self.taken, min(self.taken + more, self.limit))

    def _record_in(self, ledger, more):
        # A file that was loaded meanwhile, or an earlier end, may have counted more steps of this run.
        steps = int(max(self.planned_steps(more), ledger.steps(self.run_id)))
        ledger.record(self.run_id, steps, taken=self.taken)

    def earlier(self) -> list[Run]:
        """The other runs in the ledger that have steps."""
        return [run for i, run in self.ledger.entries.items() if i != self.run_id and run.steps]

    def continues_with(self, facts: Facts, plan: Plan, optimizer, variables) -> bool:
        """Whether further steps belong to this session.

        Each `fit` starts new lots, which does not matter where lots are random. Epochs in a fixed
        order have to be whole, and of the same data in the same order, so that an example keeps its
        place in the epoch. Where groups take turns, the data have to be the same and the turns have
        to go on where they stopped.

        Args:
            facts: what is accounted of the further steps.
            plan, optimizer, variables: those of the further steps, as in `Session`.
        """
        same = (
            not self._closed
            and plan.physical_batch_size == self.plan.physical_batch_size
            and optimizer is self.optimizer
            and [id(v) for v in variables] == [id(v) for v in self.variables]
            and self.first_iteration == int(optimizer.iterations.numpy()) - self.taken
            and os.getpid() == self._process
        )
        if not same:
            return False
        if facts != self._facts:  # comparing facts with a run takes longer
            if facts.differences(self.run):
                return False
            self._facts = facts
        groups = plan.sampling.groups
        if groups > 1:
            return plan.lots is self.plan.lots and plan.turn == self.next_turn % groups
        if not self.run.sampling.whole_epochs:
            return True
        at = self.taken % self.run.sampling.steps_per_epoch
        return plan.lots is self.plan.lots and plan.start == at

    def extend(self, run: Run) -> None:
        """Replaces the run by a longer description of the same training.

        Args:
            run: this session's run with more steps (and longer tables).
        """
        self.ledger.extend(self.run_id, run)
        self.run = run

    def close(self) -> None:
        """Allows no further step."""
        self.record()
        self._closed = True

    def limit_steps(self) -> None:
        """Sets the limit to the steps that every budget leaves after the ledger's other runs.

        Steps that no table describes cannot be accounted, so the length of a table is a limit, too.
        """
        wanted = (self.ledger.budgets, self.run, self.earlier())
        self._seen_changes = self.ledger.changes
        if wanted == self._limited_for:
            return
        described = self.run.described_steps
        self.limit = math.inf if described is None else described
        self._budget = None
        for budget in wanted[0]:
            affordable = accounting.max_steps(
                budget.epsilon,
                budget.delta,
                self.run,
                kind=budget.kind,
                adjacency=budget.adjacency,
                earlier=wanted[2],
            )
            if affordable < self.limit:
                self.limit, self._budget = affordable, budget
        self._limited_for = wanted

    def authorize(self, steps: int) -> int:
        """Lets steps through, on the host, before they start.

        Args:
            steps: the number of steps that are wanted, at least 1.

        Returns:
            The number of steps that are allowed, from 1 to `steps`.

        Raises:
            BudgetExhausted: no further step is allowed.
            RuntimeError: the session is closed, or the process was forked since it was opened.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked in the middle of a training: both would draw the same noise. "
                "Expected fit() or train_on_batch() to be called anew after os.fork()."
            )
        if self._closed:
            raise RuntimeError(
                "The ledger entry of this training is closed, so no step can be accounted under it. "
                "Expected fit() or train_on_batch() to be called anew."
            )
        # The ledger may have been merged with another, or given a budget, since the last call.
        if self.ledger.changes != self._seen_changes:
            self.limit_steps()
        if self.left < 1:
            raise BudgetExhausted(self._why_exhausted())
        steps = int(min(steps, self.left))
        self.taken += steps
        return steps

    def take_back(self) -> None:
        """Takes back authorized steps that never began: the data ended before them, or they failed.

        A step begins when its sum is computed, before anything is released.
        """
        self.taken = int(self._begun.numpy())

    def keep(self) -> None:
        """Counts all authorized steps, also those that never began."""
        self._begun.assign(self.taken)

    def _why_exhausted(self):
        if self._budget is None:
            return (
                f"This training was planned for {self.limit:g} steps, and {self.taken} were taken. "
                "Start further steps with fit() or train_on_batch(), so that they are accounted."
            )
        earlier = sum(run.steps for run in self.earlier())
        before = f", after {earlier} in earlier ones" if earlier else ""
        return (
            f"The privacy budget is exhausted: {self._budget.kind} epsilon {self._budget.epsilon:g} "
            f"at delta {self._budget.delta:g} ({self._budget.adjacency}). "
            f"It allows {self.limit:g} step(s) of this training, and {self.taken} were taken{before}. "
            "tfdp.accounting.noise_for finds the noise for a budget; tfdp.callbacks.StopAtBudget ends "
            "a running training without this error."
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
