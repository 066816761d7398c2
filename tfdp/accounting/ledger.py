"""Privacy budgets, and the ledger, which records the steps that were spent or planned."""

import dataclasses
import json
import numbers
import os

from tfdp._validate import instance, text
from tfdp.accounting.guarantee import check_adjacency, check_delta, check_epsilon, check_kind
from tfdp.accounting.records import html_table, settle
from tfdp.accounting.run import Run, check_run
from tfdp.accounting.wording import executed

_VERSION = 2


class BudgetExhausted(RuntimeError):
    """Error of `fit` and `train_on_batch`: the next step would exceed the privacy budget.

    It is raised before the step is taken. `tfdp.callbacks.StopAtBudget` ends `fit` without it.

    Example:
        >>> from tfdp.accounting import BudgetExhausted
        >>> issubclass(BudgetExhausted, RuntimeError)
        True
    """


class LedgerError(ValueError):
    """Error of a `Ledger`: a change would lower recorded spending, or the input is no valid ledger.

    Example:
        >>> from tfdp.accounting import Ledger
        >>> Ledger.from_json("{}")
        Traceback (most recent call last):
        ...
        tfdp.accounting.ledger.LedgerError: Expected the JSON text of a ledger. Received ...
    """


_BUDGET = "Pass tfdp.accounting.PrivacyBudget(epsilon, delta)."


@dataclasses.dataclass(frozen=True)
class PrivacyBudget:
    """A limit on the privacy that training may spend; a step that would exceed it is refused.

    Pass it to `make_private(model, budget=...)`. All trainings of the same weights count, also after
    saving and loading.

    A budget covers trainings whose noise, lots and steps were fixed in advance, or follow rules that
    use no private results. It does not cover settings chosen by looking at earlier results.

    Attributes:
        epsilon: Largest epsilon, finite and above 0.
        delta: Delta of that epsilon, strictly between 0 and 1; well below 1/N.
        kind: The guarantee that must stay within the budget: "proven" or "claimed".
        adjacency: Neighbouring relation of that guarantee: "zero_out", "replace_one" or
            "add_or_remove_one".

    Example:
        >>> import tfdp
        >>> budget = tfdp.PrivacyBudget(epsilon=2.0, delta=1e-5)
        >>> budget.kind, budget.adjacency
        ('proven', 'zero_out')
    """

    epsilon: float
    delta: float
    kind: str = "proven"
    adjacency: str = "zero_out"

    def __post_init__(self):
        settle(self, epsilon=check_epsilon(self.epsilon), delta=check_delta(self.delta))
        check_kind(self.kind)
        check_adjacency(self.adjacency)


class Ledger:
    """The record of all private trainings of some weights: each run with its number of spent steps.

    `model.privacy.ledger` is the ledger of a model, which tfdp keeps up to date and saves with the
    model. Use one of your own to add up other trainings on the same data.

    Each run has a random id. It lets `merge` count a saved and reloaded run once, and runs of two
    copies of a model separately.

    Example:
        >>> from tfdp.accounting import Ledger, describe
        >>> run = describe("dpsgd", "poisson", num_examples=1000, lot_size=100, steps=50,
        ...                noise_multiplier=1.1)
        >>> ledger = Ledger()
        >>> run_id = ledger.open(run)
        >>> ledger.record(run_id, 20)
        >>> copy = Ledger.from_json(ledger.to_json())
        >>> copy.record(run_id, 30)
        >>> ledger.merge(copy)  # the same run, not another 30 steps
        >>> ledger.steps(run_id)
        30
    """

    def __init__(self):
        self._entries: dict[str, Run] = {}
        self._budgets: tuple[PrivacyBudget, ...] = ()
        # Increases whenever the runs or budgets change such that a session has to recompute its limit
        # of steps. Spending steps does not increase it.
        self.changes = 0

    @property
    def budget(self) -> PrivacyBudget | None:
        """The first budget, or None. Assigning one replaces all `budgets`, even with a larger one."""
        return self._budgets[0] if self._budgets else None

    @budget.setter
    def budget(self, budget: PrivacyBudget | None) -> None:
        instance("budget", budget, PrivacyBudget, optional=True, remedy=_BUDGET)
        self._budgets = () if budget is None else (budget,)
        self.changes += 1

    @property
    def budgets(self) -> tuple[PrivacyBudget, ...]:
        """All budgets; training has to stay within every one of them."""
        return self._budgets

    def add_budget(self, budget: PrivacyBudget) -> None:
        """Adds a budget; of two budgets that differ only in epsilon, the smaller one is kept."""
        instance("budget", budget, PrivacyBudget, remedy=_BUDGET)
        kept = []
        for known in self._budgets:
            if dataclasses.replace(known, epsilon=budget.epsilon) == budget:
                budget = min(known, budget, key=lambda each: each.epsilon)
            else:
                kept.append(known)
        self._budgets = (*kept, budget)
        self.changes += 1

    def withdraw_declarable(self) -> None:
        """Removes unaccounted plain training, because the user declared it to be public."""
        for run_id, run in self.entries.items():
            if getattr(run.mechanism, "declarable", False):
                del self._entries[run_id]
                self.changes += 1

    def open(self, run: Run, run_id: str | None = None) -> str:
        """Adds a run with 0 spent steps.

        Args:
            run: The run; its own number of steps is ignored.
            run_id: The id of the run; None draws a random one.

        Returns:
            The id.

        Raises:
            LedgerError: If a run with this id exists.
        """
        check_run(run)
        run_id = os.urandom(16).hex() if run_id is None else run_id
        if run_id in self._entries:
            raise LedgerError(f"Expected the id of a new run. Received {run_id!r}.")
        self._entries[run_id] = run.with_steps(0)
        self.changes += 1
        return run_id

    def record(
        self, run_id: str, steps: int, taken: int | None = None, open_plan: bool = False
    ) -> None:
        """Sets the total number of steps that a run has spent. Record a step before it is executed.

        Args:
            run_id: The id of the run.
            steps: Number of spent steps, at least the recorded number.
            taken: Number of steps that were actually taken, as in `Run`; None for all.
            open_plan: Whether an unknown number of further steps may be planned, as in `Run`.

        Raises:
            LedgerError: If the id is unknown, or fewer steps are given than were recorded.
        """
        entry = self._entry(run_id)
        counted = isinstance(steps, numbers.Integral) and not isinstance(steps, bool)
        if not (counted and steps >= entry.steps):
            raise LedgerError(
                f"Expected at least the {entry.steps} steps that run {run_id} has spent already. "
                f"Received {steps}. Spent steps cannot decrease; open a new run instead."
            )
        self._entries[run_id] = entry.with_steps(int(steps), taken, open_plan)

    def take_back(self, run_id: str, steps: int) -> None:
        """Lowers the number of steps of a run to `steps`, since the others were never executed."""
        entry = self._entry(run_id)
        self._entries[run_id] = entry.with_steps(min(steps, entry.steps))

    def extend(self, run_id: str, run: Run) -> None:
        """Replaces the description of a run by one with longer tables over steps.

        Args:
            run_id: The id of the run.
            run: The new description; its own number of steps is ignored.

        Raises:
            LedgerError: If `run` differs in more than longer tables.
        """
        entry = self._entry(run_id)
        longer = check_run(run).with_steps(entry.steps, entry.taken, entry.open_plan)
        if longer.past() != entry.past():
            raise LedgerError(
                f"Expected the run {run_id} with longer schedules. Received another run. Open a "
                "new one instead."
            )
        self._entries[run_id] = longer

    def steps(self, run_id: str) -> int:
        """Returns the number of steps that a run has spent."""
        return self._entry(run_id).steps

    def taken(self, run_id: str) -> int:
        """Returns the number of steps that a run has taken; 0 for an unknown id."""
        run = self._entries.get(run_id)
        return 0 if run is None else _taken(run)

    def merge(self, other: "Ledger") -> None:
        """Adds all runs and budgets of another ledger to this one.

        A run that is in both counts once, with the larger number of steps.

        Args:
            other: The other ledger, which stays unchanged.

        Raises:
            LedgerError: If one id stands for two different runs; the ledger is then unchanged.
        """
        instance("other", other, Ledger, remedy="Pass a ledger, such as Ledger.from_json(text).")
        merged = dict(self._entries)
        for run_id, run in other._entries.items():
            mine = merged.get(run_id, run)
            shorter, longer = sorted((mine, run), key=_progress)
            # Both descriptions have to agree on the steps that the shorter one has spent.
            if longer.with_steps(shorter.steps).past() != shorter.past():
                raise LedgerError(
                    f"Expected one description of run {run_id}. Received two that differ. "
                    "Load the ledger that belongs to this model."
                )
            merged[run_id] = longer
        self._entries = merged
        self.changes += 1
        for budget in other._budgets:
            if budget not in self._budgets:
                self.add_budget(budget)

    @property
    def entries(self) -> dict[str, Run]:
        """All runs by id, each with its spent steps (a copy)."""
        return dict(self._entries)

    @property
    def runs(self) -> list[Run]:
        """All runs with at least one spent step."""
        return [run for run in self._entries.values() if run.steps]

    def to_json(self) -> str:
        """Returns the ledger as JSON text; `from_json` is its inverse."""
        content = {
            "version": _VERSION,
            "runs": {run_id: run.to_dict() for run_id, run in self._entries.items()},
            "budgets": [dataclasses.asdict(budget) for budget in self._budgets],
        }
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Returns the ledger whose text `to_json` wrote; raises LedgerError for any other text."""
        ledger = cls()
        try:
            content = json.loads(text)
            version = content.pop("version")
            if version != _VERSION:
                raise ValueError(f"unknown version {version!r}")
            ledger._budgets = tuple(PrivacyBudget(**each) for each in content["budgets"])
            for run_id, fields in content["runs"].items():
                ledger._entries[run_id] = Run.from_dict(fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerError(f"Expected the JSON text of a ledger. Received {error}.") from error
        return ledger

    def __eq__(self, other) -> bool:
        return isinstance(other, Ledger) and (self._entries, set(self._budgets)) == (
            other._entries,
            set(other._budgets),
        )

    def __repr__(self) -> str:
        return f"Ledger(runs={len(self._entries)}, steps={sum(r.steps for r in self.runs)})"

    def _repr_html_(self) -> str:
        budgets = (
            f"{b.kind} epsilon {b.epsilon:g} at delta {b.delta:g} ({b.adjacency})"
            for b in self._budgets
        )
        rows = [("training", words) for words in executed(self.runs) or ("Nothing yet.",)]
        return html_table([*rows, *(("budget", words) for words in budgets)])

    def _entry(self, run_id: str) -> Run:
        if text("run_id", run_id) not in self._entries:
            raise LedgerError(
                f"Expected the id of an open run. Received {run_id!r}. Call open() first."
            )
        return self._entries[run_id]


def _taken(run: Run) -> int:
    return run.steps if run.taken is None else run.taken


def _progress(run: Run) -> tuple[int, bool, int]:
    """Sort key of descriptions of a run by their progress; a known plan follows an open one."""
    return run.steps, not run.open_plan, _taken(run)
