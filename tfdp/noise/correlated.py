"""Noise that is correlated between steps: y = C^-1 z, made one step at a time.

With C lower triangular and Toeplitz, c its first column and z fresh noise,

    y_t = (z_t - sum_{j >= 1} c_j y_{t-j}) / c_0,

so the last bands - 1 values of y are all that has to be kept. Prefix sums (c = 1, 1, ...) are the
exception that needs less: y_t = z_t - z_{t-1}.

Formal guarantee: z_t is used in step t only and enters y_t with weight 1 / c_0, so that releases of
G_t + y_t are as private as releases of (C G)_t + z_t (`accounting.matrix`). That holds for one
sequence of steps: a state that is taken up twice is two sequences with a common past.

What is kept is a secret. Whoever knows y_t and has seen G_t + y_t knows G_t without noise; so the state
lives in plain Python objects, out of sight of everything that Keras or TensorFlow save.
"""

import numpy as np
import tensorflow as tf

from tfdp.accounting import Strategy


class CorrelatedNoise:
    """Turns fresh noise into correlated noise, for a list of variables.

    Memory: 4 bytes for each weight and each value that is kept, `memory` of them.

    Args:
        strategy: C. All its bands have to be known: `bands` is set, or it is the prefix sums.
        shapes: fully defined shapes of the variables.

    Attributes:
        memory: how many past values are kept of each weight: bands - 1 (prefix sums: 1).
    """

    def __init__(self, strategy: Strategy, shapes: list):
        if strategy.name == "prefix_sum" and strategy.bands is None:
            first, past, self._keeps_fresh = 1.0, np.array([1.0]), True
        elif strategy.bands is None:
            raise ValueError(
                f"Expected a strategy with a number of bands, which is what bounds the memory. "
                f"Received {strategy}."
            )
        else:
            column = strategy.first(strategy.bands)
            first, past, self._keeps_fresh = column[0], column[1:], False
        self.memory = len(past)
        self._scale = float(1.0 / first)
        self._weights = (past / first).astype(np.float32)
        self._growth = _row_norms(self._scale, past / first, self._keeps_fresh)
        # Ring buffers, all at the same place; plain variables in a plain object are not tracked.
        self._shapes = [tuple(shape) for shape in shapes]
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._past = [
            tf.Variable(tf.zeros([self.memory, int(np.prod(shape))]), trainable=False)
            for shape in self._shapes
            if self.memory
        ]

    @property
    def steps(self) -> int:
        """How many values were made."""
        return int(self._steps.numpy())

    def growth(self) -> tf.Tensor:
        """Standard deviation of the next value of y over that of z: a float32 scalar."""
        step = tf.minimum(self._steps, tf.constant(len(self._growth) - 1, tf.int64))
        return tf.gather(tf.constant(self._growth), step)

    def correlate(self, fresh: list) -> list[tf.Tensor]:
        """The next values of y, one for each variable.

        Args:
            fresh: z_t: independent noise of equal scale in all steps, float32, one tensor for each
                variable.
        """
        step = self._steps.assign_add(1) - 1
        if not self.memory:
            return [self._scale * z for z in fresh]
        # Place s holds the value made 1 + (step - 1 - s) mod memory steps ago; before the first
        # round is full, zeros.
        age = (step - 1 - tf.range(self.memory, dtype=tf.int64)) % self.memory
        weights = tf.gather(tf.constant(self._weights), age)
        result = []
        for z, past, shape in zip(fresh, self._past, self._shapes, strict=True):
            z = tf.reshape(z, [-1])
            y = self._scale * z - tf.linalg.matvec(past, weights, transpose_a=True)
            kept = z if self._keeps_fresh else y
            past.scatter_nd_update(tf.reshape(step % self.memory, [1, 1]), kept[tf.newaxis])
            result.append(tf.reshape(y, shape))
        return result

    def state(self) -> dict[str, np.ndarray]:
        """Everything that `take_up` needs, as arrays: a secret (see the module)."""
        arrays = {f"past_{i}": past.numpy() for i, past in enumerate(self._past)}
        return {"steps": np.int64(self.steps), **arrays}

    def take_up(self, state: dict[str, np.ndarray]) -> None:
        """Goes on where the state of another object was.

        Raises:
            ValueError: the state is of other variables or of another number of bands.
        """
        expected = {name: array.shape for name, array in self.state().items()}
        found = {name: np.shape(array) for name, array in state.items()}
        if expected != found:
            raise ValueError(
                f"The noise state is of other variables or bands. Expected arrays of the shapes "
                f"{expected}. Found {found}."
            )
        self._steps.assign(int(state["steps"]))
        for i, past in enumerate(self._past):
            past.assign(state[f"past_{i}"])


def _row_norms(scale: float, weights: np.ndarray, prefix_sum: bool, rows: int = 1000) -> np.ndarray:
    """Norms of the first rows of C^-1, which hardly change after that; float32."""
    if prefix_sum:
        return np.sqrt(np.array([1.0, 2.0], np.float32))
    # The first column of the inverse, by the recursion that `correlate` does.
    column = np.zeros(rows)
    for t in range(rows):
        recent = column[max(0, t - len(weights)) : t][::-1]
        column[t] = (scale if t == 0 else 0.0) - float(weights[: len(recent)] @ recent)
    return np.sqrt(np.cumsum(column**2)).astype(np.float32)
