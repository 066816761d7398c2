"""The position of a training: its next step, and the secret order of its lots."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of the next step of a training.

    Attributes:
        epoch: Index of the epoch, as in Keras.
        step: Number of steps taken in this epoch.
        taken: Number of lots consumed so far, in all epochs.
        until: Index of the epoch before which the training ends, the largest in all processes.
        order: Secret order of shuffled lots, in hexadecimal digits. None if the lots need no order.
        longest: Number of steps in the longest epoch that ended with its data. None before the first.
    """

    epoch: int = 0
    step: int = 0
    taken: int = 0
    until: int = 1
    order: str | None = None
    longest: int | None = None

    def later(self, steps: int) -> "Position":
        """Returns the position so many steps later in the same epoch."""
        return dataclasses.replace(self, step=self.step + steps, taken=self.taken + steps)

    def next_epoch(self) -> "Position":
        """Returns the position at the beginning of the next epoch."""
        return dataclasses.replace(self, epoch=self.epoch + 1, step=0)

    def after_lost(self, steps: int, length: int | None) -> "Position":
        """Returns the position after steps that a crash lost.

        Args:
            steps: Number of lost steps.
            length: Number of steps in an epoch. None if unknown.
        """
        position = self.later(steps)
        if length is None:
            return position
        epochs, step = divmod(position.step, length)
        return dataclasses.replace(position, epoch=position.epoch + epochs, step=step)
