"""Keras callbacks: show epsilon during `fit`, stop at the privacy budget, and back up a training.

Example:
    >>> import keras, numpy as np, tfdp
    >>> model = tfdp.make_private(
    ...     keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
    ...     budget=tfdp.PrivacyBudget(epsilon=1.5, delta=1e-4))
    >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
    >>> x = np.zeros((100, 2), "float32")
    >>> lots = tfdp.data.make_lots("cyclic", x, x[:, :1], lot_size=50)
    >>> callbacks = [tfdp.callbacks.PrivacyProgress(delta=1e-4), tfdp.callbacks.StopAtBudget()]
    >>> history = model.fit(lots, epochs=10, callbacks=callbacks, verbose=0)
    >>> [round(epsilon, 3) for epsilon in history.history["epsilon"]]
    [0.773, 1.144, 1.441]
"""

import bisect
import importlib.util
import math
import os

import keras
import tensorflow as tf

from tfdp.accounting import epsilon_curve
from tfdp.accounting.guarantee import check_adjacency, check_delta, check_kind
from tfdp.training.backup import BackupAndRestore
from tfdp.training.dp_model import PrivateTraining
from tfdp.training.replicas import writes

__all__ = [
    "BackupAndRestore",
    "EpsilonCurve",
    "PrivacyProgress",
    "PrivacyTensorBoard",
    "StopAtBudget",
]


def __dir__():
    return __all__


def _private(model) -> PrivateTraining:
    if not isinstance(model, PrivateTraining):
        raise ValueError(
            f"This callback needs a private model. Received: {type(model).__name__}. Make the "
            "model private with tfdp.make_private(model)."
        )
    return model


class EpsilonCurve:
    """Computes epsilon after any number of steps of the current training, for callbacks of your own.

    Epsilon is computed at up to `points` step counts, each when it is first needed, so the cost does
    not grow with the length of the training. These step counts are the ends of all or some epochs, and
    the end of the training; there the curve is exact. For a step count in between, the curve returns
    the value at the next one: an upper bound, since later releases include all earlier ones. Earlier
    spending on the same weights is included.

    Construct a curve after the first step: until then, other callbacks may restore weights and their
    ledger.

    Args:
        model: A private model whose training has begun.
        delta: Probability in (0, 1), well below 1/N; None takes the delta of the model's budget.
        kind: "proven" or "claimed".
        adjacency: "zero_out", "replace_one" or "add_or_remove_one"; None takes the adjacency of the
            model's budget, or "zero_out" without a budget.
        points: Largest number of step counts at which epsilon is computed.

    Raises:
        ValueError: If there is neither a delta nor a budget, or an argument is invalid.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> lots = tfdp.data.make_lots("cyclic", x, x[:, :1], lot_size=50)
        >>> _ = model.fit(lots, epochs=2, verbose=0)
        >>> curve = tfdp.callbacks.EpsilonCurve(model, delta=1e-4)
        >>> print(f"{curve.at(2):.3f}, {curve.at(4):.3f}")
        0.773, 1.144
    """

    def __init__(
        self,
        model: keras.Model,
        delta: float | None = None,
        kind: str = "proven",
        adjacency: str | None = None,
        points: int = 16,
    ):
        entry = model.privacy.account.session.entry
        self._run, self._earlier = entry.run, entry.earlier()
        self._changes = model.privacy.ledger.changes
        self._kind = kind
        self._delta, self._adjacency = model.privacy.delta_and_adjacency(delta, adjacency)
        planned = entry.if_ended
        self._counts = [0]  # without a known plan
        if math.isfinite(planned):
            self._counts = step_counts(int(planned), self._run.sampling.steps_per_epoch, points)
        self._values: dict[int, float] = {}

    def describes(self, model) -> bool:
        """Returns whether the curve is valid for the model's current training and earlier spending."""
        privacy = model.privacy
        return privacy.ledger.changes == self._changes and privacy.current_run == self._run

    def at(self, step: int, exact: bool = False) -> float:
        """Returns epsilon after a number of steps, or an upper bound on it.

        Args:
            step: Number of steps.
            exact: Whether to compute epsilon at exactly this step if the plan is unknown.
        """
        point = step if exact and step > self._counts[-1] else self.next_point(step)
        if point not in self._values:
            run = self._run if point <= self._run.steps else self._run.with_steps(point)
            (self._values[point],) = epsilon_curve(
                run, [point], self._delta, self._kind, self._adjacency, self._earlier
            )
        return self._values[point]

    def next_point(self, step: int) -> int:
        """Returns the step count up to which the value at `step` stays the same."""
        if step > self._counts[-1]:  # the plan is unknown
            return 1 << (step - 1).bit_length()
        return self._counts[bisect.bisect_left(self._counts, step)]


def step_counts(steps: int, steps_per_epoch: int, points: int) -> list[int]:
    """Returns the step counts at which epsilon is computed: 0, and up to `points` more, up to `steps`.

    Args:
        steps: Number of steps of the training.
        steps_per_epoch: Number of steps of an epoch.
        points: Largest number of step counts above 0.
    """
    epochs = -(-steps // steps_per_epoch)
    ends = {-(-epochs * part // points) * steps_per_epoch for part in range(points + 1)}
    return sorted({min(end, steps) for end in ends})


class _Spending(keras.callbacks.Callback):
    """Base class of the callbacks that show epsilon."""

    def __init__(self, delta, adjacency):
        super().__init__()
        self.delta = None if delta is None else check_delta(delta)
        self.adjacency = None if adjacency is None else check_adjacency(adjacency)
        self._curves: dict[str, EpsilonCurve] = {}

    def on_train_begin(self, logs=None):
        _private(self.model).privacy.delta_and_adjacency(self.delta, self.adjacency)
        self._curves = {}

    def _curve(self, kind) -> EpsilonCurve:
        if kind not in self._curves or not self._curves[kind].describes(self.model):
            self._curves[kind] = EpsilonCurve(self.model, self.delta, kind, self.adjacency)
        return self._curves[kind]

    def _ended_early(self) -> bool:
        """Whether a callback ended the training, so that counted steps were not taken."""
        session = self.model.privacy.account.session
        if session is None or not self.model.stop_training:
            return False
        return session.entry.if_ended > session.entry.taken

    def _at_the_end(self, kind) -> float:
        """Epsilon of all planned steps."""
        steps = self.model.privacy.account.session.entry.if_ended
        return math.inf if math.isinf(steps) else self._curve(kind).at(steps, exact=True)


class PrivacyProgress(_Spending):
    """Shows the epsilon spent so far, beside the loss, in the progress bar and the history of `fit`.

    Epsilon is computed at 16 step counts at most. Between them, the next, larger value is shown, so it
    is never too small (see `EpsilonCurve`). The last value is the epsilon of
    `model.privacy.statement`: it counts all planned steps, even if the training ended early.

    Args:
        delta: Probability in (0, 1), well below 1/N; None takes the delta of the model's budget.
        kind: "proven" or "claimed".
        adjacency: "zero_out", "replace_one" or "add_or_remove_one"; None takes the adjacency of the
            model's budget, or "zero_out" without a budget.
        name: Name of the value in the logs; None takes "epsilon", or "claimed_epsilon" for the
            claimed one.

    Raises:
        ValueError: If `fit` begins with a model that is not private, or without a delta or a
            budget.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> lots = tfdp.data.make_lots("cyclic", x, x[:, :1], lot_size=50)
        >>> progress = tfdp.callbacks.PrivacyProgress(delta=1e-4)
        >>> history = model.fit(lots, epochs=2, callbacks=[progress], verbose=0)
        >>> [round(epsilon, 3) for epsilon in history.history["epsilon"]]
        [0.773, 1.144]
    """

    def __init__(
        self,
        delta: float | None = None,
        kind: str = "proven",
        adjacency: str | None = None,
        name: str | None = None,
    ):
        super().__init__(delta, adjacency)
        self.kind = check_kind(kind)
        self.name = name or ("epsilon" if kind == "proven" else f"{kind}_epsilon")
        self._shown: float | None = None
        self._left = 0
        self._logs: dict = {}

    def on_epoch_begin(self, epoch, logs=None):
        self._left = 0  # other callbacks may change the weights and their ledger here

    def _spent(self, exact=False):
        curve, steps = self._curve(self.kind), self.model.privacy.account.session.entry.so_far
        self._shown = curve.at(steps, exact)
        self._left = curve.next_point(steps) - steps
        return self._shown

    def on_train_batch_end(self, batch, logs=None):
        if logs is None:
            return
        # Reading the step counter takes longer than everything else here, so it is read only when
        # the steps since then may have passed the next point of the curve.
        self._left -= self.model.steps_per_execution
        logs[self.name] = self._spent() if self._left < 0 else self._shown

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs[self.name] = self._spent(exact=True)
            self._logs = logs

    def on_train_end(self, logs=None):
        shown = self.model.history.history.get(self.name)
        if shown and self._ended_early():
            self._logs[self.name] = shown[-1] = self._at_the_end(self.kind)


class StopAtBudget(keras.callbacks.Callback):
    """Ends `fit` normally when the privacy budget is spent, where `fit` would raise an error.

    The model needs a budget: `make_private(model, budget=...)`. If the budget allows no step at all,
    `fit` still raises `BudgetExhausted`.

    Raises:
        ValueError: If `fit` begins with a model that is not private or has no budget.

    Example:
        >>> import keras, numpy as np, tfdp
        >>> model = tfdp.make_private(
        ...     keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
        ...     budget=tfdp.PrivacyBudget(epsilon=1.5, delta=1e-4))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> lots = tfdp.data.make_lots("cyclic", x, x[:, :1], lot_size=50)
        >>> _ = model.fit(lots, epochs=10, callbacks=[tfdp.callbacks.StopAtBudget()], verbose=0)
        >>> model.privacy.steps_taken, model.privacy.steps_left
        (6, 0)
    """

    def on_train_begin(self, logs=None):
        if _private(self.model).privacy.budget is None:
            raise ValueError(
                "StopAtBudget needs a model with a budget, but this model has none. Make it "
                "private with make_private(model, budget=tfdp.PrivacyBudget(epsilon, delta))."
            )

    def on_train_batch_end(self, batch, logs=None):
        if _private(self.model).privacy.steps_left < 1:
            self.model.stop_training = True


class PrivacyTensorBoard(_Spending):
    """Writes both epsilons and clipping diagnostics to TensorBoard after every epoch, with the metrics.

    Use it beside `keras.callbacks.TensorBoard`, or instead of it. The scalars under "mechanism/" come
    from the optimizer (`DPKerasOptimizer.scalars`). With matplotlib, the picture of
    `model.privacy.plot` is written when the training ends.

    The diagnostics (fraction clipped, median gradient norm, noise to signal) and the training metrics
    are computed from private data without noise: show the log only to people who may see the data.

    Args:
        log_dir: Directory of the event file, as for `tensorboard --logdir`.
        delta: Probability in (0, 1), well below 1/N; None takes the delta of the model's budget.
        adjacency: "zero_out", "replace_one" or "add_or_remove_one"; None takes the adjacency of the
            model's budget, or "zero_out" without a budget.

    Raises:
        ValueError: If `fit` begins with a model that is not private, or without a delta or a
            budget.

    Example:
        >>> import os
        >>> import keras, numpy as np, tfdp
        >>> model = tfdp.make_private(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
        >>> model.compile(tfdp.DPKerasSGDOptimizer(l2_norm_clip=1.0, noise_multiplier=4.0), "mse")
        >>> x = np.zeros((100, 2), "float32")
        >>> lots = tfdp.data.make_lots("cyclic", x, x[:, :1], lot_size=50)
        >>> board = tfdp.callbacks.PrivacyTensorBoard("runs/a", delta=1e-4)
        >>> _ = model.fit(lots, epochs=2, callbacks=[board], verbose=0)
        >>> os.listdir("runs/a")  # for `tensorboard --logdir runs`
        ['events.out.tfevents...']
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        delta: float | None = None,
        adjacency: str | None = None,
    ):
        super().__init__(delta, adjacency)
        self.log_dir = os.fspath(log_dir)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._writer = tf.summary.create_noop_writer()
        if writes(self.model):  # of several machines, the chief
            self._writer = tf.summary.create_file_writer(self.log_dir)
        self.model.privacy.diagnostics(reset=True)

    def on_epoch_end(self, epoch, logs=None):
        privacy = self.model.privacy
        scalars = self.model.optimizer.scalars(self.model.trainable_variables)
        with self._writer.as_default(step=privacy.steps_taken):
            for name, value in (logs or {}).items():
                if name not in ("epsilon", "claimed_epsilon"):
                    tf.summary.scalar(f"training/{name}", value)
            for kind in ("claimed", "proven"):
                epsilon = self._curve(kind).at(privacy.account.session.entry.so_far, exact=True)
                tf.summary.scalar(f"privacy/epsilon_{kind}", epsilon)
            diagnostics = privacy.diagnostics(reset=True)
            privacy.clipping.append((privacy.steps_taken, diagnostics["fraction_clipped"]))
            for name, value in diagnostics.items():
                tf.summary.scalar(f"gradients/{name}", value)
            for name, value in scalars.items():
                tf.summary.scalar(f"mechanism/{name}", value)
        self._writer.flush()

    def on_train_end(self, logs=None):
        privacy = self.model.privacy
        if importlib.util.find_spec("matplotlib") is not None and privacy.ledger.runs:
            png = privacy.plot(self.delta, self.adjacency)._repr_png_()
            with self._writer.as_default(step=privacy.steps_taken):
                tf.summary.image("privacy/picture", tf.io.decode_png(png)[None])
        if self._ended_early():
            with self._writer.as_default(step=self.model.privacy.steps_taken):
                for kind in ("claimed", "proven"):
                    tf.summary.scalar(f"privacy/epsilon_{kind}", self._at_the_end(kind))
        self._writer.close()
