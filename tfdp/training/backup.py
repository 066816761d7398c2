"""The callback that keeps a training safe from crashes, with the habits of Keras' BackupAndRestore."""

import concurrent.futures
import contextlib
import dataclasses
import math
import os
import time

import keras
import numpy as np
from absl import logging

from tfdp._interruptions import Interruptions
from tfdp._validate import finite, whole
from tfdp.account import Account
from tfdp.accounting.composition import proven_composition
from tfdp.accounting.guarantee import check_adjacency, check_delta, format_epsilon
from tfdp.training.backup_folder import BackupFolder
from tfdp.training.backup_state import give_state, setup_of, take_state
from tfdp.training.feeding import Feed, Place, needs_order

# Steps are reserved for so many seconds at a time: what a crash may lose besides the last state.
# It is longer where writing the reservation takes more than the share below.
_AHEAD = 1.0
# Writing states (beside the training) and reservations takes at most this share of the time, each.
_SHARE = 0.01


class BackupAndRestore(keras.callbacks.Callback):
    """Keeps the state of a private training in a secret folder, and resumes from it after a crash.

    Run the same program again after a kill, and `fit` resumes, in the middle of an epoch, too: in the
    same run of the ledger, for the steps that are left. Steps that may have been begun after the last
    state (about a second of steps is reserved ahead) are lost to the weights and stay counted, so the
    proven epsilon is that of a training without a crash. Only this callback resumes the run: another
    `fit` begins a new one.

    Ctrl-C and SIGTERM let the step end and write the state; the exception's notes say what was spent. A
    second Ctrl-C ends at once.

    Other callbacks see only steps that are taken: after a restart, the first step of the epoch has a
    later number. Their own state (the patience of `EarlyStopping`) and the metrics of the epoch begin
    anew. The history has the epochs of earlier processes, but for one whose end was lost;
    `history.epoch` names them. When `fit` has ended, the folder is removed: save the model then, or
    pass `delete_checkpoint=False`, and `fit` of a restarted program gives the trained weights.

    The folder is a secret: it holds un-noised values of some mechanisms. Do not copy it: two trainings
    from one state cost more than their ledgers say.

    Args:
        backup_dir: the folder, one for each call of `fit`.
        save_freq: None saves the state every `seconds`; "epoch" after each epoch; an integer
            after so many steps.
        seconds: time between two states, at least 0; longer where writing a state, beside the
            training, would take more than a hundredth of it.
        delete_checkpoint: whether the folder is removed when `fit` has ended.
        delta: that of the epsilon in the notes of an interruption, in (0, 1); None takes that of the
            model's budget, and without one no epsilon is noted.
        adjacency: that of this epsilon; None takes that of the budget, or "zero_out".

    Attributes:
        restarts: how often the training was resumed, in all processes.
        lost_steps: number of steps that are counted and not in the weights, in all processes.
        earlier_seconds: time of the training in earlier processes, up to their last states.
        planned_steps: number of steps of a training that several calls of `fit` make; None otherwise.

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
        self.planned_steps: int | None = None
        self.restarts, self.lost_steps, self.earlier_seconds = 0, 0, 0.0
        # Number of steps of the longest whole epoch of earlier processes; None before one has ended.
        self.longest_epoch: int | None = None
        self._epochs, self._first_attached = {}, None  # logs of all epochs that have ended
        self._folder, self._interruptions = BackupFolder(backup_dir), Interruptions()
        self._worker, self._pending, self._warned = None, None, False
        self._account, self._session, self._state_run, self._own_run = None, None, None, None
        self._unwritten = None  # the last state of a fit that could not be written
        # Place of the next step; steps of its epoch that are passed by; steps of the run before it.
        self._place, self._behind, self._taken = Place(0), 0, 0
        self._reserved, self._reserved_at, self._reserved_after = 0, 0.0, 0
        self._saved_at, self._saved_after = 0.0, 0
        self._writing, self._reserving = 0.0, 0.0  # seconds of writing a state, and a reservation

    # -- what `fit` calls ------------------------------------------------------------------------

    @contextlib.contextmanager
    def attached(self, model, account: Account, feed: Feed, epoch: int, epochs: int):
        """Context of one fit, which gives the place where the training begins or resumes.

        Args:
            model: a private model that is compiled and built.
            account: the account of its weights.
            feed: what the fit draws from.
            epoch: the first epoch of a training from its beginning.
            epochs: the epoch before which it ends.
        """
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._first_attached = self._first_attached or time.monotonic()
        self._account, self._session, self._ended = account, None, None
        self._setup, self._length, self._last_epoch = setup_of(model, feed), feed.steps, epochs
        with contextlib.ExitStack() as stack:
            stack.callback(self._detach)
            self._folder.enter()
            stack.callback(self._folder.leave)
            self._place = self._resumed(model, feed, epoch)
            self._behind = self._place.step
            worker = concurrent.futures.ThreadPoolExecutor(1, "tfdp backup")
            self._worker = stack.enter_context(worker)
            stack.push(self._give_back)
            with self._interruptions:
                yield self._place
                self._end()

    def _resumed(self, model, feed, epoch) -> Place:
        """The place where the training begins, after the state was put into the model."""
        found, unwritten = self._folder.read(), self._unwritten
        self._unwritten = None
        if found is None:
            self.restarts, self.lost_steps, self._epochs = 0, 0, {}
            self.longest_epoch, self._state_run = None, None
            order = feed.plan.lots.new_order() if needs_order(feed) else None
            return Place(epoch, order=order)
        about, arrays, self._reserved = found
        # What this process could not write is later, unless another process has trained since.
        same = unwritten is not None and unwritten[0]["run_id"] == about["run_id"]
        if same and unwritten[0]["steps"] == self._reserved:
            about, arrays = unwritten
        notes, self._state_run = about["notes"], about["run_id"]
        place, lost = give_state(model, self._account, self._setup, about, arrays, self._reserved)
        # A second fit of one process resumes the run, too, and that is no restart.
        if self._state_run != self._own_run:
            self.restarts, self.earlier_seconds = notes["restarts"] + 1, notes["seconds"]
        self.lost_steps, self.longest_epoch = notes["lost_steps"] + lost, notes["longest_epoch"]
        self._epochs = {int(epoch): logs for epoch, logs in notes["epochs"]}
        if lost:
            logging.warning(
                "The training in %s resumes after step %s. The last %s of them may have been begun "
                "after its last state: they are counted, and lost to the weights.",
                self._folder.path, f"{about['steps'] + lost:,}", f"{lost:,}",
            )  # fmt: skip
        if notes["ended"] == self._last_epoch:  # perhaps early; it has ended all the same
            place = dataclasses.replace(place, epoch=self._last_epoch, step=0)
        return place

    @property
    def earlier_epochs(self) -> dict:
        """The logs of the epochs that have ended, those of earlier processes included, by number."""
        return dict(self._epochs)

    def note_epoch(self, epoch: int, logs: dict) -> None:
        """Notes logs of an earlier epoch whose end was lost; unknown values are NaN."""
        names = {name for each in self._epochs.values() for name in each}
        self._epochs[epoch] = {name: math.nan for name in names} | logs
        self._epochs = dict(sorted(self._epochs.items()))

    def with_earlier_epochs(self, history):
        """Returns the history of a fit, with the epochs that ended before the training resumed.

        Unknown values of an earlier epoch are NaN.
        """
        earlier = {e: logs for e, logs in self._epochs.items() if e not in history.epoch}
        names = dict.fromkeys(n for logs in (*earlier.values(), history.history) for n in logs)
        history.epoch = [*earlier, *history.epoch]
        history.history = {
            name: [logs.get(name, math.nan) for logs in earlier.values()]
            + history.history.get(name, [])
            for name in names
        }
        return history

    @property
    def behind(self) -> int:
        """Number of steps of the running epoch that were taken before, and are passed by."""
        return self._behind

    def pass_by(self, steps: int) -> None:
        """Notes that so many steps of the epoch were passed by."""
        self._behind -= steps

    def begin(self, session) -> None:
        """Writes the first state of a session, before any of its steps is authorized.

        So a run has a state before its first reservation, and the state has the key of the session.

        Args:
            session: the open session.
        """
        if session is self._session:
            return
        self._taken = session.taken
        if session.run_id != self._state_run:
            self._save_now(self._state(), session.taken)
            self._reserved = session.taken
        else:
            # The state that is there serves as well, unless later noise depends on the key.
            serves = "key" not in self.model.optimizer.secret_state()
            with self._warned_of_failure(serves):
                self._save_now(self._state())
        self._session, self._state_run, self._own_run = session, session.run_id, session.run_id
        self._reserved_at, self._reserved_after = time.monotonic(), session.taken

    def reserve(self) -> None:
        """Reserves the authorized steps of the session on the disk, before they begin."""
        session, before, now = self._session, self._taken, time.monotonic()
        if session.taken <= self._reserved:
            return
        passed = max(now - self._reserved_at, 1e-6)
        speed = (before - self._reserved_after) / passed
        ahead = math.ceil(speed * max(_AHEAD, self._reserving / _SHARE))
        if isinstance(self._save_freq, int):
            ahead = min(ahead, self._save_freq)  # who wants states often wants to lose little
        last = min(session.run.steps, session.limit)
        self._reserved = int(max(session.taken, min(before + ahead, last)))
        self._folder.reserve(self._reserved)
        self._reserved_at, self._reserved_after = time.monotonic(), before
        self._reserving = self._reserved_at - now

    def _end(self):
        """After a fit, when all callbacks have heard of its end: they may still change the weights."""
        if self._session is not None:
            self._ended = self._last_epoch
        if self._interruptions.number is not None:
            self._stop()  # with the last step, or after it
        elif self._delete:
            self._wait()
            self._folder.clear()
        elif self._session is not None:
            self._unwritten = self._state()
            with self._warned_of_failure():
                self._save_now(self._unwritten)
                self._unwritten = None

    def _detach(self):
        self._account.waiting = None
        if self._folder.holds_state:
            self._account.close_session()  # the run is resumed from the state, and nowhere else
        self._account = None

    def _give_back(self, *_):
        """Gives back steps that were reserved and not begun."""
        self._wait()
        if not self._folder.holds_state:
            return
        if self._session is not None and self._session.taken < self._reserved:
            with contextlib.suppress(OSError):  # then they stay counted
                self._folder.reserve(self._session.taken)

    # -- hooks -----------------------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        if self._account is None:
            raise ValueError(
                "BackupAndRestore keeps the ledger of a private model. Expected a model of "
                f"tfdp.make_private. Received: {type(self.model).__name__}. For other models there is "
                "keras.callbacks.BackupAndRestore."
            )

    def on_epoch_begin(self, epoch, logs=None):
        if epoch != self._place.epoch:
            # Steps that the data of the epoch before were too short for are passed by in this one.
            self._place = dataclasses.replace(self._place, epoch=epoch, step=self._behind)
        # Not at the end of an epoch, where callbacks may show averages in place of the weights.
        if self._save_freq == "epoch" and self._session is not None:
            self._save()

    def on_train_batch_begin(self, batch, logs=None):
        if self._interruptions.number is not None:  # all callbacks have heard of the step before
            self._stop()

    def on_train_batch_end(self, batch, logs=None):
        if self._session is None or self._session.taken == self._taken:
            return  # a step that was passed by
        place, steps = self._place, self._session.taken - self._taken
        self._taken += steps
        self._place = dataclasses.replace(place, step=place.step + steps, taken=place.taken + steps)
        if self._is_due():
            self._save()

    def on_test_begin(self, logs=None):
        if self._interruptions.number is not None:
            self._stop()

    def on_epoch_end(self, epoch, logs=None):
        self._place = dataclasses.replace(self._place, epoch=epoch + 1, step=self._behind)
        self._epochs[epoch] = {} if logs is None else logs  # later callbacks may add to it

    # -- saving ----------------------------------------------------------------------------------

    def _is_due(self):
        if self._save_freq == "epoch":
            return False
        if self._save_freq is not None:
            return self._taken - self._saved_after >= self._save_freq
        least = max(self._seconds, self._writing / _SHARE)
        return time.monotonic() - self._saved_at >= least

    def _save(self):
        """Writes the state in a thread of its own; a state by time does not wait for an earlier one."""
        busy = self._pending is not None and not self._pending.done()
        if busy and self._save_freq is None:
            return  # with the next step
        self._wait()
        self._pending = self._worker.submit(self._write, *self._state())
        self._saved_at, self._saved_after = time.monotonic(), self._taken

    def _save_now(self, state, reserved: int | None = None):
        self._wait()
        self._write(*state, reserved)
        self._saved_at, self._saved_after = time.monotonic(), self._taken

    def _write(self, about, arrays, reserved=None):
        started = time.monotonic()
        self._folder.write(about, arrays, reserved)
        self._writing = time.monotonic() - started

    def _state(self):
        """The present state, with what a later process tells of this one."""
        epochs = [
            (epoch, {name: np.asarray(value).tolist() for name, value in logs.items()})
            for epoch, logs in self._epochs.items()
        ]
        notes = {
            "restarts": self.restarts,
            "lost_steps": self.lost_steps,
            "ended": self._ended,
            "longest_epoch": self.longest_epoch,
            "seconds": self.earlier_seconds + time.monotonic() - self._first_attached,
            "epochs": epochs,
        }
        return take_state(self.model, self._account, self._setup, self._length, self._place, notes)

    def _wait(self):
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._warned_of_failure():
                pending.result()

    @contextlib.contextmanager
    def _warned_of_failure(self, serves: bool = True):
        """Context in which a state is written; its failure is an error if no earlier state serves."""
        try:
            yield
        except OSError as error:
            if not serves:
                raise
            if not self._warned:
                logging.warning(
                    "The state of the training could not be written to %s: %s. The training goes on; "
                    "a crash would lose what came after the last state.", self._folder.path, error,
                )  # fmt: skip
            self._warned = True

    # -- signals ---------------------------------------------------------------------------------

    def _stop(self):
        session = self._session
        if session is None:
            self._interruptions.end()  # before the first step
        notes = self._spent()
        try:
            self._save_now(self._state())
            notes.append(
                f"The state is in {self._folder.path}: the same program resumes from there."
            )
        except OSError as error:
            notes.append(
                f"The last state could not be written: {error}. The one before it is kept."
            )
        self._interruptions.end(*notes)

    def _spent(self) -> list[str]:
        """What was spent, if the training is resumed and if it is not."""
        taken, planned = self._session.taken, self.planned_steps
        if planned is None and self._length is not None:
            planned = self._session.run.steps
        of = "" if planned is None else f" of {planned:,}"
        notes = [f"Stopped after step {taken:,}{of}{self._epsilon(0)}."]
        if taken != planned:
            cost = "" if planned is None else self._epsilon(planned - taken)
            notes.append(f"All planned steps count if the training is never resumed{cost}.")
        return notes

    def _epsilon(self, more: int) -> str:
        """The proven epsilon with further steps, in words; nothing where no delta is known."""
        ledger = self._session.planned_ledger(more)
        budget = ledger.budget
        if self._delta is None and budget is None:
            return ""
        delta = budget.delta if self._delta is None else self._delta
        usual = "zero_out" if budget is None else budget.adjacency
        spent = proven_composition(ledger.runs, delta, self._adjacency or usual)
        return (
            f" (proven epsilon {format_epsilon(spent.epsilon)} at delta {delta:g}, adjacency "
            f"{spent.adjacency})"
        )


def kept_safe(
    backup: BackupAndRestore | None, model, account: Account, feed: Feed, epoch: int, epochs: int
):
    """Context of one fit, which gives the place where it begins; see `BackupAndRestore.attached`."""
    if backup is None:
        return contextlib.nullcontext(Place(epoch))
    return backup.attached(model, account, feed, epoch, epochs)


def backup_among(callbacks) -> BackupAndRestore | None:
    """The backup among the callbacks of a fit, or None.

    Raises:
        ValueError: there are two.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    found = [c for c in keras.tree.flatten(callbacks) if isinstance(c, BackupAndRestore)]
    if len(found) > 1:
        raise ValueError(
            f"Expected at most one BackupAndRestore. Received {len(found)}. Leave out the others."
        )
    return found[0] if found else None
