"""Checks a model's forward pass once before it trains, on a graph of a few rows.

Operations that assign to variables or tables, such as running statistics and caches, are refused,
because they would store private data without noise. Keras' own variables are assigned in a scope that
drops new values. Variables that may advance (seeds, counters) must not depend on the data.

This guards against mistakes. Data that Python code keeps are not visible in a graph.
"""

import dataclasses
import operator
import re

import tensorflow as tf
from absl import logging

from tfdp._compat.graphs import captured, is_custom_gradient
from tfdp._compat.keras import compiled_loss, forget_losses, layers_of
from tfdp._compat.tensorflow import (
    concrete_function,
    outside_of_graphs,
    variable_name,
)
from tfdp.gradients.forward import state_error
from tfdp.gradients.mixed_rows import ROWS, refuse_mixed_rows
from tfdp.gradients.targets import apart
from tfdp.gradients.vectorizing import layer_of_operation

_WRITES = re.compile(
    "Assign|Resource(Scatter|StridedSliceAssign|Apply|SparseApply|CountUpTo)"
    "|LookupTable(Insert|Import|Remove)|QueueEnqueue|StackPush"
)


@dataclasses.dataclass(frozen=True)
class Pass:
    """Facts about a model that its traced forward pass shows.

    Attributes:
        outputs: The `tf.TensorSpec`s of the model's outputs, for a few rows.
        updates_metrics: Whether the forward pass updates metrics, as layers with metrics do.
        loss_updates_metrics: Whether `compute_loss` does.
        adds_losses: Whether the forward pass adds losses (`add_loss`), which `compute_loss` reads.
        row_bytes: Approximate bytes of floats that the pass computes for one row.
        counters: Variables that the pass advances independently of data and weights.
    """

    outputs: object
    updates_metrics: bool
    loss_updates_metrics: bool
    adds_losses: bool
    row_bytes: int
    counters: tuple = ()


def examine(forward, x, y) -> Pass:
    """Traces the forward pass and the loss, once per model, loss and rank of the inputs.

    Afterwards `forward` may advance the counters that were found, and its `row_bytes` is set.

    Args:
        forward: The `Forward` of a built and compiled model.
        x, y: Structures of tensors or `tf.TensorSpec`s [rows, ...]. y may be `WeightedTargets`.
            Only shapes and dtypes matter.

    Raises:
        ValueError: If the model or its loss stores private data or mixes rows, or the loss depends
            on no trained weight.
    """
    model = forward.model
    parts = [*layers_of(model, itself=True), *forward.variables, *forward.state_variables]
    parts.append(compiled_loss(model))
    kind = (apart(y)[1] is None, tf.nest.map_structure(_kind, (x, y)))
    known = vars(model).get("_tfdp_examined")
    if known is None or not known.is_of(parts, kind):
        with outside_of_graphs():
            found = _examined(forward, *tf.nest.map_structure(_few_rows, (x, y)))
        # Bypasses Keras' attribute tracking. It is no container, whose layers Keras would save again.
        known = vars(model)["_tfdp_examined"] = _Known(parts, kind, found)
    found = known.found
    forward.permit(found.counters)
    forward.row_bytes = found.row_bytes
    return found


@dataclasses.dataclass(frozen=True)
class _Known:
    parts: list
    kind: tuple
    found: Pass

    def is_of(self, parts, kind):
        same = len(parts) == len(self.parts) and all(map(operator.is_, parts, self.parts))
        return same and kind == self.kind


def _kind(leaf):
    return tf.as_dtype(leaf.dtype), tf.TensorShape(leaf.shape).rank


def _few_rows(leaf):
    return tf.TensorSpec([ROWS, *tf.TensorShape(leaf.shape)[1:]], tf.as_dtype(leaf.dtype))


def _examined(forward, x, y):
    traced = {}

    def run(x, y, values):
        outputs, scope, state = forward.outputs(values, forward.state(), x)
        specs = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape, leaf.dtype), outputs)
        traced.update(outputs=specs, values=values, state=state)
        traced.update(_noted(forward, x, y, outputs, scope))
        return tf.nest.flatten(outputs), traced["losses"]

    def trace(x, y):
        values = [tf.TensorSpec(v.shape, v.dtype) for v in forward.variables]
        return concrete_function(tf.function(run, autograph=False), x, y, values)

    forward.permit(forward.state_variables)  # assignments are only traced here
    try:
        concrete = trace(x, y)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        _explain(forward.model, error, trace, x, y, traced.get("outputs"))
    finally:
        forward.permit(())
        forget_losses(forward.model)  # losses from add_loss belong to this graph
    _refuse_writes(forward.model, concrete.graph)
    counters = _counters(forward, traced)
    if forward.variables:
        _refuse_without_effect(forward, traced)
        _refuse_in_custom_gradients(forward, traced)
        forward.permit(counters)
        refuse_mixed_rows(forward, concrete, x, y, traced["outputs"])
    return Pass(
        outputs=traced["outputs"],
        updates_metrics=traced["updates"],
        loss_updates_metrics=traced["loss_updates"],
        adds_losses=bool(traced["losses"]),
        row_bytes=traced["row_bytes"],
        counters=counters,
    )


def _explain(model, error, trace, x, y, outputs):
    """Raises the error of the pass for an unknown number of rows, or says that it needs a fixed one.

    That is so, too, if targets and outputs do not fit each other and TensorFlow cannot know it.
    `outputs` are None unless it is the loss that fails.
    """

    def unknown(leaf):
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype)

    try:
        trace(*tf.nest.map_structure(unknown, (x, y)))
    except type(error) as general:
        raise general from None  # something else is wrong; these shapes have no number of rows
    except Exception:
        raise error from None
    fixed = (
        "a fixed number of rows, such as the batch size in a reshape. In private training rows pass "
        "alone or a few at a time: write -1, or keras.ops.shape(x)[0], for the number of rows."
    )
    if outputs is None:
        raise ValueError(f"Model '{model.name}' has {fixed} ({error})") from error
    targets, weights = map(_shapes, apart(y))
    weighing = "" if weights is None else f" and weights {weights}"
    raise ValueError(
        f"The loss of model '{model.name}' does not fit targets of shape {targets}{weighing} with "
        f"outputs {_shapes(outputs)}, such as 'mse' with labels for outputs of several numbers: make "
        f"these one-hot, and weights one for each value of the loss. Or it has {fixed} ({error})"
    ) from error


def _shapes(specs):
    """Returns the shapes in a structure, as errors show them."""
    if specs is None:
        return None
    shown = tf.nest.map_structure(
        lambda s: f"({', '.join(map(str, ['rows', *s.shape[1:]]))})", specs
    )
    return str(shown).replace("'", "")


def _noted(forward, x, y, outputs, scope):
    """Computes the loss in the graph of a pass, and returns facts about both."""
    row_bytes = _bytes_of_data(tf.nest.flatten(x)) // ROWS
    losses, metrics = list(scope.losses), forward.metric_values(scope)
    before = [scope.get_current_value(v) for v in forward.state_variables]
    loss = forward.loss(scope, x, y, outputs)
    for variable, value in zip(forward.state_variables, before, strict=True):
        if scope.get_current_value(variable) is not value and not forward.is_random(variable):
            raise ValueError(state_error(variable))
    return {
        "data": tf.nest.flatten((x, y)),
        "loss": loss,
        "losses": losses,
        "row_bytes": row_bytes,
        "updates": _differ(forward.metrics_before, metrics),
        "loss_updates": _differ(metrics, forward.metric_values(scope)),
    }


def _differ(before, after):
    # Metrics that were created in between come last.
    before = before + [None] * (len(after) - len(before))
    return any(a is not b for a, b in zip(before, after, strict=True))


def _bytes_of_data(data):
    """Returns the bytes of all floats of known shape that depend on `data` in the current graph."""
    known, total = {leaf.ref() for leaf in data}, 0
    for operation in tf.compat.v1.get_default_graph().get_operations():
        if any(tensor.ref() in known for tensor in operation.inputs):
            known |= {tensor.ref() for tensor in operation.outputs}
            floats = [tensor for tensor in operation.outputs if tensor.dtype.is_floating]
            total += sum((t.shape.num_elements() or 0) * t.dtype.size for t in floats)
    return total


def _counters(forward, traced):
    """Returns the variables, other than random state, that the pass advances.

    Raises:
        ValueError: If a new value depends on an example, a label or a weight.
    """
    sources = {tensor.ref() for tensor in [*traced["data"], *traced["values"]]}
    found = [*zip(forward.state_variables, traced["state"], strict=True)]
    for variable, new in found:
        if new is not None and sources & _sources_of(new):
            raise ValueError(state_error(variable))
    return tuple(v for v, new in found if new is not None and not forward.is_random(v))


def _sources_of(*tensors, differentiable=False, known=()):
    """References to all tensors of a graph that `tensors` are computed from, without `known`."""
    waiting, seen = [*tensors], {*known}
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        whole = tensor.dtype.is_integer or tensor.dtype.is_bool
        if not (differentiable and (whole or tensor.op.type == "StopGradient")):
            waiting += tensor.op.inputs
    return seen


def _refuse_writes(model, graph):
    definition = graph.as_graph_def()
    functions = {function.signature.name: function for function in definition.library.function}
    for node in definition.node:
        op = _write_in(node, functions, set())
        if op is None:
            continue
        layer = layer_of_operation(model, node.name)
        who = f"Model '{model.name}' (its loss, or code outside of its layers)"
        if layer is not None:
            who = f"Layer '{layer.name}' ({type(layer).__name__})"
        handles = {id(tensor) for tensor in graph.get_operation_by_name(node.name).inputs}
        names = [variable_name(outer) for outer, inner in captured(graph) if id(inner) in handles]
        what = " or ".join(f"'{name}'" for name in names if name) or "a variable or table"
        raise ValueError(
            f"{who} assigns to {what} in training (op {op}), which would store private data "
            "without noise. Remove the assignment, or compute the value from public data before "
            "training."
        )


def _refuse_without_effect(forward, traced):
    """Raises ValueError if the loss depends on no trained variable, and warns if it depends on some
    only.

    A variable without influence on the loss gets noise and no signal, which costs privacy for nothing.
    """
    sources = _sources_of(traced["loss"], differentiable=True)
    pairs = zip(forward.variables, traced["values"], strict=True)
    paths = [f"'{variable.path}'" for variable, value in pairs if value.ref() not in sources]
    if not paths:
        return
    shown = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    if len(paths) == len(forward.variables):
        raise ValueError(
            f"The loss of model '{forward.model.name}' depends on none of its trained weights "
            f"({shown}), so training would spend privacy and change them only by noise. Compute "
            "the loss from outputs that depend on them, without stop_gradient or integers in "
            "between, and set layer.trainable = True for the layers that should learn."
        )
    logging.warning(
        "The loss of model '%s' does not depend on the trained weights %s. They get only noise. "
        "Freeze their layers (layer.trainable = False).",
        forward.model.name,
        shown,
    )


def _refuse_in_custom_gradients(forward, traced):
    """Raises ValueError if a custom gradient reads a trained weight that is not its argument.

    TensorFlow passes a gradient to such a weight only if it is a variable. In a pass it is a tensor.
    """
    for operation in traced["loss"].graph.get_operations():
        if not is_custom_gradient(operation):
            continue
        pairs = [*zip(operation.inputs, operation.outputs, strict=True)]
        # The function's arguments are among the inputs; their outputs have no consumers.
        arguments = {given.ref() for given, output in pairs if not output.consumers()}
        results = [given for given, output in pairs if output.consumers()]
        sources = _sources_of(*results, differentiable=True, known=arguments) - arguments
        pairs = zip(forward.variables, traced["values"], strict=True)
        paths = [f"'{variable.path}'" for variable, value in pairs if value.ref() in sources]
        if paths:
            raise ValueError(
                "A function with a custom gradient (tf.custom_gradient, tf.recompute_grad, "
                f"keras.remat) in model '{forward.model.name}' reads the trained weights "
                f"{', '.join(paths[:3])}, which are not among its arguments, so private training "
                "would miss their gradients. Make them arguments of the function. Instead of "
                "recomputation, use physical_batch_size to bound the memory, or keras.RematScope."
            )


def _write_in(node, functions, seen):
    """Returns the type of the first writing operation in a node and its functions, or None."""
    if _WRITES.match(node.op):
        return node.op
    called = [f for value in node.attr.values() for f in (value.func, *value.list.func)]
    for name in {node.op, *(function.name for function in called)} & functions.keys() - seen:
        seen.add(name)
        for inner in functions[name].node_def:
            if (op := _write_in(inner, functions, seen)) is not None:
                return op
    return None
