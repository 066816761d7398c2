"""An open entry of a ledger: the one place where planned and taken steps are counted.

Formal guarantees:

* All planned steps that budgets allow count from the moment the first of them is authorized, because
  the end of a training may depend on its releases (docs/decisions/chosen_ends.md). So no end, exception
  or save has to count them.
* The host authorizes steps before they run, never beyond the limit that budgets and tables set.
* The number of counted steps only decreases by planned steps that are known never to run: the data
  ended before them, or the first execution failed before any of its steps began.
"""

import math
import os

from tfdp import accounting  # whose max_steps is imported for the first budget
from tfdp.accounting import BudgetExhausted, Ledger, PrivacyBudget, Run


class Entry:
    """One run in a ledger, open for steps.

    An entry has no reference to a model, an optimizer or a device.

    Args:
        ledger: The ledger that contains the run.
        run: The description. `run.steps` is the number of described steps; the number of counted
            ones is `counted`.
        run_id: Id of the run. A run that the ledger has from another process is resumed. None draws a
            random id.
        declared: Number of steps of a plan that several trainings carry out, or 0.

    Attributes:
        taken: Number of authorized steps, in all trainings of this entry.
        limit: Number of steps that budgets and tables allow; infinite without either.
    """

    def __init__(self, ledger: Ledger, run: Run, run_id: str | None = None, declared: float = 0):
        self.ledger, self.run = ledger, run
        self._resumed = run_id in ledger.entries
        self.run_id = run_id if run_id is not None and self._resumed else ledger.open(run, run_id)
        recorded = ledger.entries[self.run_id]
        self.taken = ledger.taken(self.run_id)
        self.declared = declared
        self._planned: float = math.inf if recorded.open_plan else recorded.steps
        self._earlier_plan: tuple[float, float] | None = None  # planned and declared steps
        self._counted_before = recorded.steps
        self._recorded = (recorded.steps, self.taken, recorded.open_plan)
        self.limit: float = math.inf
        self._budget: PrivacyBudget | None = None
        self._limited_for: tuple | None = None
        self._seen_changes: int | None = None
        self.closed = False
        self._process = os.getpid()

    # -- the plan --------------------------------------------------------------------------------

    def plan(self, steps: float, declared: float = 0) -> None:
        """Counts planned steps, before the first of them; a later call replaces the plan.

        Args:
            steps: Number of planned steps of this entry, including those taken; infinite if unknown.
            declared: Number of planned steps that later trainings may carry out, too. They count
                whatever those trainings plan.
        """
        if self._earlier_plan is None:
            self._earlier_plan = (self._planned, self.declared)
        self.declared = max(self.declared, declared)
        self._resumed, self._planned = False, max(steps, self.declared)
        self.limit_steps()

    def withdraw_plan(self) -> None:
        """Withdraws a plan of which no step ran; an earlier plan of the entry stays."""
        self._planned, self.declared = self._earlier_plan or (0, 0)
        self.record()

    def end_plan(self) -> None:
        """Fixes the number of counted steps: later budgets do not change a finished plan."""
        self.record()
        self.closed = self.closed or self.has_open_plan
        self._planned, self._earlier_plan, self._counted_before = 0, None, self.counted

    @property
    def counted(self) -> int:
        """Number of steps that the ledger counts for this run."""
        return self.ledger.steps(self.run_id)

    @property
    def has_open_plan(self) -> bool:
        """Whether the number of counted steps is unknown, so that nothing is proven."""
        return self.ledger.entries[self.run_id].open_plan

    @property
    def if_ended(self) -> float:
        """Number of steps that count if the training ends now; infinite if unknown."""
        self.record()
        return math.inf if self.has_open_plan else self.counted

    def surplus(self, steps: float) -> float:
        """Returns how many steps of an earlier declared plan are left out if `steps` more are planned.

        If the further steps fit into the rest of the plan, they carry it out; otherwise they are added.
        """
        left = max(self.counted, self.declared) - self.taken
        return 0 if self._resumed or steps <= left else left

    @property
    def so_far(self) -> int:
        """Number of steps that count if the plan is carried out: those taken, and earlier plans."""
        return max(self._counted_before, self.taken)

    @property
    def is_settled(self) -> bool:
        """Whether another training may take its steps in this entry.

        It may not if counted steps were left out, because its own steps would be hidden among them.
        """
        if self.closed or os.getpid() != self._process:
            return False
        return self._resumed or self.counted <= max(self.taken, self.declared)

    def extend(self, run: Run) -> None:
        """Replaces the description by a longer one of the same run."""
        self.ledger.extend(self.run_id, run)
        self.run = run

    def record(self) -> None:
        """Writes the counted and the taken steps into the ledger."""
        if self.closed:
            return
        counted = self.counted
        if counted > self._recorded[0]:  # a file with more steps of this run was loaded
            self._counted_before = counted
        planned = min(self._planned, self.limit)
        is_open = math.isinf(planned)
        steps = int(max(self.so_far, 0 if is_open else planned))
        found = (steps, self.taken, is_open)
        if steps < counted:
            self.ledger.take_back(self.run_id, steps)
        if found != self._recorded or steps != counted:
            self.ledger.record(self.run_id, *found)
        self._recorded = found

    def close(self) -> None:
        """Allows no further step."""
        self.record()
        self.closed = True

    # -- steps -----------------------------------------------------------------------------------

    @property
    def left(self) -> float:
        """Number of steps that budgets and tables still allow; infinite without a limit."""
        # The ledger may have been merged with another, or given a budget, since the last call.
        if self.ledger.changes != self._seen_changes:
            self.limit_steps()
        return 0 if self.closed else self.limit - self.taken

    def authorize(self, steps: int) -> int:
        """Counts steps as taken, before they run.

        Args:
            steps: Number of wanted steps.

        Returns:
            Number of steps that may run, from 1 to `steps`.

        Raises:
            BudgetExhausted: If no further step is allowed.
            RuntimeError: If the entry is closed, or the process was forked since it was opened.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "This process was forked during a training, so both processes would draw the same "
                "noise. Call fit() or train_on_batch() again after os.fork()."
            )
        if self.closed:
            raise RuntimeError(
                "The ledger entry of this training is closed, so no step can be accounted under it. "
                "Call fit() or train_on_batch() again."
            )
        if self.left < 1:
            raise BudgetExhausted(self._why_exhausted())
        steps = int(min(steps, self.left))
        self.taken += steps
        return steps

    def earlier(self) -> list[Run]:
        """Returns the other runs in the ledger that have steps."""
        return [run for i, run in self.ledger.entries.items() if i != self.run_id and run.steps]

    def limit_steps(self) -> None:
        """Limits the steps by the budgets, after the ledger's other runs, and writes the ledger.

        Steps that no table describes cannot be accounted, so the length of a table is a limit, too.
        """
        wanted = (self.ledger.budgets, self.run, self.earlier())
        self._seen_changes = self.ledger.changes
        if wanted != self._limited_for:
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
        self.record()

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
