"""What an optimizer shares with the accounting: arguments that are set once, and runs that go on."""

import dataclasses


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
    """

    run_id: str
    steps: int
    first_iteration: int
