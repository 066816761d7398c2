"""One training: the steps of a call of `fit`, `train_on_batch` or `privacy.steps`.

Formal guarantee: every step that runs was authorized before by the session of the run that it is
accounted as. If a training ends before its plan, by a callback, an exception or a `break`, all planned
steps are counted (docs/decisions/chosen_ends.md).
"""

import dataclasses
import math

import tensorflow as tf
from absl import logging

from tfdp.account import Account
from tfdp.gradients.vectorizing import error_of_row
from tfdp.session import OPEN_ENDED, Session
from tfdp.training.feeding import Feed, Place
from tfdp.training.opening import open_session

_ENDS = (StopIteration, tf.errors.OutOfRangeError)


class Training:
    """The plan of a training, and how far it has come.

    The ledger entry is opened with the first step, since callbacks may load weights before.

    Args:
        model: a private model that is compiled and built.
        account: the account of its weights.
        feed: the data, and how the steps draw from them.
        epochs: number of epochs.
        place: where the training begins.
        backup: the callback that keeps the training safe from crashes, or None.

    Attributes:
        place: the place of the next step.
    """

    def __init__(
        self,
        model,
        account: Account,
        feed: Feed,
        *,
        epochs: int = 1,
        place: Place | None = None,
        backup=None,
    ):
        self._model, self._account, self.feed = model, account, feed
        self._epochs, self._backup = epochs, backup
        self._start = self.place = place or Place(0)
        self._session: Session | None = None
        self._before = 0  # steps of the session before this training
        # Steps of an earlier process to pass by: lots begin where the training resumes, but a user's
        # batches begin anew.
        self._behind = self.place.step if feed.plan.lots is None else 0
        # Executions that Keras asks for after the end of the first epoch, as it ignores earlier steps.
        self._surplus = self._executions(0) - self._executions(self.place.step)
        self._logs = {}
        self._was_cut = False  # whether the last execution had fewer steps than were planned

    # -- its plan --------------------------------------------------------------------------------

    def _executions(self, behind):
        """Number of executions of an epoch; 0 if nobody knows it."""
        steps = self.feed.steps
        return 0 if steps is None else -(-max(0, steps - behind) // self._model.steps_per_execution)

    def left(self) -> float:
        """Number of planned steps that are not taken; infinite if nobody knows it.

        It is 0 before the first step, when nothing was released.
        """
        taken = self._taken
        return max(0, self.planned - taken) if taken else 0

    @property
    def planned(self) -> float:
        """Number of planned steps, in all processes; infinite if nobody knows it."""
        start = self._start
        steps = self.place.longest if self.feed.steps is None else self.feed.steps
        if steps is None:
            return math.inf
        return max(start.planned or 0, start.taken + self._epochs * steps - start.step)

    @property
    def _taken(self):
        """Number of steps that were taken, in all processes."""
        here = 0 if self._session is None else self._session.taken - self._before
        return self._start.taken + here

    def end(self, stopped: bool) -> None:
        """Ends the training after its last execution.

        Args:
            stopped: whether a callback ended it. An earlier process may have planned more steps, too.

        Raises:
            BudgetExhausted: the budget cut the last execution short, and no callback ended it there.
        """
        if stopped or (self._start.planned or 0) > self._taken:
            self.end_early()
        elif self._was_cut:
            self._session.authorize(1)

    def end_early(self) -> None:
        """Counts the planned steps that are left out."""
        left = self.left()
        if left:
            self._open(0)  # a resumed training may have taken no step yet
            self._account.end_early(left)
            left_out = self._session.left_out
            if left_out and self._backup is None:  # which has its own words, and may be resumed
                logging.warning(
                    "This training took %s of %s planned steps. All of them are counted, because its "
                    "end may depend on what the steps showed. To count only the steps taken, plan "
                    "fewer, or end by a PrivacyBudget with tfdp.callbacks.StopAtBudget.",
                    f"{self._taken:,}",
                    f"{self._taken + left_out:,}",
                )

    # -- its steps -------------------------------------------------------------------------------

    def execute(self, iterator, steps_of) -> dict:
        """Takes the steps of the next execution and returns the logs of the last one.

        Args:
            iterator: gives lots.
            steps_of: the model's `train_function.Steps`.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: the data have ended.
            tf.errors.InvalidArgumentError: an operation cannot compute with the value of an example.
            BudgetExhausted: a budget allows no further step.
        """
        self._pass_by(iterator)
        if self._surplus and not self.place.step:  # the first epoch is over
            self._surplus -= 1
            return self._logs
        steps = self._model.steps_per_execution
        if self.feed.steps is not None:
            steps = min(steps, self.feed.steps - self.place.step)
        self._open(steps)
        if self._backup is not None:
            self._backup.begin(self, self._session)
        allowed = self._session.authorize(steps)
        self._was_cut, steps = allowed < steps, allowed
        if self._backup is not None:
            self._backup.reserve(steps)
        # Data of unknown length may end after any step, whose logs would be lost in a longer execution.
        logs = {}
        for part in [1] * steps if self.feed.steps is None else [steps]:
            try:
                logs = steps_of.take(self._session, iterator, part)
            except BaseException as error:
                if (named := error_of_row(self._model, error)) is not None:
                    self._session.keep()  # an example decided that no further step is taken
                    raise named from error
                self._session.take_back()
                if isinstance(error, _ENDS):
                    if logs:
                        return logs  # the next execution finds the end again
                    self._end_epoch()
                raise
            self.place = self.place.later(part)
        if self.place.step == self.feed.steps:
            self.place = self.place.next_epoch()
        self._logs = logs
        return logs

    def _open(self, steps):
        session, plan = self._session, self.feed.plan
        open_ended = plan.steps is None and self._model.optimizer.described_steps is None
        if session is None:
            self._session = open_session(self._model, self._account, plan)
            self._before = self._session.taken
        elif open_ended and session.taken + steps > session.run.steps:
            more = dataclasses.replace(plan, steps=OPEN_ENDED)
            self._session = open_session(self._model, self._account, more)

    def _pass_by(self, iterator):
        try:
            while self._behind:
                next(iterator)
                self._behind -= 1
        except _ENDS:
            self._end_epoch()
            raise

    def _end_epoch(self):
        longest = max(self.place.longest or 0, self.place.step - self._behind)
        next_epoch = dataclasses.replace(self.place.next_epoch(), step=self._behind)
        self.place, self._surplus = dataclasses.replace(next_epoch, longest=longest), 0
