"""One training: the steps of a call of `fit`, `train_on_batch` or `privacy.steps`.

Formal guarantee: every step that runs was authorized before by the ledger entry that it is accounted
under. The entry counts all planned steps from the first one on (`entry.Entry`), so nothing depends on
how a training ends (docs/decisions/chosen_ends.md).
"""

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf
from absl import logging

from tfdp._compat.replicas import several_machines
from tfdp.account import Account
from tfdp.entry import Entry
from tfdp.gradients.vectorizing import error_of_row
from tfdp.session import Session
from tfdp.training.describe import OPEN_ENDED, describe_more, open_session
from tfdp.training.feed import Feed
from tfdp.training.position import Position
from tfdp.training.replicas import copies_of, several
from tfdp.training.scales import warn_of_norms

_UNEQUAL = (
    "The replicas' copies of the weights had drifted apart by rounding, so all replicas got those of "
    "the first one. This is checked after each epoch. The noise of a step is the same on all replicas."
)
_OTHERS = "If another machine has ended, run the program on all of them again (docs/devices.md)."
_BETWEEN = 100  # steps of `train_on_batch` between two comparisons of the replicas' copies
_ENDS = (StopIteration, tf.errors.OutOfRangeError)
_START = Position()


class Training:
    """One training, which takes its steps and keeps its plan and position.

    Its entry is opened with the first step, since callbacks may load weights before that.

    Attributes:
        model: A private model that is compiled and built.
        feed: The data of the training, and how the steps draw from them.
        position: The position of the next step.
    """

    def __init__(
        self,
        model,
        account: Account,
        feed: Feed,
        position: Position = _START,
        epochs: int = 1,
        backup=None,
    ):
        self.model, self._account, self.feed = model, account, feed
        self.position, self._epochs, self._backup = position, epochs, backup
        self._session: Session | None = None
        self._before = 0  # steps of the entry before this training
        self._earlier = position.taken  # steps of this training in earlier processes
        self._declared = (0, 0)  # what `privacy.plan` declared: epochs, or steps
        self._surplus = 0.0  # steps of an earlier declared plan that this training leaves out
        self._warns_of_norms = feed.dataset is not None  # at the end of the first epoch
        self._logs: dict = {}
        self._was_cut = False  # whether the last execution had fewer steps than were planned
        # Number of batches to skip after a restart: lots begin where the training resumes, but a user's
        # batches begin anew.
        self._to_skip, self._skipped = (position.step if feed.lots is None else 0), 0
        # Keras does not know of executions in earlier processes, and asks for as many after the epoch
        # ends.
        several, length = model.steps_per_execution, feed.steps or 0
        left = max(0, length - position.step)
        self._repeats = -(-length // several) - -(-left // several)
        self._at_end = False
        self._end_of_data: Exception | None = None

    # -- its plan --------------------------------------------------------------------------------

    def _plan(self, entry: Entry) -> None:
        """Counts all planned steps in the entry."""
        declared = self._steps_of(*self._declared)
        declared = self._before + self._surplus + declared if declared else 0
        planned = max(entry.taken + self._surplus + self._left(), declared)
        entry.plan(planned, 0 if math.isinf(declared) else declared)

    def _left(self) -> float:
        """Returns the number of planned steps from the position on, infinite if unknown."""
        epochs = max(0, self.position.until - self.position.epoch)
        return max(0, self._steps_of(epochs) - self.position.step)

    def _steps_of(self, epochs: int, steps: int = 0) -> float:
        length = self.feed.steps or self.position.longest or math.inf
        return epochs * length if epochs else steps

    def end(self, stopped: bool) -> None:
        """Ends the training after its last execution.

        Args:
            stopped: Whether a callback ended the training.

        Raises:
            BudgetExhausted: If the budget cut the last execution short, and no callback ended it there.
        """
        if self._session is None or stopped or self._epochs < self.position.until:
            return  # planned steps were left out, perhaps by an earlier process
        if self._was_cut:
            self._session.entry.authorize(1)
        # The data may have ended before the plan. That does not depend on anything that was released.
        self.position = dataclasses.replace(self.position, epoch=self._epochs, step=0)
        self._plan(self._session.entry)

    def close(self) -> None:
        """Ends the plan, however the training ended."""
        if self._session is None:
            return
        entry = self._session.entry
        entry.end_plan()
        if entry.has_open_plan and self._backup is None:
            logging.warning(
                "This training ended in its first epoch, and the number of batches in an epoch is "
                "unknown. So the number of planned steps is unknown, too, and no finite epsilon is "
                "proven. Pass steps_per_epoch, or set a PrivacyBudget."
            )
        left_out = entry.counted - max(entry.taken, entry.declared)
        if left_out > 0 and self._backup is None:  # with one, the training may be resumed
            taken = entry.taken - self._before + self._earlier
            logging.warning(
                "This training took %s of %s planned steps. All of them are counted, because its "
                "end may depend on results of the steps. To count only the steps taken, plan "
                "fewer, or end by a PrivacyBudget with tfdp.callbacks.StopAtBudget.",
                f"{taken:,}",
                f"{taken + left_out:,}",
            )

    # -- its steps -------------------------------------------------------------------------------

    def execute(self, iterator, take: Callable) -> dict:
        """Takes the steps of the next execution and returns the logs of the last step.

        Args:
            iterator: An iterator of lots.
            take: The function that takes steps, from `train_function.step_function`.

        Raises:
            StopIteration, tf.errors.OutOfRangeError: If the data have ended.
            InvalidArgumentError: If an operation cannot compute with an example.
            BudgetExhausted: If no step is allowed.
        """
        if self._at_end:
            return self._repeat()
        steps = self.model.steps_per_execution
        if self.feed.steps is not None:
            steps = min(steps, self.feed.steps - self.position.step)
        try:
            self._skip(iterator)
            session = self._open(steps)
            if self._backup is not None:
                self._backup.before_steps(self, session, steps)
            allowed = session.entry.authorize(steps)
            self._was_cut = allowed < steps
            self._logs = self._take(session, iterator, take, allowed)
        except BaseException as error:
            if self._session is not None and self._session.entry.taken == self._before:
                self._session.entry.withdraw_plan()  # no step began
            if not isinstance(error, _ENDS):
                if several_machines(self.model.distribute_strategy):
                    error.add_note(_OTHERS)
                raise
            self._end_epoch()
            if not self._skipped:
                raise
            # Keras takes the executions of this epoch for the length of all others.
            self._repeats = -(-self._skipped // self.model.steps_per_execution)
            self._skipped, self._at_end, self._end_of_data = 0, True, error
            return self._repeat()
        self._account.plan = None  # it is carried out
        if self.position.step == self.feed.steps:
            self._end_epoch()
            self._at_end = self._repeats > 0
        return self._logs

    def _take(self, session, iterator, take, steps):
        # Data of unknown length may end after any step, whose logs would be lost in a longer execution.
        logs = {}
        for part in [1] * steps if self.feed.steps is None else [steps]:
            try:
                logs = take(session, iterator, part)
            except BaseException as error:
                if (named := error_of_row(self.model, error)) is not None:
                    session.keep()  # the end of the training depends on an example
                    raise named from error
                session.take_back()
                if logs and isinstance(error, _ENDS):
                    return logs  # the next execution finds the end again
                raise
            self.position = self.position.later(part)
        return logs

    def _repeat(self):
        """Returns the last logs for executions of the resumed epoch that an earlier process took."""
        if self._repeats:
            self._repeats -= 1
            self._at_end = self._repeats > 0 or self._end_of_data is not None
            return self._logs
        error, self._end_of_data, self._at_end = self._end_of_data, None, False
        raise error

    def _open(self, steps) -> Session:
        session = self._session
        open_ended = self.feed.steps is None or self.feed.dataset is None
        if session is None:
            self._declared = self._account.plan or self._declared
            if self._declared[0] and self.feed.dataset is None:
                raise ValueError(
                    "privacy.plan(epochs=...) cannot be used with train_on_batch, which has no epochs. "
                    "Declare the number of steps: privacy.plan(steps=...)."
                )
            left = max(self._left(), self._steps_of(*self._declared))
            described = None if open_ended or math.isinf(left) else int(left)
            session = open_session(self.model, self._account, self.feed, described)
            self._session, self._before = session, session.entry.taken
            self._surplus = session.entry.surplus(left)
            self._plan(session.entry)
            allowed = session.entry.left
            if allowed < left < math.inf and session.entry.ledger.budgets:
                logging.warning(
                    "The budget allows %d of the %d planned steps. The next one raises "
                    "BudgetExhausted, unless tfdp.callbacks.StopAtBudget ends the training there.",
                    *(allowed, left),
                )
        elif open_ended and session.entry.taken + steps > session.run.steps:
            describe_more(session, OPEN_ENDED)
        return session

    def _skip(self, iterator):
        while self._to_skip:
            next(iterator)
            self._to_skip -= 1
            self._skipped += self.feed.steps is None

    def _end_epoch(self):
        longest = max(self.position.longest or 0, self.position.step - self._to_skip)
        next_epoch = dataclasses.replace(self.position.next_epoch(), step=self._to_skip)
        self.position = dataclasses.replace(next_epoch, longest=longest)
        if self._session is not None and self.feed.steps is None:
            self._plan(self._session.entry)  # the length of an epoch is known now
        if self._session is not None and self._warns_of_norms:
            warn_of_norms(self.model)
            self._warns_of_norms = False
        self._compare_copies()

    def _compare_copies(self):
        session = self._session
        if session is None or not several(self.model.distribute_strategy):
            return
        if self.feed.dataset is None and session.entry.taken % _BETWEEN:
            return
        if session.equal_copies is None:
            session.equal_copies = copies_of(self.model)
        if not session.equal_copies():
            logging.log_first_n(logging.WARNING, _UNEQUAL, 1)
