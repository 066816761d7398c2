"""Computes the bounded sums of recorded lots again, with and without one row."""

import functools

import numpy as np
import tensorflow as tf

from tfdp.auditing.recording import flat
from tfdp.gradients.chunks import with_rows
from tfdp.gradients.forward import Forward
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.random_state import seed_states
from tfdp.gradients.targets import weighted, without_none

# Relative error of a sum that is computed again, in other chunks and another order of addition, in
# float32 and with layers in less.
_ROUNDING, _COARSE = 1e-3, 3e-2


class Recomputed:
    """Computes sums of recorded lots again, with the engine and, where it can be, without it.

    Args:
        model: the model of the recording.
        recording: the recording.

    Raises:
        ValueError: the model has other trainable variables than the recorded one.
    """

    def __init__(self, model, recording):
        self._model = model
        self._forward = Forward(model)
        self._engine = choose_engine(recording.engine, model)
        self._sum = tf.function(self._bounded, autograph=False, reduce_retracing=True)
        self._one = tf.function(self._gradient_of_one, autograph=False, reduce_retracing=True)

    @functools.cached_property
    def tolerance(self) -> float:
        """Relative error of a sum that is computed again."""
        coarse = any(layer.compute_dtype in ("bfloat16", "float16") for layer in self._model.layers)
        return _COARSE if coarse else _ROUNDING

    def go_to(self, step):
        """Sets the model to the weights and the random state of a step."""
        for variable, value in zip(self._model.trainable_variables, step.before, strict=True):
            variable.assign(value)
        for variable, value in zip(self._model.non_trainable_variables, step.state, strict=True):
            variable.assign(value)
        clip = getattr(self._model.optimizer, "_clip_norm", None)
        if clip is not None:
            clip.assign(step.clip)
        self._run = step.run

    def _lot(self, step, without=None):
        x = tf.nest.map_structure(tf.convert_to_tensor, without_none(step.x))
        y, weight = weighted(step.y, step.weight, tf.shape(tf.nest.flatten(x)[0])[0])
        y = tf.nest.map_structure(tf.convert_to_tensor, y)
        if without is not None:
            weight = tf.tensor_scatter_nd_update(weight, [[without]], [0.0])
        return x, y, weight

    def sum_without(self, step, row=None) -> np.ndarray:
        """The bounded sum of a lot, flat, without one of its rows."""
        return flat(self._sum(*self._lot(step, row)))

    def _bounded(self, x, y, weight):
        run = self._run
        if run.batch_statistics and run.sampling.largest_lot is not None:
            x, y, weight = with_rows((x, y, weight), run.lot_size)
        bound = self._model.optimizer.bound(self._forward.variables, run.l2_norm_clip)
        return bounded_sum(
            self._engine, self._forward, bound, x, y, weight,
            microbatch_size=run.microbatch_size, expected_rows=run.lot_size,
        ).sums  # fmt: skip

    def rows_to_take_out(self, step, number):
        """The rows among the first 64 whose own gradients are largest, and the first ones."""
        present = np.flatnonzero(step.present)[:64]
        if len(present) <= number or not self._deterministic:
            return present[:number]
        norms = [np.linalg.norm(self._own(step, row)) for row in present]
        return present[np.argsort(norms)[::-1][:number]]

    @functools.cached_property
    def _deterministic(self):
        return not seed_states(self._model)

    def penalty_error(self, step) -> float:
        """Largest error of the recorded gradients of the weight regularizers, over the largest one."""
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            penalties = [tf.zeros([])]
            for v in variables:
                if v.regularizer is not None:
                    penalties.append(tf.cast(v.regularizer(v), tf.float32))
            total = tf.add_n(penalties)
        own = tape.gradient(
            total, [v.value for v in variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )  # fmt: skip
        own, found = flat([tf.convert_to_tensor(g) for g in own]), flat(step.penalty)
        return float(np.max(np.abs(own - found)) / (np.max(np.abs(own)) or 1.0))

    def has_reference(self, step) -> bool:
        """Whether the sum can be computed row by row, without the engine."""
        plain = step.run.microbatch_size == 1 and not step.run.batch_statistics
        clipped = getattr(self._model.optimizer, "clipping", None) == "global"
        encoded = getattr(self._model.optimizer, "encode", False)
        plain = plain and (step.weight is None or isinstance(step.weight, np.ndarray))
        return self._deterministic and plain and clipped and not encoded

    def reference(self, step) -> np.ndarray:
        """The sum of the rows' clipped gradients, each computed from a batch of one row."""
        total = np.zeros_like(step.total)
        for row in np.flatnonzero(step.present):
            gradient = self._own(step, row)
            if not np.isfinite(gradient).all():
                continue  # such an example counts nothing
            total += gradient * min(1.0, step.clip / max(np.linalg.norm(gradient), 1e-30))
        return total

    def _own(self, step, row):
        x, y, weight = self._lot(step)
        one = tf.nest.map_structure(lambda leaf: leaf[row : row + 1], (x, y, weight))
        return flat(self._one(*one))

    def _gradient_of_one(self, x, y, weight):
        model = self._model
        with tf.GradientTape() as tape:
            loss = model.compute_loss(
                x=x, y=y, y_pred=model(x, training=True), sample_weight=weight
            )
            loss -= tf.cast(self._forward.penalty(), loss.dtype)
        found = tape.gradient(
            loss, [v.value for v in model.trainable_variables],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )  # fmt: skip
        return [tf.convert_to_tensor(g) for g in found]
