"""Replays a recording: was every step what it was accounted as?

The replay computes nothing with the noise source, the ledger or the update of the training. Sums are
computed again with the engine, with and without a row, and where it can be row by row without it.
"""

import itertools

import keras
import numpy as np
import tensorflow as tf
from scipy import stats

from tests.replay.lots import Finding, check_lots
from tests.replay.noise import check_noise, implied_noise
from tests.replay.recorder import Recording, flat
from tests.rounding import FUNCTION, close
from tfdp.gradients.forward import Forward, seed_states
from tfdp.gradients.lot import bounded_sum, choose_engine
from tfdp.gradients.targets import weighted
from tfdp.optimizers import DPKerasOptimizer
from tfdp.session import assumed_sensitivity

# Relative error of a float32 sum in other chunks and another order of addition.
_ROUNDING = 1e-3


def replay(recording: Recording, x, *, steps: int = 3) -> list[Finding]:
    """Findings of all checks.

    Args:
        recording: a training that began with the model and took one call of `fit`.
        x: the examples of the training, which differ from each other and from zero.
        steps: number of steps, spread over the training, whose sums are computed again.
    """
    if recording.run.steps != len(recording.steps):
        words = f"{len(recording.steps)} steps were seen, {recording.run.steps} are accounted"
        return [Finding("ledger", 0.0, words)]
    found = _ledger(recording) + check_lots(_numbers(recording, x), recording.run)
    found += _updates(recording)
    chosen = np.unique(np.linspace(0, len(recording.steps) - 1, steps).round().astype(int))
    found += _sums(recording, chosen)
    sums = np.stack([step.total for step in recording.steps])
    sizes = [value.size for value in recording.steps[0].before]
    return found + check_noise(implied_noise(recording), sums, sizes, _law(recording.run))


def p_value(findings) -> float:
    """The smallest p-value, times the number of checks."""
    return min(1.0, len(findings) * min(finding.p_value for finding in findings))


def _law(run):
    encoding = getattr(run.mechanism, "encoding", None)
    return stats.t(encoding.degrees_of_freedom).cdf if encoding else stats.norm.cdf


def _ledger(recording):
    """Each step was counted before the weights changed."""
    for number, step in enumerate(recording.steps):
        if step.counted != number + 1:
            return [Finding("ledger", 0.0, f"{step.counted} steps were counted", number)]
    return [Finding("ledger", 1.0)]


def _numbers(recording, x):
    """The numbers of the examples in each lot; len(x) for a row that is none of them."""
    known = {row.tobytes(): number for number, row in enumerate(x)}
    return [
        [known.get(row.tobytes(), len(x)) for row, w in zip(step.x, step.weight, strict=True) if w]
        for step in recording.steps
    ]


# -- updates -----------------------------------------------------------------------------------------


def _updates(recording):
    """The weights moved by the update rule, from what it got, and nothing else moved them."""
    for number, (before, after) in enumerate(itertools.pairwise(recording.steps), 1):
        if not all(map(np.array_equal, before.after, after.before)):
            return [Finding("weights", 0.0, "they are not those of the step before", number)]
    rule = _means_of_si_dpsgd if recording.steps[0].means else _keras_rule
    for number, (found, expected) in enumerate(rule(recording)):
        if not close(found, expected, 5 * FUNCTION):
            return [Finding("update", 0.0, "not what the rule makes of its input", number)]
    return [Finding("update", 1.0)]


def _keras_rule(recording):
    """Yields (weights, those of the Keras rule in a new optimizer that nothing else touched)."""
    optimizer = recording.model.optimizer
    classes = type(optimizer).__mro__
    base = classes[classes.index(DPKerasOptimizer) + 1]
    rule = base.from_config(base.get_config(optimizer) | {"learning_rate": 1.0})
    variables = [keras.Variable(value) for value in recording.steps[0].before]
    rule.build(variables)
    for step in recording.steps:
        rule.learning_rate = step.rate
        rule.apply([keras.ops.convert_to_tensor(g) for g in step.given], variables)
        yield flat(step.after), flat([v.numpy() for v in variables])
        for variable, value in zip(variables, step.after, strict=True):
            variable.assign(value)


def _means_of_si_dpsgd(recording):
    """Yields (means, means that moved by the un-noised sums alone)."""
    run = recording.run
    mean, velocity = flat(recording.steps[0].before), 0.0
    rates = run.mechanism.schedule("learning_rates", len(recording.steps))
    for step, rate in zip(recording.steps, rates, strict=True):
        velocity = run.mechanism.momentum * velocity + step.total / run.sampling.lot_size
        mean = mean - rate * velocity
        yield flat(step.means), mean


# -- sums --------------------------------------------------------------------------------------------


def _sums(recording, chosen):
    """Are the sums right, and does one row less move them by no more than is accounted?"""
    again, found = _Sums(recording), []
    allowed = assumed_sensitivity(recording.run)
    for number in chosen:
        step = recording.steps[number]
        again.go_to(step)
        close = _ROUNDING * (np.linalg.norm(step.total) + step.clip)
        whole = again.without(step)
        if not np.linalg.norm(whole - step.total) <= close:
            return [Finding("sum", 0.0, "another one than is computed again", int(number))]
        for row in np.flatnonzero(step.weight):
            moved = np.linalg.norm(again.without(step, row) - whole) / step.clip
            if not moved <= allowed * (1 + _ROUNDING):
                words = f"moves by {moved:.4g} C without row {row}, {allowed:g} C are accounted"
                return [Finding("sensitivity", 0.0, words, int(number))]
        found = [Finding("sum", 1.0)]
        if again.row_by_row:
            if not np.linalg.norm(again.clipped(step) - step.total) <= close:
                return [Finding("sum, row by row", 0.0, "another one", int(number))]
            found.append(Finding("sum, row by row", 1.0))
    return found


class _Sums:
    """Computes the sums of recorded lots again; it sets the weights of the model."""

    def __init__(self, recording):
        self._model, self._run = recording.model, recording.run
        self._forward = Forward(self._model)
        self._engine = choose_engine(self._model.privacy.engine, self._model)
        self._sum = tf.function(self._bounded, autograph=False, reduce_retracing=True)
        self._one = tf.function(self._gradient, autograph=False, reduce_retracing=True)
        optimizer = self._model.optimizer
        self.row_by_row = (
            self._run.contribution.microbatch_size == 1
            and optimizer.clipping == "global"
            and not seed_states(self._model)
        )

    def go_to(self, step):
        """Sets the model to the weights and the random state of a step."""
        model = self._model
        for variable, value in zip(model.trainable_variables, step.before, strict=True):
            variable.assign(value)
        for variable, value in zip(model.non_trainable_variables, step.state, strict=True):
            variable.assign(value)
        if self._run.contribution.adaptive_clipping:
            model.optimizer._clip_norm.assign(step.clip)

    def without(self, step, row=None) -> np.ndarray:
        """The bounded sum of a lot, flat, without one of its rows."""
        weight = step.weight.copy()
        if row is not None:
            weight[row] = 0.0
        return flat(self._sum(*map(tf.convert_to_tensor, (step.x, step.y, weight))))

    def _bounded(self, x, y, weight):
        bound = self._model.optimizer.bound(
            self._forward.variables, self._run.contribution.l2_norm_clip
        )
        y, weight = weighted(y, weight, tf.shape(x)[0])
        return bounded_sum(
            self._engine, self._forward, bound, x, y, weight,
            microbatch_size=self._run.contribution.microbatch_size,
            expected_rows=self._run.sampling.lot_size,
        ).sums  # fmt: skip

    def clipped(self, step) -> np.ndarray:
        """The sum of the rows' clipped gradients, each from a batch of one row."""
        total = 0.0
        for row in np.flatnonzero(step.weight):
            one = [part[row : row + 1] for part in (step.x, step.y)]
            gradient = flat(self._one(*map(tf.convert_to_tensor, one)))
            total += gradient * min(1.0, step.clip / np.linalg.norm(gradient))
        return total

    def _gradient(self, x, y):
        model = self._model
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        variables = [v.value for v in model.trainable_variables]
        return tape.gradient(loss, variables)
