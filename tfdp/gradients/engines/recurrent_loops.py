"""The loops of recurrent layers, which `tf.vectorized_map` calls once for the rows of all examples.

TensorFlow's gradient of a loop adds up the gradient of each weight over the steps, which loses the
factors, and keeps every intermediate tensor of every step. Here the loop has a custom gradient. It
keeps the states before each step, runs the steps backwards (`recurrent_steps`), and returns the factors
of the weights' gradients at all steps.

A custom gradient sees only its arguments: inputs, states and the weights of the cell. A cell that may
use anything else is unrolled, which is correct for any cell.
"""

import functools

import keras
import tensorflow as tf

from tfdp._compat.graphs import NotReplayable
from tfdp._compat.keras import ConvLSTMCell, layers_of, replaced
from tfdp._compat.pfor_conversion import at_once, merged
from tfdp._compat.tensorflow import with_gradient
from tfdp.gradients.engines.gated_steps import gated_step
from tfdp.gradients.engines.recurrent_steps import CannotSplitStep, TracedStep
from tfdp.gradients.uses import Use, declare
from tfdp.layers.normalized_lstm import NormalizedLSTMCell

_CELLS = {
    keras.layers.GRUCell,
    keras.layers.LSTMCell,
    keras.layers.SimpleRNNCell,
    keras.layers.StackedRNNCells,
    ConvLSTMCell,
    NormalizedLSTMCell,
}


def inner_loop_for(layer, values: dict):
    """Returns an `inner_loop` for a recurrent layer that can be vectorized over rows.

    Args:
        layer: A `keras.layers.RNN`.
        values: The trainable variables' values in the pass that follows, {id of variable: tensor}.
    """
    return _looped(layer, values) if _is_known(layer) else _unrolled(layer)


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

    A sequence and its mask are reversed before the loop. Keras' own unrolled loop would reverse the
    sequence, but not the mask that hides outputs (`zero_output_for_mask`).
    """

    def inner_loop(sequences, initial_state, mask, training=False):
        if keras.tree.flatten(sequences)[0].shape[1] is None:
            raise NotImplementedError(
                f"Layer '{layer.name}' ({type(layer).__name__}) must be unrolled, but the length of "
                "its sequences is unknown. Pad them to one length, and state it if the data do not: "
                "dataset.map(lambda x, y: (tf.ensure_shape(x, [None, length, size]), y)). Or use "
                "engine='loop'."
            )
        if layer.go_backwards:
            sequences, mask = _reversed(sequences), _reversed(mask)
        with replaced(layer, unroll=True, go_backwards=False):
            return type(layer).inner_loop(layer, sequences, initial_state, mask, training)

    return inner_loop


def _reversed(sequences):
    if sequences is None:
        return None
    return tf.nest.map_structure(lambda sequence: tf.reverse(sequence, [1]), sequences)


def _looped(layer, values):
    """Returns the `inner_loop` of a recurrent layer as a loop with a custom gradient."""

    def inner_loop(sequences, initial_state, mask, training=False):
        mask = None if mask is None else tf.cast(keras.tree.flatten(mask)[0], tf.bool)
        given = sequences, mask
        if layer.go_backwards:
            sequences, mask = _reversed(sequences), _reversed(mask)
        try:
            step = gated_step(layer.cell, values, sequences, training) or TracedStep(
                layer.cell, values, sequences, initial_state, training
            )
        except (CannotSplitStep, NotReplayable):
            return _unrolled(layer)(given[0], initial_state, given[1], training)
        shown, states = _Loop(step, mask).run(initial_state)
        if mask is not None:
            # A masked step keeps the states. Its output is that of the step before, or zeros.
            shows = (
                mask if layer.zero_output_for_mask else tf.cumsum(tf.cast(mask, tf.int32), 1) > 0
            )
            shown = _chosen(shows, [shown], [tf.zeros_like(shown)])[0]
        return shown[:, -1], shown, states

    return inner_loop


def _steps_first(values):
    """Exchanges the first two axes."""
    return tf.transpose(values, [1, 0, *range(2, values.shape.rank)])


def _chosen(mask, new, old):
    """Returns tensors [*shape of the mask, ...], from `new` where the mask is True, else from `old`."""
    chosen = []
    for a, b in zip(new, old, strict=True):
        ones = [1] * (a.shape.rank - mask.shape.rank)
        wide = tf.reshape(mask, tf.concat([tf.shape(mask), ones], axis=0)) if ones else mask
        chosen.append(tf.where(wide, a, b))
    return chosen


class _Loop:
    """One pass through the steps of a recurrent layer.

    Its arguments and results have axes [rows, steps, ...].

    Args:
        step: A `TracedStep`, or a step of `gated_steps`.
        mask: Bool [rows, steps], or None. States do not change where it is False.
    """

    def __init__(self, step, mask):
        self._step = step
        self._masks = [] if mask is None else [mask]
        found = [t for _, sources, saved, _ in step.uses for t in (*sources, *saved)]
        outside = [*map(id, step.outside)]
        self._passed = [*{id(t): t for t in found if id(t) not in outside}.values()]

    def run(self, initial_state):
        """Returns (shown state after each step [rows, steps, ...], structure of the last states)."""
        step, states = self._step, tf.nest.flatten(initial_state)
        given = [step.prepared, self._masks, step.same]
        found, kept = self._at_once(self._forward, [*given, states])

        def backward(d_shown, *d_last):
            parts = [*given, [d_shown], d_last]
            return self._at_once(self._backward, parts, kept)[0]

        arguments = [*step.prepared, *states, *self._taps()]
        shown, *last = with_gradient(found, arguments, backward)
        return shown, tf.nest.pack_sequence_as(initial_state, last)

    def _at_once(self, function, parts, kept=()):
        """Calls a function of lists of tensors with the rows of all examples."""
        lengths = [len(part) for part in parts]

        def taken_apart(rows, *others):
            left = iter(rows)
            return function(*([next(left) for _ in range(n)] for n in lengths), *others)

        return at_once(taken_apart, [t for part in parts for t in part], self._step.shared, kept)

    def _taps(self):
        """Declares the uses of the weights in the steps.

        Returns:
            Tensors [rows, steps, ...] that nothing depends on. As their gradients, `_backward`
            returns the factors from all steps.
        """
        pattern = self._step.prepared[0]
        begin, known = tf.shape(pattern)[:2], [*pattern.shape[:2]]
        taps = {id(tensor): tensor for tensor in self._step.outside}
        for tensor in self._passed:
            tap = tf.zeros(tf.concat([begin, tensor.shape[1:]], axis=0), tensor.dtype)
            taps[id(tensor)] = tf.ensure_shape(tap, [*known, *tensor.shape[1:]])
        for value, sources, saved, gradient in self._step.uses:
            found = [taps[id(tensor)] for tensor in (*sources, *saved)]
            declare(value, Use(found, [], functools.partial(_over_steps, gradient)))
        return [taps[id(tensor)] for tensor in self._passed]

    def _forward(self, sequences, masks, same, states, shared, _):
        """Returns ([shown states, *last states], lists of the states before each step and others)."""
        step, fixed = self._step, self._step.fixed(shared)
        sequences, masks = [*map(_steps_first, sequences)], [*map(_steps_first, masks)]
        steps = _length(sequences)

        def body(place, shown, before, kept, states):
            before = [b.write(place, state) for b, state in zip(before, states, strict=True)]
            now = [sequence[place] for sequence in sequences]
            new, keep = step.forward(now, same, states, fixed)
            if masks:
                new = _chosen(masks[0][place], new, states)
            new = [tf.ensure_shape(a, b.shape) for a, b in zip(new, states, strict=True)]
            kept = [k.write(place, value) for k, value in zip(kept, keep, strict=True)]
            return place + 1, shown.write(place, new[step.shown]), before, kept, new

        kept = self._arrays(step.kept, steps, states)
        start = (
            tf.constant(0),
            *self._arrays([states[step.shown]], steps, states),
            self._arrays(states, steps, states),
            kept,
            states,
        )
        _, shown, before, kept, last = tf.while_loop(
            lambda place, *_: place < steps, body, start, maximum_iterations=steps
        )
        return [_steps_first(shown.stack()), *last], [array.flow for array in (*before, *kept)]

    def _backward(self, sequences, masks, same, d_shown, d_last, shared, kept):
        """Returns ([gradients at `sequences` and at the first states, factors], [])."""
        step, fixed = self._step, self._step.fixed(shared)
        sequences, masks = [*map(_steps_first, sequences)], [*map(_steps_first, masks)]
        (d_shown,) = map(_steps_first, d_shown)
        steps = _length(sequences)
        count = len(d_last)

        def read(lists, patterns, place):
            return [
                tf.raw_ops.TensorListGetItem(
                    input_handle=one,
                    index=place,
                    element_shape=tf.concat([tf.shape(d_last[0])[:1], t.shape[1:]], axis=0),
                    element_dtype=t.dtype,
                )
                for one, t in zip(lists, patterns, strict=True)
            ]

        def body(place, d_sequences, passed, d_states):
            d_states = [
                d + d_shown[place] if i == step.shown else d for i, d in enumerate(d_states)
            ]
            d_new = d_states
            if masks:
                zeros = [*map(tf.zeros_like, d_states)]
                d_new = _chosen(masks[0][place], d_states, zeros)
                stays = _chosen(masks[0][place], zeros, d_states)
            d_now, d_states, now_passed = step.backward(
                [sequence[place] for sequence in sequences],
                same,
                read(kept[:count], d_last, place),
                read(kept[count:], step.kept, place),
                fixed,
                d_new,
            )
            if masks:
                d_states = [a + b for a, b in zip(d_states, stays, strict=True)]
            d_sequences = [a.write(place, d) for a, d in zip(d_sequences, d_now, strict=True)]
            passed = [a.write(place, value) for a, value in zip(passed, now_passed, strict=True)]
            return place - 1, d_sequences, passed, d_states

        at_now = self._arrays([sequence[0] for sequence in sequences], steps, d_last)
        start = (
            tf.constant(0) + steps - 1,
            at_now,
            self._arrays(self._passed, steps, d_last),
            d_last,
        )
        _, at_now, passed, d_states = tf.while_loop(
            lambda place, *_: place >= 0, body, start, maximum_iterations=steps
        )
        at_now, passed = ([_steps_first(a.stack()) for a in some] for some in (at_now, passed))
        return [*at_now, *d_states, *passed], []

    @staticmethod
    def _arrays(patterns, steps, states):
        """Returns an array over the steps for each tensor [None, ...]."""
        rows = states[0].shape[0]
        return [
            tf.TensorArray(t.dtype, size=steps, element_shape=[rows, *t.shape[1:]])
            for t in patterns
        ]


def _length(sequences):
    return sequences[0].shape[0] or tf.shape(sequences[0])[0]


def _over_steps(gradient, *tensors):
    """Returns the gradients of a weight from the factors of all steps, each [rows, 1, steps, ...].

    Every step is first treated as a row; then the steps of a row are added.
    """
    steps = tensors[0].shape[2] or tf.shape(tensors[0])[2]
    found = (tf.transpose(t, [0, 2, 1, *range(3, t.shape.rank)]) for t in tensors)
    return gradient(*map(merged, found)).grouped(steps)
