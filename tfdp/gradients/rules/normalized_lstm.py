"""A rule for `tfdp.layers.NormalizedLSTM`.

The normalized part of the gates that comes from the inputs is recorded, as for every recurrent layer,
and beside it the scale and the offset of the normalized cell state, once for every step and row. So the
recorded gradient holds the gradients of these two, step by step. The gradient at the sum of the
gates goes back through the two other normalizations without a loop, because the states before
each step are known by then.
"""

import functools

import tensorflow as tf

from tfdp.gradients.rules import register
from tfdp.gradients.rules.per_example_gradient import Instantiated
from tfdp.gradients.rules.recurrent import RecurrentRule
from tfdp.gradients.rules.step_loop import TapedCell
from tfdp.layers.normalized_lstm import NORMS, NormalizedLSTM


@register(NormalizedLSTM)
class NormalizedLSTMRule(RecurrentRule):
    """The gates are input, forget, candidate, output; behind them come the carry's scale and offset."""

    def variables(self):
        cell = self.layer.cell
        return [cell.kernel, cell.recurrent_kernel, *self._affine()]

    def _affine(self):
        """Returns (scale, offset) of each normalization in the order of `NORMS`, as one list."""
        cell = self.layer.cell
        if not cell.affine:
            return []
        return [getattr(cell, f"{name}_{kind}") for name in NORMS for kind in ("scale", "offset")]

    def biases(self, bias):
        return None, None  # what follows the kernels among the variables is no bias

    def prepared(self, gates, history):
        values = [tf.convert_to_tensor(variable) for variable in self._affine()]
        history["affine"] = values
        scale, offset, _, _, *carry = values or [None, None, None, None]
        history["input"] = self._saved_norm(gates, scale)
        gates = _normalized(gates, self.layer.cell.epsilon, scale, offset)
        shape = tf.concat([tf.shape(gates)[:2], [self.layer.cell.units]], axis=0)
        return tf.concat([gates, *(tf.broadcast_to(value, shape) for value in carry)], axis=2)

    def cell(self, gates, kernel, history):
        del gates
        # The tensors are those of the forward pass, where another engine may have set the weights.
        step = functools.partial(self.step, kernel=kernel, affine=history["affine"])
        return TapedCell(step, 4 * self.layer.cell.units)

    def step(self, gates, recurrent, states, kernel, affine):
        cell, epsilon = self.layer.cell, self.layer.cell.epsilon
        scale, offset = affine[2:4] if affine else (None, None)
        recurrent = _normalized(recurrent, epsilon, scale, offset)
        gates, *carry_affine = tf.split(gates, _widths(cell), axis=1)
        i, f, candidate, o = tf.split(gates + recurrent, 4, axis=1)
        carry = tf.sigmoid(f) * states[1] + tf.sigmoid(i) * tf.tanh(candidate)
        shown = _normalized(carry, epsilon, *(carry_affine or (None, None)))
        return [tf.sigmoid(o) * tf.tanh(shown), carry]

    def factors(self, gates, recurrent, history):
        del gates
        scale = history["affine"][2] if history["affine"] else None
        return self._saved_norm(recurrent(), scale)

    def _saved_norm(self, sums, scale):
        """Returns what the gradients through a normalization need, [steps, rows, 8 * units].

        These are the normalized sums, and the scale over the standard deviation.
        """
        mean, variance = tf.nn.moments(sums, [-1], keepdims=True)
        inverse = tf.math.rsqrt(variance + self.layer.cell.epsilon)
        normalized = (sums - mean) * inverse
        factor = inverse * (tf.ones_like(sums) if scale is None else scale)
        return tf.stop_gradient(tf.concat([normalized, factor], axis=-1))

    def _saved(self, history):
        return {
            **super()._saved(history),
            "input": lambda: history["input"],
            "recurrent": lambda: history["factors"],
        }

    def gradients(self, calls):
        (call,) = calls
        cell = self.layer.cell
        upstream, *carry = tf.split(self._by_rows(call.gradient), _widths(cell), axis=2)
        found = []
        sides = zip(
            (cell.kernel, cell.recurrent_kernel),
            (tf.cast(call["inputs"], tf.float32), self._by_rows(call["states"])),
            NORMS[:2],
            strict=True,
        )
        for kernel, left, name in sides:
            normalized, factor = tf.split(self._by_rows(call[name]), 2, axis=2)
            found.append(self._products(kernel, left, _before(upstream, normalized, factor)))
            if cell.affine:
                scale, offset = getattr(cell, f"{name}_scale"), getattr(cell, f"{name}_offset")
                found.append((scale, _summed(upstream * normalized)))
                found.append((offset, _summed(upstream)))
        if cell.affine:
            variables = (cell.carry_scale, cell.carry_offset)
            found += [(v, _summed(d)) for v, d in zip(variables, carry, strict=True)]
        return found


def _widths(cell):
    """The widths of what is recorded: the gates, and the carry's scale and offset if there are any."""
    return [4 * cell.units, *([cell.units] * 2 if cell.affine else [])]


def _normalized(x, epsilon, scale, offset):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    x = (x - mean) * tf.math.rsqrt(variance + epsilon)
    return x if scale is None else x * scale + offset


def _before(upstream, normalized, factor):
    """Returns the gradient before a normalization from that behind it."""
    scaled = upstream * factor
    mean = tf.reduce_mean(scaled, axis=-1, keepdims=True)
    along = tf.reduce_mean(scaled * normalized, axis=-1, keepdims=True)
    return scaled - mean - normalized * along


def _summed(gradients):
    return Instantiated(tf.reduce_sum(gradients, axis=1))
