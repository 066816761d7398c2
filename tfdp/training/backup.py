"""The callback `BackupAndRestore`, which resumes a private training after a crash."""

import contextlib
import dataclasses
import math
import os
import time
from typing import Any

import keras
import numpy as np
from absl import logging

from tfdp import accounting
from tfdp._interruptions import Interruptions
from tfdp._validate import finite, whole
from tfdp.account import Account
from tfdp.accounting import Run
from tfdp.accounting.guarantee import check_adjacency, check_delta, format_epsilon
from tfdp.data.words import derived
from tfdp.entry import Entry
from tfdp.session import Session
from tfdp.training.backup_folder import BackupFolder, ReadFolder
from tfdp.training.backup_state import capture_state, restore_state, setup_of
from tfdp.training.feed import Feed
from tfdp.training.machines import wait_for_all
from tfdp.training.position import Position
from tfdp.training.replicas import writes

# Steps are reserved for so many seconds at a time, and a crash may lose the reserved steps. The time is
# longer where writing a reservation would take more than the share below.
_AHEAD = 1.0
# Writing states takes at most this share of the time, and writing reservations, too.
_SHARE = 0.01


class BackupAndRestore(keras.callbacks.Callback):
    """A callback that saves the state of a private training, and resumes it after a crash.

    Use it in place of Keras' BackupAndRestore, which does not count steps and is refused. After a kill,
    run the same program again: `fit` resumes from the last state, also in the middle of an epoch, in
    the same run of the ledger. It takes the remaining steps.

    Steps that may have begun after the last state (about a second of steps is reserved ahead) are lost
    to the weights and stay counted. So the proven epsilon is that of a training without a crash. While
    the folder holds a state, only a `fit` with this callback continues the run. Once the folder is
    removed (by default when `fit` has ended), a further `fit` may extend the run, as without a backup.

    On Ctrl-C and SIGTERM the current step is completed and the state is written. The notes of the
    exception say how much was spent. A second Ctrl-C ends at once.

    After a restart, other callbacks (the patience of `EarlyStopping`) and the metrics of the epoch
    begin anew. In the first epoch, callbacks get the logs of the last step in place of those of
    each step before the restart. The history has the epochs of earlier processes, except one whose
    end was lost; `history.epoch` has their numbers. When `fit` has ended, the folder is removed.
    Save the model then, or pass `delete_checkpoint=False`, so that `fit` of a restarted program
    gives the trained weights.

    The folder is a secret, since it holds un-noised values of some mechanisms. Do not copy it: two
    trainings from one state cost more than their ledgers say.

    Args:
        backup_dir: Path of the folder, a different one for each call of `fit`.
        save_freq: When the state is saved: None every `seconds`, "epoch" after each epoch, and an
            integer after that number of steps.
        seconds: Seconds between two states, at least 0. The time is longer where writing a state
            takes more than a hundredth of it.
        delete_checkpoint: Whether the folder is removed when `fit` has ended.
        delta: Probability in (0, 1) for the epsilon in the notes of an interruption. None takes the
            delta of the model's budget. Without a budget, no epsilon is stated.
        adjacency: Neighbouring relation of this epsilon. None takes the budget's, or "zero_out".

    Attributes:
        restarts: Number of times the training was resumed, in all processes.
        lost_steps: Number of steps that are counted and not in the weights, in all processes.
        earlier_seconds: Seconds of training in earlier processes, up to their last states.
        epochs: The logs of all finished epochs, in all processes, by the numbers of the epochs.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> x = np.random.default_rng(0).normal(size=(100, 2)).astype("float32")
        >>> def train(stop_after=None):
        ...     model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        ...     model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=1.1), "mse")
        ...     def crash(batch, logs):
        ...         if model.privacy.steps_taken == stop_after:
        ...             raise KeyboardInterrupt
        ...     model.fit(x, x[:, :1], batch_size=20, epochs=4, verbose=0, callbacks=[
        ...         tfdp.callbacks.BackupAndRestore("backup", save_freq=1),
        ...         keras.callbacks.LambdaCallback(on_train_batch_end=crash)])
        ...     return model
        >>> try:
        ...     train(stop_after=7)
        ... except KeyboardInterrupt:
        ...     model = train()
        >>> model.privacy.steps_taken
        20
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike,
        save_freq: str | int | None = None,
        *,
        seconds: float = 10.0,
        delete_checkpoint: bool = True,
        delta: float | None = None,
        adjacency: str | None = None,
    ):
        super().__init__()
        if save_freq not in (None, "epoch") and not isinstance(save_freq, int):
            raise ValueError(
                "Invalid value received for argument `save_freq`. Expected None, 'epoch' or a whole "
                f"number of steps. Received: {save_freq!r}"
            )
        if isinstance(save_freq, int):
            save_freq = whole("save_freq", save_freq, 1)
        self._save_freq, self._seconds = save_freq, finite("seconds", seconds, 0)
        self._delete = delete_checkpoint
        self._delta = None if delta is None else check_delta(delta)
        self._adjacency = None if adjacency is None else check_adjacency(adjacency)
        self.restarts, self.lost_steps, self.earlier_seconds = 0, 0, 0.0
        self.epochs: dict[int, dict] = {}
        self._first_attached: float | None = None
        self._folder, self._interruptions = BackupFolder(backup_dir), Interruptions()
        self._account: Account | None = None
        self._training: Any = None
        self._session: Session | None = None
        self._run_id: str | None = None
        self._reserved, self._reserved_at, self._reserved_after = 0, 0.0, 0
        self._saved_at, self._saved_after = 0.0, 0
        self._writing, self._reserving = 0.0, 0.0  # seconds of writing a state, and a reservation

    # -- called by `fit` -------------------------------------------------------------------------

    @contextlib.contextmanager
    def attached(self, model, account: Account, feed: Feed, start: Position):
        """Context of one `fit`, which gives the position where the training begins or resumes.

        Args:
            model: The private model, compiled and built.
            account: The account of its weights.
            feed: The data of the training.
            start: The position of a training from its beginning.
        """
        if feed.lots is None and feed.sampling.whole_epochs:
            raise ValueError(
                "BackupAndRestore cannot resume batches of OncePerEpoch: after a crash they come in a "
                "new order, so an example could be twice in the interrupted epoch. Use lots of "
                "tfdp.data.make_lots, or remove the declaration or the callback."
            )
        if not model.optimizer.built:
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
        self.set_model(model)
        self._first_attached = self._first_attached or time.monotonic()
        self._account, self._session, self._ended = account, None, None
        self._setup, self._length, self._last_epoch = setup_of(model, feed), feed.steps, start.until
        if writes(model):
            self._folder.enter()
        wait_for_all(model.distribute_strategy)  # until the chief has entered the folder
        if not writes(model):
            self._folder = ReadFolder(self._folder.path)
            self._folder.enter()
        try:
            position = self._resumed(account, feed, start)
            with self._interruptions:
                yield position
                self._end()
        finally:
            self._detach()

    def _resumed(self, account: Account, feed: Feed, start: Position) -> Position:
        """Puts the saved state into the model, and returns the position where the training begins."""
        found = self._folder.read()
        if found is None:
            self.restarts, self.lost_steps, self.epochs = 0, 0, {}
            ordered = feed.lots if feed.needs_order else None
            order = None if ordered is None else ordered.new_order().hex()
            if ordered is not None and feed.key is not None and not ordered.seeded:
                order = derived(feed.key, "order").hex()
            return dataclasses.replace(start, order=order)
        about, notes = found[0], found[0]["notes"]
        position, lost = restore_state(self.model, account, feed, self._setup, *found)
        if about["run_id"] != self._run_id:  # else a second fit of one process, not a restart
            self.restarts, self.earlier_seconds = notes["restarts"] + 1, notes["seconds"]
        self.lost_steps = notes["lost_steps"] + lost
        self.epochs = {int(epoch): logs for epoch, logs in notes["epochs"]}
        if lost:
            saved = about["steps"]
            logging.warning(
                f"The training in {self._folder.path} resumes from its state after step {saved:,}. Up "
                f"to {lost:,} later steps had begun. They stay counted, but their results are lost. "
                f"Step {saved + lost + 1:,} is next."
            )
        if feed.steps is not None and position.step >= feed.steps:  # the epochs are shorter now
            position = position.next_epoch()
        if notes["ended"] == self._last_epoch:  # perhaps early; it has ended all the same
            position = dataclasses.replace(position, epoch=self._last_epoch, step=0)
        return dataclasses.replace(position, until=max(position.until, start.until))

    def with_earlier_epochs(self, history):
        """Adds the epochs before the restart to the history of a `fit`. Unknown values are NaN."""
        names = dict.fromkeys(name for logs in self.epochs.values() for name in logs)
        history.epoch = [*self.epochs]
        history.history = {
            name: [logs.get(name, math.nan) for logs in self.epochs.values()] for name in names
        }
        return history

    def before_steps(self, training, session, steps: int) -> None:
        """Reserves steps on the disk, before they are authorized. Raises OSError if that fails.

        The first state of a session is written before any of its steps. So a run has a state before its
        first reservation, and the state has the key of the session.

        Args:
            training: The training, with the position of its next step.
            session: The open session of the training.
            steps: Number of steps to take next.
        """
        entry = session.entry
        if session is not self._session:
            self._training, self._session, self._run_id = training, session, entry.run_id
            self._reserved = self._reserved_after = entry.taken
            self._write()
            self._reserved_at = time.monotonic()
        wanted = entry.taken + int(min(steps, entry.left))
        if wanted <= self._reserved:
            return
        now = time.monotonic()
        passed = max(now - self._reserved_at, 1e-6)
        speed = (entry.taken - self._reserved_after) / passed
        ahead = math.ceil(speed * max(_AHEAD, self._reserving / _SHARE))
        if isinstance(self._save_freq, int):
            ahead = min(ahead, self._save_freq)  # frequent states are meant to lose little
        last = min(entry.run.steps, entry.limit)
        self._reserved = int(max(wanted, min(entry.taken + ahead, last)))
        self._folder.reserve(entry.run_id, self._reserved)
        self._reserved_at, self._reserved_after = time.monotonic(), entry.taken
        self._reserving = self._reserved_at - now

    def _end(self):
        """Ends a `fit`, after all callbacks have seen its end, since they may change the weights."""
        if self._session is not None:
            self._ended = self._last_epoch
        if self._interruptions.number is not None:
            self._stop()  # the signal came with the last step, or after it
        elif self._delete:
            self._folder.clear()
        elif self._session is not None:
            self._save()

    def _detach(self):
        session = self._session
        if self._folder.holds_state:
            if session is not None and session.entry.taken < self._reserved:
                with contextlib.suppress(OSError):  # then steps that were not begun stay counted
                    self._folder.reserve(session.entry.run_id, session.entry.taken)
            self._account.close_session()  # the run is resumed from the state, and nowhere else
        self._folder.leave()
        self._account = None

    # -- hooks -----------------------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        if self._account is None:
            raise ValueError(
                f"Model '{self.model.name}' is not private. Make it private with tfdp.make_private, or "
                "use keras.callbacks.BackupAndRestore."
            )

    def on_epoch_begin(self, epoch, logs=None):
        # Not at the end of an epoch, where callbacks may show averages in place of the weights.
        if self._save_freq == "epoch" and self._session is not None:
            self._save()

    def on_train_batch_begin(self, batch, logs=None):
        if self._interruptions.number is not None:  # all callbacks have seen the step before
            self._stop()

    def on_train_batch_end(self, batch, logs=None):
        if self._session is not None and self._is_due():
            self._save()

    def on_test_begin(self, logs=None):
        if self._interruptions.number is not None:
            self._stop()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs[epoch] = {} if logs is None else logs  # later callbacks may add to it

    # -- saving ----------------------------------------------------------------------------------

    def _is_due(self):
        if self._save_freq == "epoch":
            return False
        if self._save_freq is not None:
            return self._session.entry.taken - self._saved_after >= self._save_freq
        least = max(self._seconds, self._writing / _SHARE)
        return time.monotonic() - self._saved_at >= least

    def _save(self):
        """Writes the state. A failure is logged and not raised, since there is an earlier state."""
        try:
            self._write()
        except OSError as error:
            message = (
                "The state of the training could not be written to %s: %s. The training continues; a "
                "crash would lose the steps after the last state."
            )
            logging.log_first_n(logging.WARNING, message, 1, self._folder.path, error)

    def _write(self):
        """Writes the current state, with notes for the report of a later process."""
        started = time.monotonic()
        epochs = [
            (epoch, {name: np.asarray(value).tolist() for name, value in logs.items()})
            for epoch, logs in self.epochs.items()
        ]
        notes = {
            "restarts": self.restarts,
            "lost_steps": self.lost_steps,
            "ended": self._ended,
            "seconds": self.earlier_seconds + started - self._first_attached,
            "epochs": epochs,
        }
        self._saved_at, self._saved_after = started, self._session.entry.taken
        position = self._training.position
        self._folder.write(
            *capture_state(self.model, self._account, self._setup, self._length, position, notes)
        )
        self._writing = time.monotonic() - started

    # -- signals ---------------------------------------------------------------------------------

    def _stop(self):
        if self._account is None or self._session is None:
            self._interruptions.end()  # before the first step
        notes = self._spent(self._account, self._session.entry)
        try:
            self._write()
            notes.append(f"The state is in {self._folder.path}. Run the same program to resume.")
        except OSError as error:
            notes.append(f"The state could not be written: {error}. The previous one is kept.")
        self._interruptions.end(*notes)

    def _spent(self, account: Account, entry: Entry) -> list[str]:
        """Sentences on the privacy spent, if the training is resumed and if it is not."""
        planned = "" if entry.has_open_plan or self._length is None else f" of {entry.counted:,}"
        notes = [
            f"Stopped after step {entry.taken:,}{planned}{self._epsilon(account.runs_so_far)}."
        ]
        if entry.if_ended > entry.taken:
            cost = self._epsilon(account.ledger.runs)
            notes.append(f"If the training is never resumed, all planned steps count{cost}.")
        return notes

    def _epsilon(self, runs: list[Run]) -> str:
        """Returns the proven epsilon of runs as a text, which is empty if no delta is known."""
        privacy = self.model.privacy
        if self._delta is None and privacy.budget is None:
            return ""
        delta, adjacency = privacy.delta_and_adjacency(self._delta, self._adjacency)
        spent = accounting.proven(runs, delta, adjacency)
        return (
            f" (proven epsilon {format_epsilon(spent.epsilon)} at delta {delta:g}, adjacency "
            f"{spent.adjacency})"
        )
