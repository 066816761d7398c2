"""Repeats the update rules of recorded steps, and says whether the weights moved by them.

The rule of a Keras optimizer is Keras' own, in a new optimizer that nothing of the training touched;
the means of SI-DPSGD are computed here.
"""

import keras
import numpy as np

from tfdp._compat.keras import decay_only, updates_as
from tfdp.auditing.recording import Step
from tfdp.optimizers import DPKerasOptimizer


def update_rule(model, step: Step, decayed: list[bool]):
    """What repeats the update rule of an optimizer, from the first recorded step on.

    Args:
        model: the recorded model, compiled with its optimizer.
        step: the first recorded step.
        decayed: for each trainable variable, whether weight decay is for it.

    Returns:
        (rule, None), or (None, why there is none).
    """
    if step.iteration or step.counted != 1:
        return None, "its state is that of steps before the recording"
    if step.means:
        if step.run.optimizer != "sgd":
            return None, "another rule moves the means"
        return MeansOfSIDPSGD(), None
    optimizer = model.optimizer
    coarse = {v.dtype for v in model.trainable_variables} - {"float32", "float64"}
    if coarse:
        return None, f"weights of {sorted(coarse)[0]} round its steps"
    classes = type(optimizer).__mro__
    base = classes[classes.index(DPKerasOptimizer) + 1]
    if not updates_as(type(optimizer), base):
        return None, "it is not that of a Keras optimizer"
    constraints = [variable.constraint for variable in model.trainable_variables]
    return KerasRule(optimizer, base, decayed, constraints), None


class KerasRule:
    """The update rule of a Keras optimizer, with a state of its own, from its first step.

    Args:
        optimizer: the private optimizer, for its settings.
        base: the Keras optimizer class that it was made from.
        decayed: for each trainable variable, whether weight decay is for it.
        constraints: for each trainable variable, its constraint or None.
    """

    def __init__(self, optimizer, base, decayed, constraints):
        # Settings of the Keras class alone; the rate of each step is the recorded one.
        self._rule = base.from_config(base.get_config(optimizer) | {"learning_rate": 1.0})
        self._decayed, self._constraints, self._variables = decayed, constraints, None

    def errors(self, step: Step):
        """What a step made less what the rule makes, for each variable: (errors, largest allowed)."""
        if self._variables is None:
            self._variables = [keras.Variable(b, dtype=b.dtype.name) for b in step.before]
            self._rule.build(self._variables)
            decay_only(self._rule, self._variables, self._decayed)
            for variable, constraint in zip(self._variables, self._constraints, strict=True):
                variable.constraint = constraint
        for variable, before in zip(self._variables, step.before, strict=True):
            variable.assign(before)
        self._rule.learning_rate = step.rate
        self._rule.apply([keras.ops.convert_to_tensor(g) for g in step.given], self._variables)
        for variable, before, after in zip(self._variables, step.before, step.after, strict=True):
            expected = keras.ops.convert_to_numpy(variable)
            # The same operations in another order: a few roundings, and a little of the move.
            rounding = 8 * float(np.finfo(expected.dtype).eps) * _largest(after)
            yield _less(after, expected), rounding + 1e-4 * _largest(_less(expected, before))


class MeansOfSIDPSGD:
    """The means of SI-DPSGD, from the first step of each session."""

    def __init__(self):
        self._means, self._velocities = None, None

    def errors(self, step: Step):
        """What a step made less what the rule makes, for each mean: (errors, largest allowed)."""
        run = step.run
        if step.counted == 1:  # a session starts anew at the weights that are shown
            self._means = [b.astype(float) for b in step.before]
            self._velocities = [np.zeros(b.shape) for b in step.before]
        rate = run.mechanism.schedule("learning_rates", step.counted)[-1]
        for i, (total, penalty, found) in enumerate(
            zip(step.sums, step.penalty, step.means, strict=True)
        ):
            gradient = total.astype(float) / step.divisor + penalty
            self._velocities[i] = run.momentum * self._velocities[i] + gradient
            own = self._velocities[i]
            self._means[i] -= rate * (gradient + run.momentum * own if run.nesterov else own)
            yield _less(found, self._means[i]), 1e-9 * (1e-2 + _largest(found))


def _less(one, other):
    return np.asarray(one, float) - np.asarray(other, float)


def _largest(values) -> float:
    return float(np.max(np.abs(values), initial=0.0))
