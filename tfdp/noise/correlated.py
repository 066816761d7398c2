"""Noise that is correlated between steps: y = C^-1 z, generated one step at a time.

With C lower triangular and Toeplitz, c its first column and z fresh noise,

    y_t = (z_t - sum_{j >= 1} c_j y_{t-j}) / c_0,

so it is enough to keep the last bands - 1 values of y. Prefix sums (c = 1, 1, ...) are an exception:
there y_t = z_t - z_{t-1} needs less.

Formal guarantee: z_t is drawn for step t only and enters y_t with weight 1 / c_0, so that releases of
G_t + y_t are as private as releases of (C G)_t + z_t (`accounting.linear_steps`). This holds for
one sequence of steps; a state that is used twice gives two sequences with a common past.

The stored values are a secret: y_t and a released G_t + y_t together reveal G_t without noise. So the
state is in plain Python objects, which Keras and TensorFlow do not save.
"""

import numpy as np
import tensorflow as tf

from tfdp._compat.float32_products import weighted_sum
from tfdp.accounting import Strategy
from tfdp.accounting.strategies import inverse

_ROWS = 1000


class CorrelatedNoise:
    """Turns independent noise into noise that is correlated over steps, for a list of variables.

    `MatrixDPSGDOptimizer` uses one. Noise that is correlated in this way partly cancels in the sum of
    all steps. The state takes 4 * `memory` bytes for each weight.

    Args:
        strategy: The strategy C, with `bands` set, unless it is "prefix_sum".
        shapes: Fully defined shapes of the variables.

    Attributes:
        memory: Number of past values stored for each weight: bands - 1, or 1 for "prefix_sum" without
            bands.
        past: The variables with these values, a secret.

    Example:
        >>> import tensorflow as tf
        >>> from tfdp.accounting import Strategy
        >>> from tfdp.noise import CorrelatedNoise
        >>> correlated = CorrelatedNoise(Strategy(name="prefix_sum"), shapes=[(1,)])
        >>> fresh = [[tf.constant([1.0])], [tf.constant([5.0])], [tf.constant([2.0])]]
        >>> [float(correlated.correlate(z, step)[0][0]) for step, z in enumerate(fresh)]
        [1.0, 4.0, -3.0]
    """

    def __init__(self, strategy: Strategy, shapes: list):
        if strategy.name == "prefix_sum" and strategy.bands is None:
            first, past, self._keeps_fresh = 1.0, np.array([1.0]), True
        else:
            assert strategy.bands is not None  # the optimizer has limited them
            column = strategy.first(strategy.bands)
            first, past, self._keeps_fresh = column[0], column[1:], False
        self.memory = len(past)
        self._scale = float(1.0 / first)
        self._weights = (past / first).astype(np.float32)
        # Norms of the first rows of C^-1; those of later rows hardly differ.
        rows = inverse(strategy.first(_ROWS), _ROWS)
        self._growth = np.sqrt(np.cumsum(rows**2)).astype(np.float32)
        # Ring buffers. Keras does not track plain variables in a plain object.
        self._shapes = [tuple(shape) for shape in shapes]
        self.past = [
            tf.Variable(tf.zeros([self.memory, int(np.prod(shape))]), trainable=False)
            for shape in self._shapes
            if self.memory
        ]

    def growth(self, step: int | tf.Tensor) -> tf.Tensor:
        """Returns the factor by which correlation changes the standard deviation of the noise.

        Args:
            step: Number of the step, from 0.

        Returns:
            The standard deviation of y at this step, divided by that of z: a float32 scalar.
        """
        step = tf.minimum(tf.cast(step, tf.int64), tf.constant(len(self._growth) - 1, tf.int64))
        return tf.gather(tf.constant(self._growth), step)

    def correlate(self, fresh: list, step: int | tf.Tensor) -> list[tf.Tensor]:
        """Returns the correlated noise of the next step, and stores it for later steps.

        Args:
            fresh: z_t, independent noise of equal scale in all steps: one float32 tensor for each
                variable.
            step: Number t of the step, an int or an int64 scalar tensor: 0 in the first call, and one
                more in each further call.

        Returns:
            y_t, float32 tensors with the shapes of the variables.
        """
        step = tf.cast(step, tf.int64)
        if not self.memory:
            return [self._scale * z for z in fresh]
        # Place s has the value made 1 + (step - 1 - s) mod memory steps ago. Places that were never
        # written are zero.
        age = (step - 1 - tf.range(self.memory, dtype=tf.int64)) % self.memory
        weights = tf.gather(tf.constant(self._weights), age)
        result = []
        for z, past, shape in zip(fresh, self.past, self._shapes, strict=True):
            z = tf.reshape(z, [-1])
            y = self._scale * z - weighted_sum(weights, tf.convert_to_tensor(past))
            kept = z if self._keeps_fresh else y
            place = tf.reshape(step % self.memory, [1])
            past.scatter_update(tf.IndexedSlices(kept[tf.newaxis], place))
            result.append(tf.reshape(y, shape))
        return result

    def state(self) -> dict[str, np.ndarray]:
        """Returns the whole state for `take_up`, as arrays. It is a secret (see the module)."""
        return {f"past_{i}": past.numpy() for i, past in enumerate(self.past)}

    def take_up(self, state: dict[str, np.ndarray]) -> None:
        """Sets the state of another object, so that the next value continues its sequence.

        Args:
            state: The result of `state`.
        """
        for i, past in enumerate(self.past):
            past.assign(state[f"past_{i}"])
