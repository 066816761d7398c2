"""The open entry of a ledger: it counts every private step, or refuses it.

Formal guarantee: whoever runs a training step (`fit`, `train_on_batch`, a loop of one's own, a function
that was traced long ago), the weights change only after the entry that the step was traced for has
counted it, and never beyond that entry's limit. A closed entry allows nothing more, so no step is
accounted under the description of another.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from tfdp.accounting import BudgetExhausted, Ledger, PrivacyBudget, Run, max_steps

_UNLIMITED = np.iinfo(np.int64).max
# Steps that an entry without an end (train_on_batch) describes at a time.
OPEN_ENDED = 10_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the steps that are about to run draw their examples.

    Attributes:
        sampling, num_examples, lot_size: as in `accounting.Run`.
        steps: how many steps; None where nobody knows.
        groups: as in `accounting.Run`.
        turn: the group that the first lot comes from, where groups take turns.
        lots: the `tfdp.data.Lots` that they come from, if they do.
        seeded: whether the draws come from a user's seed.
        physical_batch_size: rows that are in memory at once; None takes a lot whole.
    """

    sampling: str
    num_examples: int
    lot_size: int
    steps: int | None = None
    groups: int = 1
    turn: int = 0
    lots: object = None
    seeded: bool = False
    physical_batch_size: int | None = None


class Entry:
    """One run in a ledger, open for steps. A plain object, so that no file holds its counters.

    Args:
        ledger: where the run is entered.
        run: its description; `run.steps` are the steps planned.
        plan: what `run` was made from.
        first_iteration: the optimizer's iteration at its first step.
        identity: whatever must stay the same for training to go on in this entry.
        resumed: id of the run in the ledger, if it was begun before.
    """

    def __init__(
        self,
        ledger: Ledger,
        run: Run,
        plan: Plan,
        first_iteration: int,
        identity: object = None,
        resumed: str | None = None,
    ):
        self.run, self.plan = run, plan
        self.first_iteration, self.identity = first_iteration, identity
        self.limit = 0
        if resumed is None:
            resumed = ledger.open(run)
        else:
            ledger.extend(resumed, run)
        self._ledger, self.run_id = ledger, resumed
        spent = ledger.steps(resumed)
        self.authorized = spent  # steps that the host let through; the device counts what it began
        self._first_turn = plan.turn - spent
        self._spent = tf.Variable(spent, dtype=tf.int64, trainable=False, name="steps_spent")
        self._limit = tf.Variable(0, dtype=tf.int64, trainable=False, name="steps_allowed")
        self._budget: PrivacyBudget | None = None
        self._limited_for = None

    @property
    def spent(self) -> int:
        """Steps taken."""
        return int(self._spent.numpy())

    @property
    def next_turn(self) -> int:
        """Which lot comes next, counted from the first turn of the first group."""
        return self._first_turn + self.spent

    @property
    def left(self) -> float:
        """Steps that are still allowed; infinite without a limit."""
        return math.inf if self.limit == _UNLIMITED else self.limit - self.authorized

    def record(self) -> None:
        """Brings the ledger up to date."""
        self._ledger.record(self.run_id, self.spent)

    def earlier(self) -> list[Run]:
        """What the ledger knows besides this entry."""
        return [run for i, run in self._ledger.entries.items() if i != self.run_id and run.steps]

    def goes_on_with(self, plan: Plan) -> bool:
        """Whether lots of `plan` may follow those of this entry under one description.

        Each fit starts new lots. Random lots do not care; epochs in a fixed order have to be whole,
        and of the same data in the same order, for an example to keep its place. Groups of the same
        data have to go on taking turns where they were.
        """
        if plan.sampling == "cyclic_poisson":
            return plan.lots is self.plan.lots and plan.turn == self.next_turn % plan.groups
        if plan.sampling not in ("cyclic", "shuffle"):
            return True
        return plan.lots is self.plan.lots and self.spent % self.run.steps_per_epoch == 0

    def extend(self, run: Run) -> None:
        """Goes on with more steps than were planned."""
        self._ledger.extend(self.run_id, run)
        self.run = run

    def close(self) -> None:
        """Allows no further step, not even to functions that were traced for this entry."""
        self.record()
        self._set_limit(self.spent)

    def limit_to(self, budget: PrivacyBudget | None) -> None:
        """Allows the steps that the budget leaves after everything else in the ledger.

        Rates that are not described cannot be accounted, so a schedule limits the steps, too.
        """
        wanted = (budget, self.run, self.earlier())
        self.authorized = self.spent
        if wanted == self._limited_for:
            return
        limit = self.run.steps if isinstance(self.run.learning_rates, tuple) else _UNLIMITED
        if budget is not None:
            affordable = max_steps(
                budget.epsilon,
                budget.delta,
                self.run,
                kind=budget.kind,
                adjacency=budget.adjacency,
                earlier=wanted[2],
            )
            limit = min(limit, affordable)
        self._budget, self._limited_for = budget, wanted
        self._set_limit(limit)

    def _set_limit(self, limit):
        self.limit = limit
        self._limit.assign(limit)

    def authorize(self, steps: int) -> None:
        """Lets `steps` more steps through, on the host, before they are started.

        Raises:
            BudgetExhausted: they are not allowed.
        """
        if self.authorized + steps > self.limit:
            self.refuse()
        self.authorized += steps

    def count(self) -> tf.Tensor:
        """Counts a step where it runs; returns bool, whether it is allowed (and was counted)."""
        allowed = self._spent < self._limit
        with tf.control_dependencies([self._spent.assign_add(tf.cast(allowed, tf.int64))]):
            return tf.identity(allowed)

    def refuse(self):
        """Raises BudgetExhausted."""
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
