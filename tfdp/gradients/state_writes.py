"""Refuses models whose training step would keep what private examples wrote, without any noise.

Formal guarantee: the graph of the forward pass, the loss and their gradients is inspected with all
functions, branches and loop bodies that can be reached from it. Every op in it either has no effect
that outlives it, or is in a short list of ops that are known to keep nothing of the data. Random state,
which a pass may advance, gets new values, and no path in the graph leads to them from an example or its
label. Nor does such a path lead to what is applied after the noise: the gradients of weight
regularizers, and constraints.

The inspection cannot see what the graph does not show: what Python code keeps while it is traced or
executed eagerly, what it writes on a later call only, and data that a layer has held as a constant
from the start.
"""

import contextlib
import dataclasses
import functools
import re

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdp._compat.keras import forget_losses, layers_of
from tfdp._compat.tensorflow import captured, concrete_function, variable_name
from tfdp.gradients.counters import formula
from tfdp.gradients.coupled_losses import refuse_coupled_losses
from tfdp.gradients.forward import keeps_data
from tfdp.gradients.op_effects import EMPTY, GENERATORS, Effect, deed, effect_of
from tfdp.gradients.targets import apart
from tfdp.gradients.vectorizing import layer_of_operation

_WHY = "so it would keep what private examples wrote into it without any noise"
_PYTHON = (
    "calls Python code, which may keep what it is given without any noise. Expected operations of "
    "TensorFlow or keras.ops only. Write the function with these, or apply it to the data before "
    "training"
)
_REMEDY = (
    "Expected layers, losses and regularizers that only read their variables and tables in training. "
    "Remove what writes, or compute the statistic from public data before training"
)


@dataclasses.dataclass(frozen=True)
class Pass:
    """What the trace of a training pass showed besides that the pass keeps nothing.

    Attributes:
        outputs: the `tf.TensorSpec`s of the model's outputs, with as many rows as were traced.
        updates_metrics: whether the forward pass updates metrics, as layers with metrics do.
        loss_updates_metrics: whether `compute_loss` does.
        adds_losses: whether the forward pass adds losses (`add_loss`), which `compute_loss` reads.
        counters: pairs of a variable that the pass assigns without looking at the data, and the
            `counters.formula` of its new value.
        without_effect: the paths of trained variables that the loss does not depend on.
    """

    outputs: object
    updates_metrics: bool
    loss_updates_metrics: bool
    adds_losses: bool
    counters: tuple = ()
    without_effect: tuple = ()


def refuse_hidden_state(forward, x, y) -> Pass:
    """Calls `refuse_writes` unless the model, with inputs of these shapes, has passed it unchanged.

    From then on `forward` may assign to the counters that were found.

    Args:
        forward: the `Forward` of a built and compiled model.
        x, y: structures of tensors or `tf.TensorSpec`s [rows, ...]; only their shapes and dtypes
            matter.

    Returns:
        What `refuse_writes` returned for these shapes.

    Raises:
        ValueError: as `refuse_writes`, or as `refuse_coupled_losses`.
    """
    parts = _parts(forward)
    weighted = apart(y)[1] is not None
    specs = (weighted, tf.nest.map_structure(lambda leaf: _spec(leaf, None), (x, y)))
    checked = vars(forward.model).get("_tfdp_checked")
    if checked is None or not checked.is_for(parts):
        checked = _Checked(parts)
        # Past Keras' attribute tracking: nothing in here may be saved.
        vars(forward.model)["_tfdp_checked"] = checked
    for known, found in checked.passes:
        if known == specs:
            forward.permit(found.counters)
            return found
    found = refuse_writes(forward, x, y)
    refuse_coupled_losses(forward.model, x, y, found.outputs)
    _refuse_without_effect(forward, found.without_effect)
    checked.passes.append((specs, found))
    return found


def _refuse_without_effect(forward, paths):
    """Raises ValueError if the loss depends on no trained variable; warns if it leaves out some.

    Such a variable gets noise without any signal. This concerns no privacy, but the trained model.
    """
    if not paths:
        return
    shown = ", ".join(f"'{path}'" for path in paths[:3])
    if len(paths) > 3:
        shown += f" and {len(paths) - 3} more"
    model = forward.model.name
    if len(paths) == len(forward.variables):
        raise ValueError(
            f"The loss of model '{model}' depends on none of its trained weights ({shown}), so "
            "training would spend privacy and move them by noise only. Expected a loss of outputs "
            "that are computed with them, without stop_gradient or whole numbers in between, and "
            "layer.trainable = True for the layers that should learn."
        )
    logging.warning(
        "The loss of model '%s' does not depend on the trained weights %s. They get noise and learn "
        "nothing. Freeze their layers (layer.trainable = False).",
        model,
        shown,
    )


def refuse_writes(forward, x, y) -> Pass:
    """Traces the training pass once and raises where it would keep something of private data.

    Args:
        forward: the `Forward` of a built and compiled model.
        x, y: structures of tensors or `tf.TensorSpec`s [rows, ...]; only their shapes and dtypes
            matter.

    Raises:
        ValueError: an op writes, or is not known not to write (the error names its layer and the
            remedy); or random state, a weight penalty or a constraint depends on the data.
    """
    trace = _Trace(forward, x, y)
    counters = _counters(forward, x, y, trace)
    forward.permit(counters)
    for variable, value in trace.random:
        if trace.depends_on_data(value):
            raise ValueError(
                f"Random state '{variable.path}' is assigned a value that depends on the inputs or "
                f"targets, {_WHY}. Expected a seed generator or a noisy layer that only moves on to "
                "its next numbers. Keep nothing else in its state."
            )
    for variable, value in trace.after_noise:
        if value is not None and trace.depends_on_data(value):
            raise ValueError(
                f"The regularizer or constraint of variable '{variable.path}' depends on the inputs or "
                "targets. It is applied after the noise, where nothing bounds it. Expected a function "
                "of the weight alone. Add penalties on activations with add_loss or "
                "activity_regularizer instead, which are part of an example's loss."
            )
    return dataclasses.replace(trace.found, counters=counters)


def _counters(forward, x, y, trace) -> tuple:
    """Returns the assigned variables that are no random state, and whose new values keep nothing.

    Raises:
        ValueError: a variable may keep something of the data.
    """
    if not trace.counting:
        return ()
    other = _Trace(forward, x, y, more_rows=1)
    again = {id(variable): how for variable, how in other.counting}
    for variable, how in trace.counting:
        if how is None or how != again.get(id(variable)):
            raise ValueError(keeps_data(variable))
    return tuple(trace.counting)


class _Checked:
    """The model's parts and the kinds of inputs that have passed. A plain object, never saved."""

    def __init__(self, parts):
        self.parts = parts
        self.passes = []  # (kind of input, its `Pass`)

    def is_for(self, parts):
        return len(parts) == len(self.parts) and all(map(_same, parts, self.parts))


def _same(a, b):
    return a[0] == b[0] and a[1] is b[1]


def _parts(forward):
    """Lists what the trace depends on: the layers, what they can call, the variables."""
    model = forward.model
    found = [("class", type(model))]
    for layer in layers_of(model, itself=True):
        found.append(("layer", layer))
        found += [
            (name, value)
            for name, value in vars(layer).items()
            if callable(value) and name not in _NOT_IN_A_PASS
        ]
    for variable in [*forward.variables, *forward.state_variables]:
        found.append(("variable", variable))
        found.append(("regularizer", variable.regularizer))
        found.append(("constraint", variable.constraint))
    return found


_NOT_IN_A_PASS = {"predict_function", "test_function", "train_function"}


def _spec(leaf, rows):
    if leaf is None:
        return None
    shape = tf.TensorShape(leaf.shape)
    if shape.rank is not None:
        shape = [rows, *shape[1:]]
    return tf.TensorSpec(shape, tf.as_dtype(leaf.dtype))


class _Trace:
    """The graph of one training pass, inspected while it is traced and never executed.

    If the shapes of the inputs are static, so are all shapes that do not depend on data.

    Attributes:
        graph: the traced graph.
        random: (variable, new value) for the random state that the pass advances.
        counting: (variable, `formula` of its new value) for other variables that the pass assigns.
        found: the `Pass`.
        after_noise: (variable, tensor) for what is applied after the noise: the gradients of
            regularizers, and constrained weights. The tensor is None where a variable has none.
    """

    def __init__(self, forward, x, y, more_rows=0):
        self.model = forward.model
        self._ends = []
        # The number of rows is static, so that a shape is only dynamic if it depends on values.
        first = tf.TensorShape(tf.nest.flatten(x)[0].shape)
        rows = ((first.rank and first[0]) or 2) + more_rows
        specs = tf.nest.map_structure(lambda leaf: _spec(leaf, rows), (x, y))
        try:
            # This is not done in tf.init_scope(), where no tape records.
            traced = tf.function(functools.partial(self._run, forward), autograph=False)
            self._concrete = concrete_function(traced, *specs)  # keeps the graph alive
        finally:
            forward.permit(())
            forget_losses(forward.model)  # losses from add_loss belong to this graph

    def _run(self, forward, x, y):
        # TensorFlow traces a function that creates variables twice; the second trace counts.
        self._ends.clear()
        self.graph = tf.compat.v1.get_default_graph()
        walk = _Walk(self)

        def ends(phase):
            self._ends.append((len(self.graph.get_operations()), phase))
            walk.go_on()

        # What is assigned is examined, not executed.
        forward.permit([(variable, None) for variable in forward.state_variables])
        self._data = [leaf for leaf in tf.nest.flatten((x, y)) if leaf is not None]
        values = [tf.convert_to_tensor(v) for v in forward.variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            start = forward.state()
            y_pred, scope, state = forward.outputs(values, start, x)
            ends("the forward pass")
            seen = [forward.metrics_before, forward.metric_values(scope)]
            adds = bool(scope.losses)
            before = [scope.get_current_value(v) for v in forward.state_variables]
            loss = forward.loss(scope, x, y, y_pred)
            ends("the loss or a penalty")
        for variable, value in zip(forward.state_variables, before, strict=True):
            if scope.get_current_value(variable) is not value and not forward.is_random(variable):
                raise ValueError(
                    f"Variable '{variable.path}' is assigned while the loss is computed, {_WHY}. "
                    f"{_REMEDY}."
                )
        self.found = Pass(
            outputs=tf.nest.map_structure(lambda leaf: _spec(leaf, leaf.shape[0]), y_pred),
            updates_metrics=_differ(seen[0], seen[1]),
            loss_updates_metrics=_differ(seen[1], forward.metric_values(scope)),
            adds_losses=adds,
        )
        # Functions with a custom gradient may write in their gradient.
        gradients = tape.gradient(loss, values)
        ends("a gradient")
        pairs = zip(forward.variables, gradients, strict=True)
        unused = tuple(variable.path for variable, g in pairs if g is None)
        self.found = dataclasses.replace(self.found, without_effect=unused)
        assigned = [
            (variable, new)
            for variable, new in zip(forward.state_variables, state, strict=True)
            if new is not None
        ]
        self.random = [(v, new) for v, new in assigned if forward.is_random(v)]
        self.counting = [
            (v, formula(new, start)) for v, new in assigned if not forward.is_random(v)
        ]
        penalties = forward.regularization()
        ends("a weight regularizer")
        constrained = [
            None if v.constraint is None else tf.convert_to_tensor(v.constraint(value))
            for v, value in zip(forward.variables, values, strict=True)
        ]
        ends("a weight constraint")
        self.after_noise = [
            *zip(forward.variables, penalties, strict=True),
            *zip(forward.variables, constrained, strict=True),
        ]
        return [g for g in gradients if g is not None]

    def phase(self, position: int) -> str:
        """Returns the phase of the training pass to which op number `position` belongs."""
        return next((phase for end, phase in self._ends if position < end), "the forward pass")

    def depends_on_data(self, value) -> bool:
        """Whether a path leads from an input or a target to `value`."""
        data = {leaf.ref() for leaf in self._data}
        return _reaches(tf.nest.flatten(value, expand_composites=True), data)


def _differ(before, after):
    # Metrics that were made in between come last.
    before = before + [None] * (len(after) - len(before))
    return any(a is not b for a, b in zip(before, after, strict=True))


def _reaches(tensors, sources):
    waiting, seen = [t for t in tensors if tf.is_tensor(t)], set()
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in sources:
            return True
        operation = getattr(tensor, "op", None)
        if operation is not None and operation not in seen:
            seen.add(operation)
            waiting += operation.inputs
    return False


class _Walk:
    """Inspects every op of a trace, including those of the functions that it calls."""

    def __init__(self, trace):
        self._trace = trace
        self._done = 0
        self._waiting, self._seen = [], set()

    def go_on(self):
        """Inspects the ops that were added to the graph since the last call.

        Raises:
            ValueError: an op writes, or is not known not to write.
        """
        library = self._trace.graph.as_graph_def().library
        self._functions = {f.signature.name: f for f in library.function}
        self._gradients = {g.function_name: g.gradient_func for g in library.gradient}
        operations = self._trace.graph.get_operations()
        first, self._done = self._done, len(operations)
        for position, operation in enumerate(operations[first:], first):
            where = functools.partial(self._where, operation, position)
            effect = self._effect_of(operation.type, where)
            if effect is Effect.NONE:
                continue
            node = operation.node_def
            moves = operation.type in GENERATORS and self._trace.depends_on_data(
                operation.inputs[GENERATORS[operation.type]]
            )
            self._look(node, effect, moves, where, self._target(operation))
        while self._waiting:
            name, where = self._waiting.pop()
            self._look_inside(name, where)

    def _look_inside(self, name, where):
        if name in self._seen:
            return
        self._seen.add(name)
        if name not in self._functions:
            raise ValueError(
                f"Function '{name}' is called {where()}, and its body cannot be seen, so that nothing "
                f"says that it keeps nothing of private examples. {_REMEDY}."
            )
        definition = self._functions[name]
        if name in self._gradients:
            self._waiting.append((self._gradients[name], where))
        for node in definition.node_def:
            effect = self._effect_of(node.op, where)
            if effect is not Effect.NONE:
                moves = node.op in GENERATORS and _depends_on_arguments(
                    definition, node.input[GENERATORS[node.op]]
                )
                self._look(node, effect, moves, where, "")

    def _effect_of(self, op, where):
        """Returns the effect of a node of type `op`, which may be the name of a function that it calls.

        TensorFlow writes calls that way where a loop was built for TensorFlow 1, as that of CTC.
        """
        if op in self._functions:
            self._waiting.append((op, where))
            return Effect.NONE
        return effect_of(op)

    def _look(self, node, effect, moves, where, target):
        op = f"Op '{node.op}' ('{node.name}')"
        if effect is Effect.PYTHON:
            raise ValueError(f"{op} {where()} {_PYTHON}.")
        if effect is Effect.WRITES:
            raise ValueError(
                f"{op} {where()} {deed(node.op)}{target}, {_WHY}. {_REMEDY}. (What tfdp knows to keep "
                "nothing is listed in tfdp/gradients/op_effects.py.)"
            )
        if node.op == "PrintV2" and node.attr["output_stream"].s.startswith(b"file://"):
            raise ValueError(
                f"{op} {where()} prints to a file, {_WHY}. Expected tf.print to the screen only."
            )
        if node.op == EMPTY and not node.attr["init"].b:
            raise ValueError(
                f"{op} {where()} takes memory without clearing it, where private examples of earlier "
                "steps may still be without any noise. Expected tf.zeros."
            )
        if moves:
            raise ValueError(
                f"{op} {where()} moves the counter of a tf.random.Generator on by an amount that may "
                f"depend on the inputs or targets, {_WHY}. Expected a number of draws that only "
                "depends on static shapes. Use keras.random with a keras.random.SeedGenerator."
            )
        for attribute in node.attr.values():
            for function in (attribute.func, *attribute.list.func):
                if function.name:
                    self._waiting.append((function.name, where))

    def _where(self, operation, position):
        """Describes the place in the user's model from which an op comes."""
        phase = self._trace.phase(position)
        layer = None
        if phase in ("the forward pass", "a gradient"):
            layer = layer_of_operation(self._trace.model, operation.name)
        what = f"in {phase}"
        if layer is not None:
            what = f"in layer '{layer.name}' ({type(layer).__name__})"
        frame = _users_frame(operation)
        return what if frame is None else f"{what}, {frame.filename}:{frame.lineno}"

    def _target(self, operation):
        """Returns the name of the variable that an op writes, or "" if the graph does not show it."""
        handles = [t for t in operation.inputs if t.dtype == tf.resource]
        if len(handles) != 1:
            return ""
        names = [
            variable_name(outside)
            for outside, inside in captured(self._trace.graph)
            if inside is handles[0]
        ]
        return f" '{names[0]}'" if names and names[0] else ""


def _depends_on_arguments(definition, name):
    """Whether value `name` in a function may depend on the function's arguments (not resources)."""
    arguments = {a.name for a in definition.signature.input_arg if a.type != tf.resource}
    nodes = {node.name: node for node in definition.node_def}
    waiting, seen = [name], set()
    while waiting:
        name = waiting.pop().split(":")[0]
        if name in arguments:
            return True
        if name in nodes and name not in seen:
            seen.add(name)
            waiting += [i for i in nodes[name].input if not i.startswith("^")]
    return False


_LIBRARIES = (
    *(re.sub(r"__init__\.py$", "", module.__file__) for module in (tf, keras, np)),
    contextlib.__file__,
    re.sub(r"gradients/state_writes\.py$", "", __file__),
)


def _users_frame(operation):
    """Returns the innermost stack frame that is not in a library's code, or None."""
    frames = operation.traceback or ()
    mine = [f for f in frames if not f.filename.startswith(_LIBRARIES)]
    return mine[-1] if mine else None
