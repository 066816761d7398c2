"""How far a training has come, and the secret order of its lots."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of the next step of a training.

    Attributes:
        epoch: Index of the epoch, as Keras counts.
        step: Number of steps of this epoch that were taken.
        taken: Number of lots since the data began, in all epochs.
        until: Index of the epoch before which the training ends, the largest in all processes.
        order: Secret order of shuffled lots, in hexadecimal digits, or None.
        longest: Number of steps of the longest epoch that ended with its data; None before one did.
    """

    epoch: int = 0
    step: int = 0
    taken: int = 0
    until: int = 1
    order: str | None = None
    longest: int | None = None

    def later(self, steps: int) -> "Position":
        """The position so many steps later in the same epoch."""
        return dataclasses.replace(self, step=self.step + steps, taken=self.taken + steps)

    def next_epoch(self) -> "Position":
        """The position at the beginning of the next epoch."""
        return dataclasses.replace(self, epoch=self.epoch + 1, step=0)

    def after_lost(self, steps: int, length: int | None) -> "Position":
        """The position after steps whose results a crash lost; `length` is None if unknown."""
        position = self.later(steps)
        if length is None:
            return position
        epochs, step = divmod(position.step, length)
        return dataclasses.replace(position, epoch=position.epoch + epochs, step=step)
