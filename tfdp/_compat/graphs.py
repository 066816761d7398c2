"""Analyses traced graphs: what a tensor depends on, and how to repeat parts of a graph."""

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor


def is_custom_gradient(operation) -> bool:
    """Returns whether an operation ends a `tf.custom_gradient`.

    The inputs of such an operation are the results, then the arguments.
    """
    if operation.type != "IdentityN":
        return False
    return operation.node_def.attr["_gradient_op_type"].s.startswith(b"CustomGradient-")


def captured(graph: tf.Graph) -> list:
    """Returns the pairs (outer tensor, inner tensor) that a function's graph captures.

    This is `FuncGraph.captures`; the list is empty for a plain `tf.Graph`, which captures nothing.
    """
    return list(getattr(graph, "captures", []))


def called_graph(operation: tf.Operation):
    """Returns the graph of the function that an operation calls, or None if it calls none."""
    if operation.type not in ("PartitionedCall", "StatefulPartitionedCall"):
        return None
    return operation.graph._get_function(operation.get_attr("f").name).graph


class Dependence:
    """Decides for tensors in the graph of one row's pass whether they depend on the row.

    In `tf.vectorized_map`, all tensors that depend on the row are computed from its number, which is a
    placeholder with a default. In the graph of a loop's body, every argument counts as dependent.

    Args:
        weights: Tensors that do not depend on the row, whatever they are computed from.
    """

    def __init__(self, weights=()):
        self._known = {tensor.op: False for tensor in weights}

    def __call__(self, tensor: tf.Tensor) -> bool:
        waiting = [tensor.op]
        while waiting:
            operation = waiting[-1]
            before = () if operation in self._known else _sources(operation)
            if before is None or any(self._known.get(source) for source in before):
                self._known[operation] = True
            elif unknown := [source for source in before if source not in self._known]:
                waiting.append(unknown[0])
                continue
            self._known.setdefault(operation, False)
            waiting.pop()
        return self._known[tensor.op]


def _draws(operation):
    """Whether an operation has a state, such as a generator, so that its results differ by row."""
    return operation.op_def.is_stateful and operation.type not in _READS


# Operations that TensorFlow considers stateful, because they read a variable.
_READS = ("ReadVariableOp", "ResourceGather", "VarHandleOp")


def _sources(operation):
    """The operations that an operation takes its inputs from; None if it depends on the row itself."""
    if operation.type == "PlaceholderWithDefault" or _draws(operation):
        return None
    if operation.type != "Placeholder":
        return [tensor.op for tensor in operation.inputs]
    for outside, inside in captured(operation.graph):
        if inside.op is operation:
            # A tensor captured from outside of all graphs is a constant, or the handle of a variable.
            return [outside.op] if tf.is_symbolic_tensor(outside) else []
    return None  # an argument of the graph


def reached(tensors: list) -> set:
    """Returns the operations that the given tensors of a graph reach, with those they come from."""
    found, waiting = {tensor.op for tensor in tensors}, [*tensors]
    while waiting:
        new = {*waiting.pop().consumers()} - found
        found |= new
        waiting += [output for operation in new for output in operation.outputs]
    return found


class NotReplayable(Exception):
    """A graph has an operation that cannot be repeated by itself."""


def replayed(wanted: list, known: dict) -> list:
    """Returns the values of tensors of a graph, by repeating the operations that they come from.

    The operations are repeated in the graph that is being built. Custom gradients
    (`tf.custom_gradient`, as in `tf.nn.silu`) are lost: derivatives are those of the operations.

    Args:
        wanted: Tensors of one graph.
        known: {reference to tensor of that graph: value}; the operations before these are not
            repeated.

    Raises:
        NotReplayable: If an operation calls a function, or an argument of the graph has no value.
    """
    values = dict(known)
    for operation in _needed(wanted, known):
        results = _run(operation, [values[tensor.ref()] for tensor in operation.inputs])
        for tensor, result in zip(operation.outputs, results, strict=True):
            values.setdefault(tensor.ref(), result)
    return [values[tensor.ref()] for tensor in wanted]


def outside(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the value of a tensor in the graph that is being built.

    Args:
        tensor: A tensor of that graph, or of a graph inside of it, where it may depend only on
            captured tensors.
    """
    while tensor.graph is not tf.compat.v1.get_default_graph():
        known = {inner.ref(): outer for outer, inner in captured(tensor.graph)}
        (tensor,) = replayed([tensor], known)
    return tensor


def _needed(wanted, known):
    """The operations that tensors come from, in the order in which they were traced."""
    found, waiting = set(), [tensor for tensor in wanted if tensor.ref() not in known]
    while waiting:
        operation = waiting.pop().op
        if operation not in found:
            found.add(operation)
            waiting += [tensor for tensor in operation.inputs if tensor.ref() not in known]
    return [one for one in wanted[0].graph.get_operations() if one in found] if found else []


def _run(operation, inputs):
    definition = operation.op_def
    calls = any("func" in attribute.type for attribute in definition.attr)
    if calls or operation.type == "Placeholder":
        raise NotReplayable(operation.type)
    # Attributes that TensorFlow adds, such as a custom gradient, begin with an underscore.
    attributes = operation.node_def.attr
    own = {attribute.name: attributes[attribute.name] for attribute in definition.attr}
    dtypes = [output.dtype for output in operation.outputs]
    return pfor._create_op(operation.type, inputs, dtypes, own).outputs
