"""Refuses metrics that write into anything but their own variables.

Metrics see private data without noise. In a pass that is differentiated they are as after a reset, so
their own variables are no way from the data to a weight. Whatever else they write into may be one: a
weight, an optimizer's momentum or learning rate, a variable that the loss or a schedule reads.

In a graph all ops of the metrics are inspected. Code that is executed eagerly, or by
`tf.py_function`, shows no ops: then weights and the optimizer's variables are compared, and nothing
else is seen.
"""

import contextlib

import numpy as np
import tensorflow as tf

from tfdp._compat.keras import all_metrics
from tfdp._compat.tensorflow import captured, variable_name
from tfdp.gradients.op_effects import Effect, effect_of
from tfdp.gradients.random_state import seed_states

_EXPECTED = (
    "which would keep what it sees of private examples without any noise. Expected metrics that write "
    "into variables of their own only (keras.metrics.Metric, add_variable), and that the model tracks "
    "as its attributes."
)


@contextlib.contextmanager
def metrics_keep_to_themselves(model):
    """Context for the code that updates a model's metrics with a lot.

    Args:
        model: a compiled Keras model.

    Raises:
        ValueError: the code wrote into something else than metrics.
    """
    if tf.executing_eagerly():
        variables = _steering(model)
        before = [v.numpy() for v in variables]
        yield
        for variable, old in zip(variables, before, strict=True):
            if not np.array_equal(variable.numpy(), old, equal_nan=old.dtype.kind == "f"):
                _refuse(f"'{variable.path}'")
        return
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    yield
    _inspect(graph, graph.get_operations()[first:], model)


def _refuse(what):
    raise ValueError(f"A metric (or compute_metrics) writes into {what}, {_EXPECTED}")


def _steering(model):
    """The weights of a model and its optimizer's variables."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.weights, *([] if optimizer is None else optimizer.variables)]
    return [v for v in variables if isinstance(v.value, tf.Variable)]


def _inspect(graph, operations, model):
    allowed = _handles(graph, [v for metric in all_metrics(model) for v in metric.variables])
    seeds = _handles(graph, seed_states(model))
    functions, new = None, set(operations)
    for operation in operations:
        effect = effect_of(operation.type)
        if effect is Effect.LOOK_INSIDE:
            if functions is None:
                functions = {f.signature.name: f for f in graph.as_graph_def().library.function}
            writes = _written_inside(operation.node_def, functions)
        else:
            writes = {operation.type} if effect is Effect.WRITES else set()
        if not writes:
            continue
        handles = [t for t in operation.inputs if t.dtype == tf.resource]
        assigns = all(op.startswith("Assign") or "Scatter" in op for op in writes)
        if handles and assigns and all(id(handle) in allowed for handle in handles):
            continue
        moves_on = operation.type == "AssignVariableOp" and id(handles[0]) in seeds
        if moves_on and _counts(operation.inputs[1], seeds, new):
            continue
        others = {id(handle) for handle in handles} - allowed
        names = [
            variable_name(outside) for outside, inside in captured(graph) if id(inside) in others
        ]
        _refuse(f"'{names[0]}'" if names and names[0] else f"something (op '{operation.name}')")


def _handles(graph, variables):
    """The Python ids of the handles of variables, outside of a graph and inside."""
    handles = {id(v.value.handle) for v in variables if isinstance(v.value, tf.Variable)}
    return handles | {id(inside) for outside, inside in captured(graph) if id(outside) in handles}


def _written_inside(node, functions):
    """The types of all ops that write in the functions that a node calls."""
    waiting, seen, found = [node], set(), set()
    while waiting:
        for attribute in waiting.pop().attr.values():
            for function in (attribute.func, *attribute.list.func):
                if not function.name or function.name in seen:
                    continue
                seen.add(function.name)
                if function.name not in functions:
                    found.add(function.name)
                    continue
                body = functions[function.name].node_def
                found |= {n.op for n in body if effect_of(n.op) is Effect.WRITES}
                waiting += body
    return found


def _counts(value, seeds, new):
    """Whether a value is computed from random state and constants only."""
    waiting, seen = [value], set()
    while waiting:
        operation = waiting.pop().op
        if operation in seen or operation.type == "Const":
            continue
        seen.add(operation)
        if operation.type == "ReadVariableOp":
            if id(operation.inputs[0]) not in seeds:
                return False
        elif operation not in new or not operation.inputs:
            return False
        else:
            waiting += operation.inputs
    return True
