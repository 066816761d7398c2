"""Counts all steps that were planned where results decide when training ends, or what is kept of it.

Formal guarantee: an epsilon is proven for a number of steps that was fixed without looking at what
the steps release. If what they released decides when training ends (early stopping on validation
data) or which weights are kept (the best of a file), the output is a function of what *all* planned
steps would have released, so the guarantee of these covers it; that of the steps that were taken does
not. The composition of the steps up to a time that depends on them can leak more.
"""

import math

import keras

from tfdp.training.steering import is_public
from tfdp.training.train_function import Epoch


def keeps_the_best(callbacks) -> bool:
    """Whether a callback writes a file only if the weights do better than those before.

    Args:
        callbacks: the argument of a fit.
    """
    a_list = isinstance(callbacks, keras.callbacks.CallbackList)
    return any(
        isinstance(callback, keras.callbacks.ModelCheckpoint)
        and callback.save_best_only
        and not is_public(callback.monitor)
        for callback in (callbacks.callbacks if a_list else keras.tree.flatten(callbacks))
    )


def refuse_unknown_plan(steps: int | None) -> None:
    """Raises ValueError if nobody knows how many steps an epoch has whose best weights are kept."""
    if steps is None:
        raise ValueError(
            "ModelCheckpoint(save_best_only=True) chooses by what the steps showed, so that its file "
            "counts all planned steps, and the data do not say how many these are. Expected "
            "steps_per_epoch, or a dataset that knows its length."
        )


class Progress:
    """What one `fit` has taken of its plan, and whether a callback has decided to end it.

    Args:
        planned: number of planned steps; None if the data end the epochs.
        epochs: number of epochs to take.
        behind: number of steps of the first of them that lie behind.
        epoch: counts the epochs' steps, and knows the longest whole one.
    """

    def __init__(self, planned: int | None, epochs: int, behind: int, epoch: Epoch):
        self._planned, self._epochs, self._behind, self._epoch = planned, epochs, behind, epoch
        self._sessions, self._decided, self._stops, self._broken = [], False, False, False
        # Whether the last epoch is over, so that no decision can be taken back.
        self.over = False

    def note(self, session) -> None:
        """Notes a session in which steps of this fit are taken from now on."""
        if session is not None and all(known is not session for known, _ in self._sessions):
            self._sessions.append((session, session.spent))

    @property
    def session(self):
        """The last session with steps of this fit; None if there is none."""
        return self._sessions[-1][0] if self._sessions else None

    @property
    def taken(self) -> int:
        """Number of steps that this fit has taken."""
        return sum(session.spent - before for session, before in self._sessions)

    def decide(self, stops: bool) -> None:
        """Notes that training is to end after the present step or epoch, or is to go on after all."""
        self._stops = stops
        if stops:
            self._decided = self._broken = True

    def begin_epoch(self) -> None:
        """Notes that an epoch begins."""
        self._broken = False
        self._epoch.begin(self.taken)

    def end_epoch(self) -> None:
        """Notes that an epoch ends, with its data unless a decision has broken it off."""
        if not self._broken:
            self._epoch.end(self.taken)

    def left_out(self) -> float:
        """Number of planned steps that are left out if it ends now; infinite if nobody knows it."""
        if not (self._decided and (self._stops or self.over)) or self.session is None:
            return 0
        planned = self._planned
        if planned is None:
            if self._epoch.longest is None:
                return math.inf
            planned = self._epochs * self._epoch.longest - self._behind
        return max(0, planned - self.taken)
