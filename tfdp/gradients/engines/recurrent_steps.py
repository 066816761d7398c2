"""One step of a recurrent layer, for the loops of `recurrent_loops`.

A step is split in two. Tensors that depend only on the inputs, such as their product with the kernel,
are computed for all steps at once, before the loop, by ordinary operations of the pass. The loop does
the rest. For each of its operations that combine a weight with data (`uses`), it returns the
operation's inputs and the gradient at its output: the factors of the weight's gradient.
"""

import abc
import contextlib

import keras
import tensorflow as tf

from tfdp._compat.graphs import Dependence, captured, reached, replayed
from tfdp._compat.keras import dropout_masks, get_stateless_scope, layers_of, replaced
from tfdp._compat.pfor_conversion import merged
from tfdp._compat.tensorflow import concrete_function
from tfdp.gradients.uses import uses_of


class CannotSplitStep(Exception):
    """Error for a step that cannot be split, or a weight whose gradient has no factors."""


class RecurrentStep(abc.ABC):
    """One step of a recurrent layer, for `recurrent_loops`.

    Attributes:
        prepared: Tensors [rows, steps, ...] of the pass, which depend on the inputs only.
        same: Tensors [rows, ...] that all steps share: dropout masks.
        shared: The values of the cell's weights.
        shown: The number of the state that is the output.
        kept: A `tf.TensorSpec` for each tensor that `forward` keeps.
        uses: A list of (value of a weight, sources, saved tensors, gradient), as in `Use`. Sources
            and saved tensors are some of `outside`, or `tf.TensorSpec`s that stand for the factors
            that `backward` returns, each once, in their order.
        outside: Tensors [rows, steps, ...] of the pass.
    """

    same = kept = outside = ()
    shown = 0

    @abc.abstractmethod
    def fixed(self, shared):
        """Returns tensors that all steps compute from the weights alone."""

    @abc.abstractmethod
    def forward(self, now, same, states, fixed):
        """Computes one step.

        Args:
            now: The tensors of `prepared` at this step, [rows, ...].
            same, states: [rows, ...].
            fixed: The result of the method `fixed`.

        Returns:
            (new states, tensors to keep).
        """

    @abc.abstractmethod
    def backward(self, now, same, states, kept, fixed, d_new):
        """Computes the gradients of one step.

        Args:
            now, same, states, fixed: As in `forward`.
            kept: The tensors that `forward` kept.
            d_new: The gradients at the new states.

        Returns:
            (gradients at `now`, gradients at `states`, factors).
        """


class TracedStep(RecurrentStep):
    """A step that is found in the traced graph of a cell.

    Args:
        cell: A cell that uses only its inputs, states, weights and dropout masks.
        values: The trainable variables' values in the pass, {id of variable: tensor}.
        sequences: The inputs, [rows, steps, ...].
        states: The states before the first step, a structure of tensors [rows, ...].
        training: The argument of the cell.

    Raises:
        CannotSplitStep, NotReplayable: If the step cannot be split.
    """

    def __init__(self, cell, values, sequences, states, training):
        trained = [v for v in cell.trainable_variables if id(v) in values]
        own = {id(v) for v in trained}
        variables = [*trained, *(v for v in cell.weights if id(v) not in own)]
        self.shared = [*map(value_in_pass, variables)]
        # The layer forgets its dropout masks at the end of its call, before the gradient is taken.
        cells = layers_of(cell, itself=True)
        drawn = [dropout_masks(one) for one in cells]
        self.same = [t for t in tf.nest.flatten(drawn) if t is not None]

        def step(inputs, same, states, weights):
            left = iter(same)
            masks = tf.nest.map_structure(lambda t: None if t is None else next(left), drawn)
            with contextlib.ExitStack() as stack:
                for one, its_masks in zip(cells, masks, strict=True):
                    stack.enter_context(replaced(one, **its_masks))
                stack.enter_context(keras.StatelessScope([*zip(variables, weights, strict=True)]))
                output, new = cell(inputs, states, training=training)
            return output, tf.nest.flatten(new)

        self._trace(step, sequences, states)
        self._passed = {}  # {(reference to tensor, whether its gradient is a factor): its spec}
        late = reached(self._states)
        of_rows = Dependence(self._weights)
        self.uses = []
        for value, weight in zip(self.shared, self._weights[: len(trained)], strict=False):
            found = uses_of(weight, of_rows)
            if any(use.unknown is not None for use in found):
                raise CannotSplitStep
            # Uses before the loop are among the operations of the pass.
            found = [use for use in found if any(source.op in late for source in use.sources)]
            for use in found:
                sources, saved = self._of(use.sources, True), self._of(use.saved, False)
                self.uses.append((value, sources, saved, use.gradient))
        self._cut(late)
        known = self._known(same=self._of_all_steps(sequences), weights=self.shared)
        known[self._inputs.ref()] = merged(sequences)
        self.prepared = by_steps(replayed(self._early, known), sequences)

    def _of(self, tensors, gradients):
        """Returns the specs of tensors that are factors, or of the gradients at tensors."""
        return [
            self._passed.setdefault((t.ref(), gradients), tf.TensorSpec(t.shape, t.dtype))
            for t in tensors
        ]

    def _of_all_steps(self, sequences):
        return [tf.repeat(tensor, tf.shape(sequences)[1], axis=0) for tensor in self.same]

    def _trace(self, step, sequences, states):
        def of_rows(tensor, first=1):
            return tf.TensorSpec([None, *tensor.shape[first:]], tensor.dtype)

        specs = (
            of_rows(sequences, 2),
            [*map(of_rows, self.same)],
            tf.nest.map_structure(of_rows, states),
            [tf.TensorSpec(t.shape, t.dtype) for t in self.shared],
        )
        traced = {}

        def function(inputs, same, states, weights):
            weights = [*map(tf.identity, weights)]  # so that their uses can be found
            traced.update(inputs=inputs, same=same, states=tf.nest.flatten(states), weights=weights)
            output, new = step(inputs, same, states, weights)
            traced.update(new=new, shown=[i for i, state in enumerate(new) if state is output])
            return new

        # The graph lives as long as the function.
        self._function = concrete_function(tf.function(function, autograph=False), *specs)
        if captured(self._function.graph) or not traced["shown"]:
            raise CannotSplitStep
        self.shown = traced["shown"][0]
        self._inputs, self._same, self._states = (traced[k] for k in ("inputs", "same", "states"))
        self._weights, self._new = traced["weights"], traced["new"]

    def _cut(self, late):
        """Finds the tensors at which the loop begins: of the inputs `_early`, of weights `_fixed`."""
        moving = reached([self._inputs, *self._same, *self._states])
        of_inputs = reached([self._inputs])
        early, fixed, seen = {}, {}, set()
        waiting = [*self._new, *(reference.deref() for reference, _ in self._passed)]
        while waiting:
            tensor = waiting.pop()
            if tensor.ref() in seen:
                continue
            seen.add(tensor.ref())
            is_numbers = tensor.dtype.is_floating
            has_rows = bool(tensor.shape.rank) and tensor.shape[0] is None
            if tensor.op not in moving:
                if is_numbers and tensor.op.type != "Const":
                    fixed[tensor.ref()] = tensor
            elif tensor is self._inputs or (
                is_numbers and has_rows and tensor.op in of_inputs and tensor.op not in late
            ):
                early[tensor.ref()] = tensor
            else:
                waiting += tensor.op.inputs
        self._early, self._fixed = [*early.values()], [*fixed.values()]

    def _known(self, now=(), same=(), states=(), weights=(), fixed=()):
        pairs = [(self._early, now), (self._same, same), (self._states, states)]
        pairs += [(self._weights, weights), (self._fixed, fixed)]
        return {
            tensor.ref(): value
            for tensors, values in pairs
            for tensor, value in zip(tensors, values, strict=bool(values))
        }

    def fixed(self, shared):
        return replayed(self._fixed, self._known(weights=shared))

    def _run(self, now, same, states, fixed):
        known = self._known(now=now, same=same, states=states, fixed=fixed)
        passed = [reference.deref() for reference, _ in self._passed]
        found = replayed([*self._new, *passed], known)
        return found[: len(states)], found[len(states) :]

    def forward(self, now, same, states, fixed):
        new, _ = self._run(now, same, states, fixed)
        return new, []

    def backward(self, now, same, states, kept, fixed, d_new):
        del kept
        now, states = [*map(tf.identity, now)], [*map(tf.identity, states)]
        new, passed = self._run(now, same, states, fixed)
        is_source = [gradient for _, gradient in self._passed]
        sources = [t for t, gradient in zip(passed, is_source, strict=True) if gradient]
        wanted = [*now, *states, *sources]
        found = tf.gradients(new, wanted, d_new, unconnected_gradients="zero")
        count = len(now) + len(states)
        left = iter(found[count:])
        passed = [
            next(left) if gradient else tensor
            for tensor, gradient in zip(passed, is_source, strict=True)
        ]
        return found[: len(now)], found[len(now) : count], passed


def value_in_pass(variable):
    """Returns the value of a variable that a layer computes with, such as noisy weights."""
    value = get_stateless_scope().get_current_value(variable)
    return tf.convert_to_tensor(variable if value is None else value)


def by_steps(tensors, sequences):
    """Reshapes [rows * steps, ...] to [rows, steps, ...], as `sequences` has them."""
    apart = []
    for tensor in tensors:
        shape = tf.concat([tf.shape(sequences)[:2], tf.shape(tensor)[1:]], axis=0)
        known = [*sequences.shape[:2], *tensor.shape[1:]]
        apart.append(tf.ensure_shape(tf.reshape(tensor, shape), known))
    return apart
