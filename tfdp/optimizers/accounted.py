"""What an optimizer shares with the accounting: arguments that are set once, and runs that go on."""

import dataclasses

from tfdp.accounting import Run


class Accounted:
    """An argument of an optimizer that the accounting depends on: set once, by the constructor."""

    def __set_name__(self, owner, name):
        self._name, self._slot = name, f"_accounted_{name}"

    def __get__(self, optimizer, owner=None):
        if optimizer is None:
            return self
        if self._slot not in optimizer.__dict__:
            raise AttributeError(f"{type(optimizer).__name__}.{self._name} is not set yet.")
        return optimizer.__dict__[self._slot]

    def __set__(self, optimizer, value):
        if self._slot in optimizer.__dict__:
            raise AttributeError(
                f"{type(optimizer).__name__}.{self._name} enters the accounting, so it cannot be "
                f"assigned (it is {optimizer.__dict__[self._slot]!r}). Expected another optimizer: "
                f"model.compile({type(optimizer).__name__}({self._name}={value!r}, ...), loss=...) "
                "starts a new run, and the ledger keeps both."
            )
        optimizer.__dict__[self._slot] = value


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """A run that continues after a pause, possibly in another process.

    Attributes:
        run_id: id of the run in the ledger.
        steps: number of steps that the run took before.
        first_iteration: the optimizer's iteration at the run's first step.
        run: the description of the run.
        turn: number of the next lot, counted from the first turn of the first group.
        fingerprint: fingerprint of the examples; None if they have no fixed place.
    """

    run_id: str
    steps: int
    first_iteration: int
    run: Run
    turn: int = 0
    fingerprint: str | None = None


def check_same_run(run: Run, fields: dict) -> None:
    """Raises ValueError if further steps are not accounted as the steps of a run were.

    Args:
        run: the description of the run that is to go on.
        fields: the fields of `accounting.Run` of the further steps.
    """
    expected, found = _flat(run), _flat(Run(steps=run.steps, **_tables(run, fields), **fields))
    other = sorted(k for k in {*expected, *found} if expected.get(k) != found.get(k))
    if other:
        raise ValueError(
            f"Expected the settings of the saved run, { {k: expected.get(k) for k in other} }. Found "
            f"{ {k: found.get(k) for k in other} }."
        )


def check_same_place(saved: SavedRun, plan) -> None:
    """Raises ValueError if examples have places, and the next lots are not those that come next.

    Args:
        saved: the run that is to go on.
        plan: how the next steps draw their examples (`tfdp.session.Plan`).
    """
    run = saved.run
    if not run.has_places:
        return
    start = saved.steps % run.steps_per_epoch if run.sampling.whole_epochs else 0
    expected = (start, saved.turn % run.groups, saved.fingerprint)
    found = (plan.start, plan.turn, None if plan.lots is None else plan.lots.fingerprint())
    if expected != found:
        raise ValueError(
            "The saved run goes on with the lots that come next, of the same examples in the same "
            f"order. Expected (place in the epoch, turn, fingerprint) {expected}. Found {found}."
        )


def _tables(run: Run, fields: dict) -> dict:
    """Fields of a run that are made when it is opened, and so are not among those of its steps."""
    own = {f.name for f in dataclasses.fields(run.mechanism)} - fields.keys()
    return {name: getattr(run.mechanism, name) for name in own}


def _flat(run: Run) -> dict:
    """The fields of a run's parts by name, without the number of steps."""
    parts = [run.mechanism, run.sampling, run.contribution]
    own = {"sampling": run.sampling_name, "start": run.start, "insecure_seed": run.insecure_seed}
    return own | {f.name: getattr(part, f.name) for part in parts for f in dataclasses.fields(part)}
