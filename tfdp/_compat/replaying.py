"""Runs parts of a traced graph again, with other values for some of its tensors."""

import inspect

import tensorflow as tf

from tfdp._compat.tensorflow import captured


class NotReplayable(Exception):
    """A graph has an operation that cannot be run again by itself."""


def replayed(wanted: list, known: dict) -> list:
    """Returns the values of tensors of a graph, by the operations that they come from.

    The operations are run anew in the graph that is being built. Gradients of functions
    (`tf.custom_gradient`, as in `tf.nn.silu`) are forgotten: derivatives are those of the operations.

    Args:
        wanted: tensors of one graph.
        known: {reference to tensor of that graph: value}; what these come from is not run.

    Raises:
        NotReplayable: an operation calls a function, or an argument of the graph has no value.
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
        tensor: of that graph, or of a graph inside of it; there it depends on what is captured only.
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
    if operation.type == "Const":
        return [tf.constant(tf.make_ndarray(operation.get_attr("value")))]
    definition, left = operation.op_def, iter(inputs)
    kinds = {attr.name: attr.type for attr in definition.attr}
    if "func" in kinds.values():
        raise NotReplayable(operation.type)
    arguments, told = {}, set()
    for argument in definition.input_arg:
        several = argument.number_attr or argument.type_list_attr
        if several:
            count = operation.get_attr(several)
            count = count if isinstance(count, int) else len(count)
            arguments[argument.name] = [next(left) for _ in range(count)]
        else:
            arguments[argument.name] = next(left)
        told |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
    for name in kinds:
        if name not in told:
            arguments[name] = operation.get_attr(name)
    run = getattr(tf.raw_ops, operation.type, None)
    if run is None or operation.type == "Placeholder":
        raise NotReplayable(operation.type)
    return tf.nest.flatten(run(**_renamed(arguments, inspect.signature(run).parameters)))


def _renamed(arguments, names):
    """Python's functions have other names for a few arguments, such as `axis` for `split_dim`."""
    spare = (name for name in names if name not in arguments and name != "name")
    return {name if name in names else next(spare): v for name, v in arguments.items()}
