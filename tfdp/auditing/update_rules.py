"""Repeats the update rules of recorded steps, and says whether the weights moved by them.

The rule of a Keras optimizer is Keras' own, in a new optimizer that nothing of the training touched;
the means of SI-DPSGD are computed here.
"""

import keras
import numpy as np

from tfdp._compat.keras import decay_only, updates_as
from tfdp.auditing.recording import Step
from tfdp.optimizers import DPKerasOptimizer

# Errors are relative to the largest weight of a variable, and to this one where all are smaller.
_SMALL = 1e-2
_FLOAT32, _FLOAT64 = 1e-5, 1e-6


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

    def wrong(self, step: Step) -> str | None:
        """What is wrong with a step in a sentence, or None."""
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
        for variable, after in zip(self._variables, step.after, strict=True):
            error = _error(keras.ops.convert_to_numpy(variable), after)
            if error > _FLOAT32:
                return (
                    f"a weight differs by {error:.2g} from what the update rule makes of its input"
                )
        return None


class MeansOfSIDPSGD:
    """The means of SI-DPSGD, from the first step of each session."""

    def __init__(self):
        self._means, self._velocities = None, None

    def wrong(self, step: Step) -> str | None:
        """What is wrong with a step in a sentence, or None."""
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
            error = _error(self._means[i], found)
            if error > _FLOAT64:
                return f"a mean differs by {error:.2g} from what the sums make of it"
        return None


def _error(expected, found) -> float:
    """Largest error, over the largest weight."""
    expected = np.asarray(expected, float)
    scale = _SMALL + float(np.max(np.abs(found), initial=0.0))
    return float(np.max(np.abs(expected - found), initial=0.0)) / scale
