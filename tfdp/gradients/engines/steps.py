"""Recurrent layers that keep their loop under `tf.vectorized_map`, for the exact engine.

`tf.vectorized_map` vectorizes loops, but not every gradient of a loop, because TensorFlow keeps the
intermediate tensors of all steps in lists that grow. Unrolling the layer instead makes a graph as long
as the sequence: an LSTM of 100 steps took minutes to trace. Here the loop has a gradient of its own,
which keeps the states before each step, computes each step again, and goes through the steps
backwards, in a second loop.

Such a gradient sees only the tensors that it is given: inputs, states and the weights of the cell. A
cell that may use anything else is unrolled, which is right for any cell. So is every cell under XLA,
which lacks the lists of lists that `tf.vectorized_map` makes of a loop.
"""

import contextlib

import keras
import tensorflow as tf

from tfdp._compat.keras import ConvLSTMCell, dropout_masks, get_stateless_scope, layers_of
from tfdp._compat.tensorflow import inside_xla
from tfdp.gradients.rules.base import replaced

_CELLS = {
    keras.layers.GRUCell,
    keras.layers.LSTMCell,
    keras.layers.SimpleRNNCell,
    keras.layers.StackedRNNCells,
    ConvLSTMCell,
}


@contextlib.contextmanager
def vectorizable_loops(model, values: dict):
    """Context in which the recurrent layers of a model run in a way that can be vectorized.

    Args:
        model: a Keras model.
        values: {id of variable: tensor}: the trainable variables' values in the pass that follows.
    """
    with contextlib.ExitStack() as stack:
        for layer in layers_of(model):
            if isinstance(layer, keras.layers.RNN) and not layer.unroll:
                keeps = _is_known(layer) and not inside_xla()
                loop = _looped(layer, values) if keeps else _unrolled(layer)
                stack.enter_context(replaced(layer, inner_loop=loop))
        yield


def _is_known(layer) -> bool:
    """Whether the layer's cell is one of Keras' own, whose gradient reaches its own weights only."""
    cells = layers_of(layer.cell, itself=True)
    return all(
        type(cell) in _CELLS and "call" not in vars(cell) and _keras_activations(cell)
        for cell in cells
    )


def _keras_activations(cell):
    functions = (getattr(cell, name, None) for name in ("activation", "recurrent_activation"))
    return all(
        f is None or (getattr(f, "__module__", None) or "").startswith("keras.src.activations")
        for f in functions
    )


def _unrolled(layer):
    """Returns the unrolled `inner_loop` of a recurrent layer.

    A sequence and its mask are turned round before the loop. Keras' own unrolled loop would turn the
    sequence round, but not the mask with which it hides outputs (`zero_output_for_mask`).
    """

    def inner_loop(sequences, initial_state, mask, training=False):
        if keras.tree.flatten(sequences)[0].shape[1] is None:
            raise NotImplementedError(
                f"Layer '{layer.name}' ({type(layer).__name__}) gets sequences of unknown length, and "
                "the exact engine has to unroll it. Expected sequences of a length that is known while "
                "the step is traced: pad them all to one length, or use engine='loop'."
            )
        if layer.go_backwards:
            sequences, mask = _turned_round(sequences), _turned_round(mask)
        with replaced(layer, unroll=True, go_backwards=False):
            return type(layer).inner_loop(layer, sequences, initial_state, mask, training)

    return inner_loop


def _turned_round(sequences):
    if sequences is None:
        return None
    return tf.nest.map_structure(lambda sequence: tf.reverse(sequence, [1]), sequences)


def _looped(layer, values):
    """Returns the `inner_loop` of a recurrent layer as a loop with a gradient of its own."""

    def inner_loop(sequences, initial_state, mask, training=False):
        mask = None if mask is None else keras.tree.flatten(mask)[0]
        if layer.go_backwards:
            sequences, mask = _turned_round(sequences), _turned_round(mask)
        loop = _Loop(layer, values, initial_state, mask, training)
        shown, states = loop.run(_steps_first(sequences))
        last = shown[-1]
        return last, _steps_first(shown), states

    return inner_loop


def _steps_first(values):
    """Exchanges the first two axes."""
    return tf.transpose(values, [1, 0, *range(2, values.shape.rank)])


class _Loop:
    """One pass of a recurrent layer over its sequences.

    The carried tensors are those of the states, and, where there is a mask, the output shown last.

    Args:
        layer: the recurrent layer.
        values: {id of variable: tensor}.
        initial_state: a structure of tensors [rows, ...].
        mask: bool [rows, steps], or None.
        training: as `inner_loop` takes it.
    """

    def __init__(self, layer, values, initial_state, mask, training):
        self.layer = layer
        self.training = training
        self.initial_state = initial_state
        self._masks = [(cell, dropout_masks(cell)) for cell in layers_of(layer.cell, itself=True)]
        self.mask = None if mask is None else tf.transpose(tf.cast(mask, tf.bool))
        self.weights = [v for v in layer.cell.trainable_variables if id(v) in values]
        # A layer may compute with other values than the pass has for it, such as noisy ones.
        scope = get_stateless_scope()
        self._values = [scope.get_current_value(v) for v in self.weights]
        # Of frozen weights, the loop sees the values only: it must not read variables.
        frozen = [v for v in layer.cell.variables if all(v is not w for w in self.weights)]
        self._frozen = [(v, tf.convert_to_tensor(v)) for v in frozen]

    def run(self, sequences):
        """Returns (shown outputs [steps, rows, ...], structure of the last states)."""
        initial = tf.nest.flatten(self.initial_state)
        if self.mask is not None:
            initial.append(self._no_output(sequences))
        count, carried = len(initial), len(tf.nest.flatten(self.initial_state))

        @tf.custom_gradient
        def loop(sequences, *rest):
            before, shown, last = self._forward(sequences, rest[:count], rest[count:])

            def backward(d_shown, *d_last):
                return self._backward(sequences, before, rest[count:], d_shown, d_last)

            return (shown, *last), backward

        shown, *last = loop(sequences, *initial, *self._values)
        return shown, tf.nest.pack_sequence_as(self.initial_state, last[:carried])

    def _no_output(self, sequences):
        """Zeros of the shape of an output: what is shown before the first step that is not masked."""
        states = tf.nest.flatten(self.initial_state)
        with self._scope(self._values):
            output, _ = self._cell(sequences[0], states)
        return tf.zeros_like(output)

    def _scope(self, weights):
        """A scope in which the cell computes with the given weights."""
        return keras.StatelessScope([*zip(self.weights, weights, strict=True), *self._frozen])

    def _cell(self, inputs, states):
        states = tf.nest.pack_sequence_as(self.initial_state, states)
        with contextlib.ExitStack() as stack:
            # The layer forgets its dropout masks at the end of its call, before the gradient is taken.
            for cell, masks in self._masks:
                stack.enter_context(replaced(cell, **masks))
            output, new = self.layer.cell(inputs, states, training=self.training)
        return output, tf.nest.flatten(new)

    def _step(self, inputs, masked, carried, weights):
        """Returns (shown output, new carried tensors) of one step."""
        with self._scope(weights):
            if masked is None:
                return self._cell(inputs, carried)
            *states, before = carried
            output, new = self._cell(inputs, states)

        def chosen(a, b):
            return tf.where(tf.reshape(masked, [-1] + [1] * (a.shape.rank - 1)), a, b)

        new = [chosen(a, b) for a, b in zip(new, states, strict=True)]
        shown = chosen(output, before)
        if self.layer.zero_output_for_mask:
            return chosen(output, tf.zeros_like(output)), [*new, shown]
        return shown, [*new, shown]

    def _forward(self, sequences, initial, weights):
        steps = sequences.shape[0] or tf.shape(sequences)[0]

        def array(tensor):
            return tf.TensorArray(
                tensor.dtype, size=steps, element_shape=tensor.shape, clear_after_read=False
            )

        def body(step, before, shown, carried):
            before = [b.write(step, c) for b, c in zip(before, carried, strict=True)]
            output, new = self._step(sequences[step], self._masked(step), carried, weights)
            new = [tf.ensure_shape(n, c.shape) for n, c in zip(new, carried, strict=True)]
            return step + 1, before, shown.write(step, output), new

        with self._scope(weights):
            pattern, _ = self._cell(
                sequences[0], list(initial)[: len(tf.nest.flatten(self.initial_state))]
            )
        start = (tf.constant(0), [*map(array, initial)], array(pattern), list(initial))
        _, before, shown, last = tf.while_loop(
            lambda step, *_: step < steps, body, start, maximum_iterations=steps
        )
        return before, shown.stack(), last

    def _masked(self, step):
        return None if self.mask is None else self.mask[step]

    def _backward(self, sequences, before, weights, d_shown, d_last):
        steps = sequences.shape[0] or tf.shape(sequences)[0]

        def body(step, d_inputs, d_carried, d_weights):
            inputs, carried = sequences[step], [b.read(step) for b in before]
            here = [inputs, *carried, *weights]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(here)
                shown, new = self._step(inputs, self._masked(step), carried, weights)
            found = tape.gradient(
                [shown, *new],
                here,
                output_gradients=[d_shown[step], *d_carried],
                unconnected_gradients="zero",
            )
            d_here, found = found[0], found[1:]
            d_carried = found[: len(carried)]
            parts = zip(d_weights, found[len(carried) :], strict=True)
            d_weights = [total + part for total, part in parts]
            return step - 1, d_inputs.write(step, d_here), d_carried, d_weights

        array = tf.TensorArray(sequences.dtype, size=steps, element_shape=sequences.shape[1:])
        start = (
            tf.constant(0) + steps - 1,
            array,
            list(d_last),
            [tf.zeros_like(weight) for weight in weights],
        )
        _, d_inputs, d_initial, d_weights = tf.while_loop(
            lambda step, *_: step >= 0, body, start, maximum_iterations=steps
        )
        return (d_inputs.stack(), *d_initial, *d_weights)
