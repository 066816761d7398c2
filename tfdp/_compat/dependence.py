"""Tells which tensors of a pass depend on the row, and which on weights and constants only."""

import tensorflow as tf

from tfdp._compat.tensorflow import captured


class Dependence:
    """Answers, for tensors in the graph of one row's pass, whether they depend on the row.

    In `tf.vectorized_map`, everything that does comes from the number of the row, which is a
    placeholder with a default. In the graph of a loop's body, every argument counts as depending on it.

    Args:
        weights: tensors that do not depend on the row, whatever they are made of.
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
    """Whether an operation has a state, such as that of a random generator, and so differs by rows."""
    return operation.op_def.is_stateful and operation.type not in _READS


# Operations that TensorFlow counts among those with a state, because they read a variable.
_READS = ("ReadVariableOp", "ResourceGather", "VarHandleOp")


def _sources(operation):
    """The operations that an operation takes its inputs from; None if it depends on the row itself."""
    if operation.type == "PlaceholderWithDefault" or _draws(operation):
        return None
    if operation.type != "Placeholder":
        return [tensor.op for tensor in operation.inputs]
    for outside, inside in captured(operation.graph):
        if inside.op is operation:
            # What is captured from outside of all graphs is a constant, or the handle of a variable.
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
