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
from tfdp.accounting.guarantee import check_adjacency, check_delta, format_epsilon
from tfdp.training.backup_folder import BackupError, BackupFolder
from tfdp.training.backup_state import fingerprint_of, give_state, take_state
from tfdp.training.feeding import Feed, Place, needs_order

# Steps are reserved for so many seconds at a time: what a crash may lose besides the last state.
# It is longer where writing the reservation takes more than the share below.
_AHEAD = 1.0
_MOST_AHEAD = 10_000
# The times that states and reservations take from the training are each at most this share of it.
_SHARE = 0.005


class BackupAndRestore(keras.callbacks.Callback):
    """Keeps the state of a private training in a secret folder, and goes on from there after a crash.

    Run the same program again after a kill, and `fit` goes on where it was, in the middle of an epoch,
    too: in the same run of the ledger, with the same noise multiplier, for the steps that were left.
    Steps that may have been begun after the last state (about a second of steps is reserved ahead) are
    lost to the weights and stay counted, so that the proven epsilon is that of a training without a
    crash, and never below the truth.

    A run whose state is left in the folder goes on from there only: another `fit`, without this
    callback, begins a new run.

    Ctrl-C and SIGTERM let the step end; the state is written, and one line says what was spent. A
    second Ctrl-C ends at once.

    Other callbacks hear only of steps that are taken: after a restart, the first step of the epoch that
    they hear of has a later number. What they kept themselves (the patience of `EarlyStopping`), and
    the metrics of the epoch so far, begin anew. The history has the epochs of earlier processes, too,
    but for one whose end was lost; `history.epoch` names them. When `fit` has ended, the folder is
    removed: save the model then, or pass `delete_checkpoint=False`, and `fit` of a restarted program
    gives the trained weights.

    The folder is a secret: it holds un-noised values of some mechanisms. Only its owner may enter it.
    Do not copy it: two trainings that go on from one state cost more than their ledgers say.

    Args:
        backup_dir: the folder, one for each call of `fit`.
        save_freq: None saves the state every `seconds`; "epoch" after each epoch; an integer
            after so many steps.
        seconds: time between two states, at least 0; it is longer where a state takes more than half
            a hundredth of it from the training, or writing it beside the training takes a hundredth.
        delete_checkpoint: whether the folder is removed when `fit` has ended.
        delta: that of the epsilon which an interruption states, in (0, 1); None takes that of the
            model's budget, and states the number of steps alone where there is none.
        adjacency: that of this epsilon; None takes that of the budget, or "zero_out".

    Attributes:
        restarts: how often the training went on from a state, in all processes.
        lost_steps: how many steps were counted and are not in the weights, in all processes.
        earlier_seconds: the time of the training in earlier processes, up to their last states.

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
        self.restarts, self.lost_steps, self._total_steps = 0, 0, None
        self._earlier, self._old_history, self._own_run = {}, None, None
        # Number of steps of the longest whole epoch of earlier processes; None before one has ended.
        self.longest_epoch: int | None = None
        self._training_id, self._memory = None, None
        self.earlier_seconds, self._since_first = 0.0, None
        self._folder = BackupFolder(backup_dir)
        self._worker, self._pending = None, None
        self._place, self._behind = Place(0), 0
        self._run_id, self._reserved = None, 0
        self._interruptions = Interruptions()
        # Seconds that a state takes from the training, and that writing it takes beside the training.
        self._since, self._steps_since, self._cost, self._writing = 0.0, 0, 0.0, 0.0
        self._speed, self._reserving = None, 0.0  # steps in a second, seconds for a reservation
        self._warned = False

    # -- what `fit` calls ------------------------------------------------------------------------

    @contextlib.contextmanager
    def attached(self, model, feed: Feed, epoch: int, epochs: int):
        """Context of one fit, which gives the place where the training begins or goes on.

        Args:
            model: a private model that is compiled and built.
            feed: what the fit draws from.
            epoch: the first epoch of a training from its beginning.
            epochs: the epoch before which it ends.
        """
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._length, self._fingerprint = feed.steps, fingerprint_of(feed)
        self._old_history = getattr(model, "history", None)
        self._folder.enter()
        try:
            found = self._last_state()
            if self._since_first is None:
                self._since_first = time.monotonic()
            if found is None:
                order = feed.plan.lots.new_order() if needs_order(feed) else None
                self._place = Place(epoch, order=order)
                self.restarts, self.lost_steps, self._earlier = 0, 0, {}
                self.longest_epoch = None
            else:
                self._place = self._go_on(model, feed, *found)
                if found[0]["told"]["ended"] == epochs:  # perhaps early; it has ended all the same
                    self._place = dataclasses.replace(self._place, epoch=epochs, step=0)
            self._epochs, self._ended = epochs, None
            self._behind = self._place.step
            self._run_id, self._reserved, self._speed, self._cleared = None, 0, None, False
            self._worker = concurrent.futures.ThreadPoolExecutor(1, "tfdp backup")
            with self._interruptions:
                yield self._place
                self._end(model)
        except BaseException:
            self._give_back(model)
            raise
        finally:
            model.optimizer.go_on_with(None)
            try:
                self._wait()
                if self._folder.holds_state:
                    # Whoever reads the state goes on with the run, so nobody else may.
                    model._account.close_session()
            finally:
                if self._worker is not None:
                    self._worker.shutdown()
                    self._worker = None
                self._folder.leave()

    def belong_to(self, training_id: str, total_steps: int | None = None) -> None:
        """Sets whose states these are: those of another training are refused.

        Args:
            training_id: a text that is the same in every process of a training.
            total_steps: the number of steps that an interruption names, where several calls of `fit`
                make one training; None names that of the run as it is planned so far.
        """
        self._training_id, self._total_steps = training_id, total_steps

    def _last_state(self):
        """The state on the disk, or a later one that could not be written there."""
        found, memory = self._folder.read(), self._memory
        self._memory = None
        if found is None or memory is None or memory[0]["run_id"] != found[0]["run_id"]:
            return found
        return memory if memory[0]["steps"] >= found[0]["steps"] else found

    def _go_on(self, model, feed, about, arrays) -> Place:
        if about["told"]["training_id"] != self._training_id:
            raise BackupError(
                f"Expected the state of this training in {self._folder.path}. Found that of another "
                "one: somebody has moved it. Put it back."
            )
        reserved = self._folder.reserved(about["run_id"])
        place = give_state(model, feed, about, arrays, reserved, self._fingerprint)
        taken = model.privacy.ledger.taken(about["run_id"])
        told = about["told"]
        # A second fit of one process goes on, too, and that is no restart.
        if about["run_id"] != self._own_run:
            self.restarts, self.earlier_seconds = told["restarts"] + 1, told["seconds"]
        lost = taken - about["steps"]
        self.lost_steps = told["lost_steps"] + lost
        self._earlier = {int(epoch): logs for epoch, logs in told["epochs"]}
        self.longest_epoch = told["longest_epoch"]
        if lost:
            logging.warning(
                "The training in %s goes on after step %s. The last %s of them may have been begun "
                "after its last state: they are counted, and lost to the weights.",
                self._folder.path, f"{taken:,}", f"{lost:,}",
            )  # fmt: skip
        return place

    @property
    def earlier_epochs(self) -> dict:
        """The logs of the epochs that ended before the training went on, by number."""
        return dict(self._earlier)

    def note_epoch(self, epoch: int, logs: dict) -> None:
        """Notes logs of an earlier epoch whose end was lost; what it has not is NaN."""
        names = {name for each in self._earlier.values() for name in each}
        self._earlier[epoch] = {name: math.nan for name in names} | logs
        self._earlier = dict(sorted(self._earlier.items()))

    def with_earlier_epochs(self, history):
        """Returns the history of a fit, with the epochs that ended before the training went on.

        What nobody knows of an earlier epoch any more is NaN.
        """
        earlier = list(self._earlier.values())
        names = dict.fromkeys(name for logs in (*earlier, history.history) for name in logs)
        history.epoch = [*self._earlier, *history.epoch]
        history.history = {
            name: [logs.get(name, math.nan) for logs in earlier] + history.history.get(name, [])
            for name in names
        }
        return history

    @property
    def behind(self) -> int:
        """Number of steps of the running epoch that lie behind it and are not taken again."""
        return self._behind

    def pass_by(self, steps: int) -> None:
        """Notes that so many steps of the epoch were passed by."""
        self._behind -= steps

    def before(self, session, steps: int) -> None:
        """Reserves steps on the disk before they begin.

        Args:
            session: the open session.
            steps: number of steps of the next execution.
        """
        if session.run_id != self._run_id:
            # The state of a run has no more steps than the run has reserved.
            self._folder.reserve(session.run_id, session.taken, opening=True)
            self._run_id, self._reserved = session.run_id, session.taken
            goes_on_here, self._own_run = session.run_id == self._own_run, session.run_id
            try:
                self._save(wait=True)
            except OSError:
                # The state before it is that of an earlier fit of this process, and serves, unless it
                # has another key than the noise of the next steps.
                if not goes_on_here or "key" in self.model.optimizer.secret_state():
                    raise
                with self._warned_of_failure():
                    raise
        self._begun = steps
        needed = session.taken + steps
        if needed > self._reserved:
            seconds = max(_AHEAD, self._reserving / _SHARE)
            ahead = 1 if self._speed is None else math.ceil(seconds * self._speed)
            if isinstance(self._save_freq, int):
                ahead = min(ahead, self._save_freq)  # who wants states often wants to lose little
            ahead = max(needed, min(session.taken + ahead, session.taken + _MOST_AHEAD))
            ahead = int(min(ahead, max(needed, min(session.run.steps, session.limit))))
            started = time.monotonic()
            self._folder.reserve(session.run_id, ahead)
            self._reserving = time.monotonic() - started
            self._reserved = ahead

    def _end(self, model):
        """After a fit, when all callbacks have heard of its end: they may still change the weights."""
        if self._delete and self._interruptions.number is None:
            self._wait()
            self._folder.clear()
            self._cleared = True
            return
        if self._run_id is not None:
            self._ended = self._epochs
            with self._warned_of_failure():
                self._memory = self._state()
                self._save(wait=True)
                self._memory = None
        self._give_back(model)
        if self._interruptions.number is not None:
            self._stop()  # with the last step, or after it

    def _give_back(self, model):
        """Gives back steps that were reserved and not begun, where an exception ends the training."""
        session = model._session
        if session is not None and session.run_id == self._run_id:
            with contextlib.suppress(OSError):  # then they stay counted
                self._folder.reserve(session.run_id, session.taken)

    # -- hooks -----------------------------------------------------------------------------------

    def on_train_begin(self, logs=None):
        if self._worker is None:
            raise ValueError(
                "BackupAndRestore keeps the ledger of a private model. Expected a model of "
                f"tfdp.make_private. Received: {type(self.model).__name__}. For other models there is "
                "keras.callbacks.BackupAndRestore."
            )

    def on_epoch_begin(self, epoch, logs=None):
        if epoch != self._place.epoch:
            # What the data of the epoch before were too short for lies behind in this one.
            self._place = dataclasses.replace(self._place, epoch=epoch, step=self._behind)
        self._steps_since, self._since = 0, time.monotonic()
        # Not at the end of an epoch, where callbacks may show averages in place of the weights.
        if self._save_freq == "epoch" and self._run_id is not None:
            self._save()

    def on_train_batch_end(self, batch, logs=None):
        steps, self._begun = self._begun, 0
        if not steps:
            return  # a step that lay behind
        place = self._place
        self._place = dataclasses.replace(place, step=place.step + steps, taken=place.taken + steps)
        self._measure(steps)
        if self._is_due():
            self._save()

    def on_train_batch_begin(self, batch, logs=None):
        if self._interruptions.number is not None:  # all callbacks have heard of the step before
            self._stop()

    def on_test_begin(self, logs=None):
        if self._interruptions.number is not None:
            self._stop()

    def on_epoch_end(self, epoch, logs=None):
        self._place = dataclasses.replace(self._place, epoch=epoch + 1, step=self._behind)

    # -- saving ----------------------------------------------------------------------------------

    _begun = 0

    def _measure(self, steps):
        now = time.monotonic()
        self._steps_since += steps
        if self._steps_since > steps and now > self._since:  # not the first one, which is traced
            self._speed = self._steps_since / (now - self._since)

    def _is_due(self):
        if self._save_freq == "epoch":
            return False
        if self._save_freq is not None:
            self._steps_unsaved += 1
            return self._steps_unsaved >= self._save_freq
        least = max(self._seconds, self._cost / _SHARE, self._writing / (2 * _SHARE))
        return time.monotonic() - self._saved_at >= least

    _saved_at, _steps_unsaved = -math.inf, 0

    def _save(self, wait: bool = False):
        """Writes the state, in a thread of its own unless `wait`; a later state waits for it."""
        busy = self._pending is not None and not self._pending.done()
        if busy and not wait and self._save_freq is None:
            return  # with the next step
        self._wait()
        started = time.monotonic()
        state = self._state()
        if wait:
            self._folder.write(*state)
        else:
            self._pending = self._worker.submit(self._write, *state)
        self._saved_at, self._steps_unsaved = time.monotonic(), 0
        self._cost = self._saved_at - started

    def _write(self, about, arrays):
        started = time.monotonic()
        self._folder.write(about, arrays)
        self._writing = time.monotonic() - started

    def _state(self):
        return take_state(
            self.model,
            self.model._session,
            self._place,
            self._length,
            self._fingerprint,
            self._told(),
        )

    def _told(self) -> dict:
        """What a later process tells of this one."""
        history, epochs = getattr(self.model, "history", None), dict(self._earlier)
        if history is not None and history is not self._old_history:
            for i, epoch in enumerate(history.epoch):
                logs = {name: v[i] for name, v in history.history.items() if len(v) > i}
                epochs[epoch] = {name: np.asarray(value).tolist() for name, value in logs.items()}
        return {
            "restarts": self.restarts,
            "lost_steps": self.lost_steps,
            "training_id": self._training_id,
            "ended": self._ended,
            "longest_epoch": self.longest_epoch,
            "seconds": self.earlier_seconds + time.monotonic() - self._since_first,
            "epochs": list(epochs.items()),
        }

    def _wait(self):
        pending, self._pending = self._pending, None
        if pending is not None:
            with self._warned_of_failure():
                pending.result()

    @contextlib.contextmanager
    def _warned_of_failure(self):
        try:
            yield
        except OSError as error:
            if not self._warned:
                logging.warning(
                    "The state of the training could not be written to %s: %s. The training goes on; "
                    "a crash would lose what came after the last state.", self._folder.path, error,
                )  # fmt: skip
            self._warned = True

    # -- signals ---------------------------------------------------------------------------------

    def _stop(self):
        session = self.model._session
        if self._cleared or session is None or session.run_id != self._run_id:
            self._interruptions.end()  # before the first step, or after the last state
        total = self._total_steps or session.run.steps
        spent = f"Stopped after step {session.taken:,} of {total:,}{self._epsilon()}."
        try:
            self._save(wait=True)
            # Steps that were reserved and not begun are given back.
            self._folder.reserve(session.run_id, session.taken)
            where = f"The state is in {self._folder.path}: the same program goes on from there."
        except OSError as error:
            where = f"The last state could not be written: {error}. The one before it is kept."
        self._interruptions.end(spent, where)

    def _epsilon(self) -> str:
        """The proven epsilon of what was spent, in words; nothing where no delta is known."""
        privacy = self.model.privacy
        budget = privacy.budget
        if self._delta is None and budget is None:
            return ""
        usual = "zero_out" if budget is None else budget.adjacency
        spent = privacy.spent(self._delta, adjacency=self._adjacency or usual)
        return (
            f" (proven epsilon {format_epsilon(spent.epsilon)} at delta {spent.delta:g}, adjacency "
            f"{spent.adjacency})"
        )


class _Passing(keras.callbacks.CallbackList):
    """Callbacks that hear nothing of steps that lie behind, which have no logs.

    Of an epoch whose steps all lie behind they hear the beginning only.
    """

    _quiet = _took_steps = False

    def __init__(self, callbacks, backup, **params):
        self._backup = backup
        super().__init__(callbacks, **params)

    def on_epoch_begin(self, epoch, logs=None):
        self._took_steps = False
        super().on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        if self._took_steps:
            super().on_epoch_end(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        self._quiet = 0 < self.model._privacy.training.next_steps <= self._backup.behind
        if not self._quiet:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if not self._quiet:
            self._took_steps = True
            super().on_train_batch_end(batch, logs)


def past_steps_behind(callbacks, model, backup, place: Place, **params):
    """The callbacks of a fit that begins at a place, which hear only of steps that are taken.

    Args:
        callbacks: a list of callbacks, or a `CallbackList`.
        model: a private model.
        backup: the backup among the callbacks, which gave the place.
        place: the place.
        **params: what Keras tells callbacks.
    """
    if not place.step:
        return callbacks
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return _Passing(callbacks.callbacks, backup, model=model, **callbacks.params)
    progress = params["verbose"] != 0
    return _Passing(
        callbacks, backup, add_history=True, add_progbar=progress, model=model, **params
    )


@contextlib.contextmanager
def kept_safe(backup: BackupAndRestore | None, model, feed: Feed, epoch: int, epochs: int):
    """Context of one fit, which gives the place where it begins; see `BackupAndRestore.attached`."""
    if backup is None:
        yield Place(epoch)
        return
    with backup.attached(model, feed, epoch, epochs) as place:
        yield place


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
