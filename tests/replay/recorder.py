"""Records what private steps really do: the lot, the bounded sum, and the weights of every step.

The recorder looks from outside: at the data that reach a step, at what the optimizer gets and gives to
the Keras update rule, and at the weights before and after. It does not ask the library for its noise.
"""

import contextlib
import dataclasses

import keras
import numpy as np
import tensorflow as tf

from tfdp.accounting import Run
from tfdp.optimizers import SIDPSGDOptimizer
from tfdp.training import private_training


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One recorded step; lists hold an array for each variable.

    Attributes:
        x, y, weight: the lot, arrays [rows, ...].
        state: the non-trainable variables before the step.
        sums: bounded sums.
        before, after: the trainable variables before and after the step.
        given: what the Keras update rule got; empty where the mechanism has its own rule.
        means: un-noised means after the step; empty for most mechanisms.
        clip, scale: the clip norm, and the scale of the noise that the optimizer reports.
        rate: the learning rate.
        counted: number of steps of the run that were counted when the weights changed.
        run_id: the run that it was counted in.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    state: list
    sums: list
    before: list
    after: list
    given: list
    means: list
    clip: float
    scale: float
    rate: float
    counted: int
    run_id: str

    @property
    def total(self) -> np.ndarray:
        """The bounded sum, one float64 vector."""
        return flat(self.sums)


@dataclasses.dataclass(eq=False)
class Recording:
    """The steps of one training, and the model that was trained."""

    model: keras.Model
    steps: list[Step] = dataclasses.field(default_factory=list)

    @property
    def run(self) -> Run:
        """What the steps are accounted as, all in one run."""
        (run_id,) = {step.run_id for step in self.steps}
        return self.model.privacy.ledger.entries[run_id]


@contextlib.contextmanager
def record(model):
    """Context in which the steps of a compiled private model are recorded; yields the `Recording`."""
    recording, optimizer = Recording(model), model.optimizer
    update, apply = optimizer.update, optimizer._backend_apply_gradients
    private_step = private_training.private_step
    seen = {}

    def means():
        return optimizer._hidden.means if isinstance(optimizer, SIDPSGDOptimizer) else []

    def watched_step(model, session, data, *rest):
        seen.update(zip(("x", "y", "weight"), data, strict=True))
        seen["state"] = [tf.identity(v) for v in model.non_trainable_variables]
        return private_step(model, session, data, *rest)

    def watched_apply(gradients, variables):
        seen["given"] = [tf.identity(g) for g in gradients]
        return apply(gradients, variables)

    def watched_update(bounded, session, variables, regularization):
        parts = {"before": [tf.identity(v) for v in variables], "sums": list(bounded.sums)}
        parts["rate"] = tf.identity(optimizer.learning_rate)
        seen["given"] = []
        scale = update(bounded, session, variables, regularization)
        parts |= seen | {
            "after": [tf.convert_to_tensor(v) for v in variables],
            "means": [tf.convert_to_tensor(v) for v in means()],
            "clip": bounded.l2_norm_clip,
            "scale": scale,
            "counted": session.place + 1,
        }

        def keep(*values):
            arrays = tf.nest.pack_sequence_as(parts, values)
            numbers = {name: arrays[name].item() for name in ("clip", "scale", "rate", "counted")}
            recording.steps.append(Step(**arrays | numbers, run_id=session.entry.run_id))

        with tf.control_dependencies(parts["after"]):
            tf.numpy_function(keep, tf.nest.flatten(parts), [])
        return scale

    private_training.private_step = watched_step
    object.__setattr__(optimizer, "update", watched_update)
    object.__setattr__(optimizer, "_backend_apply_gradients", watched_apply)
    model.train_function = None  # the next step is traced with the recorder
    try:
        yield recording
    finally:
        private_training.private_step = private_step
        object.__delattr__(optimizer, "update")
        object.__delattr__(optimizer, "_backend_apply_gradients")
        model.train_function = None


def flat(arrays) -> np.ndarray:
    """Arrays, one after the other, as one float64 vector."""
    return np.concatenate([np.ravel(array).astype(float) for array in arrays])
