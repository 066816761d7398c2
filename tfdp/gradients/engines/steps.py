"""Recurrent layers, whose loops `tf.vectorized_map` calls once for the rows of all examples.

TensorFlow's gradient of a loop adds up the gradient of each weight over the steps, where nothing is
left of the factors, and keeps every intermediate tensor of every step. Here the loop has a gradient of
its own. It keeps the states before each step, goes through the steps backwards and computes each of
them again. Of every operation in which a weight meets the step's data (`uses`), it passes on what the
operation was given and the gradient at its output, for all steps: the factors of the weight's gradient.

Such a gradient sees only the tensors that it is given: inputs, states and the weights of the cell. A
cell that may use anything else is unrolled, which is right for any cell.
"""

import contextlib
import functools

import keras
import tensorflow as tf

from tfdp._compat.keras import ConvLSTMCell, dropout_masks, get_stateless_scope, layers_of
from tfdp._compat.pfor_calls import at_once
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.dependence import Dependence
from tfdp.gradients.rules.base import replaced
from tfdp.gradients.uses import Use, declare, uses_of
from tfdp.layers.normalized_lstm import NormalizedLSTMCell

_CELLS = {
    keras.layers.GRUCell,
    keras.layers.LSTMCell,
    keras.layers.SimpleRNNCell,
    keras.layers.StackedRNNCells,
    ConvLSTMCell,
    NormalizedLSTMCell,
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
                loop = _looped(layer, values) if _is_known(layer) else _unrolled(layer)
                stack.enter_context(replaced(layer, inner_loop=loop))
        yield


def _is_known(layer) -> bool:
    """Whether the layer's cell is one whose gradient is known to reach its own weights only."""
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
                "has to be unrolled. Expected sequences of a length that is known while the step is "
                "traced: pad them all to one length, or use engine='loop'."
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
        given = sequences, mask
        if layer.go_backwards:
            sequences, mask = _turned_round(sequences), _turned_round(mask)
        try:
            loop = _Loop(layer, values, sequences, initial_state, mask, training)
            shown, states = loop.run()
        except _NoFactors:
            return _unrolled(layer)(given[0], initial_state, given[1], training)
        return shown[:, -1], shown, states

    return inner_loop


def _steps_first(values):
    """Exchanges the first two axes."""
    return tf.transpose(values, [1, 0, *range(2, values.shape.rank)])


class _NoFactors(Exception):
    """A weight meets the data of a step in an operation whose gradient has no factors."""


class _Loop:
    """One pass of a recurrent layer over its sequences.

    The carried tensors are those of the states, and, where there is a mask, the output shown last. All
    tensors have the rows first, also those of all steps: [rows, steps, ...].

    Args:
        layer: the recurrent layer.
        values: {id of variable: tensor}.
        sequences: [rows, steps, ...].
        initial_state: a structure of tensors [rows, ...].
        mask: bool [rows, steps], or None.
        training: as `inner_loop` takes it.
    """

    def __init__(self, layer, values, sequences, initial_state, mask, training):
        self.layer, self.training = layer, training
        self.sequences, self.initial_state = sequences, initial_state
        self.weights = [v for v in layer.cell.trainable_variables if id(v) in values]
        own = {id(v) for v in self.weights}
        self._frozen = [v for v in layer.cell.weights if id(v) not in own]
        # A layer may compute with other values than the pass has for it, such as noisy ones.
        scope = get_stateless_scope()
        self._values = [scope.get_current_value(v) for v in self.weights]
        self._shared = [*self._values, *map(tf.convert_to_tensor, self._frozen)]
        self._masks = [] if mask is None else [tf.cast(mask, tf.bool)]
        # The layer forgets its dropout masks at the end of its call, before the gradient is taken.
        self._cells = layers_of(layer.cell, itself=True)
        self._drawn = [dropout_masks(cell) for cell in self._cells]
        self._same = [t for t in tf.nest.flatten(self._drawn) if t is not None]
        self._carried = tf.nest.flatten(initial_state)
        self._states = len(self._carried)
        if self._masks:
            output, _ = self._cell(sequences[:, 0], self._carried, self._same, self._shared)
            self._carried = [*self._carried, tf.zeros_like(output)]

    def run(self):
        """Returns (shown outputs [rows, steps, ...], structure of the last states)."""
        taps = self._taps()
        count = len(self._carried)

        @tf.custom_gradient
        def loop(sequences, *rest):
            rows = [sequences, *self._masks, *self._same, *rest[:count]]
            shown, *others = at_once(self._forward, rows, self._shared)

            def backward(d_shown, *d_last):
                rows = [sequences, *self._masks, *self._same, *others[count:], d_shown, *d_last]
                return at_once(self._backward, rows, self._shared)

            return (shown, *others[:count]), backward

        shown, *last = loop(self.sequences, *self._carried, *taps)
        return shown, tf.nest.pack_sequence_as(self.initial_state, last[: self._states])

    def _taps(self):
        """Declares what becomes of the weights in the steps.

        Returns:
            Tensors [rows, steps, ...] that nothing depends on. As their gradients, `_backward` returns
            what the steps pass on.
        """
        found: list = []

        def step(*tensors):
            rows, shared = [*tensors[: len(first)]], [*tensors[len(first) :]]
            inputs, masks, same, carried = self._sorted(rows)
            weights = self._read(shared)
            self._step(inputs, masks, same, carried, weights)
            found[:] = self._uses(weights)
            return _passed_on(found)

        first = [t[:, 0] for t in (self.sequences, *self._masks)] + self._same + self._carried
        specs = [tf.TensorSpec(t.shape, t.dtype) for t in (*first, *self._shared)]
        pattern = concrete_function(tf.function(step, autograph=False), *specs).outputs
        begin, known = tf.shape(self.sequences)[:2], [*self.sequences.shape[:2]]
        taps = []
        for tensor in pattern:
            if not (tensor.dtype.is_floating and tensor.shape[1:].is_fully_defined()):
                raise _NoFactors
            tap = tf.zeros(tf.concat([begin, tensor.shape[1:]], axis=0), tensor.dtype)
            taps.append(tf.ensure_shape(tap, [*known, *tensor.shape[1:]]))
        left = iter(taps)
        for value, uses in zip(self._values, found, strict=True):
            for use in uses:
                sources = [next(left) for _ in (*use.sources, *use.saved)]
                declare(value, Use(sources, [], functools.partial(_over_steps, use.form)))
        return taps

    def _sorted(self, rows):
        """Takes a list of tensors of rows apart: (inputs, masks, what stays the same, the others)."""
        places = [1, 1 + len(self._masks), 1 + len(self._masks) + len(self._same)]
        return rows[0], *(rows[a:b] for a, b in zip(places, [*places[1:], None], strict=True))

    def _read(self, shared):
        """Copies of the weights, so that what becomes of them in one step can be told."""
        return [*map(tf.identity, shared[: len(self.weights)]), *shared[len(self.weights) :]]

    def _uses(self, weights):
        """For each weight that is trained a list of its uses in the step that was traced."""
        of_rows = Dependence(weights)
        found = [uses_of(weight, of_rows) for weight in weights[: len(self.weights)]]
        if any(why is not None for _, why in found):
            raise _NoFactors
        return [uses for uses, _ in found]

    def _cell(self, inputs, states, same, weights):
        states = tf.nest.pack_sequence_as(self.initial_state, states)
        left = iter(same)
        drawn = tf.nest.map_structure(lambda t: None if t is None else next(left), self._drawn)
        variables = [*self.weights, *self._frozen]
        with contextlib.ExitStack() as stack:
            for cell, masks in zip(self._cells, drawn, strict=True):
                stack.enter_context(replaced(cell, **masks))
            stack.enter_context(keras.StatelessScope([*zip(variables, weights, strict=True)]))
            output, new = self.layer.cell(inputs, states, training=self.training)
        return output, tf.nest.flatten(new)

    def _step(self, inputs, masks, same, carried, weights):
        """Returns (shown output, new carried tensors) of one step."""
        if not masks:
            return self._cell(inputs, carried, same, weights)
        (masked,) = masks
        *states, before = carried
        output, new = self._cell(inputs, states, same, weights)

        def chosen(a, b):
            return tf.where(tf.reshape(masked, [-1] + [1] * (a.shape.rank - 1)), a, b)

        new = [chosen(a, b) for a, b in zip(new, states, strict=True)]
        shown = chosen(output, before)
        if self.layer.zero_output_for_mask:
            return chosen(output, tf.zeros_like(output)), [*new, shown]
        return shown, [*new, shown]

    def _forward(self, rows, weights):
        """Returns [shown outputs, last carried tensors, carried tensors before each step]."""
        sequences, masks, same, initial = self._sorted(rows)
        sequences, masks = _steps_first(sequences), [*map(_steps_first, masks)]
        steps = sequences.shape[0] or tf.shape(sequences)[0]

        def array(tensor):
            return tf.TensorArray(tensor.dtype, size=steps, element_shape=tensor.shape)

        def body(step, before, shown, carried):
            before = [b.write(step, c) for b, c in zip(before, carried, strict=True)]
            now = [mask[step] for mask in masks]
            output, new = self._step(sequences[step], now, same, carried, weights)
            new = [tf.ensure_shape(n, c.shape) for n, c in zip(new, carried, strict=True)]
            return step + 1, before, shown.write(step, output), new

        pattern, _ = self._step(sequences[0], [mask[0] for mask in masks], same, initial, weights)
        start = (tf.constant(0), [*map(array, initial)], array(pattern), initial)
        _, before, shown, last = tf.while_loop(
            lambda step, *_: step < steps, body, start, maximum_iterations=steps
        )
        before = [_steps_first(b.stack()) for b in before]
        return [_steps_first(shown.stack()), *last, *before]

    def _backward(self, rows, weights):
        """Returns [gradients at sequences and at initial carried tensors, what the steps pass on]."""
        sequences, masks, same, others = self._sorted(rows)
        count = len(self._carried)
        before, (d_shown, *d_last) = others[:count], others[count:]
        sequences, d_shown = _steps_first(sequences), _steps_first(d_shown)
        masks, before = [*map(_steps_first, masks)], [*map(_steps_first, before)]
        steps = sequences.shape[0] or tf.shape(sequences)[0]

        def gradients(step, d_carried):
            here = [sequences[step], *(b[step] for b in before)]
            reads = self._read(weights)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([*here, *reads])
                now = [mask[step] for mask in masks]
                shown, new = self._step(here[0], now, same, here[1:], reads)
            uses = self._uses(reads)
            sources = [s for found in uses for use in found for s in use.sources]
            found = tape.gradient(
                [shown, *new],
                [*here, *sources],
                output_gradients=[d_shown[step], *d_carried],
                unconnected_gradients="zero",
            )
            at_sources = iter(found[len(here) :])
            passed = [
                t
                for each in uses
                for use in each
                for t in (*(next(at_sources) for _ in use.sources), *use.saved)
            ]
            return found[0], found[1 : len(here)], passed

        def body(step, d_sequences, passed, d_carried):
            d_inputs, d_carried, now = gradients(step, d_carried)
            passed = [p.write(step, value) for p, value in zip(passed, now, strict=True)]
            return step - 1, d_sequences.write(step, d_inputs), passed, d_carried

        def array(dtype, shape):
            return tf.TensorArray(dtype, size=steps, element_shape=shape)

        _, _, pattern = gradients(tf.constant(0), d_last)
        start = (
            tf.constant(0) + steps - 1,
            array(sequences.dtype, sequences.shape[1:]),
            [array(t.dtype, t.shape) for t in pattern],
            d_last,
        )
        _, d_sequences, passed, d_initial = tf.while_loop(
            lambda step, *_: step >= 0, body, start, maximum_iterations=steps
        )
        passed = [_steps_first(p.stack()) for p in passed]
        return [_steps_first(d_sequences.stack()), *d_initial, *passed]


def _passed_on(uses):
    """The tensors of a step that the gradients of the weights are made of, in order."""
    return [t for found in uses for use in found for t in (*use.sources, *use.saved)]


def _over_steps(form, *tensors):
    """The gradients of a weight from what all steps passed on, each [rows, 1, steps, ...].

    Every step is a row of its own, and then the steps of a row are added.
    """
    steps = tensors[0].shape[2] or tf.shape(tensors[0])[2]
    merged = []
    for tensor in tensors:
        order = [0, 2, 1, *range(3, tensor.shape.rank)]
        shape = tf.concat([[-1, tf.shape(tensor)[1]], tf.shape(tensor)[3:]], axis=0)
        found = tf.reshape(tf.transpose(tensor, order), shape)
        merged.append(tf.ensure_shape(found, [None, tensor.shape[1], *tensor.shape[3:]]))
    return form(*merged).grouped(steps)
